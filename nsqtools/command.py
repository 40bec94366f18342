"""The process around a tool: its flags, log and signals, and its exit status.

A tool's `main` is one call of `run_tool()`. The tool itself is an `async def run(options, stop)` that returns the exit
status. All messages go to stderr; stdout carries data only.

The first SIGINT or SIGTERM sets `stop`, and the tool shuts down cleanly with status 0. A second one ends it at once,
with 130 or 143; unfinished work is then in the same state as after a `kill -9`. A signal during the start is held until
`stop` can be set (`nsqcommon.entry`).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from nsqcommon.entry import HELD_SIGNALS, release_signals
from nsqcommon.options import HelpRequested, UsageError, read_flags
from nsqcommon.startup import StartupError
from nsqcommon.version import DISTRIBUTION, NSQ_VERSION, suite_version

log = logging.getLogger(__name__)

STOPPING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
STATUS_OF_A_CLOSED_PIPE: Final = 128 + signal.SIGPIPE

EXIT_STATUSES: Final = """\
Write a flag with one dash or two, as --flag=value or --flag value.

Exit status: 0 after a normal end, including SIGINT or SIGTERM; 1 if a setting is invalid or something failed (see the
last line on stderr); 2 if the command line is wrong; 130 or 143 after a second SIGINT or SIGTERM; 141 if the reader of
the output is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The base class of the tools' option tables."""

    def check_first(self) -> None:
        """Check the settings that are checked even with --version. Raise StartupError."""

    def check(self) -> None:
        """Check these settings. Raise StartupError with the line to print."""

    @property
    def must_connect(self) -> bool:
        """True if the tool exits when it can't reach an nsqd at the start."""
        return True


# Seconds that running work may take after a signal. `docker stop` kills after ten.
LAST_ANSWERS: Final = 5.0

OptionsT = TypeVar("OptionsT", bound=ToolOptions)


class ToolFailed(Exception):
    """The tool can't go on. The message is the one line to print."""


class OutputClosed(Exception):
    """The reader of our standard output is gone."""


def run_tool(
    program: str,
    options_class: type[OptionsT],
    run: Callable[[OptionsT, trio.Event], Awaitable[int]],
    *,
    argv: Sequence[str] | None = None,
    about: str = "",
    stopped_by: Iterable[signal.Signals] = STOPPING_SIGNALS,
    left_held: Iterable[signal.Signals] = (),
    configure_logging: Callable[[OptionsT], None] | None = None,
) -> int:
    """Parse the flags, run `run(options, stop)` under trio, and return the exit status (see EXIT_STATUSES).

    `left_held` are signals that `run` unblocks itself, once it can handle them.
    """
    log_to_stderr(GoFormatter())
    try:
        flags = read_flags(
            options_class,
            sys.argv[1:] if argv is None else argv,
            program,
            closing="\n\n".join(filter(None, (about.strip(), EXIT_STATUSES))),
        )
        if flags.rest:
            raise StartupError(f"unknown arguments: [{' '.join(flags.rest)}]")
        flags.options.check_first()
        if flags.wants_version:
            sys.stdout.write(f"{program} v{NSQ_VERSION} ({DISTRIBUTION} {suite_version()})\n")
            return 0
        flags.options.check()
    except HelpRequested as request:
        sys.stdout.write(f"{request.usage}\n")
        return 0
    except UsageError as error:
        sys.stderr.write(f"{error.line(program)}\n")
        return error.exit_status
    except StartupError as error:
        log.critical("%s", error)
        return 1
    if configure_logging is not None:
        configure_logging(flags.options)
    if flags.options.must_connect:
        _hide_first_connect_failures()
    return _run(program, run, flags.options, frozenset(stopped_by), frozenset(left_held))


def _run(
    program: str,
    run: Callable[[OptionsT, trio.Event], Awaitable[int]],
    options: OptionsT,
    stopped_by: frozenset[signal.Signals],
    left_held: frozenset[signal.Signals],
) -> int:
    async def main() -> int:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(_heed_signals, stopped_by, left_held, stop)
            status = await run(options, stop)
            nursery.cancel_scope.cancel()
        return status

    try:
        return trio.run(main)
    except BaseException as error:
        return _status_of(program, error)


