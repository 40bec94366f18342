"""What is tried again while something is broken: without space, only what needs little or frees some."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqd.broker.batch import Receipt
from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import Buffers, DiskError, Files
from nsqd.log.log_fault import RETRY_AFTER
from nsqd.log.reading.cold import Load
from nsqd.log.segment import Segment, segment_name
from nsqd.log.store import DiskStore
from nsqd.log.topic_log import DiskLog
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings

WITH_SPACE, WITHOUT = True, False
MEBIBYTE = 1 << 20


class Disk(Files):
    full = False
    renames = True
    free = 1000 * MEBIBYTE

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_at(descriptor, buffers, offset)

    def rename(self, source: Path, target: Path) -> None:
        if not self.renames:
            raise OSError(errno.EIO, "Input/output error")
        super().rename(source, target)

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def total_bytes(self, folder: Path) -> int:
        return 1000 * MEBIBYTE


class Node:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.disk = Disk()
        settings = log_settings(disk_reserve=100 * MEBIBYTE)
        self.store = DiskStore.open(folder, settings, files=self.disk, clock=lambda: self.now)
        self.store.recover()
        self.faults = self.store.faults
        self.repairs = self.store.repairs

    def broken(self, kind: FaultKind) -> None:
        """Report a fault that nothing has caused."""
        StorageFault(self.faults, kind).begin(DiskError("broken"))

    def read_refused(self, log: DiskLog) -> None:
        """Have the disk refuse the log's first message for so long that channels bypass it."""
        load = Load(log.topic, 0, Segment(log.folder / segment_name(0), 0, 0), end=1, start=None, salvages=True)
        load.error, load.bypassed = OSError(errno.EIO, "Input/output error"), (0, 1)
        log.reader.refusals.bypass(0, 1)
        self.store.reads.refused(log.reader, load)

    def log(self, topic: str = "t") -> DiskLog:
        log = self.store.create_log(topic)
        assert isinstance(log, DiskLog)
        return log

    def publish(self, topic: str = "t") -> DiskLog:
        log = self.log(topic)
        log.append(make_batch(log.tail, [b"x"]), Receipt())
        self.store.write_logs()
        return log

    def broken_log(self) -> DiskLog:
        """Return a log that the disk has refused to write, at a time when it may be tried again."""
        self.publish()
        self.disk.full = True
        log = self.publish()
        self.disk.full = False
        self.now += RETRY_AFTER
        assert log.error is not None
        return log


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.store.abandon()


def test_nothing_is_tried_while_all_is_well(node: Node) -> None:
    node.repairs.run(has_space=WITH_SPACE)
    assert not node.repairs.needs_space
    assert not node.store.wakeups.topology.is_set


@pytest.mark.parametrize(("fault", "needs_space"), [
    (FaultKind.IDS, True),
    (FaultKind.TOPOLOGY, True),
    (FaultKind.PLACE, False),
    (FaultKind.DROPPING, False),
    (FaultKind.REMOVAL, False),
    (FaultKind.RESERVE, False),
])  # fmt: skip
def test_what_writes_something_new_needs_space(node: Node, fault: FaultKind, needs_space: bool) -> None:
    node.broken(fault)
    assert node.repairs.needs_space is needs_space


def test_a_log_needs_space_and_reading_needs_none(node: Node) -> None:
    log = node.publish()
    node.read_refused(log)
    assert FaultKind.READ in node.faults
    assert not node.repairs.needs_space
    node.broken_log()
    assert node.repairs.needs_space


def test_a_journal_is_appended_to_without_asking_for_space(node: Node) -> None:
    node.store.journal_keeper.distrust(DiskError("broken"))
    assert not node.repairs.needs_space
    node.store.record(("topic", "t"), urgent=True)
    node.repairs.run(has_space=WITHOUT)
    assert not node.store.journal.urgent


def test_a_log_is_tried_again_when_there_is_space(node: Node) -> None:
    log = node.broken_log()
    node.repairs.run(has_space=WITHOUT)
    assert log.error is not None
    node.repairs.run(has_space=WITH_SPACE)
    assert log.error is None


def test_ids_are_reserved_again_when_there_is_space(node: Node) -> None:
    node.disk.full = True
    node.store.reserve_ids(1000)
    assert FaultKind.IDS in node.faults
    node.repairs.run(has_space=WITH_SPACE)
    assert FaultKind.IDS in node.faults  # the disk has failed again
    node.disk.full = False
    node.repairs.run(has_space=WITHOUT)
    assert FaultKind.IDS in node.faults
    node.repairs.run(has_space=WITH_SPACE)
    assert FaultKind.IDS not in node.faults


def test_names_are_written_again_when_there_is_space(node: Node) -> None:
    node.broken(FaultKind.TOPOLOGY)
    node.repairs.run(has_space=WITHOUT)
    assert not node.store.wakeups.topology.is_set
    node.repairs.run(has_space=WITH_SPACE)
    assert node.store.wakeups.topology.is_set


def test_what_could_not_be_removed_wakes_the_next_round(node: Node) -> None:
    node.store.wakeups.sync.clear()
    node.broken(FaultKind.REMOVAL)
    node.repairs.run(has_space=WITHOUT)
    assert node.store.wakeups.sync.is_set


def test_folders_of_deleted_topics_are_renamed_without_space(node: Node) -> None:
    node.disk.renames = False
    node.publish()
    node.store.drop_log("t")
    assert FaultKind.DROPPING in node.faults
    node.disk.renames = True
    node.repairs.run(has_space=WITHOUT)
    assert FaultKind.DROPPING not in node.faults


def test_publishing_goes_on_once_the_disk_has_room(node: Node) -> None:
    node.disk.free = 10 * MEBIBYTE
    node.store.reserve.look()
    assert FaultKind.RESERVE in node.faults
    node.repairs.run(has_space=WITHOUT)
    assert FaultKind.RESERVE in node.faults
    node.disk.free = 1000 * MEBIBYTE
    node.repairs.run(has_space=WITHOUT)
    assert FaultKind.RESERVE not in node.faults


def test_what_the_disk_refuses_to_read_is_asked_for_without_space(node: Node) -> None:
    refused, other = node.publish("refused"), node.publish("other")
    other.reader.refusals.bypass(0, 1)
    node.read_refused(refused)
    node.repairs.run(has_space=WITHOUT)
    assert [load.topic for load in node.store.reads.loads] == ["refused"]


def test_what_is_refused_of_a_deleted_topic_is_no_fault(node: Node) -> None:
    node.read_refused(node.publish())
    assert node.store.health.startswith("NOK")
    node.store.drop_log("t")
    assert node.store.health == "OK"


def test_a_lost_data_path_is_nothing_to_try(node: Node) -> None:
    node.broken(FaultKind.PLACE)
    node.repairs.run(has_space=WITH_SPACE)
    assert FaultKind.PLACE in node.faults
