"""What a topic knows of messages that no channel has got yet: delays that have not begun, and what was taken back.

A paused topic, or one without a channel, hands nothing over. Deferred messages are *parked* there as batches: start,
count, delay in milliseconds. A message that is taken back meanwhile is noted, so that no channel ever gets it.

When the topic flows, its channels take over all of it in one turn, however many batches there are:

    batches ── the same lists for all channels, each of which makes its entries of them later (`Deferred.unpack`)
    bitmaps ── which sequences are deferred or taken back: so cursors, counts and cancels are right from the first moment
    journal ── one word, if there are many: a start knows from it what every channel has got
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyroaring import BitMap64

from nsqd.broker.positions import between, bitmap_of, number_of_ranges, ranges_in

_PIECE: Final = 5_000  # batches


class Parked:
    __slots__ = ("batches", "cancelled", "deferred")

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []  # start, count, delay_ms, also of messages that were taken back
        self.deferred = BitMap64()  # the messages of batches, without those that were taken back
        self.cancelled = BitMap64()  # what was taken back

    def __bool__(self) -> bool:
        return bool(self.batches or self.cancelled)

    def copy(self) -> Parked:
        copied = Parked()
        copied.batches, copied.deferred = self.batches.copy(), self.deferred.copy()
        copied.cancelled = self.cancelled.copy()
        return copied

    def add(self, start: int, count: int, delay_ms: int) -> None:
        """Park a batch, which lies behind all others."""
        self.batches.append((start, count, delay_ms))
        self.deferred.add_range(start, start + count)
        if self.cancelled.range_cardinality(start, start + count):
            self.deferred -= self.cancelled

    def pieces(self) -> list[Sequence[tuple[int, int, int]]]:
        """Return the batches in lists that are freed one after the other; a million of them at once take too long."""
        return [self.batches[at : at + _PIECE] for at in range(0, len(self.batches), _PIECE)]

    @property
    def parts(self) -> int:
        """How many batches there are, and ranges of what was taken back."""
        return len(self.batches) + number_of_ranges(self.cancelled)

    def cancel(self, sequences: BitMap64) -> BitMap64:
        """Take messages back. Return those that were not taken back before."""
        fresh = sequences - self.cancelled
        self.cancelled |= fresh
        self.deferred -= fresh
        return fresh

    def holds(self, sequence: int) -> bool:
        """Return whether this message was taken back."""
        return sequence in self.cancelled

    def delayed(self) -> Iterator[tuple[int, int, int]]:
        """Yield start, count and delay of the batches, without what was taken back."""
        for start, count, delay_ms in self.batches:
            if not self.cancelled.range_cardinality(start, start + count):
                yield start, count, delay_ms
            else:
                for first, end in ranges_in(bitmap_of(start, start + count) - self.cancelled):
                    yield first, end - first, delay_ms

    def in_order(self) -> Iterator[tuple[int, int, int]]:
        """Yield start, count and delay of the batches, and among them what was taken back, with the delay -1."""
        taken_back = [(start, end - start, -1) for start, end in ranges_in(self.cancelled)]
        return iter(sorted([*self.delayed(), *taken_back]))

    def pass_over(self, end: int) -> None:
        """Forget what lies before `end`. That may be within a batch, as a bound may have dropped its beginning."""
        self.batches = [part for batch in self.batches for part in _from(batch, end)]
        self.deferred.remove_range(0, end)
        self.cancelled.remove_range(0, end)

    def cut(self, tail: int) -> bool:
        """Forget what begins at the tail or behind it. Return whether there was anything."""
        before = len(self.batches), len(self.cancelled)
        self.batches = [batch for batch in self.batches if batch[0] < tail]
        self.deferred, self.cancelled = between(self.deferred, 0, tail), between(self.cancelled, 0, tail)
        return before != (len(self.batches), len(self.cancelled))

    def clear(self) -> None:
        self.batches.clear()
        self.deferred.clear()
        self.cancelled.clear()


def _from(batch: tuple[int, int, int], sequence: int) -> Iterable[tuple[int, int, int]]:
    start, count, delay_ms = batch
    first, end = max(start, sequence), start + count
    return [(first, end - first, delay_ms)] if first < end else ()
