"""The process around a daemon: its options, its log, signals, limits, and what it says as it ends.

A daemon's `main` is one call of `run_daemon()`; everything else it builds in its own `run(options)`.

Signals: SIGINT and SIGTERM stop it gracefully, and so does SIGHUP, which kills NSQ with everything it had in
memory. One that comes during the start is heeded once the daemon is up; a second one changes nothing, so that an
impatient Ctrl-C cannot cut a flush short (`common.entry` says how they are held until then). SIGQUIT prints where every thread is and ends at once. SIGUSR1 and
SIGUSR2 are ignored, as in NSQ.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import platform
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import FrameType
from typing import Final, TypeVar

import trio

from common import logs, options
from common.entry import HELD_SIGNALS, hold_signals, release_signals
from common.memory import return_unused, share_one_heap
from common.passwords import mask_passwords
from common.startup import StartupError
from common.version import NSQ_VERSION

log = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound=options.BaseOptions)

# Nothing hot is cyclic, so the collector finds next to nothing, but it costs in proportion to what lives:
# with Python's own thresholds more than half of the throughput once a backlog is in memory.
GC_THRESHOLDS: Final = (100_000, 50, 100)
COLLECT_INTERVAL: Final = 60.0  # seconds
OLD_ROUNDS: Final = 10  # of these intervals until old objects are looked at, too
SMALL_HEAP: Final = 250_000  # blocks of memory since the start: looking at all of them takes about ten milliseconds


def run_daemon(
    program: str,
    options_class: type[OptionsT],
    run: Callable[[OptionsT], Awaitable[None]],
    *,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Runs `run(options)` under trio until it returns, and gives the exit status.

    0: it ended, or `--help` or `--version` was asked for. 1: it could not start, or it failed; the last line of the
    log says why. 2: the command line is wrong.
    """
    # What is said before the options are known has NSQ's fixed form.
    logs.configure(prefix=f"[{program}] ", level=logs.LogLevel.INFO)
    try:
        chosen = options.parse(
            options_class,
            sys.argv[1:] if argv is None else argv,
            os.environ if environ is None else environ,
            program,
        )
    except options.HelpRequested as request:
        sys.stderr.write(f"{request.usage}\n")
        return 0
    except options.VersionRequested:
        sys.stdout.write(f"{version_line(program)}\n")
        return 0
    except options.UsageError as error:
        sys.stderr.write(f"{mask_passwords(error.message)}\n{error.usage}\n")
        return error.exit_status
    except StartupError as error:
        log.critical("%s", error)
        return 1
    logs.configure(prefix=chosen.log_prefix, level=chosen.log_level, log_format=chosen.log_format)
    logs.leave_out_what_is_never_shown()
    raise_file_limit()
    share_one_heap()
    tune_garbage_collection()
    _heed_signals()
    return _run(program, run, chosen)


def version_line(program: str) -> str:
    """`nsqd v1.3.0 (built w/python3.11.7)`: what `--version` says, and the first line of the log."""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"


async def wait_for_signal() -> signal.Signals:
    """Returns with the first signal that asks the daemon to stop; later ones are ignored until the process ends."""
    for number in _stopping_signals():
        # What the receiver puts back when it is left: a second signal must not find the default action.
        signal.signal(number, _ignore)
    with trio.open_signal_receiver(*_stopping_signals()) as arrivals:
        release_signals()
        async for arrived in arrivals:
            return signal.Signals(arrived)
    raise AssertionError("the receiver of signals never ends by itself")


def tune_garbage_collection() -> None:
    """Lets the collector look seldom, and never again at what exists now.

    Called before the start, when all modules are loaded; worth calling again when a daemon has built what it keeps.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def raise_file_limit() -> None:
    """As many open files as we may have: a connection is one, and so is a topic's log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("limit of open files stays at %d: %s", soft, error)


def _run(program: str, run: Callable[[OptionsT], Awaitable[None]], chosen: OptionsT) -> int:
    try:
        trio.run(_run_with_collector, run, chosen)
    except BaseException as error:
        refusal = _startup_error_in(error)
        if refusal is None:
            log.critical("%s failed", program, exc_info=error)
        else:
            log.critical("failed to instantiate %s - %s", program, refusal)
        return 1
    return 0


async def _run_with_collector(run: Callable[[OptionsT], Awaitable[None]], chosen: OptionsT) -> None:
    # No nursery, which would wrap what `run` raises; trio cancels a system task when `run` has ended.
    trio.lowlevel.spawn_system_task(_collect_garbage)
    await run(chosen)


async def _collect_garbage() -> None:
    """Collect by the clock what a quiet daemon would keep for hours, until a hundred thousand objects have piled up.

    httpx leaves a reference cycle behind each connection or call: a kilobyte or more. Young objects are at most as many as
    the threshold says, so this takes a few milliseconds. What was open for minutes has grown old by the time it is garbage;
    looking for that takes as long as there is data, so it is done seldom, and only in a small heap. There the system also
    gets back what the C library keeps between pieces that are in use, which otherwise adds up over the hours.
    """
    at_start = sys.getallocatedblocks()
    rounds = 0
    while True:
        await trio.sleep(COLLECT_INTERVAL)
        rounds += 1
        is_small = sys.getallocatedblocks() - at_start < SMALL_HEAP
        if is_small and rounds % OLD_ROUNDS == 0:
            gc.collect()
        else:
            survived = gc.get_count()[1]  # collections that objects of the middle generation have seen at most
            gc.collect(1 if survived > gc.get_threshold()[1] else 0)
        if is_small:
            return_unused()


def _startup_error_in(error: BaseException) -> StartupError | None:
    """The StartupError that this is, or that nurseries have wrapped, where it is the only trouble."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, StartupError) else None


def _stopping_signals() -> list[signal.Signals]:
    # nohup starts us with SIGHUP ignored, and means it.
    return [it for it in HELD_SIGNALS if it != signal.SIGHUP or signal.getsignal(it) is not signal.SIG_IGN]


def _heed_signals() -> None:
    # They stay pending until wait_for_signal(): between the first accepted message and that call, the default
    # action would lose it.
    hold_signals()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, _dump_and_die)


def _dump_and_die(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback(all_threads=True)
    os._exit(2)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which children would inherit."""
