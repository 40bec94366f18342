"""The process around a daemon: its options, log, signals and limits, and its last words.

A daemon's `main` is one call of `run_daemon()`; it builds everything else in its own `run(options)`.

SIGINT and SIGTERM stop the daemon gracefully. So does SIGHUP, which kills NSQ together with all that it holds in
memory. A signal that arrives during the start takes effect once the daemon is up (`nsqcommon.entry` says how signals are
held until then). A second one changes nothing, so an impatient Ctrl-C cannot cut a flush short. SIGQUIT prints the
stack of every thread and ends the process at once. SIGUSR1 and SIGUSR2 are ignored, as in NSQ, unless the daemon itself
receives them: nsqd drains on SIGUSR1 (nsqd/drain.py).
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

from nsqcommon import logs, options
from nsqcommon.entry import HELD_SIGNALS, hold_signals, release_signals
from nsqcommon.memory import return_unused, share_one_heap
from nsqcommon.passwords import mask_passwords
from nsqcommon.startup import StartupError
from nsqcommon.version import NSQ_VERSION

log = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound=options.BaseOptions)

# Nothing on the hot path is cyclic, so the collector finds next to nothing, yet its cost grows with the number of live
# objects: with Python's own thresholds it takes more than half of the throughput once a backlog is in memory. And each
# collection is a pause for everybody. New objects take up to a microsecond each on a busy machine, because the collector
# also looks at each object that they refer to, twice. So it runs after 2,500, and every other time it looks at the
# survivors of the last time as well: at 5,000 together. A million old objects, which 10,000 topics have, take half a
# second. They are never collected automatically: see `collect_garbage`.
#
# A lower first threshold would let work that goes up and down, such as 1,000 messages in flight and 0, begin collections
# that find nothing. A higher second one has no use: what survives two collections is no child of a request.
GC_THRESHOLDS: Final = (2_500, 0, 1_000_000_000)
_MOST_FILES_OF_MACOS: Final = 10_240  # its hard limit is "unlimited", and the soft one may not be
COLLECT_INTERVAL: Final = 60.0  # seconds
OLD_ROUNDS: Final = 10  # intervals after which old objects are collected, too
SMALL_HEAP: Final = 100_000  # blocks since the start; collecting all of them takes 5 ms, and 16 where memory is slow
TRIMMED_HEAP: Final = 250_000  # up to so many blocks, gaps between them are returned to the system
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

    0: the daemon ended normally, or `--help` or `--version` was asked for. 1: it could not start, or it failed; the
    last line of the log says why. 2: the command line is wrong.
    """
    # Until the options are known, lines have NSQ's fixed form.
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
    logs.skip_unused_record_fields()
    raise_file_limit()
    share_one_heap()
    tune_garbage_collection()
    _heed_signals()
    return _run(program, run, chosen)


def version_line(program: str) -> str:
    """Return the line of `--version` and of the start of the log: `nsqd v1.3.0 (built w/python3.11.7)`."""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"


async def wait_for_signal() -> signal.Signals:
    """Return the first signal that asks the daemon to stop; later ones are ignored until the process ends."""
    for number in _stopping_signals():
        # The receiver restores this handler when it closes. A second signal must not find the default action then.
        signal.signal(number, _ignore)
    with trio.open_signal_receiver(*_stopping_signals()) as arrivals:
        release_signals()
        async for arrived in arrivals:
            return signal.Signals(arrived)
    raise AssertionError("the receiver of signals never ends by itself")


async def first_of(*functions: Callable[[], Awaitable[object]]) -> None:
    """Run all of them until one returns."""

    async def run(function: Callable[[], Awaitable[object]]) -> None:
        await function()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(run, function)


def tune_garbage_collection() -> None:
    """Make the collector run rarely, and never again examine the objects that exist now.

    `run_daemon` calls this once all modules are loaded. A daemon may call it again when it has built its long-lived
    state.
    """
    global _blocks_at_start  # the collector, too, is one for the whole process
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    _blocks_at_start = sys.getallocatedblocks()


def blocks_since_start() -> int:
    """Return how many blocks of memory are allocated, without those of the start.

    The interpreter knows the number of objects that its collector tracks only by visiting all of them, but each is at
    least one block, and blocks are counted by the page, in a fraction of a millisecond. Strings, numbers and bytes are
    blocks that it does not track, so there may be far fewer such objects.
    """
    return sys.getallocatedblocks() - _blocks_at_start


def is_heap_small() -> bool:
    return blocks_since_start() < SMALL_HEAP


def collect_garbage() -> None:
    """Collect all garbage if that takes some milliseconds, and otherwise only what has become garbage while it was young."""
    if is_heap_small():
        gc.collect()
    else:
        gc.collect(1)


def raise_file_limit() -> None:
    """Raise the limit of open files to the highest value allowed: each connection and each topic's log is a file."""
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
        else:
            log.critical("failed to instantiate %s - %s", program, refusal)
        return 1
    return 0


async def _run_with_collector(run: Callable[[OptionsT], Awaitable[None]], chosen: OptionsT) -> None:
    # Not in a nursery, which would wrap the exceptions of `run`. trio cancels a system task once `run` has ended.
    trio.lowlevel.spawn_system_task(_collect_garbage)
    await run(chosen)


async def _collect_garbage() -> None:
    """Collect by the clock the garbage that a quiet daemon would otherwise keep for hours.

    Left alone, the collector runs only after 2,500 new objects, and httpx leaves a reference cycle of a kilobyte or more
    behind each connection or call. Collecting young objects takes a few milliseconds, as the thresholds bound their
    number. Objects that lived for minutes have become old before they are garbage. Collecting those takes time in
    proportion to all live objects, so it happens rarely, and only while the heap is small. Unless it is large, the C
    library also returns to the system the gaps between allocations, which would otherwise add up over the hours.
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
    """Return the StartupError that `error` is, or that nurseries have wrapped as the only exception of each group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, StartupError) else None


def _stopping_signals() -> list[signal.Signals]:
    # nohup starts its program with SIGHUP ignored, which has to stay so.
    return [it for it in HELD_SIGNALS if it != signal.SIGHUP or signal.getsignal(it) is not signal.SIG_IGN]


def _heed_signals() -> None:
    # Stopping signals stay pending until wait_for_signal(): their default action would lose what was accepted before.
    hold_signals()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, _dump_and_die)


def _dump_and_die(number: int, frame: FrameType | None) -> None:
    faulthandler.dump_traceback(all_threads=True)
    os._exit(2)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, a handler is not inherited by child processes."""
