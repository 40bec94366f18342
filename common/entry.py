"""The first lines of every program: a signal that comes during the start is held, and a missing extra is named.

An entry point imports nothing but this module, holds the signals, and only then imports what the program is made of, which
takes up to a second. Otherwise a signal in that second would kill it by the default action: with an exit status that says
failure, and SIGINT with a traceback.

Held means blocked: the signal stays pending until the program can end in good order, and calls `release_signals`. Threads and
child processes inherit what is blocked when they are started, so a program releases the signals before it has children.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

HELD_SIGNALS: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
_OURS: Final = frozenset(
    ("common", "nsqd", "nsqlookupd", "nsqadmin", "nsqclient", "nsqtools", "nsqpipe", "pyspark_nsq", "pyspark_nsqtable")
)


def hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)


def release_signals(numbers: Iterable[signal.Signals] = HELD_SIGNALS) -> None:
    """Let signals through again; one that came meanwhile acts at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextmanager
def needs_extra(program: str, extra: str) -> Iterator[None]:
    """End the program with one line where the imports inside need an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in _OURS:
            raise
        sys.exit(f"{program}: {missing} is not installed; it comes with: pip install 'nsq-suite[{extra}]'")
