"""A real broker on a store in memory, and a turn that counts how often it was finished.

For tests of what stands in front of the broker. `hold` keeps receipts open, as a disk that is slow to sync would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.broker import Broker
from nsqd.broker.change import Change
from nsqd.broker.message_id import IdSource
from nsqd.broker.rules import NO_RULES
from nsqd.broker.store import DiskSnapshot, KeyedPublish
from nsqd.broker.turn import finish_turn
from tests.support.broker_settings import broker_settings
from tests.support.fake_store import tell_nobody

NOW = 100.0
START = 1_700_000_000


class FakeLog:
    keys_from = -1

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.first = 0
        self.cached_from = 0
        self.batches: list[Batch] = []

    @property
    def tail(self) -> int:
        return self.batches[-1].end_sequence if self.batches else 0

    def take_keys(self) -> tuple[list[tuple[bytes, int]], list[KeyedPublish]]:
        return [], []

    def deferred_keys(self, wanted: Sequence[int]) -> list[KeyedPublish]:
        return []

    def has_room(self, count: int, size: int) -> bool:
        return True

    def bytes_from(self, sequence: int) -> int:
        return sum(len(batch.payload) for batch in self.batches if batch.base_sequence >= sequence)

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
        self._store.receipts.append(receipt)
        if self._store.error is None:
            self.batches.append(batch)
        if not self._store.hold:
            self._store.settle()

    def batch_at(self, sequence: int) -> Batch | None:
        return next((batch for batch in self.batches if batch.base_sequence <= sequence < batch.end_sequence), None)

    def end_of_refused(self, sequence: int) -> int:
        return sequence

    def next_readable(self, sequence: int) -> int:
        return sequence

    def next_kept(self, sequence: int) -> int:
        return max(sequence, self.first)

    def older_than(self, timestamp: int) -> int:
        return 0

    def outdated(self) -> int:
        return 0

    def release(self, sequence: int, passed: int | None = None) -> None:
        pass


@dataclass
class FakeStore:
    hold: bool = False
    error: str | None = None
    logs: dict[str, FakeLog] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    health: str = "OK"

    def disk(self) -> DiskSnapshot:
        return DiskSnapshot()

    def create_log(self, topic: str) -> FakeLog:
        return self.logs.setdefault(topic, FakeLog(self))

    def drop_log(self, topic: str) -> None:
        self.logs.pop(topic, None)

    def record(self, change: Change, *, urgent: bool) -> None:
        pass

    def reserve_ids(self, until: int) -> None:
        pass

    def settle(self) -> None:
        receipts, self.receipts = self.receipts, []
        for receipt in receipts:
            receipt.settle(self.error)


def _do_nothing() -> None: ...


class FakeTurn:
    """A turn that is also the disk for itself, on which there is nothing to write."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.finished = 0
        self.synced = 0
        self.journal_error: str | None = None  # as if the journal could not be written

    @property
    def publishing_error(self) -> str | None:
        return self.journal_error

    def write_journal(self) -> bool:
        return True

    def write_logs(self) -> None: ...

    def begin(self) -> float:
        return self._broker.turn.now

    def finish(self) -> None:
        finish_turn(self._broker, self, announce=tell_nobody, flush=_do_nothing)
        self.finished += 1

    async def durable(self, *topics: str) -> None:
        self.synced += 1


def make_broker(store: FakeStore) -> Broker:
    ids = IdSource(1, timestamp=START * 10**9, reserved=0, reserve=store.reserve_ids)
    return Broker(
        store,
        broker_settings(mem_queue_size=100, mem_queue_bytes=1 << 20),
        ids=ids,
        now=NOW,
        timestamp=START * 10**9,
        random_percent=lambda: 0,
        rules=NO_RULES,
        note=print,
        learns=False,
    )


def bodies(store: FakeStore, topic: str) -> list[bytes]:
    """Return the bodies of all messages that have been published to the topic."""
    return [
        batch.body(sequence)
        for batch in store.logs[topic].batches
        for sequence in range(batch.base_sequence, batch.end_sequence)
    ]


def sized(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def binary_mpub(messages: Sequence[bytes]) -> bytes:
    return len(messages).to_bytes(4, "big") + sized(*messages)
