"""Writes and syncs fail: publishers get errors, nothing is lost, and it works again by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.files import LARGE, PIECE, Buffers
from nsqd.log.writing.unsynced import CommonFolders
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import Crash, CrashingFiles, OpenStore, TroubledFiles, opened, texts

FIRST = f"{0:020}.log"


@pytest.fixture
def files() -> TroubledFiles:
    return TroubledFiles()


def wait_a_second(store: OpenStore) -> None:
    store.clock.now += 1.0


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "no space left on device"), (errno.EIO, "input/output error")]
)
def test_publisher_gets_the_systems_words(tmp_path: Path, files: TroubledFiles, code: int, words: str) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write", code)
        receipt = store.publish(b"b")
        text = f"write {tmp_path}/topics/t.t/{FIRST}: {words}"
        assert receipt.error == text
        assert store.store.health == f"NOK - {text}"


def test_tail_goes_back_and_the_file_with_it(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        files.writes_before_failing = 50
        receipts = [store.append(b"b", b"c"), store.append(b"d")]
        store.store.write_logs()
        assert all(receipt.error for receipt in receipts)
        assert store.log().tail == store.log().cached_from + 1 == 1
        assert store.segments()[0].stat().st_size == 61
        assert texts(store.read()) == "a"


class Filling(TroubledFiles):
    """A disk on which some more writes succeed, and then none."""

    left = 1 << 30

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        self.left -= 1
        if self.left < 0:
            self.fail("write")
        return super().write_at(descriptor, buffers, offset)


def test_nothing_of_a_large_record_stays_if_one_of_its_pieces_fails(tmp_path: Path) -> None:
    files, body = Filling(), bytes(range(256)) * (LARGE // 256)
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.calls.clear()
        files.left = 20
        assert store.publish(body).error
        assert files.calls.count(("write", FIRST)) == 21
        assert store.segments()[0].stat().st_size == 61
        files.recover()
        files.left = 1 << 30
        wait_a_second(store)
        assert store.publish(body, b"c").error is None
    with opened(tmp_path) as store:
        assert list(store.read().values()) == [b"a", body, b"c"]


def test_a_start_cuts_off_what_a_kill_has_left_of_a_large_record(tmp_path: Path) -> None:
    files = CrashingFiles(1 << 30)
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.left = 20
        with pytest.raises(Crash):
            store.publish(bytes(LARGE))
        assert store.segments()[0].stat().st_size > 20 * PIECE
    with opened(tmp_path) as store:
        assert store.segments()[0].stat().st_size == 61
        assert store.publish(b"b").error is None
        assert list(store.read().values()) == [b"a", b"b"]


def test_publishers_are_refused_at_once_for_a_second(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        first = store.publish(b"b")
        files.recover()
        files.calls.clear()
        second = store.append(b"c")
        assert second.error == first.error
        assert files.calls == []
        assert store.log().tail == 1


def test_after_a_second_the_end_is_proven_and_publishing_goes_on(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        store.publish(b"b")
        files.recover()
        wait_a_second(store)
        files.calls.clear()
        receipt = store.publish(b"c")
        assert receipt.settled
        assert receipt.error is None
        assert ("read", FIRST) in files.calls
        assert store.store.health == "OK"
        assert texts(store.read()) == "ac"


def test_disk_that_stays_full_refuses_again(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        store.publish(b"b")
        for _ in range(3):
            wait_a_second(store)
            assert store.publish(b"c").error is not None
            assert store.store.health != "OK"


def test_file_that_could_not_be_cut_is_cut_before_the_next_append(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        files.fail("truncate")
        files.writes_before_failing = 50
        store.publish(b"b")
        assert store.segments()[0].stat().st_size == 61 + 50
        wait_a_second(store)
        assert "truncate" not in (store.publish(b"still broken").error or "")
        files.recover()
        wait_a_second(store)
        store.publish(b"c")
        assert store.segments()[0].stat().st_size == 2 * 61
        assert texts(store.read()) == "ac"


def test_consuming_goes_on_while_the_disk_is_full(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, mem_queue_size=0) as store:
        store.publish(b"a")
        store.publish(b"b")
        files.fail("write")
        store.publish(b"c")
        assert texts(store.read()) == "ab"


def test_one_topic_recovers_without_being_published_to(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        store.publish(b"b")
        files.recover()
        wait_a_second(store)
        store.store.repair()
        assert store.store.health == "OK"
        assert store.publish(b"c").error is None


def test_health_tells_of_what_is_still_broken(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a", topic="one")
        store.publish(b"a", topic="two")
        files.fail("write")
        store.publish(b"b", topic="one")
        store.publish(b"b", topic="two")
        files.recover()
        wait_a_second(store)
        store.publish(b"c", topic="one")
        assert "t.two" in store.store.health
        store.store.drop_log("two")
        assert store.store.health == "OK"


def test_segment_that_cannot_be_begun_is_a_failed_write(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, max_bytes_per_file=61) as store:
        store.publish(b"a")
        files.fail("open", errno.EMFILE)
        receipts = [store.append(b"b"), store.append(b"c")]
        store.store.write_logs()
        text = f"open {tmp_path}/topics/t.t/{1:020}.log: too many open files"
        assert [receipt.error for receipt in receipts] == [text, text]
        files.recover()
        wait_a_second(store)
        store.publish(b"d")
        assert texts(store.read()) == "ad"


def test_what_fitted_before_the_failure_is_kept(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, max_bytes_per_file=61) as store:
        store.publish(b"a")
        files.fails_for = lambda name: name == f"{2:020}.log"
        files.fail("open")
        receipts = [store.append(b"b"), store.append(b"c")]
        store.store.write_logs()
        assert [receipt.error is None for receipt in receipts] == [True, False]
        assert store.log().tail == 2
        assert texts(store.read()) == "ab"


def test_topic_whose_folder_cannot_be_made_works_later(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        files.fail("mkdir")
        assert store.publish(b"a").error == f"mkdir {tmp_path}/topics/t.t: no space left on device"
        files.recover()
        wait_a_second(store)
        assert store.publish(b"b").error is None
    with opened(tmp_path) as store:
        assert texts(store.read()) == "b"


# Syncs


def test_publishers_that_wait_for_a_failing_sync_are_told(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="synced") as store:
        receipt = store.publish(b"a")
        assert not receipt.settled
        files.fail("sync", errno.EIO)
        files.fails_for = lambda name: name == FIRST
        store.sync()
        assert receipt.error == f"fsync {tmp_path}/topics/t.t/{FIRST}: input/output error"
        assert store.store.health == f"NOK - {receipt.error}"
        assert store.publish(b"b").error == receipt.error


def test_after_a_failed_sync_unsynced_data_is_read_and_written_again(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="synced") as store:
        store.publish(b"a")
        store.sync()
        store.publish(b"b")
        files.fail("sync", errno.EIO)
        files.fails_for = lambda name: name == FIRST
        store.sync()
        files.recover()
        wait_a_second(store)
        files.calls.clear()
        receipt = store.publish(b"c")
        on_segment = [operation for operation, name in files.calls if name == FIRST]
        assert on_segment == ["open", "read", "read", "write", "sync", "open", "write"]
        store.sync()
        assert receipt.settled
        assert receipt.error is None
        assert store.log().synced_tail == 3
        # b was refused, but may have been delivered; its sequence is not given to another message
        assert texts(store.read()) == "abc"


def test_sequence_that_may_have_been_seen_is_not_given_again(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="synced") as store:
        store.publish(b"a")
        store.sync()
        store.publish(b"b")
        files.fail("sync", errno.EIO)
        files.fails_for = lambda name: name == FIRST
        store.sync()
        files.recover()
        segment = store.segments()[0]
        segment.write_bytes(segment.read_bytes()[:61] + bytes(61))  # the pages were dropped
        wait_a_second(store)
        assert store.publish(b"c").error is None
        store.log().release(0)
        assert store.log().tail == 3
    with opened(tmp_path) as store:
        assert texts(store.read()) == "ac"
        assert store.log().next_readable(1) == 2


def test_failing_index_is_no_failure(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, mem_queue_size=0) as store:
        files.fails_for = lambda name: name.endswith(".index")
        files.fail("open")
        for n in range(100):
            store.publish(b"%d" % n, bytes(10_000))
        store.checkpoint()
        assert store.store.health == "OK"
        assert len(store.read()) == 200


# Acknowledged before it is written


def test_promised_messages_wait_for_the_disk(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="memory") as store:
        receipt = store.append(b"a")
        assert receipt.settled
        assert receipt.error is None
        files.fail("write")
        store.store.flush()
        assert store.store.health.startswith("NOK")
        assert store.append(b"b").error is not None
        assert texts(store.read()) == "a"
        files.recover()
        wait_a_second(store)
        store.store.repair()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert texts(store.read()) == "a"


def test_full_disk_gets_no_more_promises_than_it_had_before_it_was_full(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="memory") as store:
        store.append(b"a")
        files.fail("write")
        store.store.flush()
        for _ in range(5):
            wait_a_second(store)
            receipt = store.append(b"b")
            assert not receipt.settled
            store.store.write_logs()
            assert receipt.error is not None
        assert store.log().tail == 1
        files.recover()
        wait_a_second(store)
        receipt = store.publish(b"c")
        assert receipt.settled
        assert receipt.error is None
        assert store.append(b"d").settled
    with opened(tmp_path) as store:
        assert texts(store.read()) == "ac"


def test_promised_messages_are_written_as_soon_as_there_is_space_again(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="memory") as store:
        store.append(b"a")
        files.fail("write")
        store.store.flush()
        files.recover()
        wait_a_second(store)
        store.store.flush()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert texts(store.read()) == "a"


def test_promises_that_fitted_before_a_failed_segment_are_told_apart(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, ack="memory", max_bytes_per_file=61) as store:
        store.append(b"a")
        files.fail("write")
        store.store.flush()
        files.recover()
        files.fails_for = lambda name: name == f"{2:020}.log"
        files.fail("open")
        wait_a_second(store)
        receipts = [store.append(b"b"), store.append(b"c")]
        store.store.write_logs()
        assert [receipt.error is None for receipt in receipts] == [True, False]
        assert texts(store.read()) == "ab"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EISDIR])
def test_only_what_is_missing_or_unreadable_is_a_hole(tmp_path: Path, files: TroubledFiles, code: int) -> None:
    files.fail("read cached", errno.EAGAIN)
    with opened(tmp_path, files, mem_queue_size=0) as store:
        store.publish(b"a")
        store.publish(b"b")
        files.fail("read", code)
        assert store.log().batch_at(0) is None
        (load,) = store.load()
        assert load.must_retry
        assert store.log().next_readable(0) == 0
        del files.failing["read"]
        assert texts(store.read()) == "ab"
        assert store.store.damage == []


# Topics that cannot be moved away


def test_deleted_topic_does_not_come_back(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("rename")
        store.store.drop_log("t")
        assert "t.t: no space left on device" in store.store.health
        store.store.flush()
    with opened(tmp_path, files) as store:  # a second start, on which it still cannot be moved
        assert store.recovered.logs == {}
        store.store.start_rotation()
        store.store.flush()
        store.sync()
        assert [path.name for path in tmp_path.glob("journal.*")] == ["journal.000002"]
    with opened(tmp_path) as store:
        assert store.recovered.logs == {}
        store.sync()
        assert list((tmp_path / "topics").iterdir()) == []


def test_topic_made_anew_waits_until_the_old_one_can_be_moved(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"old", b"old")
        files.fail("rename")
        store.store.drop_log("t")
        assert "no space left" in (store.publish(b"a").error or "")
        files.recover()
        wait_a_second(store)
        assert store.publish(b"b").error is None
        store.store.repair()
        store.store.flush()
        assert store.store.health == "OK"
    with opened(tmp_path) as store:
        assert texts(store.read()) == "b"


# One turn


def test_log_that_has_refused_goes_on_refusing_in_this_turn(tmp_path: Path, files: TroubledFiles) -> None:
    """The journal has no deferral of it, so a message that were accepted would come at once after a crash."""
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        files.fail("write")
        store.publish(b"b")
        files.recover()
        assert store.log().refusal() is not None
        wait_a_second(store)
        assert store.append(b"late", delay_ms=1000).error is not None
        store.store.write_logs()
        assert store.log().refusal() is None
        assert store.publish(b"c").error is None


# The reserve


class SmallDisk(TroubledFiles):
    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free
        self.looks = 0

    def free_bytes(self, folder: Path) -> int:
        self.looks += 1
        if "statfs" in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        return self.free

    def total_bytes(self, folder: Path) -> int:
        return 100_000


def test_publishing_stops_at_the_reserve_and_resumes(tmp_path: Path) -> None:
    files = SmallDisk(51_000)
    with opened(tmp_path, files, disk_reserve=50_000) as store:
        assert store.publish(b"a").error is None
        text = f"write {tmp_path}: 0.0 MiB left on the disk, and --disk-reserve keeps 0.0 MiB free"
        assert store.publish(bytes(1000)).error == text
        assert store.store.health == f"NOK - {text}"
        assert texts(store.read()) == "a"
        files.free = 1 << 20
        wait_a_second(store)
        store.store.repair()
        assert store.store.health == "OK"
        assert store.publish(b"b").error is None


def test_ephemeral_topics_do_not_care(tmp_path: Path) -> None:
    with opened(tmp_path, SmallDisk(0), disk_reserve=50_000) as store:
        assert store.publish(b"a").error is not None
        log = store.store.create_log("t#ephemeral")
        receipt = Receipt()
        log.append(make_batch(0, [b"a"]), receipt)
        assert receipt.error is None
        assert log.refusal() is None


def test_acknowledged_bytes_in_memory_count_as_written(tmp_path: Path) -> None:
    files = SmallDisk(60_000)
    with opened(tmp_path, files, disk_reserve=50_000, ack="memory") as store:
        accepted = 0
        while store.append(bytes(500)).error is None:
            accepted += 1
            store.clock.now += 1.0  # every look asks anew, and finds that nothing was written
        assert accepted == 10_000 // (56 + 4 + 500)


def test_reserve_that_cannot_be_asked_for_is_none(tmp_path: Path) -> None:
    files = SmallDisk(0)
    files.fail("statfs")
    with opened(tmp_path, files, disk_reserve=50_000) as store:
        assert store.publish(b"a").error is not None  # the free space is not known
        files.recover()
        files.free = 1 << 20
        wait_a_second(store)
        assert store.publish(b"b").error is None
        files.fail("statfs")
        wait_a_second(store)
        assert store.publish(b"c").error is None


# Segments that disappear


def test_sync_of_a_data_path_that_was_moved_away_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with opened(tmp_path / "data", ack="synced") as store:
        first = store.publish(b"a")
        store.sync()
        assert first.error is None
        receipt = store.publish(b"b")
        (tmp_path / "data").rename(tmp_path / "moved")
        store.sync()
        assert receipt.error == f"fsync {tmp_path}/data/topics/t.t/{FIRST}: no such file or directory"
        assert store.log().synced_tail == 1
        (tmp_path / "moved").rename(tmp_path / "data")
        wait_a_second(store)
        third = store.publish(b"c")
        store.sync()
        assert third.error is None
        assert store.log().synced_tail == 3


def test_segment_that_was_removed_meanwhile_needs_no_sync(tmp_path: Path) -> None:
    with opened(tmp_path, ack="synced", max_bytes_per_file=100) as store:
        receipts = [store.publish(bytes(100)) for _ in range(3)]
        job = store.log().begin_sync()
        assert job is not None
        store.segments()[0].unlink()  # as a sync removes what retention has released
        store.log().release(1)
        job.perform(store.store.files, CommonFolders(store.store.files))
        store.log().end_sync(job)
        assert [receipt.error for receipt in receipts] == [None] * 3
        assert store.log().synced_tail == 3
