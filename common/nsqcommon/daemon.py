"""The process around a daemon: its options, log, signals, limits and exit status.

A daemon's `main` just calls `run_daemon()`, and the daemon's `run(options)` builds everything else.

SIGINT and SIGTERM stop the daemon gracefully. So does SIGHUP, which kills NSQ's daemons, so that they lose all messages
in memory. A signal that arrives during startup takes effect once the daemon is up (`nsqcommon.entry` explains how we
hold signals until then). A second signal changes nothing, so an impatient Ctrl-C can't interrupt a flush. SIGQUIT
prints the stack of every thread and ends the process immediately. We ignore SIGUSR1 and SIGUSR2, as NSQ does, unless
the daemon handles them itself: for example, nsqd drains on SIGUSR1 (nsqd/drain.py).
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
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

import trio

from nsqcommon import logs, options
from nsqcommon.entry import HELD_SIGNALS, hold_signals, release_signals
from nsqcommon.memory import return_unused, share_one_heap
from nsqcommon.passwords import mask_passwords
from nsqcommon.startup import StartupError, TakenOver
from nsqcommon.version import DISTRIBUTION, NSQ_VERSION, suite_version

log = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound=options.BaseOptions)

# Nothing on the hot path is cyclic, so the collector finds next to nothing, but its cost grows with the number of live
# objects. With Python's own thresholds, it costs more than half of the throughput once a backlog is in memory. Each
# collection is also a pause for all clients. A new object takes up to a microsecond on a busy machine, because the
# collector also visits everything that it refers to, twice. So we collect after 2,500 new objects, and every other time
# we include the survivors of the previous collection, so that it's 5,000 objects in all. A million old objects, as many
# as 10,000 topics have, take half a second, so we never collect them automatically: see `collect_garbage`.
#
# With a lower first threshold, a number of objects that goes up and down (for example, with 0 to 1,000 messages in
# flight) would trigger collections that find nothing. A higher second threshold is no use, because objects that survive
# two collections don't belong to a request.
GC_THRESHOLDS: Final = (2_500, 0, 1_000_000_000)
_MOST_FILES_OF_MACOS: Final = 10_240  # its hard limit is "unlimited", but the soft one can't be
COLLECT_INTERVAL: Final = 60.0  # seconds
OLD_ROUNDS: Final = 10  # intervals after which we collect old objects too
SMALL_HEAP: Final = 100_000  # blocks since the start; collecting all takes 5 ms, or 16 if memory is slow
TRIMMED_HEAP: Final = 250_000  # blocks; in a larger heap, we leave the gaps between them
_blocks_at_start = 0


def run_daemon(
    program: str,
    options_class: type[OptionsT],
    run: Callable[[OptionsT], Awaitable[None]],
    *,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run `run(options)` under trio until it returns, and return the exit status.

    0: the daemon ended normally, or printed `--help` or `--version`. 1: it could not start, or it failed; the last line
    of the log says why. 2: the command line is wrong. 3: another process goes on in its place, so don't start it again.
    """
    # Until we know the options, log in NSQ's format.
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
        sys.stderr.write(f"{mask_passwords(error.line(program))}\n")
        return error.exit_status
    except StartupError as error:
        log.critical("%s", error)
        return 1
    logs.configure(prefix=chosen.log_prefix, level=chosen.log_level, log_format=chosen.log_format)
    name_process(program)
    logs.skip_unused_record_fields()
    raise_file_limit()
    share_one_heap()
    tune_garbage_collection()
    _set_up_signals()
    return _run(program, run, chosen)


def name_process(name: str) -> None:
    """Set the name that `ps`, `top` and `pgrep` show, of up to 15 characters; otherwise it may be Python's."""
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")


def version_line(program: str) -> str:
    """Return the line for `--version` and the start of the log.

    For example, `nsqd v1.3.0 (built w/python3.11.7, nsq-suite 0.2.0)`: first NSQ's version, which clients check and
    scripts parse, and then ours.
    """
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()}, {DISTRIBUTION} {suite_version()})"


async def wait_for_signal() -> signal.Signals:
    """Wait for a signal to stop, and return it. Later ones are ignored until the process ends.

    If it is cancelled, signals are held again, as they are during a start.
    """
    for number in _stopping_signals():
        # The receiver restores this handler when it closes, so a second signal can't trigger the default action then.
        signal.signal(number, _ignore)
    with trio.open_signal_receiver(*_stopping_signals()) as arrivals:
        release_signals()
        is_cancelled = True
        try:
            async for arrived in arrivals:
                is_cancelled = False
                return signal.Signals(arrived)
        finally:
            if is_cancelled:
                hold_signals()  # before the receiver closes, which raises those again that we haven't taken
    raise AssertionError("the receiver of signals never ends by itself")


