"""What a topic knows of messages that no channel has got yet: delays that have not begun, and what was taken back.

A paused topic, or one without a channel, hands nothing over. Deferred messages are *parked* there as batches: start,
count, delay in milliseconds. A message that is taken back meanwhile is noted, so that no channel ever gets it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator


class Parked:
    __slots__ = ("batches", "cancelled")

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []  # start, count, delay_ms
        self.cancelled: list[int] = []  # ascending sequences

    def __bool__(self) -> bool:
        return bool(self.batches or self.cancelled)

    def copy(self) -> Parked:
        copied = Parked()
        copied.batches, copied.cancelled = self.batches.copy(), self.cancelled.copy()
        return copied

    def cancel(self, sequence: int) -> bool:
        """Take one message back. Return False if it already was."""
        if self.holds(sequence):
            return False
        self.batches = [part for batch in self.batches for part in _without(batch, sequence)]
        insort(self.cancelled, sequence)
        return True

    def holds(self, sequence: int) -> bool:
        """Return whether this message was taken back."""
        place = bisect_left(self.cancelled, sequence)
        return place < len(self.cancelled) and self.cancelled[place] == sequence

    def in_order(self) -> Iterator[tuple[int, int, int]]:
        """Yield start, count and delay of the batches, and among them what was taken back, with the delay -1."""
        return iter(sorted([*self.batches, *((sequence, 1, -1) for sequence in self.cancelled)]))

    def pass_over(self, end: int) -> None:
        """Forget what lies before `end`. That may be within a batch, as a bound may have dropped its beginning."""
        self.batches = [part for batch in self.batches for part in _from(batch, end)]
        self.cancelled = self.cancelled[bisect_left(self.cancelled, end) :]

    def cut(self, tail: int) -> bool:
        """Forget what begins at the tail or behind it. Return whether there was anything."""
        before = len(self.batches), len(self.cancelled)
        self.batches = [batch for batch in self.batches if batch[0] < tail]
        self.cancelled = self.cancelled[: bisect_left(self.cancelled, tail)]
        return before != (len(self.batches), len(self.cancelled))

    def clear(self) -> None:
        self.batches.clear()
        self.cancelled.clear()


def _without(batch: tuple[int, int, int], sequence: int) -> Iterable[tuple[int, int, int]]:
    start, count, delay_ms = batch
    if not start <= sequence < start + count:
        return (batch,)
    parts = (start, sequence - start, delay_ms), (sequence + 1, start + count - sequence - 1, delay_ms)
    return [part for part in parts if part[1]]


def _from(batch: tuple[int, int, int], sequence: int) -> Iterable[tuple[int, int, int]]:
    start, count, delay_ms = batch
    first, end = max(start, sequence), start + count
    return [(first, end - first, delay_ms)] if first < end else ()
