"""What an ephemeral channel, or a channel of an ephemeral topic, keeps for itself.

Other channels read from the log, which waits for them. Nothing waits for an ephemeral channel, and the log of an
ephemeral topic holds only what no channel has got yet. So at hand-over such a channel takes references to the batches,
and each goes when the last of its messages does. Not a prefix: one message that is long in flight, or deferred, holds
its own batch and nothing behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.store import BatchSource

_FEW: Final = 64  # so many traces of batches that have gone are not worth a clean-up


class Kept:
    """Batches in ascending order, with gaps. What is not here is read from the log, as long as that has it."""

    __slots__ = ("_bases", "_batches", "_left", "_log", "bytes", "messages")

    def __init__(self, log: BatchSource) -> None:
        self.messages = 0  # that have not been let go
        self.bytes = 0  # of them, each with its size in front
        self._log = log
        self._batches: dict[int, Batch] = {}  # by their first sequence
        self._left: dict[int, int] = {}  # how many messages of each have not been let go
        self._bases: list[int] = []  # ascending; also of batches that have gone, until there are too many of those

    def add(self, batch: Batch) -> None:
        base = batch.base_sequence
        self._batches[base] = batch
        self._left[base] = batch.count
        self._bases.append(base)
        self.messages += batch.count
        self.bytes += len(batch.payload)

    def let_go(self, start: int, end: int) -> None:
        """The messages [start, end) are done with. Each is to be let go only once; unknown ones do not matter."""
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
        for base in self._bases[bisect_right(self._bases, sequence) :]:  # what the log has lost may be here
            if base >= readable:
                break
            if base in self._batches:
                return base
        return readable


def _size(batch: Batch, first: int, stop: int) -> int:
    offsets, base = batch.offsets, batch.base_sequence
    return offsets[stop - base] - offsets[first - base]
