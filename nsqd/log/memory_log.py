"""The log of an ephemeral topic: in memory only, and only until its channels have taken the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.reading.tail_cache import BATCH_OVERHEAD, TailCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqd.broker.batch import Batch, Receipt
    from nsqd.broker.store import KeyedPublish
    from nsqd.log.settings import LogSettings


class MemoryLog:
    """Implements `nsqd.broker.store.TopicLog` without a disk.

    The channels of an ephemeral topic keep its messages themselves (nsqd/broker/ephemeral_batches.py) and limit their
    number (`Channel.drop_overflow`), so the log can drop a message as soon as they have it. It holds messages for
    longer only while the topic is paused or has no channel. Then the topic asks `has_room` and drops what doesn't fit.
    """

    keys_from = -1

    def __init__(self, topic: str, settings: LogSettings) -> None:
        self.topic = topic
        self.first = 0
        self.tail = 0
        self._cache = TailCache(
            0, most_messages=settings.options.mem_queue_size, most_bytes=settings.options.mem_queue_bytes
        )

    @property
    def cached_from(self) -> int:
        return self.first

    def take_keys(self) -> tuple[list[tuple[bytes, int]], list[KeyedPublish]]:
        return [], []

    def deferred_keys(self, wanted: Sequence[int]) -> list[KeyedPublish]:
        return []

    def has_room(self, count: int, size: int) -> bool:
        """Return whether `count` messages with `size` bytes of payload fit into the memory queue."""
        return self._cache.has_room(count, size + BATCH_OVERHEAD)

    def bytes_from(self, sequence: int) -> int:
        held = self.tail - self.first
        return self._cache.bytes * max(self.tail - max(sequence, self.first), 0) // max(held, 1)

    def file_of(self, sequence: int) -> int:
        return 0

    def waits_for_removal(self, passed: int) -> bool:
        return False

    @property
    def synced(self) -> int:
        return self.tail

    @property
    def waits_for_copy(self) -> bool:
        return False

    def refusal(self) -> str | None:
        return None

    def refusal_now(self) -> str | None:
        return None

    def answer_repeat(self, earlier: Receipt) -> Receipt:
        return earlier

    def append(self, batch: Batch, receipt: Receipt) -> None:
        self._cache.add(batch)
        self.tail = batch.end_sequence
        receipt.settle()

    def batch_at(self, sequence: int) -> Batch | None:
        return self._cache.find(sequence)

    def end_of_refused(self, sequence: int) -> int:
        return sequence

    def next_readable(self, sequence: int) -> int:
        return max(sequence, self.first)

    def next_kept(self, sequence: int) -> int:
        return self.next_readable(sequence)

    def older_than(self, timestamp: int) -> int:
        return self.first

    def outdated(self) -> int:
        return 0

    def release(self, sequence: int, passed: int | None = None) -> None:
        self._cache.forget_before(sequence)
        self.first = self._cache.start if self._cache.messages else self.tail
