"""The keys of batches are in the log, and are known again after a start."""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import pytest

from nsqd.broker.batch import Batch, Receipt
from nsqd.log.recovery.keys import keys_in
from nsqd.log.retention import Retention
from nsqd.log.writing.sync_job import CommonFolders
from tests.integration.log.harness import ForgetfulFiles, OpenStore, opened

SECOND = 1_000_000_000
WINDOW: dict[str, Any] = {"idempotence_window": 100 * SECOND}


def publish(store: OpenStore, key: bytes, body: bytes = b"x" * 100) -> Receipt:
    log, receipt = store.log(), Receipt()
    payload = len(body).to_bytes(4, "big") + body
    log.append(Batch(log.tail, 1, store.wall(), payload, (0, len(payload)), 0, key), receipt)
    store.store.write_logs()
    return receipt


def keys(store: OpenStore) -> list[bytes]:
    return [key for key, _ in store.log().keys]


def test_keys_are_found_again_in_all_young_segments(tmp_path: Path) -> None:
    settings = {**WINDOW, "max_bytes_per_file": 600}
    with opened(tmp_path, **settings) as store:
        publish(store, b"old")
        store.clock.now += 60
        for number in range(20):
            publish(store, b"key-%d" % number if number % 2 else b"")
        bodies = store.read()
        store.kill()
    with opened(tmp_path, **settings) as store:
        assert keys(store) == [b"old", *(b"key-%d" % number for number in range(1, 20, 2))]
        assert store.read() == bodies  # a key is no part of a message
        first = next(iter(store.log()._segments))
        assert [key for key, _ in keys_in(store.store.files, first, store.wall() + SECOND, 0)] == [b"key-1"]
        store.kill()
    with opened(tmp_path) as store:
        assert keys(store) == []


def test_the_index_counts_keys(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        for number in range(2000):
            publish(store, b"key-%d" % number)
        log = store.log()
        segment = next(iter(log._segments))
        assert segment.index is not None
        assert len(segment.index) > 3
        data = segment.path.read_bytes()
        assert all(data[offset:].startswith(b"\xf1NS\x01") for offset in segment.index.offsets)


def test_a_segment_with_keys_stays_until_they_may_be_forgotten(tmp_path: Path) -> None:
    settings = {**WINDOW, "max_bytes_per_file": 600}
    with opened(tmp_path, **settings) as store:
        publish(store, b"key")
        for _ in range(12):
            publish(store, b"")
        store.log().release(13)
        store.sync()
        assert store.log().first == 0
        store.kill()
    with opened(tmp_path, **settings) as store:
        store.log().release(13)
        assert store.log().first == 0
        store.clock.now += 101
        store.log().release(13)
        assert store.log().first > 0


def test_without_keys_nothing_stays_longer(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW, max_bytes_per_file=600, retention=Retention()) as store:
        for _ in range(13):
            publish(store, b"")
        store.log().release(13)
        assert store.log().first > 0


def tell(store: OpenStore, sequence: int) -> None:
    """Tell the journal from where on there are keys; -1: there is none."""
    store.store.record(("keys", "t", sequence), urgent=True)
    store.store.write_journal(force=True)


def journal_of(folder: Path) -> Path:
    return next(folder.glob("journal.0*"))


def test_an_older_journal_is_not_believed_to_know_where_there_are_keys(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        publish(store, b"")
        tell(store, -1)
        store.sync()
        older = journal_of(tmp_path).read_bytes()
        tell(store, 1)
        publish(store, b"key")
        store.sync()
        store.store.close()
    journal_of(tmp_path).write_bytes(older)
    with opened(tmp_path, **WINDOW) as store:
        assert not store.recovered.journal_is_whole
        assert keys(store) == [b"key"]


def test_what_the_journal_says_of_keys_is_not_about_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with opened(tmp_path / "one", **WINDOW) as store:
        publish(store, b"key")
        store.sync()
        store.kill()
    with opened(tmp_path / "two", **WINDOW) as store:
        publish(store, b"")
        tell(store, -1)
        store.sync()
        store.kill()
    rmtree(tmp_path / "two" / "topics" / "t.t")
    copytree(tmp_path / "one" / "topics" / "t.t", tmp_path / "two" / "topics" / "t.t")
    with opened(tmp_path / "two", **WINDOW) as store:
        assert keys(store) == [b"key"]


@pytest.mark.parametrize("seed", range(30))
def test_the_first_key_that_was_answered_is_found_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    files = ForgetfulFiles()
    with opened(tmp_path, files, ack="synced", **WINDOW) as store:
        publish(store, b"")
        tell(store, -1)
        store.checkpoint()
        store.store.record(("keys", "t", store.log().tail), urgent=True)  # as a topic does, before it has the batch
        receipt = publish(store, b"key")
        assert not receipt.settled
        store.sync()
        assert receipt.settled
        assert receipt.error is None
        store.kill()
    files.cut_power(tmp_path, Random(seed))
    with opened(tmp_path, **WINDOW) as store:
        assert keys(store) == [b"key"]


@pytest.mark.parametrize("seed", range(30))
def test_a_key_that_was_not_answered_is_found_if_its_message_is(tmp_path: Path, seed: int) -> None:
    files = ForgetfulFiles()
    with opened(tmp_path, files, ack="synced", **WINDOW) as store:
        publish(store, b"")
        tell(store, -1)
        store.checkpoint()
        store.checkpoint()
        store.store.record(("keys", "t", store.log().tail), urgent=True)
        publish(store, b"key")
        for job in store.store.begin_round().jobs:  # the power is cut before the journal is synced
            job.perform(files, CommonFolders(files))
        store.kill()
    files.cut_power(tmp_path, Random(seed))
    with opened(tmp_path, **WINDOW) as store:
        assert len(store.read()) == 2
        assert keys(store) == [b"key"]
