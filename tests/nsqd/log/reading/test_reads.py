"""Reads for all logs: their results, and refusals of the disk."""

from __future__ import annotations

import errno
from pathlib import Path

from nsqd.log.damage import Damage
from nsqd.log.faults import FaultKind, Faults
from nsqd.log.files import Files
from nsqd.log.reading.cold import Load
from nsqd.log.reading.reads import Reads
from nsqd.log.reading.refusals import ReadRefusals
from nsqd.log.segment import Segment
from nsqd.log.wakeups import Wakeups


class Node:
    def __init__(self) -> None:
        self.wakeups = Wakeups()
        self.faults = Faults(self.wakeups)
        self.damage: list[Damage] = []
        self.reads = Reads(Files(), self.faults, self.wakeups, lambda: 0.0, self.damage, most_descriptors=2)


class Reader:
    """Holds blocks until it was idle this many times."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def forget_idle(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def test_readers_are_asked_until_they_hold_nothing() -> None:
    node = Node()
    node.reads.reads_cold(Reader(1))
    node.reads.reads_cold(Reader(2))
    assert node.wakeups.idle.is_set
    assert [node.reads.give_back_what_is_idle() for _ in range(2)] == [False, True]


class RefusedReader:
    def __init__(self) -> None:
        self.refusals = ReadRefusals(lambda: 0.0)

    def ask_again(self) -> None: ...


class RefusedLoad(Load):
    """A load that the disk has refused for long, up to `end`."""

    def __init__(self, path: Path, sequence: int, end: int) -> None:
        super().__init__("t", sequence, Segment(path, 0, 0), end=end, start=None, salvages=True)
        self.error = OSError(errno.EIO, "Input/output error")
        self.bypassed = (sequence, end)


def test_a_refusal_is_a_fault_until_no_stretch_is_bypassed() -> None:
    node, reader = Node(), RefusedReader()
    reader.refusals.bypass(3, 5)
    node.reads.refused(reader, RefusedLoad(Path("a.log"), 3, 5))
    assert node.faults.texts() == ["read a.log: input/output error"]
    node.reads.read_again(reader)
    assert FaultKind.READ in node.faults
    reader.refusals.was_read(3, 5)
    node.reads.read_again(reader)
    assert FaultKind.READ not in node.faults


def test_each_reader_has_a_fault_of_its_own() -> None:
    node, readers = Node(), [RefusedReader(), RefusedReader()]
    for reader in readers:
        node.reads.refused(reader, RefusedLoad(Path("a.log"), 3, 5))
    node.reads.refused(readers[0], RefusedLoad(Path("b.log"), 7, 8))
    assert node.faults.texts() == ["read b.log: input/output error", "read a.log: input/output error"]
    node.reads.read_again(readers[0])
    assert node.faults.texts() == ["read a.log: input/output error"]
    assert node.reads.refused_reads == 3


def test_a_front_that_is_missing_is_damage() -> None:
    node = Node()
    node.reads.lacks_front("t", 3, 10)
    assert [(it.topic, it.file, it.first, it.end) for it in node.damage] == [("t", f"{3:020}.log", 3, 10)]


def test_nothing_is_open_in_the_beginning(tmp_path: Path) -> None:
    assert Node().reads.give_back_what_is_idle()
