"""Measures how much processor time the sampler takes, sweep by sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time


class Work:
    def __init__(self) -> None:
        self.seconds = 0.0  # of this sweep
        self.before = 0.0  # of the sweep before
        self._spent = 0.0  # for reading answers since the start, as of the last `count_reading`

    def begin_sweep(self) -> None:
        self.before, self.seconds = self.seconds, 0.0

    def count_reading(self, spent: float) -> None:
        """Add the time for reading answers since the last call. `spent` is its sum since the start, in seconds."""
        self.seconds += spent - self._spent
        self._spent = spent

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Add the processor time of the block: by the clock, other programs on a busy machine would count as well."""
        began = thread_time()
        try:
            yield
        finally:
            self.seconds += thread_time() - began
