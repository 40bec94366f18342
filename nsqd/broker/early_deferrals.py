"""What a topic knows of messages that no channel has got yet: delays that have not begun, and what was taken back.

A paused topic, or one without a channel, hands nothing over. Deferred messages are *parked* there as batches: start,
count, delay in milliseconds. A message that is taken back meanwhile is noted, so that no channel ever gets it.

When the topic flows, its channels take over all of it in one turn, however many batches there are:

    pieces  ── the same lists of batches for all channels, each of which makes entries of them later (`Deferred.unpack`)
    bitmaps ── which sequences are deferred or taken back: so cursors, counts and cancels are right from the first moment
    journal ── one word, if there are many: a start knows from it what every channel has got
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from pyroaring import BitMap64

from nsqd.broker.positions import between, bitmap_of, number_of_ranges, ranges_in

_PIECE: Final = 5_000  # batches


class EarlyDeferrals:
    __slots__ = ("cancelled", "deferred", "pieces")

    def __init__(self) -> None:
        # Lists of batches: start, count, delay_ms, also of messages that were taken back. There are several because a
        # million batches can neither be copied nor freed in one turn; only the last list changes.
        self.pieces: list[list[tuple[int, int, int]]] = []
        self.deferred = BitMap64()  # the messages of batches, without those that were taken back
        self.cancelled = BitMap64()  # what was taken back

    def __bool__(self) -> bool:
        return bool(self.pieces or self.cancelled)

    @property
    def batches(self) -> Iterator[tuple[int, int, int]]:
        return chain.from_iterable(self.pieces)

    def copy(self) -> EarlyDeferrals:
        copied = EarlyDeferrals()
        copied.pieces = [*self.pieces[:-1], *[last.copy() for last in self.pieces[-1:]]]
        copied.deferred, copied.cancelled = self.deferred.copy(), self.cancelled.copy()
        return copied

    def add(self, start: int, count: int, delay_ms: int) -> None:
        """Park a batch, which lies behind all others."""
        if not self.pieces or len(self.pieces[-1]) >= _PIECE:
            self.pieces.append([])
        self.pieces[-1].append((start, count, delay_ms))
        self.deferred.add_range(start, start + count)
        if self.cancelled.range_cardinality(start, start + count):
            self.deferred -= self.cancelled

    @property
    def parts(self) -> int:
        """How many batches there are, and ranges of what was taken back."""
        return sum([len(piece) for piece in self.pieces]) + number_of_ranges(self.cancelled)

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

    def pass_over(self, end: int) -> list[list[tuple[int, int, int]]]:
        """Forget what lies before `end`. That may be within a batch, as a bound may have dropped its beginning.

        Return the pieces that are forgotten as a whole.
        """
        passed = 0
        while passed < len(self.pieces) and _end_of(self.pieces[passed][-1]) <= end:
            passed += 1
        forgotten = self.pieces[:passed]
        del self.pieces[:passed]
        if self.pieces:
            self.pieces[0] = [part for batch in self.pieces[0] for part in _from(batch, end)]
        self.deferred.remove_range(0, end)
        self.cancelled.remove_range(0, end)
        return forgotten

    def cut(self, tail: int) -> bool:
        """Forget what begins at the tail or behind it. Return whether there was anything."""
        before = self.parts, len(self.cancelled)
        kept = [[batch for batch in piece if batch[0] < tail] for piece in self.pieces]
        self.pieces = [piece for piece in kept if piece]
        self.deferred, self.cancelled = between(self.deferred, 0, tail), between(self.cancelled, 0, tail)
        return before != (self.parts, len(self.cancelled))

    def clear(self) -> list[list[tuple[int, int, int]]]:
        """Forget everything. Return the pieces."""
        pieces, self.pieces = self.pieces, []
        self.deferred.clear()
        self.cancelled.clear()
        return pieces


def _end_of(batch: tuple[int, int, int]) -> int:
    start, count, _ = batch
    return start + count


def _from(batch: tuple[int, int, int], sequence: int) -> Iterable[tuple[int, int, int]]:
    start, count, delay_ms = batch
    first, end = max(start, sequence), start + count
    return [(first, end - first, delay_ms)] if first < end else ()