async def first_of(*functions: Callable[[], Awaitable[object]]) -> None:
    """Run all functions until the first one returns, and cancel the others."""

    async def run(function: Callable[[], Awaitable[object]]) -> None:
        await function()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(run, function)


def tune_garbage_collection() -> None:
    """Configure the garbage collector to run rarely, and to skip all objects that exist now.

    `run_daemon` calls this once all modules are loaded. A daemon may call it again once it has built its long-lived
    state.
    """
    global _blocks_at_start  # the process has only one collector as well
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    _blocks_at_start = sys.getallocatedblocks()


def blocks_since_start() -> int:
    """Return how far the number of allocated memory blocks has grown since `tune_garbage_collection`.

    That's an upper bound on the new objects that the collector tracks, because each takes at least one block. There may
    be far fewer: strings, numbers and bytes take blocks too. But to count tracked objects, the interpreter would have
    to visit all of them. It counts blocks page by page, in a fraction of a millisecond.
    """
    return sys.getallocatedblocks() - _blocks_at_start


def is_heap_small() -> bool:
    return blocks_since_start() < SMALL_HEAP


def collect_garbage() -> None:
    """Collect all garbage if the heap is small, which takes milliseconds. Otherwise collect only young objects."""
    if is_heap_small():
        gc.collect()
    else:
        gc.collect(1)


def raise_file_limit() -> None:
    """Raise the limit on open files as far as allowed, because connections and topics' logs count as open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    for allowed in (hard, max(soft, _MOST_FILES_OF_MACOS)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError) as error:
            refusal = error
        else:
            return
    log.warning("limit of open files stays at %d: %s", soft, refusal)


def _run(program: str, run: Callable[[OptionsT], Awaitable[None]], chosen: OptionsT) -> int:
    try:
        trio.run(_run_with_collector, run, chosen)
    except BaseException as error:
        refusal = _startup_error_in(error)
        if refusal is None:
            log.critical("%s failed", program, exc_info=error)
            return 1
        what = "%s stops - %s" if isinstance(refusal, TakenOver) else "failed to instantiate %s - %s"
        log.critical(what, program, refusal)
        return refusal.exit_status
    return 0


async def _run_with_collector(run: Callable[[OptionsT], Awaitable[None]], chosen: OptionsT) -> None:
    # Not in a nursery, because it would wrap the exceptions of `run`. trio cancels a system task when `run` ends.
    trio.lowlevel.spawn_system_task(_collect_garbage)
    await run(chosen)


async def _collect_garbage() -> None:
    """Collect garbage every minute. A quiet daemon would otherwise keep it for hours.

    By itself, the collector runs only after 2,500 new objects, and httpx leaves a reference cycle of a kilobyte or more
    for each connection or call. Collecting young objects takes a few milliseconds, because the thresholds limit their
    number. Objects that live for minutes are old before they become garbage. Collecting old objects takes time in
    proportion to all live ones, so we do it rarely, and only while the heap is small. Unless the heap is large, we also
    return the gaps between allocations to the system, because they would add up over the hours.
    """
    rounds = 0
    while True:
        await trio.sleep(COLLECT_INTERVAL)
        rounds += 1
        if rounds % OLD_ROUNDS == 0 and is_heap_small():
            gc.collect()
        else:
            survived = gc.get_count()[1]  # collections of the youngest generation since the last one of the middle
            gc.collect(1 if survived > gc.get_threshold()[1] else 0)
        if blocks_since_start() < TRIMMED_HEAP:
            return_unused()


def _startup_error_in(error: BaseException) -> StartupError | None:
    """Unwrap groups of a single exception. Return the innermost error if it's a StartupError, or None."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, StartupError) else None


def _stopping_signals() -> list[signal.Signals]:
    # nohup starts its program with SIGHUP ignored, and it must stay ignored.
    return [it for it in HELD_SIGNALS if it != signal.SIGHUP or signal.getsignal(it) is not signal.SIG_IGN]


def _set_up_signals() -> None:
    # Stopping signals stay pending until wait_for_signal(), because their default action would lose accepted messages.
    hold_signals()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, _dump_and_die)


def _dump_and_die(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback(all_threads=True)
    os._exit(2)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. We use this instead of SIG_IGN, because child processes would inherit that."""
