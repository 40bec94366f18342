"""What a topic knows of messages that no channel has got yet: delays that have not begun, and what was taken back.

A paused topic, or one without a channel, hands nothing over. Deferred messages are *parked* there as batches: start,
count, delay in milliseconds. A message that is taken back meanwhile is noted, so that no channel ever gets it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from pyroaring import BitMap64

from nsqd.broker.positions import between, bitmap_of, number_of_ranges, ranges_in


class Parked:
    __slots__ = ("batches", "cancelled")

    def __init__(self) -> None:
        # start, count, delay_ms, in ascending order, also of messages that were taken back
        self.batches: list[tuple[int, int, int]] = []
        self.cancelled = BitMap64()  # what was taken back

    def __bool__(self) -> bool:
        return bool(self.batches or self.cancelled)

    def copy(self) -> Parked:
        copied = Parked()
        copied.batches, copied.cancelled = self.batches.copy(), self.cancelled.copy()
        return copied

    def cancel(self, sequences: BitMap64) -> BitMap64:
        """Take messages back. Return those that were not taken back before."""
        fresh = sequences - self.cancelled
        self.cancelled |= fresh
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

    def slice_end(self, most: int, one_by_one: int) -> int | None:
        """Return the place before which there is work for one turn; None: all of it is.

        That is `most` messages, where a batch of more than `one_by_one` counts as one, and as many ranges of what was
        taken back.
        """
        left, end = most, None
        for start, count, _ in self.batches:
            if left <= 0:
                end = start
                break
            left -= count if count <= one_by_one else 1
        if number_of_ranges(self.cancelled) > most:
            start, _ = next(islice(ranges_in(self.cancelled), most, None))
            end = start if end is None else min(end, start)
        return end

    def take_before(self, end: int) -> Parked:
        """Take out, and return, what lies before `end`, which may be within a batch."""
        taken = Parked()
        place = self._place_of(end)
        taken.batches = self.batches[:place]
        taken.cancelled = between(self.cancelled, 0, end)
        if place:
            start, count, delay_ms = taken.batches[-1]
            taken.batches[-1] = start, min(count, end - start), delay_ms
        self.pass_over(end)
        return taken

    def pass_over(self, end: int) -> None:
        """Forget what lies before `end`. That may be within a batch, as a bound may have dropped its beginning."""
        place = self._place_of(end)
        if place:
            start, count, delay_ms = self.batches[place - 1]
            if start + count > end:
                place -= 1
                self.batches[place] = end, start + count - end, delay_ms
            del self.batches[:place]
        self.cancelled.remove_range(0, end)

    def _place_of(self, sequence: int) -> int:
        """Return how many batches begin before a sequence."""
        return bisect_left(self.batches, (sequence, 0, 0))

    def cut(self, tail: int) -> bool:
        """Forget what begins at the tail or behind it. Return whether there was anything."""
        before = len(self.batches), len(self.cancelled)
        self.batches = [batch for batch in self.batches if batch[0] < tail]
        self.cancelled = between(self.cancelled, 0, tail)
        return before != (len(self.batches), len(self.cancelled))

    def clear(self) -> None:
        self.batches.clear()
        self.cancelled.clear()
