"""What a log's next sync covers, and which receipts are settled when it has ended."""

from __future__ import annotations

from pathlib import Path

from nsqd.broker.batch import Receipt
from nsqd.log.files import DiskError
from nsqd.log.log_state import LogState
from nsqd.log.segment import Segment, SegmentIndex
from nsqd.log.segment_list import SegmentList
from nsqd.log.writing.unsynced import Unsynced
from tests.nsqd.log.batches import make_batch

FOLDER = Path("/data/topics/t")


class Log:
    """The part of a log that its syncing uses."""

    def __init__(self, **state: object) -> None:
        self.unsynced = Unsynced(FOLDER, LogState("id", **state))  # type: ignore[arg-type]
        self.segments = SegmentList([], 0)

    def roll(self, base: int) -> Segment:
        sealed, segment = self.segments.active, Segment(FOLDER / f"{base:020}.log", base, 0, SegmentIndex())
        self.segments.add(segment)
        self.unsynced.rolled(sealed)
        return segment

    def write(self, count: int) -> Receipt:
        assert self.segments.active is not None
        self.segments.active.size += 10 * count
        batch, receipt = make_batch(self.segments.tail, [b"x"] * count), Receipt()
        self.segments.tail += count
        self.unsynced.add_receipts([batch], [receipt])
        return receipt


def test_a_new_segment_is_synced_after_the_one_before_and_with_its_folder() -> None:
    log = Log()
    first, second = log.roll(0), log.roll(5)
    log.write(1)
    job = log.unsynced.begin_sync(log.segments)
    assert job.files == [first.path, second.path]
    assert job.folders == [FOLDER]


def test_nothing_is_synced_twice() -> None:
    log = Log()
    log.roll(0)
    log.write(1)
    log.unsynced.synced(log.unsynced.begin_sync(log.segments))
    job = log.unsynced.begin_sync(log.segments)
    assert (job.files, job.folders) == ([], [])


def test_only_publishers_before_the_synced_place_are_answered() -> None:
    log = Log()
    log.roll(0)
    early = log.write(2)
    job = log.unsynced.begin_sync(log.segments)
    late = log.write(1)
    assert log.unsynced.synced(job)
    assert (early.settled, late.settled, log.unsynced.is_awaited) == (True, False, True)
    assert log.unsynced.checkpoint == (0, 20, 2)


def test_a_sync_that_answers_nobody_says_so() -> None:
    log = Log()
    log.roll(0)
    assert not log.unsynced.synced(log.unsynced.begin_sync(log.segments))


def test_what_failed_is_synced_again_before_what_came_since() -> None:
    log = Log()
    first = log.roll(0)
    log.write(1)
    job = log.unsynced.begin_sync(log.segments)
    job.error = DiskError("no")
    second = log.roll(1)
    assert log.unsynced.error_of(job, log.segments) == DiskError("no")
    log.unsynced.failed(job)
    assert log.unsynced.has_failed
    log.write(1)
    assert log.unsynced.begin_sync(log.segments).files == [first.path, second.path]


def test_a_file_that_is_missing_is_an_error_unless_the_log_has_removed_it() -> None:
    log = Log()
    first = log.roll(0)
    log.write(1)
    job = log.unsynced.begin_sync(log.segments)
    job.missing.append(first.path)
    assert log.unsynced.error_of(job, log.segments) == DiskError(f"fsync {first.path}: no such file or directory")
    log.roll(1)
    log.segments.take_before(1)
    assert log.unsynced.error_of(job, log.segments) is None


def test_index_entries_are_saved_once_and_not_of_removed_segments() -> None:
    log = Log()
    first = log.roll(0)
    assert first.index is not None
    first.index.add(1, 10)
    log.roll(5)
    job = log.unsynced.begin_sync(log.segments)
    assert [path for path, _, _ in job.indexes] == [first.index_path]
    first.index.add(2, 20)
    log.roll(9)
    log.unsynced.forget([first])
    assert log.unsynced.begin_sync(log.segments).indexes == []


def test_a_folder_made_anew_is_synced_with_its_parent() -> None:
    log = Log()
    log.unsynced.add_new_folder()
    job = log.unsynced.begin_sync(log.segments)
    assert (job.files, job.folders) == ([FOLDER / "log.json"], [FOLDER, FOLDER.parent])
