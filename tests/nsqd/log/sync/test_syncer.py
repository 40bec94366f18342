"""When a sync is due, which logs it takes, and who gets an answer when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.files import DiskError
from nsqd.log.store import DiskStore
from nsqd.log.sync.sync import Sync
from nsqd.log.sync.syncer import SHORTEST_PAUSE
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore.open(tmp_path, log_settings(ack="synced", sync_every=3))
    store.recover()
    run(store)
    yield store
    store.abandon()


def publish(store: DiskStore, topic: str, *bodies: bytes) -> Receipt:
    log, receipt = store.create_log(topic), Receipt()
    log.append(make_batch(log.tail, bodies), receipt)
    store.write_logs()
    return receipt


def run(store: DiskStore, most: int = 1000) -> bool:
    return store.syncer.sync_now(most)


def test_a_sync_answers_the_publishers_of_what_it_took(store: DiskStore) -> None:
    receipts = [publish(store, "a", b"1"), publish(store, "b", b"2")]
    assert store.syncer.is_awaited
    assert run(store)
    assert [receipt.settled for receipt in receipts] == [True, True]
    assert not store.syncer.is_awaited


def test_a_call_is_answered_by_the_sync_that_takes_the_last_of_the_rest(store: DiskStore) -> None:
    for topic in "abc":
        publish(store, topic, b"1")
    result = store.syncer.request_sync()
    run(store, most=2)
    assert not result.ended.is_set()
    assert store.syncer.has_rest
    publish(store, "d", b"came later")
    run(store, most=2)
    assert result.ended.is_set()
    assert result.error_of(["a", "b", "c"]) is None


class Disk:
    """In place of the thread: it has the syncs, and performs them when a test says so."""

    def __init__(self, store: DiskStore, clock: list[float]) -> None:
        self.syncs: list[Sync] = []
        self._store = store
        self._clock = clock

    def perform(self, sync: Sync) -> None:
        self.syncs.append(sync)

    def finish(self, *, took: float) -> bool:
        """Perform the sync that was begun, and end it. Return whether publishers have been answered."""
        sync = self.syncs.pop()
        sync.perform(self._store.files)
        sync.is_performed = True
        self._clock[0] += took
        return self._store.syncer.end()


@dataclass
class Timed:
    """A store of which something was synced, which took as long as a test says."""

    store: DiskStore
    disk: Disk

    @classmethod
    def opened(cls, folder: Path, *, ack: str, took: float) -> Timed:
        clock = [0.0]
        settings = log_settings(ack=ack, sync_every=3)
        store = DiskStore.open(folder, settings, clock=lambda: clock[0])
        store.recover()
        disk = Disk(store, clock)
        store.syncer.start(disk)
        publish(store, "first", b"x")
        store.syncer.begin()
        disk.finish(took=took)
        store.wakeups.hurry.clear()
        return cls(store, disk)


@pytest.mark.parametrize(("took", "pause"), [(0.0, SHORTEST_PAUSE), (0.3, 0.3), (5.0, 2.0)])
def test_the_pause_is_as_long_as_the_last_sync_within_bounds(tmp_path: Path, took: float, pause: float) -> None:
    timed = Timed.opened(tmp_path, ack="written", took=took)
    publish(timed.store, "a", b"1")
    assert timed.store.syncer.pause == pause
    timed.store.abandon()


def test_many_unsynced_messages_hurry(tmp_path: Path) -> None:
    timed = Timed.opened(tmp_path, ack="written", took=0.3)
    publish(timed.store, "a", b"1", b"2")
    assert timed.store.syncer.pause > SHORTEST_PAUSE
    assert not timed.store.wakeups.hurry.is_set
    publish(timed.store, "a", b"3")
    assert timed.store.syncer.pause == SHORTEST_PAUSE
    assert timed.store.wakeups.hurry.is_set
    timed.store.abandon()


def test_nobody_waits_for_the_pause(tmp_path: Path) -> None:
    timed = Timed.opened(tmp_path, ack="synced", took=0.3)
    assert timed.store.syncer.pause == 0.3
    publish(timed.store, "a", b"1")
    assert timed.store.syncer.pause == 0.0
    assert timed.store.wakeups.hurry.is_set
    timed.store.abandon()


def test_a_call_that_waits_ends_the_pause_too(tmp_path: Path) -> None:
    timed = Timed.opened(tmp_path, ack="written", took=0.3)
    timed.store.syncer.request_sync()
    assert timed.store.syncer.pause == 0.0
    timed.store.abandon()


def test_one_sync_at_a_time_and_none_after_the_end(tmp_path: Path) -> None:
    timed = Timed.opened(tmp_path, ack="synced", took=0.0)
    syncer, disk = timed.store.syncer, timed.disk
    publish(timed.store, "a", b"1")
    syncer.begin()
    publish(timed.store, "a", b"2")
    syncer.begin()
    assert len(disk.syncs) == 1
    syncer.stop()
    assert disk.finish(took=0.0)
    syncer.begin()
    assert (disk.syncs, syncer.is_busy) == ([], False)
    timed.store.abandon()


def test_a_dropped_log_is_in_no_sync_and_followers_hear_of_it(store: DiskStore) -> None:
    heard: list[str] = []
    store.syncer.follow(heard.append)
    publish(store, "a", b"1")
    store.drop_log("a")
    assert heard == ["a"]
    assert store.syncer.collect().jobs == []


def test_what_is_synced_is_told_once(store: DiskStore) -> None:
    publish(store, "a", b"1")
    run(store)
    assert [log.topic for log in store.syncer.take_synced()] == ["a"]
    assert store.syncer.take_synced() == []


def test_only_errors_of_the_topics_one_asks_for_count(store: DiskStore) -> None:
    result = store.syncer.request_sync()
    result.log_errors = {"a": DiskError("no space", is_full=True)}
    assert result.error_of(["a", "b"]) == DiskError("no space", is_full=True)
    assert result.error_of(["b"]) is None
    result.error = DiskError("the journal")
    assert result.error_of([]) == DiskError("the journal")
