"""The keys of batches are in the log, and are known again after a start."""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import pytest

from nsqcommon.wire.log_record import KEYS
from nsqd.broker.batch import Batch, Receipt
from nsqd.log.files import Files
from nsqd.log.keys import keys_in
from nsqd.log.retention import Retention
from nsqd.log.writing.unsynced import CommonFolders
from tests.nsqd.log.harness import ForgetfulFiles, OpenStore, opened

SECOND = 1_000_000_000
WINDOW: dict[str, Any] = {"idempotence_window": 100 * SECOND}


def publish(store: OpenStore, key: bytes, body: bytes = b"x" * 100) -> Receipt:
    log, receipt = store.log(), Receipt()
    payload = len(body).to_bytes(4, "big") + body
    log.append(Batch(log.tail, 1, store.wall(), payload, (0, len(payload)), 0, key), receipt)
    store.store.write_logs()
    return receipt


def keys(store: OpenStore) -> list[bytes]:
    return [key for key, _ in store.log().take_keys()[0]]


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
        found, _ = keys_in(store.store.files, first, store.wall() + SECOND, 0)
        assert [key for key, _ in found] == [b"key-1"]
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
        (damage,) = store.recovered.damage
        assert (damage.file, damage.offset, damage.first, damage.end) == ("journal.000001", 0, 0, 0)
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
        for job in store.store.syncer.collect().jobs:  # the power is cut before the journal is synced
            job.perform(files, CommonFolders(files))
        store.kill()
    files.cut_power(tmp_path, Random(seed))
    with opened(tmp_path, **WINDOW) as store:
        assert len(store.read()) == 2
        assert keys(store) == [b"key"]


# Of deferred publishes


class CountedFiles(Files):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = 0

    def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
        self.bytes_read += size
        return super().read_fully(descriptor, size, offset)


def append(store: OpenStore, key: bytes, count: int = 1, *, delay_ms: int = 0, size: int = 100, flags: int = 0) -> None:
    log, sized = store.log(), size.to_bytes(4, "big") + bytes(size)
    offsets = range(0, count * len(sized) + 1, len(sized))
    log.append(Batch(log.tail, 1, store.wall(), sized * count, offsets, delay_ms, key, flags), Receipt())
    store.store.write_logs()


def mixed(store: OpenStore) -> None:
    """Publish ten batches of three, every other with a delay and a key."""
    for number in range(10):
        append(store, b"key-%d" % number if number % 2 else b"", 3, delay_ms=5000 if number % 4 else 0)
    # With a delay and a key: 3 to 5, 9 to 11, 15 to 17, 21 to 23, 27 to 29. With a delay alone: 6 to 8, 18 to 20.


@pytest.mark.parametrize("size", [600, 100_000_000])
def test_the_keys_of_deferred_messages_are_found_by_their_sequences(tmp_path: Path, size: int) -> None:
    with opened(tmp_path, **WINDOW, max_bytes_per_file=size) as store:
        mixed(store)
        store.sync()
        store.kill()
    with opened(tmp_path, **WINDOW, max_bytes_per_file=size) as store:
        published = store.wall()
        assert store.log().deferred_keys([4, 5, 6, 12, 29]) == [
            (b"key-1", 3, 3, published),
            (b"key-9", 27, 3, published),
        ]
        assert [place[0] for place in store.log().deferred_keys(range(30))] == [b"key-%d" % n for n in (1, 3, 5, 7, 9)]
        assert store.log().deferred_keys([0, 6, 24]) == []


def test_only_the_parts_that_hold_them_are_read(tmp_path: Path) -> None:
    files = CountedFiles()
    with opened(tmp_path, files, **WINDOW) as store:
        for number in range(400):
            append(store, b"key-%d" % number, delay_ms=5000, size=50_000)
        before = files.bytes_read
        found = store.log().deferred_keys([3, 250, 399])
        assert [key for key, *_ in found] == [b"key-3", b"key-250", b"key-399"]
        assert files.bytes_read - before < 3_000_000  # of 20 MB
        store.kill()


def test_keys_of_deferred_messages_are_found_where_they_were_compacted(tmp_path: Path) -> None:
    settings = {**WINDOW, "max_bytes_per_file": 700, "mem_queue_size": 0}
    with opened(tmp_path, **settings) as store:
        mixed(store)
        store.clock.now += 200
        for _ in range(10):
            append(store, b"")
        needed = [3, 5, 16, 27, 28, 29]
        store.exceptions_of = lambda topic: [needed]
        store.log().release(3, store.log().tail)
        assert store.compaction()
        store.sync()
        assert store.log().first > 29
        store.kill()
    with opened(tmp_path, **settings) as store:
        found = store.log().deferred_keys(needed)
        assert [(key, start, count) for key, start, count, _ in found] == [
            (b"key-1", 3, 1),
            (b"key-1", 5, 1),
            (b"key-5", 16, 1),
            (b"key-9", 27, 3),
        ]


