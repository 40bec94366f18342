"""A topic's log on a disk that works: writing, rolling, caching, removing, reading back."""

from __future__ import annotations

import errno
import gc
from pathlib import Path

import pytest

from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.store import TopicLog
from nsqd.log.reading.cold import COLD_BYTES
from nsqd.log.topic_log import DiskLog
from tests.nsqd.log.batches import facts, make_batch
from tests.nsqd.log.harness import TroubledFiles, opened
from tests.support.open_files import open_files

RECORD = 56 + 4 + 100  # bytes of a record of one message of 100 bytes


def test_it_is_a_topic_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log: TopicLog = store.log()
        assert (log.first, log.tail, log.cached_from) == (0, 0, 0)


# Writing


def test_batches_of_a_turn_leave_in_one_write(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.publish(b"first")
        files.calls.clear()
        receipts = [store.append(b"a", b"b"), store.append(b"c")]
        assert not any(receipt.settled for receipt in receipts)
        store.store.write_logs()
        assert all(receipt.settled and receipt.error is None for receipt in receipts)
    assert [call for call in files.calls if call[0] == "write"] == [("write", f"{0:020}.log")]


def test_more_buffers_than_a_system_call_takes_are_written_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        receipts = [store.append(b"%d" % n) for n in range(3000)]
        store.store.write_logs()
        assert all(receipt.settled for receipt in receipts)
    with opened(tmp_path) as store:
        assert len(store.read()) == 3000


def test_short_writes_are_compacted_on(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        files.most_per_write = 7
        store.append(b"some bytes", b"more")
        store.append(b"and more")
        store.store.write_logs()
    with opened(tmp_path) as store:
        assert list(store.read().values()) == [b"some bytes", b"more", b"and more"]


def test_nothing_to_write_is_no_system_call(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.calls.clear()
        store.store.write_logs()
        assert not store.store.dirty
    assert files.calls == []


# Segments


def test_segment_ends_before_it_exceeds_its_bound(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=3 * RECORD) as store:
        for _ in range(7):
            store.publish(bytes(100))
        sizes = [path.stat().st_size for path in store.segments()]
        names = [int(path.stem) for path in store.segments()]
    assert sizes == [3 * RECORD, 3 * RECORD, RECORD]
    assert names == [0, 3, 6]


def test_turn_is_divided_where_a_segment_ends(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=3 * RECORD) as store:
        receipts = [store.append(bytes(100)) for _ in range(8)]
        store.store.write_logs()
        assert all(receipt.settled for receipt in receipts)
        assert [path.stat().st_size for path in store.segments()] == [3 * RECORD, 3 * RECORD, 2 * RECORD]
        assert len(store.read()) == 8


def test_single_record_may_exceed_the_bound(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=100) as store:
        store.publish(bytes(1000))
        store.publish(bytes(1000))
        assert [path.stat().st_size for path in store.segments()] == [1060, 1060]


def test_old_segment_is_synced_before_the_new_one(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=RECORD) as store:
        store.publish(bytes(100))
        store.publish(bytes(100))
        files.calls.clear()
        store.sync()
    synced = [name for operation, name in files.calls if operation in ("sync", "sync folder")]
    assert synced == ["log.json", f"{0:020}.log", f"{1:020}.log", "t.t", "topics"]


def test_finished_segments_are_removed_once_the_journal_is_synced(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=2 * RECORD) as store:
        for _ in range(6):
            store.publish(bytes(100))
        store.sync()
        files.calls.clear()
        store.store.record(("progress", "t", "c", 5, []), urgent=False)
        store.log().release(5)
        assert store.log().first == 4
        assert len(store.segments()) == 3
        store.sync()
        assert [int(path.stem) for path in store.segments()] == [4]
    order = [call for call in files.calls if call[0] in ("write", "sync", "unlink") and not call[1].endswith(".index")]
    assert order == [
        ("write", "journal.000001"),
        ("sync", "journal.000001"),
        ("unlink", f"{0:020}.log"),
        ("unlink", f"{2:020}.log"),
    ]


def test_nothing_is_removed_while_the_journal_cannot_be_synced(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=RECORD) as store:
        store.publish(bytes(100))
        store.publish(bytes(100))
        store.sync()
        files.fail("sync")
        files.fails_for = lambda name: name.startswith("journal")
        store.store.record(("progress", "t", "c", 1, []), urgent=False)
        store.log().release(1)
        store.sync()
        assert len(store.segments()) == 2
        files.recover()
        store.sync()
        assert len(store.segments()) == 2  # what the failed sync has lost was not written again yet
        store.rotate()
        store.sync()
        assert len(store.segments()) == 1


def test_nothing_is_removed_while_the_journal_cannot_be_written(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, max_bytes_per_file=RECORD) as store:
        store.publish(bytes(100))
        store.publish(bytes(100))
        store.sync()
        files.fail("write")
        store.store.record(("progress", "t", "c", 1, []), urgent=False)
        store.log().release(1)
        store.sync()
        assert len(store.segments()) == 2
        files.recover()
        store.clock.now += 1.0
        store.sync()
        assert len(store.segments()) == 1


def test_active_segment_is_kept_while_it_is_small(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.log().release(1)
        store.sync()
        assert len(store.segments()) == 1


def test_large_finished_active_segment_gives_its_space_back_and_the_tail_stays(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=10 * RECORD) as store:
        for _ in range(5):
            store.publish(bytes(100))
        store.log().release(5)
        assert (store.log().first, store.log().tail) == (5, 5)
        store.checkpoint()
        assert [(int(path.stem), path.stat().st_size) for path in store.segments()] == [(5, 0)]
    with opened(tmp_path) as store:
        assert (store.log().first, store.log().tail) == (5, 5)
        store.publish(b"next")
        assert store.read() == {5: b"next"}


# The tail cache


def test_cache_is_bounded_in_messages(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_size=10) as store:
        for n in range(25):
            store.publish(b"%d" % n)
        assert store.log().cached_from == 15


def test_cache_is_bounded_in_bytes(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_bytes=10_000) as store:
        for _ in range(25):
            store.publish(bytes(996))
        assert 25 - 10 <= store.log().cached_from < 25


def test_new_batches_do_not_stay_young_because_the_cache_drops_as_many_old_ones(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_size=2_000) as store:
        gc.collect()
        gc.disable()  # with as many freed objects as new ones, the interpreter begins no collection
        try:
            for n in range(100):
                for _ in range(50):
                    store.append(b"%d" % n)
                store.store.write_logs()
            young = [it for generation in (0, 1) for it in gc.get_objects(generation) if isinstance(it, Batch)]
        finally:
            gc.enable()
        assert len(young) < 1_100


def test_what_is_finished_leaves_the_cache(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a", b"b")
        store.publish(b"c")
        store.log().release(2)
        assert store.log().cached_from == 2


def test_last_write_is_readable_without_a_disk_also_if_there_is_no_cache(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, mem_queue_size=0) as store:
        store.publish(b"a")
        assert store.log().cached_from == 1
        files.calls.clear()
        assert store.log().batch_at(0) is not None
    assert files.calls == []


def test_nothing_is_cached_after_a_start(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
    with opened(tmp_path) as store:
        assert store.log().cached_from == store.log().tail == 1


# Cold reads


def test_cold_batch_is_what_was_appended(on_disk: Path) -> None:
    batch = make_batch(0, [b"one", b"two"], timestamp=-5, delay_ms=70_000, base_id=2**64 - 2)
    with opened(on_disk) as store:
        store.log().append(batch, Receipt())
        store.store.write_logs()
    with opened(on_disk) as store:
        found = store.log().batch_at(1)
        assert found is not None
        assert facts(found) == facts(batch)


def test_page_cache_is_read_at_once(on_disk: Path) -> None:
    with opened(on_disk, mem_queue_size=0) as store:
        for n in range(100):
            store.publish(b"%d" % n)
        batch = store.log().batch_at(0)
        assert batch is not None
        assert batch.body(0) == b"0"
        assert not store.store.reads.loads


def test_one_read_serves_many_batches(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, mem_queue_size=0) as store:
        for n in range(500):
            store.publish(b"%d" % n)
        files.calls.clear()
        assert len(store.read()) == 500
    assert files.calls.count(("read cached", f"{0:020}.log")) == 1


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL])
def test_what_is_not_in_the_page_cache_is_read_by_a_thread(tmp_path: Path, code: int) -> None:
    files = TroubledFiles()
    files.fail("read cached", code)
    with opened(tmp_path, files, mem_queue_size=0) as store:
        for n in range(100):
            store.publish(b"%d" % n)
        loaded: list[str] = []
        store.on_loaded = loaded.append
        log = store.log()
        assert log.batch_at(0) is None
        assert log.batch_at(0) is None  # asks for the batch, once
        assert len(store.load()) == 1
        assert loaded == ["t"]
        assert log.batch_at(0) is not None
        assert len(store.read()) == 100


def test_file_system_without_cached_reads_is_asked_once(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fail("read cached", errno.EOPNOTSUPP)
    with opened(tmp_path, files, mem_queue_size=0, max_bytes_per_file=1000) as store:
        for n in range(100):
            store.publish(b"%d" % n)
        assert len(store.read()) == 100
    assert sum(operation == "read cached" for operation, _ in files.calls) == 1


def test_page_cache_that_ends_in_the_middle_of_a_record_needs_the_thread(tmp_path: Path) -> None:
    class HalfCached(TroubledFiles):
        def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
            return super().read_cached_at(descriptor, size, offset)[:4096]

    with opened(tmp_path, HalfCached(), mem_queue_size=0) as store:
        store.publish(bytes(10_000))
        store.publish(b"after")
        assert store.log().batch_at(0) is None
        store.load()
        batch = store.log().batch_at(0)
        assert batch is not None
        assert batch.body(0) == bytes(10_000)


def test_any_sequence_of_any_segment_can_be_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_size=0, max_bytes_per_file=200_000) as store:
        for n in range(400):
            store.publish(b"%d" % n, bytes(2000))
        store.checkpoint()
        assert len(store.segments()) > 3
        for sequence in (0, 799, 400, 401, 130, 3, 555):
            batch = store.batch_at(store.log(), sequence)
            assert batch is not None
            assert batch.body(sequence) == (bytes(2000) if sequence % 2 else b"%d" % (sequence // 2))


def test_who_reads_on_finds_that_a_thread_was_there_before(on_disk: Path) -> None:
    files = TroubledFiles()
    with opened(on_disk, files, mem_queue_size=0, max_bytes_per_file=100 << 20) as store:
        for _ in range(400):
            store.publish(*[bytes(100)] * 200)
        log = store.log()
        for sequence in range(0, 40_000, 200):
            files.calls.clear()
            assert log.batch_at(sequence) is not None
            if store.store.reads.loads:
                store.load()
                assert ("read", f"{0:020}.log") in files.calls
                break
        else:
            pytest.fail("nothing was read ahead")


def test_who_looks_here_and_there_has_nothing_read_ahead(on_disk: Path) -> None:
    with opened(on_disk, mem_queue_size=0, max_bytes_per_file=100 << 20) as store:
        for _ in range(400):
            store.publish(*[bytes(100)] * 200)
        log = store.log()
        for sequence in range(79_900, 300, -7000):
            assert log.batch_at(sequence) is not None
        assert not store.store.reads.loads


def test_missing_index_is_made_again(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=4 << 20) as store:
        for n in range(600):
            store.publish(b"%d" % n, bytes(10_000))
        store.checkpoint()
        index = store.segments()[0].with_suffix(".index")
        written = index.read_bytes()
        assert len(written) > 16 * 50
    index.unlink()
    with opened(tmp_path) as store:
        batch = store.batch_at(store.log(), 700)
        assert batch is not None
        assert batch.body(700) == b"350"
        assert index.read_bytes() == written


def test_index_that_points_nowhere_is_not_believed(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=1 << 20) as store:
        for n in range(300):
            store.publish(b"%d" % n, bytes(10_000))
        store.checkpoint()
        index = store.segments()[0].with_suffix(".index")
    data = bytearray(index.read_bytes())
    data[8 + 7] ^= 1  # the first entry's offset
    index.write_bytes(data)
    with opened(tmp_path) as store:
        batch = store.batch_at(store.log(), 20)
        assert batch is not None
        assert batch.body(20) == b"10"
        assert store.store.damage == []
        assert len(store.read()) == 600


def test_blocks_of_cold_reads_are_bounded(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_size=0) as store:
        for _ in range(1000):
            store.publish(bytes(10_000))
        log = store.log()
        assert len(store.read()) == 1000
        assert log.reader._blocks is not None
        assert log.reader._blocks._bytes <= COLD_BYTES


def test_read_can_go_on_while_its_segment_is_removed(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files, mem_queue_size=0, max_bytes_per_file=RECORD) as store:
        store.publish(bytes(100))
        store.publish(bytes(100))
        files.fail("read cached", errno.EAGAIN)
        assert store.log().batch_at(0) is None
        store.log().release(1)
        store.sync()
        store.load()
        assert store.log().next_readable(0) == 1
        assert store.store.damage == []


# Descriptors


def test_idle_log_holds_no_descriptor(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_size=0) as store:
        store.publish(b"a")
        store.publish(b"b")
        store.read()
        assert len(store.store.reads.descriptors) == 1
        assert not store.store.give_back_what_is_idle()
        assert store.store.give_back_what_is_idle()
        assert len(store.store.reads.descriptors) == 0
        store.publish(b"c")
        assert store.read() == {0: b"a", 1: b"b", 2: b"c"}


def test_many_topics_need_few_descriptors(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for n in range(400):
            store.publish(b"a", topic=f"t{n}")
        assert 200 < open_files(tmp_path) < 256 + 10
        for n in range(400):
            store.publish(b"b", topic=f"t{n}")
        assert all(store.read(f"t{n}") == {0: b"a", 1: b"b"} for n in range(400))


# Headers


def test_headers_are_told_from_the_batch_that_holds_a_sequence(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=200) as store:
        for n in range(5):
            store.publish(b"a", b"b", delay_ms=n % 2 * 1000)
        headers = [(h.base_sequence, h.count) for h in store.log().reader.headers_from(3)]
        assert headers == [(2, 2), (4, 2), (6, 2), (8, 2)]


# Dropping


def test_dropped_topic_is_gone_at_once_and_its_files_soon(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.store.drop_log("t")
        assert not (tmp_path / "topics" / "t.t").exists()
        store.sync()
        assert list((tmp_path / "topics").iterdir()) == []


def test_leftovers_of_a_dropped_topic_are_removed_after_a_crash(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.store.drop_log("t")
    with opened(tmp_path) as store:
        assert store.recovered.logs == {}
        store.sync()
        assert list((tmp_path / "topics").iterdir()) == []


def test_topic_of_the_same_name_is_another_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        old = store.log().log_id
        store.checkpoint()
        store.store.drop_log("t")
        store.publish(b"b")
        assert store.log().log_id != old
        store.checkpoint()
    with opened(tmp_path) as store:
        assert store.read() == {0: b"b"}


def test_publishers_that_wait_are_told_when_the_topic_goes(tmp_path: Path) -> None:
    with opened(tmp_path, ack="synced") as store:
        receipts = [store.publish(b"a"), store.append(b"b")]
        store.store.drop_log("t")
        assert [receipt.error for receipt in receipts] == ["exiting", "exiting"]


def test_log_of_a_deleted_topic_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """The collector seldom looks at old objects, as most topics are, and a log holds the newest messages."""
    gc.collect()
    gc.disable()
    try:
        with opened(tmp_path, mem_queue_size=1) as store:
            for _ in range(20):
                for _ in range(3):
                    store.publish(b"a")
                assert len(store.read()) == 3  # also from disk
                store.checkpoint()
                store.store.drop_log("t")
                store.checkpoint()
            assert sum(type(it) is DiskLog for it in gc.get_objects()) == 0
    finally:
        gc.enable()


def test_ephemeral_topic_leaves_nothing_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log = store.store.create_log("t#ephemeral")
        receipt = Receipt()
        log.append(make_batch(0, [b"a"]), receipt)
        assert receipt.settled
        store.checkpoint()
        store.store.drop_log("t#ephemeral")
    assert list((tmp_path / "topics").iterdir()) == []
