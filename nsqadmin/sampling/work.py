"""How much of the processor the sampler takes, sweep by sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time


class Work:
    def __init__(self) -> None:
        self.seconds = 0.0  # in this sweep
        self.before = 0.0  # in the one before
        self._spent = 0.0  # on reading answers since the start, as of the last `count_reading`

    def begin_sweep(self) -> None:
        self.before, self.seconds = self.seconds, 0.0

    def count_reading(self, spent: float) -> None:
        """Add what reading answers has cost since the last call. `spent` is the sum since the start, in seconds."""
        self.seconds += spent - self._spent
        self._spent = spent

    @contextmanager
    def counted(self) -> Iterator[None]:
        # Of the processor, and not of the clock: on a busy machine everything takes longer, and that is no work of ours.
        began = thread_time()
        try:
            yield
        finally:
            self.seconds += thread_time() - began