def test_damage_hides_no_key_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        mixed(store)
        store.sync()
        path = next(iter(store.log()._segments)).path
        store.kill()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    data[len(data) // 2 - 60 : len(data) // 2] = bytes(60)
    path.write_bytes(data)
    with opened(tmp_path, **WINDOW) as store:
        found = [key for key, *_ in store.log().deferred_keys(range(30))]
        assert {b"key-1", b"key-3", b"key-7", b"key-9"} <= set(found) <= {b"key-%d" % n for n in (1, 3, 5, 7, 9)}


# Of publishes that were taken back


def keyless(store: OpenStore, *starts: int) -> None:
    store.store.record(("keyless", "t", list(starts)), urgent=True)
    store.store.write_journal(force=True)


def test_keys_that_were_forgotten_are_told_apart_after_a_start(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        append(store, b"k")
        append(store, b"batch", 3)
        append(store, b"\2ab\0\2cd", 3, flags=KEYS)
        keyless(store, 0, 1, 6)
        append(store, b"k")
        store.sync()
        store.kill()
    for _ in range(2):
        with opened(tmp_path, **WINDOW) as store:
            published = store.wall()
            known, forgotten = store.log().take_keys()
            assert [key for key, _ in known] == [b"ab", b"k"]
            assert forgotten == [(b"k", 0, 1, published), (b"batch", 1, 3, published), (b"cd", 6, 1, published)]
            store.kill()


def test_a_log_does_not_keep_the_keys_that_a_topic_has_taken(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        append(store, b"gone")
        append(store, b"k")
        keyless(store, 0)
        store.sync()
        store.kill()
    with opened(tmp_path, **WINDOW) as store:
        log = store.log()
        assert [len(taken) for taken in log.take_keys()] == [1, 1]
        assert log.take_keys() == ([], [])


def test_a_snapshot_in_parts_tells_of_forgotten_keys(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        append(store, b"a")
        append(store, b"b")
        many = [("wait", "t", "c", [0] * 3_000)] * 5
        store.state_of = lambda topic: iter([("topic", "t"), ("keys", "t", 0), *many, ("keyless", "t", [1]), *many])
        store.rotate()
        store.kill()
    with opened(tmp_path, **WINDOW) as store:
        assert keys(store) == [b"a"]


def test_a_deleted_topic_takes_its_forgotten_keys_along(tmp_path: Path) -> None:
    with opened(tmp_path, **WINDOW) as store:
        append(store, b"a")
        keyless(store, 0)
        store.store.record(("drop", "t"), urgent=True)
        store.store.drop_log("t")
        store.store.write_journal(force=True)
        append(store, b"b")
        store.sync()
        store.kill()
    with opened(tmp_path, **WINDOW) as store:
        assert keys(store) == [b"b"]


def test_another_message_with_the_sequence_of_a_lost_one_keeps_its_key(tmp_path: Path) -> None:
    """A power cut takes the end of the log, but not what the journal was told about it."""
    with opened(tmp_path, **WINDOW) as store:
        append(store, b"a")
        append(store, b"b")
        keyless(store, 0, 1)
        size = next(iter(store.log()._segments)).size
        path = next(iter(store.log()._segments)).path
        store.kill()
    with path.open("r+b") as file:
        file.truncate(size // 2)
    with opened(tmp_path, **WINDOW) as store:
        assert store.log().tail == 1
        assert [key for key, *_ in store.log().take_keys()[1]] == [b"a"]
        append(store, b"c")
        store.sync()
        store.kill()
    with opened(tmp_path, **WINDOW) as store:
        known, forgotten = store.log().take_keys()
        assert ([key for key, _ in known], [key for key, *_ in forgotten]) == ([b"c"], [b"a"])


def test_what_the_journal_says_of_forgotten_keys_is_not_about_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with opened(tmp_path / "one", **WINDOW) as store:
        publish(store, b"key")
        store.sync()
        store.kill()
    with opened(tmp_path / "two", **WINDOW) as store:
        publish(store, b"other")
        keyless(store, 0)
        store.sync()
        store.kill()
    rmtree(tmp_path / "two" / "topics" / "t.t")
    copytree(tmp_path / "one" / "topics" / "t.t", tmp_path / "two" / "topics" / "t.t")
    for _ in range(2):
        with opened(tmp_path / "two", **WINDOW) as store:
            assert keys(store) == [b"key"]
            store.sync()
            store.kill()
