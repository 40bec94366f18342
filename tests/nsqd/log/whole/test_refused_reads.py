"""What each reader of the log does when the disk refuses to read: it judges bytes, and waits out refusals."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nsqcommon.wire.history import Gap
from nsqd.log.data_path import DataPathError
from nsqd.log.history import LogHistory
from nsqd.log.log_fault import RETRY_AFTER
from nsqd.log.reading.cold import Load, Start
from nsqd.log.reading.refusals import READ_PATIENCE, RETRY_INTERVAL, ReadRefused
from nsqd.log.retention import Retention
from nsqd.log.segment import BLOCK_SIZE, Segment
from tests.nsqd.log.compaction.test_schedule import SEGMENT, Topic
from tests.nsqd.log.harness import START, OpenStore, TroubledFiles, contents, opened, texts


@pytest.fixture
def files() -> TroubledFiles:
    return TroubledFiles()


def refuse(files: TroubledFiles, part: str) -> None:
    """Refuse reads of files that have this in their names."""
    files.fail("read", errno.EIO)
    files.fail("read cached", errno.EIO)
    files.fails_for = lambda name: part in name


def damage(segment: Path) -> None:
    """Damage the first record of the segment."""
    data = bytearray(segment.read_bytes())
    data[10] ^= 1
    segment.write_bytes(data)


# Compaction


def test_compaction_that_is_refused_its_segments_is_put_off(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, **SEGMENT) as store:
        topic = Topic(store)
        topic.let_one_be_needed()
        before = contents(topic.log.folder)
        refuse(files, ".log")
        topic.compaction()
        assert contents(topic.log.folder) == before
        assert (store.store.damage, topic.log.waiting_for_disk, store.store.reads.refused_reads) == ([], 1, 1)
        assert topic.log.compaction.due_at == store.clock.now + 1.0
        topic.compaction()
        assert topic.log.compaction.due_at == store.clock.now + 2.0
        files.recover()
        topic.compaction()
        assert (topic.segments(), topic.compacted_files(), topic.log.waiting_for_disk) == ([8], ["carried.000001"], 0)
        topic.read_needed()


def test_compaction_that_is_refused_a_compacted_file_is_put_off(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(21)
        topic.needed = {1, 6, 11}
        topic.compaction()
        topic.needed = {6}
        refuse(files, "carried.")
        topic.compaction()
        assert topic.compacted_files() == ["carried.000001"]
        files.recover()
        topic.compaction()
        assert topic.compacted_files() == ["carried.000002"]
        topic.read_needed()


def test_compaction_that_is_no_longer_needed_does_not_wait_for_the_disk(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, **SEGMENT) as store:
        topic = Topic(store)
        topic.let_one_be_needed()
        refuse(files, ".log")
        topic.compaction()
        assert topic.log.waiting_for_disk == 1
        topic.needed = set()
        topic.compaction()
        assert topic.log.waiting_for_disk == 0


# Reading


@pytest.mark.parametrize("refused", [".log", "carried."])
def test_reader_waits_and_then_goes_round_what_stays_where_it_is(
    tmp_path: Path, files: TroubledFiles, refused: str
) -> None:
    with opened(tmp_path, files, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1}
        if refused == "carried.":
            topic.compaction()
        refuse(files, refused)
        assert store.batch_at(topic.log, 1) is None
        assert store.clock.now > START + READ_PATIENCE - RETRY_INTERVAL
        assert topic.log.end_of_refused(1) > 1
        assert topic.log.next_readable(1) == 1
        assert store.store.health.startswith("NOK - read ")
        assert store.store.damage == []
        files.recover()
        store.store.repair()
        store.load()
        assert (store.store.health, topic.log.end_of_refused(1)) == ("OK", 1)
        topic.read_needed()
        assert not [path for path in topic.log.folder.iterdir() if "damaged" in path.name]


def test_no_copy_is_made_of_damage_that_cannot_be_read_a_second_time(tmp_path: Path) -> None:
    class ReadsOnce(TroubledFiles):
        def open_to_write(self, path: Path) -> int:
            if ".damaged." in path.name:
                refuse(self, ".log")
            return super().open_to_write(path)

    with opened(tmp_path, ReadsOnce(), mem_queue_size=0) as store:
        store.publish(b"a")
        store.publish(b"b")
        segment = store.segments()[0]
        damage(segment)
        assert store.batch_at(store.log(), 0) is None
        assert [(found.first, found.end, found.kept) for found in store.store.damage] == [(0, 1, "")]
        assert not list(segment.parent.glob("*.damaged.*"))


def test_damage_found_before_a_refusal_is_kept_aside(tmp_path: Path) -> None:
    class RefusesTheEnd(TroubledFiles):
        def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
            if offset + size > 2 * BLOCK_SIZE:
                raise OSError(errno.EIO, "Input/output error")
            return super().read_fully(descriptor, size, offset)

    with opened(tmp_path, RefusesTheEnd(), mem_queue_size=0) as store:
        store.publish(b"a")
        store.publish(b"b")
        store.publish(bytes(3 * BLOCK_SIZE))
        path = store.segments()[0]
        damage(path)
        load = Load("t", 2, Segment(path, 0, path.stat().st_size), end=3, start=Start(0, 0))
        load.perform(store.store.files)
        assert load.error is not None
        assert [(hole.first, hole.end) for hole in load.holes] == [(0, 1)]
        assert [kept.exists() for kept in load.aside] == [True]


# LogHistory


def test_history_tells_what_is_refused_as_a_gap_that_may_close(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files) as store:
        store.publish(b"a")
        store.checkpoint()
        refuse(files, ".log")
        past = LogHistory(store.store).find("t")
        assert past is not None
        (gap,) = iter(past.open(0, 1, 1000).read, None)
        assert gap == Gap(0, 1, "refused")
        assert store.clock.now > START + READ_PATIENCE - RETRY_INTERVAL
        with pytest.raises(ReadRefused):
            past.sequence_at(1)
        assert past.times() is None
        files.fail("open to read", errno.EIO)
        assert past.times() is None
        files.recover()
        assert past.sequence_at(1) == 0
        assert not list(store.log().folder.glob("*.damaged.*"))


def test_history_in_many_files_waits_once_for_a_disk_that_refuses(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, max_bytes_per_file=100) as store:
        for _ in range(5):
            store.publish(bytes(100))
        store.checkpoint()
        assert len(store.segments()) == 5
        refuse(files, ".log")
        past = LogHistory(store.store).find("t")
        assert past is not None
        assert list(iter(past.open(0, 5, 1000).read, None)) == [Gap(it, it + 1, "refused") for it in range(5)]
        assert READ_PATIENCE - RETRY_INTERVAL < store.clock.now - START < 2 * READ_PATIENCE


# A start


def written(path: Path) -> None:
    with opened(path, **SEGMENT) as store:
        topic = Topic(store)
        topic.publish(9)
        topic.needed = {1}
        topic.compaction()
        store.checkpoint()
        store.publish(b"behind the checkpoint")


class WakingFiles(TroubledFiles):
    """Refuses this many times, then works."""

    def __init__(self, part: str, times: int) -> None:
        super().__init__()
        self.times = times
        self.part = part

    def _note(self, operation: str, path: Path) -> None:
        super()._note(operation, path)
        if operation == "read" and self.part in path.name and self.times:
            self.times -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))


READ_AT_A_START = ["journal.0", "carried.0", "node.json", "topology.json", "log.json", ".log"]


@pytest.mark.parametrize("part", READ_AT_A_START)
def test_start_waits_for_what_is_refused_for_a_moment(tmp_path: Path, part: str) -> None:
    written(tmp_path)
    files = WakingFiles(part, 3)
    with opened(tmp_path, files, **SEGMENT) as store:
        assert files.times == 0
        assert store.store.damage == []
        topic = Topic(store)
        topic.needed = {1}
        topic.read_needed()
        assert topic.log.tail == 10


@pytest.mark.parametrize("part", READ_AT_A_START)
def test_start_that_is_refused_for_good_fails_and_changes_nothing(tmp_path: Path, part: str) -> None:
    written(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(DataPathError, match=r"failed to open data-path: .*input/output error"):
        OpenStore(tmp_path, WakingFiles(part, 1_000_000), **SEGMENT)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("torn", [".log", "journal.0"])
def test_torn_end_that_cannot_be_kept_is_not_cut(tmp_path: Path, torn: str) -> None:
    written(tmp_path)
    (path,) = [one for one in sorted(tmp_path.rglob("*")) if torn in one.name and "index" not in one.name][-1:]
    whole = path.read_bytes()
    path.write_bytes(whole + b"torn")

    class Refusing(WakingFiles):
        def open_to_write(self, path: Path) -> int:
            if ".torn." in path.name:
                self.times = 1_000_000
            return super().open_to_write(path)

    with pytest.raises(DataPathError):
        OpenStore(tmp_path, Refusing(torn, 0), **SEGMENT)
    assert path.read_bytes() == whole + b"torn"


FOR_LONG = Retention(time=10**15)  # retention by time makes a start read the age of segments, last of all


class RefusingAfter(TroubledFiles):
    """After a given operation on a file with `part` in its name, refuses three reads of log files."""

    def __init__(self, operation: str, part: str) -> None:
        super().__init__()
        self.trigger = operation, part
        self.times = 0
        self.is_over = False

    def _note(self, operation: str, path: Path) -> None:
        super()._note(operation, path)
        if operation == self.trigger[0] and self.trigger[1] in path.name and not self.is_over:
            self.is_over = True
            self.times = 3
        elif operation == "read" and self.times and ".json" not in path.name:
            self.times -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))


@pytest.mark.parametrize("retention", [Retention(), FOR_LONG])
def test_what_a_start_has_cut_is_reported_though_reads_are_refused_afterwards(
    tmp_path: Path, retention: Retention
) -> None:
    written(tmp_path)
    last = max(tmp_path.rglob("*.log"))
    last.write_bytes(last.read_bytes() + b"torn")
    files = RefusingAfter("truncate", last.name)
    with opened(tmp_path, files, retention=retention, **SEGMENT) as store:
        assert (files.is_over, files.times) == (True, 0)
        assert [damage.text for damage in store.store.damage] == ["torn tail of 4 bytes cut"]


def test_log_that_ends_early_is_read_from_where_it_was_though_reads_are_refused_afterwards(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.checkpoint()
        (segment,) = store.segments()
        size = segment.stat().st_size
        store.publish(b"b")
        store.checkpoint()
    segment.write_bytes(segment.read_bytes()[:size])
    files = RefusingAfter("open", "log.json")  # the log gets a new id; keys are read after that
    with opened(tmp_path, files, idempotence_window=FOR_LONG.time) as store:
        assert (files.is_over, files.times) == (True, 0)
        assert [damage.text for damage in store.store.damage] == ["the log ends at 1, but was synced up to 2"]


# A log that has failed


def test_log_that_cannot_be_read_again_goes_on_in_a_new_segment(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, mem_queue_size=0) as store:
        store.publish(b"a")
        files.fail("write")
        assert store.publish(b"b").error is not None
        files.recover()
        refuse(files, ".log")
        store.clock.now += RETRY_AFTER
        assert store.publish(b"c").error is not None  # the log is not proven yet, but may be in a moment
        store.clock.now += READ_PATIENCE
        assert store.publish(b"d").error is None
        assert len(store.segments()) == 2
        files.recover()
        assert texts(store.read()) == "ad"


def test_failed_sync_is_never_made_up_for_with_what_was_not_read(tmp_path: Path, files: TroubledFiles) -> None:
    with opened(tmp_path, files, mem_queue_size=0) as store:
        store.publish(b"a")
        (segment,) = store.segments()
        before = segment.read_bytes()
        files.fail("sync", errno.EIO)
        store.sync()
        files.recover()
        refuse(files, ".log")
        store.clock.now += RETRY_AFTER
        store.store.repair()
        assert segment.read_bytes() == before