def _status_of(program: str, error: BaseException) -> int:
    """Report an error and return the exit status.

    If several tasks fail at once, it's usually for the same reason, so only one line is printed.
    """
    errors = list(_leaves(error))
    if any(isinstance(it, OutputClosed) for it in errors):
        return STATUS_OF_A_CLOSED_PIPE
    if isinstance(errors[0], KeyboardInterrupt):  # a signal after trio has restored the default handlers
        return 128 + signal.SIGINT
    if all(isinstance(it, ToolFailed | StartupError) for it in errors):
        log.critical("%s", errors[0])
    else:
        log.critical("%s failed", program, exc_info=error)
    return 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the error itself, or all errors in nested groups."""
    if isinstance(error, BaseExceptionGroup):
        for it in error.exceptions:
            yield from _leaves(it)
    else:
        yield error


async def _heed_signals(
    stopped_by: frozenset[signal.Signals],
    left_held: frozenset[signal.Signals],
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(*stopped_by) as arrivals:
        release_signals(HELD_SIGNALS - left_held)
        task_status.started()
        async for number in arrivals:
            if stop.is_set():
                os._exit(128 + number)
            stop.set()


async def run_until(stop: trio.Event, job: Callable[[], Awaitable[object]], *, grace: float = 0.0) -> bool:
    """Run the job, and cancel it `grace` seconds after `stop` is set. Return True if the job ended by itself.

    The job's exceptions are raised unchanged, not in a group.
    """
    ended = False
    trouble: Exception | None = None

    async def cancel_on_stop(scope: trio.CancelScope) -> None:
        await stop.wait()
        scope.deadline = trio.current_time() + grace

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_on_stop, nursery.cancel_scope)
        try:
            await job()
            ended = True
        except Exception as error:
            trouble = error
        nursery.cancel_scope.cancel()
    if trouble is not None:
        raise trouble
    return ended


# The log


_CLIENT_WORDS: Final = {logging.DEBUG: "DBG", logging.INFO: "INF", logging.WARNING: "WRN", logging.ERROR: "ERR"}


def log_to_stderr(formatter: logging.Formatter, *, level: int = logging.INFO) -> None:
    """Set up logging: our own lines from `level`, the client library's from INFO, other libraries' from WARNING."""
    root = logging.getLogger()
    root.handlers[:] = [_handler(formatter)]
    root.setLevel(logging.WARNING)
    for package in ("nsqcommon", "nsqtools", "__main__"):
        logging.getLogger(package).setLevel(level)
    client = logging.getLogger("nsqclient")
    client.handlers[:] = [_handler(ClientFormatter())]
    client.setLevel(logging.INFO)
    client.propagate = False


def _hide_first_connect_failures() -> None:
    """Drop the client library's lines about failures to connect, until the first connection.

    A tool that must connect exits with its own line about the failure.
    """
    is_connected = False

    def may_pass(record: logging.LogRecord) -> bool:
        nonlocal is_connected
        is_connected |= getattr(record, "event", "") == "Connected"
        return is_connected or getattr(record, "event", "") != "ConnectFailed"

    for handler in logging.getLogger("nsqclient").handlers:
        handler.addFilter(may_pass)


def _handler(formatter: logging.Formatter) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    return handler


class GoFormatter(logging.Formatter):
    """Lines in the form of Go's `log`: `YYYY/MM/DD HH:MM:SS text` in local time."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        line = f"{moment} {self._text(record)}".replace("\r", "\\r").replace("\n", "\\n")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line

    def _text(self, record: logging.LogRecord) -> str:
        return record.getMessage()


class ClientFormatter(GoFormatter):
    """Lines in the form of NSQ's client library, with a level: `... INF  [topic/channel] (address) text`."""

    def _text(self, record: logging.LogRecord) -> str:
        return f"{_CLIENT_WORDS.get(record.levelno, 'ERR'):<4} {record.getMessage()}"
