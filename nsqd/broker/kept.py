"""The batches that an ephemeral channel, or a channel of an ephemeral topic, keeps for itself.

Other channels read from the log, which waits for them. The log waits for no ephemeral channel, and the log of an
ephemeral topic holds only what no channel has got yet. So at hand-over such a channel takes references to the batches,
and drops each batch when the last of its messages is finished. What is kept need not be a contiguous range: a message
that is in flight or deferred for long holds its own batch, and none behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.store import BatchSource

_FEW: Final = 64  # entries of dropped batches in `_bases` that are not worth a clean-up


class Kept:
    """Batches in ascending order, with gaps. What is not kept here is read from the log, as long as the log has it."""

    __slots__ = ("_bases", "_batches", "_left", "_log", "bytes", "messages")

    def __init__(self, log: BatchSource) -> None:
        self.messages = 0  # those not let go yet
        self.bytes = 0  # size of these messages, each with its size prefix and headers
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

    def let_go(self, start: int, end: int) -> None:
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
        self.messages = self.bytes = 0

    def find(self, sequence: int) -> Batch | None:
        batch = self._batches.get(sequence)
        if batch is not None or not self._batches:
            return batch
        index = bisect_right(self._bases, sequence) - 1
        if index < 0:
            return None
        batch = self._batches.get(self._bases[index])
        return batch if batch is not None and sequence < batch.end_sequence else None

    def size_of(self, sequence: int) -> int:
        batch = self.find(sequence)
        return _size(batch, sequence, sequence + 1) if batch is not None else 0

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
