"""How late something is, where other processes may keep the machine busy meanwhile.

What they take only ever adds to what a test measures. So the least of several measurements is nearest to how late the
daemon itself is. A daemon that is late by design is late in all of them, also one that looks at its timers every 100 ms, as
the original does: a measurement begins as soon as the message of the one before has come, which is just after such a look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_MEASUREMENTS: Final = 10
_LOOK: Final = 0.02  # seconds


def is_within(most: float, measure: Callable[[], float]) -> bool:
    """Measure until a result is below `most` seconds, and return whether one of them is."""
    return any(_shown(measure()) < most for _ in range(_MEASUREMENTS))


def _shown(seconds: float) -> float:
    print(f"{seconds:.3f} s")  # noqa: T201  # pytest shows it with a failure
    return seconds


def queue_seconds(pid: int) -> float:
    """Return how long the threads of a process have been ready to run while others had the processors. Linux only.

    Raise OSError if the process has ended.
    """
    queued = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            queued += _queued_nanoseconds(thread)
    return queued / 1e9


def _queued_nanoseconds(task: Path) -> int:
    return int((task / "schedstat").read_text(encoding="ascii").split()[1])


class Lifetime:
    """How long a process goes on living, without the time for which its main thread had to wait for a processor."""

    def __init__(self, pid: int) -> None:
        self._task = Path(f"/proc/{pid}")  # which counts the main thread
        self._queued = self._queued_before = _queued_nanoseconds(self._task)
        self._seen = self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._seen - self._began - (self._queued - self._queued_before) / 1e9

    def look(self) -> None:
        """Note that it is alive. Raise OSError if it isn't."""
        now = time.monotonic()  # first, because the watcher itself may lose its processor between the two
        self._queued = _queued_nanoseconds(self._task)
        self._seen = now


@contextmanager
def lifetime_of(pid: int) -> Iterator[Lifetime]:
    """Measure how long this process still lives in the block, until it ends or the block does. Linux only."""
    lifetime = Lifetime(pid)
    is_over = threading.Event()

    def watch() -> None:
        try:
            while not is_over.wait(_LOOK):
                lifetime.look()
        except OSError:  # it has ended
            pass

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lifetime
    finally:
        is_over.set()
        thread.join()
