"""Publishing and the disk's free space: what is refused, and when the node's health shows it."""

from __future__ import annotations

from pathlib import Path

from nsqd.log.disk_reserve import CLOSED_INTERVAL, DiskReserve
from nsqd.log.faults import FaultKind, Faults
from nsqd.log.files import Files
from nsqd.log.wakeups import Wakeups

MEBIBYTE = 1 << 20
LOW = "write /data: 10.0 MiB left on the disk, and --disk-reserve keeps 100.0 MiB free"


class Disk(Files):
    def __init__(self, free: int) -> None:
        self.free = free
        self.error: OSError | None = None

    def free_bytes(self, path: Path) -> int:
        if self.error is not None:
            raise self.error
        return self.free

    def total_bytes(self, path: Path) -> int:
        return self.free_bytes(path)


class Node:
    def __init__(self, free: int, *, reserve: int = 100 * MEBIBYTE) -> None:
        self.now = 0.0
        self.unwritten = 0
        self.disk = Disk(free)
        self.faults = Faults(Wakeups())
        self.reserve = DiskReserve(
            Path("/data"),
            self.disk,
            self.faults,
            lambda: self.now,
            reserve=reserve,
            unwritten=lambda: self.unwritten,
        )


def test_nothing_is_refused_while_there_is_room() -> None:
    node = Node(1000 * MEBIBYTE)
    assert node.reserve.refusal(MEBIBYTE) is None
    assert node.faults.health == "OK"


def test_a_full_disk_is_a_fault_until_there_is_room_again() -> None:
    node = Node(10 * MEBIBYTE)
    assert node.reserve.refusal(1) == LOW
    assert FaultKind.RESERVE in node.faults
    assert (node.faults.texts(), node.faults.state) == ([LOW], "full")
    node.disk.free = 1000 * MEBIBYTE
    assert node.reserve.refusal(1) == LOW  # the free space was not asked for again
    node.now += CLOSED_INTERVAL
    assert node.reserve.refusal(1) is None
    assert node.faults.health == "OK"


def test_what_is_not_in_the_file_system_yet_counts() -> None:
    node = Node(150 * MEBIBYTE)
    node.unwritten = 60 * MEBIBYTE
    assert node.reserve.refusal(1) is not None


def test_one_batch_that_is_too_large_is_no_fault() -> None:
    node = Node(150 * MEBIBYTE)
    assert node.reserve.refusal(60 * MEBIBYTE) is not None
    assert node.faults.health == "OK"
    assert node.reserve.refusal(MEBIBYTE) is None


def test_what_was_known_stays_known_if_nobody_can_look() -> None:
    node = Node(1000 * MEBIBYTE)
    node.reserve.look()
    node.disk.error = OSError(5, "Input/output error")
    node.now += 10
    assert node.reserve.refusal(MEBIBYTE) is None


def test_where_the_size_of_the_disk_cannot_be_told_no_reserve_is_kept() -> None:
    disk = Disk(0)
    disk.error = OSError(5, "Input/output error")
    reserve = DiskReserve(Path("/data"), disk, Faults(Wakeups()), lambda: 0.0, reserve=-1, unwritten=lambda: 0)
    assert reserve.refusal(1 << 40) is None
