"""The journal's upkeep: when it is written, and how its faults are reported."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqd.log.faults import FaultKind, Faults
from nsqd.log.files import DiskError, Files
from nsqd.log.journal import journal
from nsqd.log.journal.journal import Journal
from nsqd.log.journal.keeper import JournalKeeper
from nsqd.log.log_fault import RETRY_AFTER
from nsqd.log.wakeups import Wakeups


class Disk(Files):
    full = False
    writes = 0

    def write_fully(self, descriptor: int, buffers: Sequence[bytes], offset: int) -> None:
        self.writes += 1
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_fully(descriptor, buffers, offset)


class Node:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.disk = Disk()
        self.wakeups = Wakeups()
        self.faults = Faults(self.wakeups)
        self.journal = Journal(folder, self.disk, on_waiting=self.wakeups.flush.set, on_written=lambda: None)
        self.keeper = JournalKeeper(self.journal, self.faults, self.wakeups, lambda: self.now)

    def record(self) -> bool:
        self.journal.record(("topic", "t"), urgent=True)
        return self.keeper.write()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_failing_disk_is_asked_once_a_second(node: Node) -> None:
    node.disk.full = True
    assert [node.record() for _ in range(10)] == [False] * 10
    assert node.disk.writes == 1
    node.now += RETRY_AFTER
    node.record()
    assert node.disk.writes == 2


def test_a_failure_is_a_fault_until_everything_is_written(node: Node) -> None:
    node.disk.full = True
    node.record()
    assert FaultKind.JOURNAL in node.faults
    node.disk.full = False
    node.now += RETRY_AFTER
    assert node.record()
    assert FaultKind.JOURNAL not in node.faults
    assert node.wakeups.sync.is_set


def test_a_change_behind_quiet_ones_asks_for_a_write(node: Node) -> None:
    node.journal.record_quietly([("reserve", 1)])
    assert not node.wakeups.flush.is_set
    node.journal.record(("topic", "t"), urgent=False)
    assert node.wakeups.flush.is_set


def test_a_change_after_too_many_were_dropped_asks_for_a_write(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_UNWRITTEN", 0)
    node.disk.full = True
    node.record()
    assert node.journal.has_lost
    assert not node.wakeups.flush.is_set
    node.journal.record(("topic", "t"), urgent=False)
    assert node.wakeups.flush.is_set


def test_a_distrusted_journal_stays_a_fault_when_it_is_only_written(node: Node) -> None:
    node.record()
    node.keeper.distrust(DiskError("what was found is not synced"))
    node.record()
    assert node.faults.texts() == ["what was found is not synced"]


def test_repair_writes_without_space_and_rotates_only_with_it(node: Node) -> None:
    node.record()
    sync = node.journal.begin_sync()
    assert sync is not None
    sync.error = DiskError("fsync: no")
    node.journal.end_sync(sync)
    node.keeper.check()
    assert node.keeper.needs_space
    node.keeper.repair(has_space=False)
    assert not node.wakeups.rotation.is_set
    node.keeper.repair(has_space=True)
    assert node.wakeups.rotation.is_set
