"""A store in memory that can crash: it keeps what was written, and loses what was only in a buffer.

Journal changes go through msgpack, as on disk. `crash()` returns the store that recovery would find.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgpack

from nsqcommon.wire.log_record import decode_header, decode_keyed
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker import turn
from nsqd.broker.store import DiskSnapshot, KeyedPublish
from nsqd.log.record import encode

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.broker.broker import Broker
    from nsqd.broker.change import Change


class FakeLog:
    def __init__(self, topic: str, store: FakeStore) -> None:
        self.topic = topic
        self.keys: list[tuple[bytes, int]] = []
        self.forgotten_keys: list[KeyedPublish] = []
        self.keys_from = -1
        self.first = 0
        self.released = 0
        self.outdated_before = 0
        self.cold_before = 0  # messages before this sequence have to be loaded first
        self.compacted: list[int] = []  # messages before `first` that a compacted file has
        self.refused = (0, 0)  # [first, end): the disk refuses to read these
        self._store = store
        self._written: list[Batch] = []
        self._buffered: list[tuple[Batch, Receipt]] = []
        self._warm: set[int] = set()  # base sequences of loaded batches
        self.has_copy = False  # publishes wait for it
        self.why_refused: str | None = None
        self.synced_before: int | None = None  # None: everything that is written
        self.waits = False  # files have to be removed before more is written
        self.answer_to_repeats: Receipt | None = None

    @property
    def batches(self) -> list[Batch]:
        return list(self._written)

    @property
    def tail(self) -> int:
        if self._buffered:
            return self._buffered[-1][0].end_sequence
        return self._written[-1].end_sequence if self._written else 0

    @property
    def cached_from(self) -> int:
        return self.cold_before

    def take_keys(self) -> tuple[list[tuple[bytes, int]], list[KeyedPublish]]:
        taken, self.keys, self.forgotten_keys = (self.keys, self.forgotten_keys), [], []
        return taken

    def deferred_keys(self, wanted: Sequence[int]) -> list[KeyedPublish]:
        return [
            place
            for batch in self._written
            if batch.key and batch.delay_ms and any(batch.base_sequence <= it < batch.end_sequence for it in wanted)
            for place in _keyed(batch)
        ]

    def has_room(self, count: int, size: int) -> bool:
        capacity = self._store.memory_capacity
        return capacity is None or not is_ephemeral(self.topic) or self.tail - self.released + count <= capacity

    def bytes_from(self, sequence: int) -> int:
        return sum(
            len(batch.payload)
            for batch in [*self._written, *(batch for batch, _ in self._buffered)]
            if batch.base_sequence >= sequence
        )

    def file_of(self, sequence: int) -> int:
        return 0

    def waits_for_removal(self, passed: int) -> bool:
        return self.waits

    @property
    def synced(self) -> int:
        written = self._written[-1].end_sequence if self._written else 0
        return written if self.synced_before is None else self.synced_before

    def lose_unsynced(self) -> None:
        """Lose what a power cut does."""
        self._written = [batch for batch in self._written if batch.end_sequence <= self.synced]

    @property
    def waits_for_copy(self) -> bool:
        return self.has_copy

    def refusal(self) -> str | None:
        return self.why_refused

    def refusal_now(self) -> str | None:
        return self.why_refused

    def answer_repeat(self, earlier: Receipt) -> Receipt:
        return self.answer_to_repeats or earlier

    def append(self, batch: Batch, receipt: Receipt) -> None:
        assert batch.base_sequence == self.tail
        if self.why_refused is not None:
            receipt.settle(self.why_refused)
            return
        self._buffered.append((batch, receipt))
        self._store.dirty[self.topic] = self

    def batch_at(self, sequence: int) -> Batch | None:
        assert self.first <= sequence or sequence in self.compacted
        assert sequence < self.tail
        batches = [batch for batch, _ in self._buffered] + self._written
        batch = next(b for b in batches if b.base_sequence <= sequence < b.end_sequence)
        if self.end_of_refused(sequence) != sequence:
            return None
        if sequence < self.cold_before and batch.base_sequence not in self._warm:
            self._store.wanted.setdefault(self.topic, set()).add(batch.base_sequence)
            return None
        return batch

    def end_of_refused(self, sequence: int) -> int:
        first, end = self.refused
        return end if first <= sequence < end else sequence

    def next_readable(self, sequence: int) -> int:
        return sequence if sequence in self.compacted else max(sequence, self.first)

    def next_kept(self, sequence: int) -> int:
        return min([it for it in self.compacted if it >= sequence] or [max(sequence, self.first)])

    def release(self, sequence: int, passed: int | None = None) -> None:
        self.released = sequence

    def older_than(self, timestamp: int) -> int:
        """Return the end of the batches that are older, as if each were a segment of its own."""
        end = self.first
        for batch in self._written:
            if batch.end_sequence <= end:
                continue
            if batch.timestamp >= timestamp:
                break
            end = batch.end_sequence
        return end

    def outdated(self) -> int:
        return self.outdated_before

    def evict(self) -> None:
        """Evict all batches from memory."""
        self.cold_before = self.tail
        self._warm.clear()

    def unlink(self) -> None:
        """Delete what has been released."""
        self.first = max(self.first, self.released)

    def warm(self, base_sequences: set[int]) -> None:
        self._warm |= base_sequences

    def write(self, error: str | None, *, settle: bool) -> list[Receipt]:
        """Write the buffer, and return the receipts that are still open."""
        buffered, self._buffered = self._buffered, []
        if is_ephemeral(self.topic):
            error = None
        receipts = [receipt for _, receipt in buffered]
        if error is None:
            self._written += [batch for batch, _ in buffered]
        if error is None and not settle:
            return receipts
        for receipt in receipts:
            receipt.settle(error)
        return []

    def recovered(self, store: FakeStore) -> FakeLog:
        log = FakeLog(self.topic, store)
        log._written = list(self._written)
        log.first, log.released, log.compacted = self.first, self.released, self.compacted
        log.keys_from = store.keys_from(self.topic)
        keyless = store.keyless(self.topic)
        for batch in self._written if log.keys_from >= 0 else ():
            if batch.base_sequence >= log.keys_from:
                found = _keyed(batch)
                log.forgotten_keys += [it for it in found if it[1] in keyless]
                log.keys += [(key, batch.timestamp) for key, start, _, _ in found if start not in keyless]
        log.evict()
        return log


class FakeStore:
    def __init__(self) -> None:
        self.logs: dict[str, FakeLog] = {}
        self.journal: list[Change] = []  # changes that were written
        self.unwritten: list[Change] = []
        self.urgent = False
        self.error: str | None = None  # writes of logs fail with this error
        self.journal_error: str | None = None  # writes of the journal fail with this error
        self.memory_capacity: int | None = None  # messages, of logs that live in memory only
        self.ack_synced = False  # receipts wait for `sync`
        self.unsynced: list[Receipt] = []
        self.dirty: dict[str, FakeLog] = {}
        self.wanted: dict[str, set[int]] = {}  # topic -> batches that somebody asked for
        self.reserved_ids = 0
        self.health = "OK"

    def disk(self) -> DiskSnapshot:
        return DiskSnapshot()

    def create_log(self, topic: str) -> FakeLog:
        assert topic not in self.logs
        log = self.logs[topic] = FakeLog(topic, self)
        return log

    def drop_log(self, topic: str) -> None:
        del self.logs[topic]
        self.dirty.pop(topic, None)
        self.wanted.pop(topic, None)

    def record(self, change: Change, *, urgent: bool) -> None:
        self.unwritten.append(change)
        self.urgent |= urgent

    def reserve_ids(self, until: int) -> None:
        self.reserved_ids = until

    # The shell's part

    def write_logs(self) -> None:
        dirty, self.dirty = self.dirty, {}
        for log in dirty.values():
            self.unsynced += log.write(self.error, settle=not self.ack_synced)

    def write_journal(self, *, force: bool = False) -> bool:
        if (force or self.urgent) and self.journal_error is None:
            self.journal += (msgpack.unpackb(msgpack.packb(change), use_list=False) for change in self.unwritten)
            self.unwritten = []
            self.urgent = False
        return not self.urgent

    @property
    def publishing_error(self) -> str | None:
        return self.journal_error

    def sync(self) -> None:
        unsynced, self.unsynced = self.unsynced, []
        for receipt in unsynced:
            receipt.settle()

    def load(self, broker: Broker) -> None:
        """Load the batches that were asked for."""
        wanted, self.wanted = self.wanted, {}
        for topic, batches in wanted.items():
            self.logs[topic].warm(batches)
            broker.loaded(topic)

    def keys_from(self, topic: str) -> int:
        """Return what the journal says of the topic's keys, as the store of nsqd finds it."""
        said = 0
        for change in self.journal:
            if change[0] == "keys" and change[1] == topic:
                said = change[2]
        return said

    def keyless(self, topic: str) -> set[int]:
        """Return where publishes begin that have lost their keys, as the journal says."""
        found: set[int] = set()
        for change in self.journal:
            match change:
                case ("keyless", name, starts) if name == topic:
                    found.update(starts)
                case ("drop", name) if name == topic:
                    found.clear()
                case ("cut", name, tail) if name == topic:
                    found = {start for start in found if start < tail}
        return found

    def crash(self) -> FakeStore:
        """Return the store that a start finds after the process has died here."""
        found = FakeStore()
        found.journal = list(self.journal)
        found.reserved_ids = self.reserved_ids
        found.memory_capacity = self.memory_capacity
        found.logs = {name: log.recovered(found) for name, log in self.logs.items() if not is_ephemeral(name)}
        return found


def _keyed(batch: Batch) -> list[KeyedPublish]:
    record = b"".join(encode(batch))
    header = decode_header(record, 0)
    assert header is not None
    return [(key, start, count, batch.timestamp) for key, start, count in decode_keyed(header, record, 0)]


def tell_nobody(topics: Collection[str]) -> None:
    """Ignore the topics: there is no nsqlookupd."""


def finish_turn(broker: Broker, store: FakeStore, announce: turn.Announce = tell_nobody) -> None:
    """End a turn in which nothing is sent."""
    turn.finish_turn(broker, store, announce=announce, flush=lambda: None)


def changes_in(snapshot: Iterable[Change | None]) -> list[Change]:
    """Return the changes that a new journal is told, without the opportunities for others to have their turn."""
    return [change for change in snapshot if change is not None]
