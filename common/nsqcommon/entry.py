"""The first lines of every program: hold signals that come during the start, and name an extra that is missing.

An entry point imports nothing but this module, holds the signals, and only then imports the program itself, which takes
up to a second. Otherwise a signal within that second would meet the default action: the exit status would say failure,
and SIGINT would print a traceback.

Held means blocked: the signal stays pending until the program is able to end in good order and calls `release_signals`.
Threads and child processes inherit blocked signals at their start, so a program releases them before it starts any.
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
    """Let signals through again; one that came meanwhile takes effect at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextmanager
def needs_extra(program: str, extra: str) -> Iterator[None]:
    """End the program with one line if an import in the block fails because an extra is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in _OURS:
            raise
        sys.exit(f"{program}: {missing} is not installed; it comes with: pip install 'nsq-suite[{extra}]'")
