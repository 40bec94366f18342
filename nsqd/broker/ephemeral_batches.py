"""The batches that an ephemeral channel, or any channel of an ephemeral topic, keeps in memory.

Other channels read from the log, which keeps the messages that they need. But the log doesn't wait for ephemeral
channels, and the log of an ephemeral topic only keeps messages until they are released to the channels. So such a
channel keeps the batches that it gets, and drops each one when all of its messages are finished. There may be gaps: for
example, one message that is in flight for an hour keeps its batch in memory, while later batches come and go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.store import BatchSource

_FEW: Final = 64  # dropped batches that may stay listed in `_bases` without a clean-up


class EphemeralBatches:
    """Batches in ascending order, with gaps. For other sequences it asks the log, which may still have them."""

    __slots__ = ("_bases", "_batches", "_left", "_log", "bytes", "in_hand", "messages")

    def __init__(self, log: BatchSource) -> None:
        self.messages = 0  # not released yet
        self.bytes = 0  # of these messages, including size prefixes and headers
        self.in_hand = 0  # bytes of the messages that consumers have in flight
        self._log = log
        self._batches: dict[int, Batch] = {}  # by first sequence
        self._left: dict[int, int] = {}  # by first sequence: messages of the batch that are not released yet
        self._bases: list[int] = []  # first sequences, ascending; may include some dropped batches

    def add(self, batch: Batch) -> None:
        base = batch.base_sequence
        self._batches[base] = batch
        self._left[base] = batch.count
        self._bases.append(base)
        self.messages += batch.count
        self.bytes += batch.held

    def release(self, start: int, end: int) -> None:
        """Drop the messages [start, end). Drop each message only once. Messages that aren't kept are ignored."""
        bases = self._bases
        index = max(0, bisect_right(bases, start) - 1)
        while index < len(bases) and bases[index] < end:
            base = bases[index]
            index += 1
            batch = self._batches.get(base)
            if batch is None:
                continue
            first, stop = max(start, base), min(end, batch.end_sequence)
            if first >= stop:
                continue
            self.messages -= stop - first
            self.bytes -= _size(batch, first, stop)
            self._left[base] -= stop - first
            if not self._left[base]:
                del self._batches[base], self._left[base]
        if len(bases) > 2 * len(self._batches) + _FEW:
            self._bases = list(self._batches)

    def clear(self) -> None:
        self._batches.clear()
        self._left.clear()
        self._bases.clear()
        self.messages = self.bytes = self.in_hand = 0

    def hand_out(self, start: int, end: int) -> None:
        """Count [start, end) as in flight to a consumer."""
        self.in_hand += self._size_of(start, end)

    def take_back(self, start: int, end: int) -> None:
        """Stop counting [start, end) as in flight. Call this before you release them."""
        self.in_hand -= self._size_of(start, end)

    def newest_within(self, size: int, start: int, end: int) -> tuple[int, int]:
        """Return (messages, bytes) of the shortest run at the end of [start, end) that has at least `size` bytes.

        If the whole range is smaller, the run is the whole range.
        """
        place = end
        left = size
        while place > start and left > 0:
            batch = self.find(place - 1)
            if batch is None:
                place -= 1
                continue
            first = max(start, batch.base_sequence)
            if (whole := _size(batch, first, place)) > left:
                stop = place
                counts = range(1, stop - first + 1)
                count = counts[bisect_left(counts, left, key=lambda n: _size(batch, stop - n, stop))]
                return end - stop + count, size - left + _size(batch, stop - count, stop)
            left -= whole
            place = first
        return end - place, size - left

    def find(self, sequence: int) -> Batch | None:
        batch = self._batches.get(sequence)
        if batch is not None or not self._batches:
            return batch
        index = bisect_right(self._bases, sequence) - 1
        if index < 0:
            return None
        batch = self._batches.get(self._bases[index])
        return batch if batch is not None and sequence < batch.end_sequence else None

    def _size_of(self, start: int, end: int) -> int:
        """Return the bytes of the messages in [start, end) that are kept here."""
        size, bases = 0, self._bases
        index = max(0, bisect_right(bases, start) - 1)
        while index < len(bases) and bases[index] < end:
            batch = self._batches.get(bases[index])
            index += 1
            if batch is not None and (first := max(start, batch.base_sequence)) < (
                stop := min(end, batch.end_sequence)
            ):
                size += _size(batch, first, stop)
        return size

    # Reading, as BatchSource

    def batch_at(self, sequence: int) -> Batch | None:
        return self.find(sequence) or self._log.batch_at(sequence)

    def end_of_refused(self, sequence: int) -> int:
        return self._log.end_of_refused(sequence)

    def next_readable(self, sequence: int) -> int:
        if self.find(sequence) is not None:
            return sequence
        readable = self._log.next_readable(sequence)
        if readable == sequence:
            return readable
        for base in self._bases[bisect_right(self._bases, sequence) :]:  # a batch may be here and no longer in the log
            if base >= readable:
                break
            if base in self._batches:
                return base
        return readable


def _size(batch: Batch, first: int, stop: int) -> int:
    offsets, base = batch.offsets, batch.base_sequence
    headers = len(batch.headers_between(first, stop)) if batch.headers else 0
    return offsets[stop - base] - offsets[first - base] + headers
