"""A topic's *early deferrals* (deferred messages that no channel has received yet) and its cancelled messages.

While a topic is paused or has no channel, it releases nothing. Its deferred messages stay here as batches (start,
count, delay in milliseconds), and their delays haven't begun. If such a topic's message is cancelled, we keep its
sequence, so that no channel ever gets it.

When the topic releases its messages, its channels take over all of this in one turn, however many batches there are:

    pieces  ── lists of batches; all channels share them, and create entries from them later (`DeferredQueue.unpack`)
    bitmaps ── the deferred and cancelled sequences, so that cursors, counts and cancels are right immediately
    journal ── a single entry if there are many batches; recovery derives from it what each channel got
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, bitmap_of, number_of_ranges, ranges_in

_PIECE: Final = 5_000  # batches


class EarlyDeferrals:
    __slots__ = ("cancelled", "deferred", "pieces")

    def __init__(self) -> None:
        # Lists of (start, count, delay_ms). The batches still include cancelled messages. We need several lists because
        # copying or freeing a million batches takes longer than a turn may. Only the last list changes.
        self.pieces: list[list[tuple[int, int, int]]] = []
        self.deferred = BitMap64()  # the sequences of the batches, without the cancelled ones
        self.cancelled = BitMap64()  # deferred or not

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
        """Add a batch, which must come after all earlier ones."""
        if not self.pieces or len(self.pieces[-1]) >= _PIECE:
            self.pieces.append([])
        self.pieces[-1].append((start, count, delay_ms))
        self.deferred.add_range(start, start + count)
        if self.cancelled.range_cardinality(start, start + count):
            self.deferred -= self.cancelled

    @property
    def parts(self) -> int:
        """The number of batches and of cancelled ranges."""
        return sum([len(piece) for piece in self.pieces]) + number_of_ranges(self.cancelled)

    def cancel(self, sequences: BitMap64) -> BitMap64:
        """Cancel messages. Return the ones that weren't cancelled before."""
        fresh = sequences - self.cancelled
        self.cancelled |= fresh
        self.deferred -= fresh
        return fresh

    def holds(self, sequence: int) -> bool:
        """Return whether this message is cancelled."""
        return sequence in self.cancelled

    def delayed(self) -> Iterator[tuple[int, int, int]]:
        """Yield start, count and delay of the batches, split so that cancelled messages are left out."""
        for start, count, delay_ms in self.batches:
            if not self.cancelled.range_cardinality(start, start + count):
                yield start, count, delay_ms
            else:
                for first, end in ranges_in(bitmap_of(start, start + count) - self.cancelled):
                    yield first, end - first, delay_ms

    def in_order(self) -> Iterator[tuple[int, int, int]]:
        """Return `delayed` and the cancelled ranges, sorted by sequence. A cancelled range has the delay -1."""
        cancelled = [(start, end - start, -1) for start, end in ranges_in(self.cancelled)]
        return iter(sorted([*self.delayed(), *cancelled]))

    def pass_over(self, end: int) -> list[list[tuple[int, int, int]]]:
        """Forget everything before `end`, and return the pieces that are forgotten entirely.

        `end` may be within a batch, because a limit may have dropped the first part of it.
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
        """Forget the batches and cancelled messages from `tail` on. Return whether there were any."""
        before = self.parts, len(self.cancelled)
        kept = [[batch for batch in piece if batch[0] < tail] for piece in self.pieces]
        self.pieces = [piece for piece in kept if piece]
        self.deferred, self.cancelled = between(self.deferred, 0, tail), between(self.cancelled, 0, tail)
        return before != (self.parts, len(self.cancelled))

    def clear(self) -> list[list[tuple[int, int, int]]]:
        """Forget all batches and cancelled messages. Return the former pieces."""
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
