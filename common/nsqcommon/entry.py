"""The first steps of every program: it holds signals during startup, and tells the user about a missing extra.

An entry point imports only this module, holds the signals, and then imports the program itself, which takes up to a
second. Otherwise, a signal within that second would trigger the default action: the exit status would report a failure,
and SIGINT would print a traceback.

A held signal is blocked, and stays pending until the program can shut down cleanly and calls `release_signals`. Threads
and child processes inherit blocked signals, so release them before you start any.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

HELD_SIGNALS: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
_OURS: Final = frozenset(
    (
        "nsqcommon",
        "nsqd",
        "nsqlookupd",
        "nsqadmin",
        "nsqclient",
        "nsqtools",
        "nsqpipe",
        "pyspark_nsq",
        "pyspark_nsqtable",
    )
)


def hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)


def release_signals(numbers: Iterable[signal.Signals] = HELD_SIGNALS) -> None:
    """Unblock the signals. Pending ones take effect immediately."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextmanager
def needs_extra(program: str, extra: str) -> Iterator[None]:
    """Exit with a one-line hint if an import in the block fails because an extra isn't installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in _OURS:
            raise
        from nsqcommon.version import how_to_install  # not before the signals are held

        sys.exit(f"{program}: {missing} is not installed; it comes with: {how_to_install(extra)}")
