"""Caches a topic's newest batches in memory, so that consumers that keep up never need the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch

BATCH_OVERHEAD: Final = 256  # about what a batch costs in memory besides its payload

_base_of: Final = attrgetter("base_sequence")


class TailCache:
    """A cache of consecutive batches. `start` is their first sequence, or the log's tail if the cache is empty.

    It also keeps the batches of the last write until the next write, even if they exceed the limits.
    """

    __slots__ = (
        "_batches",
        "_by_base",
        "_most_bytes",
        "_most_messages",
        "_recent",
        "_tolerated_bytes",
        "_tolerated_messages",
        "bytes",
        "messages",
        "start",
    )

    def __init__(self, start: int, *, most_messages: int, most_bytes: int) -> None:
        self.start = start
        self.messages = 0
        self.bytes = 0
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        # A few percent above the limits, so that a large cache shrinks now and then instead of after every write.
        self._tolerated_messages = most_messages + (most_messages >> 5)
        self._tolerated_bytes = most_bytes + (most_bytes >> 5)
        self._batches: deque[Batch] = deque()
        self._recent: list[Batch] = []  # the batches of the last write, if they exceed the limits
        self._by_base: dict[int, Batch] = {}  # for the usual lookup: readers mostly ask for the start of a batch

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._by_base[batch.base_sequence] = batch
        self.messages += batch.count
        self.bytes += batch.held + BATCH_OVERHEAD

    def find(self, sequence: int) -> Batch | None:
        batch = self._by_base.get(sequence)
        if batch is None and self._batches:
            batch = find_batch(self._batches, sequence)
        if batch is None and self._recent:
            batch = find_batch(self._recent, sequence)
        return batch

    def written(self, batches: list[Batch]) -> int:
        """Shrink if necessary, but keep the batches that were just written, because channels are about to deliver them.

        Return how many batches were dropped.
        """
        before = len(self._batches)
        if self.messages > self._tolerated_messages or self.bytes > self._tolerated_bytes:
            self.shrink()
        self._recent = batches if self.start > batches[0].base_sequence else []
        return before - len(self._batches)

    def has_room(self, messages: int, size: int) -> bool:
        return self.messages + messages <= self._most_messages and self.bytes + size <= self._most_bytes

    def shrink(self) -> None:
        """Shrink to the limits. Dropping many batches together costs a third of dropping them one by one."""
        batches, by_base = self._batches, self._by_base
        messages, size = self.messages, self.bytes
        start = self.start
        while batches and (messages > self._most_messages or size > self._most_bytes):
            batch = batches.popleft()
            del by_base[batch.base_sequence]
            messages -= batch.count
            size -= batch.held + BATCH_OVERHEAD
            start = batch.end_sequence
        self.messages, self.bytes, self.start = messages, size, start

    def forget_before(self, sequence: int) -> None:
        """Drop the batches that end at or before `sequence`."""
        if self._recent and self._recent[-1].end_sequence <= sequence:
            self._recent = []
        batches = self._batches
        while batches and batches[0].end_sequence <= sequence:
            self.start = batches[0].end_sequence
            self._account_for(batches.popleft())

    def forget_from(self, sequence: int) -> None:
        """Drop the batches that start at or after `sequence`, after a failed write. `sequence` is the new tail."""
        batches = self._batches
        while batches and batches[-1].base_sequence >= sequence:
            batch = batches.pop()
            self._account_for(batch)
        self.start = min(self.start, sequence)

    def _account_for(self, batch: Batch) -> None:
        """Subtract a removed batch from the counts."""
        del self._by_base[batch.base_sequence]
        self.messages -= batch.count
        self.bytes -= batch.held + BATCH_OVERHEAD


def find_batch(batches: Sequence[Batch] | deque[Batch], sequence: int) -> Batch | None:
    """Return the batch that holds the sequence, or None. The batches must be consecutive."""
    if not batches or sequence < batches[0].base_sequence or sequence >= batches[-1].end_sequence:
        return None
    return batches[bisect_right(batches, sequence, key=_base_of) - 1]
