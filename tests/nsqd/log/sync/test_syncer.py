"""Which logs a round syncs, and which publishers get their answer when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.store import DiskStore
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
    round_ = store.begin_round(most)
    round_.perform(store.files)
    return store.rounds.end(round_)


def test_a_round_answers_the_publishers_of_what_it_took(store: DiskStore) -> None:
    receipts = [publish(store, "a", b"1"), publish(store, "b", b"2")]
    assert store.rounds.is_awaited
    assert run(store)
    assert [receipt.settled for receipt in receipts] == [True, True]
    assert not store.rounds.is_awaited


def test_a_call_is_answered_by_the_round_that_takes_the_last_of_the_rest(store: DiskStore) -> None:
    for topic in "abc":
        publish(store, topic, b"1")
    result = store.rounds.wanted_result()
    run(store, most=2)
    assert not result.ended.is_set()
    assert store.rounds.has_rest
    publish(store, "d", b"came later")
    run(store, most=2)
    assert result.ended.is_set()
    assert result.error_of(["a", "b", "c"]) is None


def test_many_unsynced_messages_hurry(tmp_path: Path) -> None:
    store = DiskStore.open(tmp_path, log_settings(ack="written", sync_every=3))
    store.recover()
    run(store)
    store.wakeups.hurry.clear()
    publish(store, "a", b"1", b"2")
    assert not store.rounds.has_to_hurry
    publish(store, "a", b"3")
    assert store.rounds.has_to_hurry
    assert store.wakeups.hurry.is_set
    store.abandon()


def test_a_dropped_log_is_in_no_round_and_followers_hear_of_it(store: DiskStore) -> None:
    heard: list[str] = []
    store.rounds.follow(heard.append)
    publish(store, "a", b"1")
    store.drop_log("a")
    assert heard == ["a"]
    assert store.begin_round().jobs == []


def test_what_is_synced_is_told_once(store: DiskStore) -> None:
    publish(store, "a", b"1")
    run(store)
    assert [log.topic for log in store.rounds.take_synced()] == ["a"]
    assert store.rounds.take_synced() == []


def test_only_errors_of_the_topics_one_asks_for_count(store: DiskStore) -> None:
    result = store.rounds.wanted_result()
    result.log_errors = {"a": "no space"}
    assert result.error_of(["a", "b"]) == "no space"
    assert result.error_of(["b"]) is None
    result.error = "the journal"
    assert result.error_of([]) == "the journal"
