"""The batches that an ephemeral channel, or a channel of an ephemeral topic, keeps for itself.

Other channels read from the log, which waits for them. The log waits for no ephemeral channel, and the log of an
ephemeral topic holds only what no channel has got yet. So at hand-over such a channel takes references to the batches,
and drops each batch when the last of its messages is finished. What is kept need not be a contiguous range: a message
that is in flight or deferred for long holds its own batch, and none behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.store import BatchSource

_FEW: Final = 64  # entries of dropped batches in `_bases` that are not worth a clean-up


class EphemeralBatches:
    """Batches in ascending order, with gaps. What is not kept here is read from the log, as long as the log has it."""

    __slots__ = ("_bases", "_batches", "_left", "_log", "bytes", "in_hand", "messages")

    def __init__(self, log: BatchSource) -> None:
        self.messages = 0  # those not let go yet
        self.bytes = 0  # size of these messages, each with its size prefix and headers
        self.in_hand = 0  # bytes of those that consumers hold
        self._log = log
        self._batches: dict[int, Batch] = {}  # by their first sequence
        self._left: dict[int, int] = {}  # how many messages of each batch have not been let go
        self._bases: list[int] = []  # ascending, with those of dropped batches, until these are too many

    def add(self, batch: Batch) -> None:
        base = batch.base_sequence
        self._batches[base] = batch
        self._left[base] = batch.count
        self._bases.append(base)
        self.messages += batch.count
        self.bytes += batch.held

    def release(self, start: int, end: int) -> None:
        """Drop the messages [start, end). Let each message go only once; messages that are not kept do not matter."""
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
        """Note that a consumer holds the messages [start, end)."""
        self.in_hand += self._size_of(start, end)

    def take_back(self, start: int, end: int) -> None:
        """Note that consumers hold [start, end) no longer. They are let go after that, if at all."""
        self.in_hand -= self._size_of(start, end)

    def newest_within(self, size: int, start: int, end: int) -> tuple[int, int]:
        """Return how many of the newest messages of [start, end) have so many bytes together, and how many they have.

        If all of them have fewer, that is all.
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
        """Return the bytes of those of the messages [start, end) that are kept here."""
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

    # What a channel reads from

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
        for base in self._bases[bisect_right(self._bases, sequence) :]:  # the log may have lost what is kept here
            if base >= readable:
                break
            if base in self._batches:
                return base
        return readable


def _size(batch: Batch, first: int, stop: int) -> int:
    offsets, base = batch.offsets, batch.base_sequence
    headers = len(batch.headers_between(first, stop)) if batch.headers else 0
    return offsets[stop - base] - offsets[first - base] + headers
