"""The log of an ephemeral topic: the tail cache and nothing behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.tail_cache import BATCH_OVERHEAD, TailCache

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.log.settings import LogSettings


class MemoryLog:
    """Implements `nsqd.broker.store.TopicLog` without a disk.

    What does not fit is dropped, as in NSQ: the receipt says OK, the tail stays where it is, and `messages_dropped`
    counts. A batch is dropped whole; who would rather publish a part of it asks `has_room` first.
    """

    def __init__(self, topic: str, settings: LogSettings) -> None:
        self.topic = topic
        self.first = 0
        self.tail = 0
        self.messages_dropped = 0
        # With --mem-queue-size=0 NSQ still hands a message on if somebody waits for it: one has to fit.
        self._cache = TailCache(0, most_messages=max(settings.mem_queue_size, 1), most_bytes=settings.mem_queue_bytes)

    @property
    def cached_from(self) -> int:
        return self.first

    def has_room(self, count: int, size: int) -> bool:
        """Whether a batch of `count` messages and `size` bytes of payload would be taken."""
        return self._cache.has_room(count, size + BATCH_OVERHEAD)

    def append(self, batch: Batch, receipt: Receipt) -> None:
        if self.has_room(batch.count, len(batch.payload)):
            self._cache.add(batch)
            self.tail = batch.end_sequence
        else:
            self.messages_dropped += batch.count
        receipt.settle()

    def batch_at(self, sequence: int) -> Batch | None:
        return self._cache.find(sequence)

    def next_readable(self, sequence: int) -> int:
        return max(sequence, self.first)

    def release(self, sequence: int) -> None:
        self._cache.forget_before(sequence)
        self.first = self._cache.start if self._cache.messages else self.tail
