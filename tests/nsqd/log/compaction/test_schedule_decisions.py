"""When a log is compacted, and what changes if a cursor goes back. Files: tests/nsqd/log."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqd.log.compaction.rewrite import CompactionJob, CompactionPlan
from nsqd.log.compaction.schedule import (
    COMPACTION_INTERVAL,
    COMPACTION_SHARE,
    LONGEST_COMPACTION_INTERVAL,
    Compaction,
    compact,
)
from nsqd.log.files import DiskError
from nsqd.log.log_state import LogState
from nsqd.log.reading.log_reader import LogReader
from nsqd.log.segment import Segment
from nsqd.log.segment_list import SegmentList
from nsqd.log.segment_removal import Expiry
from nsqd.log.store import DiskStore
from nsqd.log.writing.unsynced import Unsynced
from tests.nsqd.log.harness import fault_of
from tests.support.log_settings import log_settings


class Log:
    """Three sealed segments of ten messages each, all synced."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.store = DiskStore.open(folder, log_settings(), clock=lambda: self.now)
        found = [Segment(folder / f"{base:020}.log", base, 100) for base in (0, 10, 20, 30)]
        self.segments = SegmentList(found, 30)
        state = LogState("id", synced=(30, 0, 30))
        self.unsynced = Unsynced(folder, state)
        self.reader = LogReader("t", self.store.reads, self.segments, holes=[], compacted=[])
        self.fault = fault_of(self.store.faults, lambda: self.now)
        self.compaction = Compaction(
            "t",
            folder,
            self.store,
            segments=self.segments,
            reader=self.reader,
            expiry=Expiry("t", self.store, self.segments, self.reader, self.unsynced),
            unsynced=self.unsynced,
            fault=self.fault,
        )

    def plan(self) -> CompactionPlan:
        plan = self.compaction.begin()
        assert plan is not None
        return plan

    def job(self) -> CompactionJob:
        plan = self.plan()
        plan.mark_needed([3])
        job = self.compaction.decide(plan, 0.0)
        assert job is not None
        return job


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    log.compaction.release(3, 30, 30)
    log.store.abandon()
    return log


def test_a_log_whose_oldest_segments_are_passed_wants_to_be_looked_at(log: Log) -> None:
    assert list(log.store.compaction) == [log.compaction]


def test_a_log_that_fails_or_is_dropped_carries_nothing(log: Log) -> None:
    log.fault.begin(DiskError("no"))
    assert log.compaction.begin() is None
    log.fault.end()
    log.compaction.dropped = True
    assert log.compaction.begin() is None


def test_only_what_is_synced_is_compacted_and_the_sync_asks_again(log: Log) -> None:
    log.unsynced.checkpoint = (0, 0, 0)
    assert log.compaction.begin() is None
    log.store.compaction.clear()
    log.compaction.synced()
    assert list(log.store.compaction) == [log.compaction]
    log.store.compaction.clear()
    log.compaction.synced()
    assert not log.store.compaction


def test_looking_in_vain_is_done_less_and_less_often(log: Log) -> None:
    pauses = []
    for _ in range(8):
        plan = log.plan()
        plan.mark_needed(range(30))
        assert log.compaction.decide(plan, 0.0) is None
        pauses.append(log.compaction.due_at - log.now)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, LONGEST_COMPACTION_INTERVAL]


def test_a_long_look_is_followed_by_a_longer_pause(log: Log) -> None:
    plan = log.plan()
    plan.mark_needed([3])
    log.compaction.decide(plan, 0.5)
    assert log.compaction.due_at == log.now + 0.5 * COMPACTION_SHARE


def test_a_job_that_fails_removes_nothing_and_is_done_again_later(log: Log) -> None:
    pauses = []
    for _ in range(3):
        job = log.job()
        job.error = "no space"
        log.compaction.end(job)
        pauses.append(log.compaction.due_at - log.now)
    assert pauses == [COMPACTION_INTERVAL, 2 * COMPACTION_INTERVAL, 4 * COMPACTION_INTERVAL]
    assert log.segments.first == 0


def test_segments_go_when_what_is_needed_was_copied(log: Log) -> None:
    job = log.job()
    job.end = 30
    log.compaction.end(job)
    assert log.segments.first == 30


def test_no_segment_goes_when_a_cursor_went_back_meanwhile(log: Log) -> None:
    job = log.job()
    job.end = 30
    log.compaction.release(3, 15, 30)
    log.compaction.release(3, 30, 30)
    log.compaction.end(job)
    assert log.segments.first == 0


def test_others_have_their_turn_while_a_plan_is_told_what_is_needed(log: Log) -> None:
    pieces = [range(10), range(10, 20), range(20, 30)]
    steps = compact(log.store, log.compaction, lambda topic: pieces, stretch=0.0)
    assert list(steps) == [None, None, None]
