"""What the broker relies on, tested on the real store and on the fake one of the broker's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from nsqd.broker.batch import Receipt
from nsqd.broker.store import Entry, Store, TopicLog
from tests.nsqd.log.batches import bodies_of, facts, make_batch
from tests.nsqd.log.harness import OpenStore
from tests.support.fake_store import FakeStore


class Subject(Protocol):
    """A store, and what its shell does with it."""

    @property
    def store(self) -> Store: ...

    def write_logs(self) -> None: ...

    def write_journal(self) -> None: ...

    def kill_and_recover(self) -> tuple[Subject, dict[str, TopicLog], list[Entry], int]: ...


class Real:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.open = OpenStore(path)
        self.store: Store = self.open.store

    def write_logs(self) -> None:
        self.open.store.write_logs()

    def write_journal(self) -> None:
        self.open.store.write_journal()

    def kill_and_recover(self) -> tuple[Subject, dict[str, TopicLog], list[Entry], int]:
        self.open.kill()
        self.open = OpenStore(self.path)
        self.store = self.open.store
        found = self.open.recovered
        return self, dict(found.logs), list(found.changes), found.ids_reserved


class Fake:
    def __init__(self, fake: FakeStore | None = None) -> None:
        self.fake = fake or FakeStore()
        self.store: Store = self.fake

    def write_logs(self) -> None:
        self.fake.write_logs()

    def write_journal(self) -> None:
        self.fake.write_journal()

    def kill_and_recover(self) -> tuple[Subject, dict[str, TopicLog], list[Entry], int]:
        found = self.fake.crash()
        logs: dict[str, TopicLog] = dict(found.logs)
        return Fake(found), logs, list(found.journal), found.reserved_ids


@pytest.fixture(params=["real", "fake"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "fake":
        yield Fake()
        return
    real = Real(tmp_path)
    yield real
    real.open.kill()


def append(log: TopicLog, *bodies: bytes, delay_ms: int = 0) -> Receipt:
    receipt = Receipt()
    log.append(make_batch(log.tail, bodies, delay_ms=delay_ms), receipt)
    return receipt


def test_new_log_is_empty(subject: Subject) -> None:
    log = subject.store.create_log("t")
    assert (log.first, log.tail, log.cached_from) == (0, 0, 0)


def test_append_moves_the_tail_at_once(subject: Subject) -> None:
    log = subject.store.create_log("t")
    append(log, b"a", b"b")
    append(log, b"c")
    assert log.tail == 3


def test_receipt_is_settled_by_the_write(subject: Subject) -> None:
    receipt = append(subject.store.create_log("t"), b"a")
    assert not receipt.settled
    subject.write_logs()
    assert receipt.settled
    assert receipt.error is None


def test_batch_is_found_by_any_sequence_in_it(subject: Subject) -> None:
    log = subject.store.create_log("t")
    append(log, b"a", b"b")
    append(log, b"c", b"d", b"e")
    subject.write_logs()
    for sequence, bodies in enumerate([[b"a", b"b"]] * 2 + [[b"c", b"d", b"e"]] * 3):
        batch = log.batch_at(sequence)
        assert batch is not None
        assert bodies_of(batch) == bodies


def test_unwritten_batch_can_be_read(subject: Subject) -> None:
    log = subject.store.create_log("t")
    append(log, b"a")
    assert log.batch_at(0) is not None


def test_batch_is_what_was_appended(subject: Subject) -> None:
    log = subject.store.create_log("t")
    batch = make_batch(0, [b"a", b""], timestamp=12345, delay_ms=600)
    log.append(batch, Receipt())
    subject.write_logs()
    found = log.batch_at(1)
    assert found is not None
    assert facts(found) == facts(batch)


def test_sound_sequence_is_readable(subject: Subject) -> None:
    log = subject.store.create_log("t")
    append(log, b"a", b"b")
    subject.write_logs()
    assert [log.next_readable(sequence) for sequence in (0, 1, 2)] == [0, 1, 2]


def test_release_leaves_what_is_still_needed(subject: Subject) -> None:
    log = subject.store.create_log("t")
    append(log, b"a", b"b")
    append(log, b"c")
    subject.write_logs()
    log.release(1)
    log.release(0)  # never goes back
    assert log.first <= 1
    assert log.tail == 3
    assert log.batch_at(1) is not None


def test_written_messages_survive_a_kill(subject: Subject) -> None:
    log = subject.store.create_log("t")
    append(log, b"a", b"b")
    subject.write_logs()
    append(log, b"lost")
    _, logs, _, _ = subject.kill_and_recover()
    assert logs["t"].tail == 2


def test_written_changes_survive_a_kill_and_come_back_as_tuples(subject: Subject) -> None:
    subject.store.record(("try", "t", "c", 2, [5, 6]), urgent=False)
    subject.store.record(("topic", "t"), urgent=True)
    subject.write_journal()
    subject.store.record(("learned", "t"), urgent=True)
    _, _, changes, _ = subject.kill_and_recover()
    assert changes == [("try", "t", "c", 2, (5, 6)), ("topic", "t")]


def test_unurgent_changes_wait(subject: Subject) -> None:
    subject.store.record(("progress", "t", "c", 1, []), urgent=False)
    subject.write_journal()
    _, _, changes, _ = subject.kill_and_recover()
    assert changes == []


def test_reservation_survives_a_kill(subject: Subject) -> None:
    subject.store.reserve_ids(1 << 40)
    _, _, _, reserved = subject.kill_and_recover()
    assert reserved == 1 << 40


def test_dropped_log_does_not_come_back(subject: Subject) -> None:
    append(subject.store.create_log("t"), b"a")
    subject.write_logs()
    subject.store.drop_log("t")
    subject, logs, _, _ = subject.kill_and_recover()
    assert logs == {}
    assert subject.store.create_log("t").tail == 0


def test_publishing_goes_on_after_recovery(subject: Subject) -> None:
    append(subject.store.create_log("t"), b"a")
    subject.write_logs()
    subject, logs, _, _ = subject.kill_and_recover()
    append(logs["t"], b"b")
    subject.write_logs()
    _, logs, _, _ = subject.kill_and_recover()
    assert logs["t"].tail == 2
