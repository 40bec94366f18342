"""Descriptors for writing: bounded, and closed when nothing is written."""

from __future__ import annotations

from pathlib import Path

from nsqcommon.wakeup import Wakeup
from nsqd.log.files import Buffers, Files
from nsqd.log.segment_list import SegmentList
from nsqd.log.writing.segment_writer import MOST_DESCRIPTORS, OpenWriters, SegmentWriter
from tests.nsqd.log.batches import make_batch


class Disk(Files):
    """Counts descriptors."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.opened = 0

    def open_to_write(self, path: Path) -> int:
        self.opened += 1
        self.open.add(self.opened)
        return self.opened

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        return sum(map(len, buffers))

    def close(self, descriptor: int) -> None:
        self.open.remove(descriptor)


class Node:
    def __init__(self) -> None:
        self.disk = Disk()
        self.wakeup = Wakeup()
        self.writers = OpenWriters(self.disk, self.wakeup)

    def open(self) -> SegmentWriter:
        writer = SegmentWriter(Path("/t"), self.writers, SegmentList([], 0))
        writer.roll(0)
        return writer


def test_the_first_one_wakes_who_tidies() -> None:
    node = Node()
    assert not node.wakeup.is_set
    node.open()
    assert node.wakeup.is_set


def test_beyond_the_bound_the_oldest_is_closed() -> None:
    node = Node()
    for _ in range(MOST_DESCRIPTORS + 3):
        node.open()
    assert node.disk.open == set(range(4, MOST_DESCRIPTORS + 4))


def test_what_is_not_written_to_between_two_looks_is_closed() -> None:
    node = Node()
    used, _ = node.open(), node.open()
    segments = used._segments
    assert segments.active is not None
    used.write(segments.active, [make_batch(0, [b"x"])], [b"ten bytes."], 10)
    assert not node.writers.close_idle()
    assert node.disk.open == {1}
    assert node.writers.close_idle()
    assert node.disk.open == set()


def test_a_forgotten_writer_is_not_counted() -> None:
    node = Node()
    node.writers.forget(node.open())
    assert node.writers.close_idle()
