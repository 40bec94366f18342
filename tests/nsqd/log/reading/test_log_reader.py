"""Which of its two readers a log asks: segments from the first one on, compacted files for messages before it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nsqd.broker.batch import Batch
from nsqd.log.damage import Damage
from nsqd.log.faults import Faults
from nsqd.log.files import Files
from nsqd.log.reading.cold import Load
from nsqd.log.reading.compacted import CompactedFile, CompactedLoad, scan_compacted
from nsqd.log.reading.log_reader import LogReader
from nsqd.log.reading.reads import Reads
from nsqd.log.reading.refusals import READ_PATIENCE
from nsqd.log.record import encode
from nsqd.log.segment import Hole, Segment
from nsqd.log.segment_list import SegmentList
from nsqd.log.wakeups import Wakeups
from tests.nsqd.log.batches import bodies_of, make_batch

WALL_MS = 1_700_000_000_000


class Disk(Files):
    refuses = False

    def open_to_read(self, path: Path) -> int:
        if self.refuses:
            raise OSError(errno.EIO, "Input/output error")
        return super().open_to_read(path)


class Log:
    """Messages 20 to 24 are in a segment, of which 22 is damaged. Messages 3 and 4, and 10, are in a compacted file."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.disk = Disk()
        self.wakeups = Wakeups()
        self.damage: list[Damage] = []
        self.reads = Reads(
            self.disk, Faults(self.wakeups), self.wakeups, lambda: self.now, self.damage, most_descriptors=4
        )
        self.reads.reads_cache = False  # every read needs a thread
        now_ns = WALL_MS * 1_000_000
        segment = Segment(folder / f"{20:020}.log", 20, 0)
        batches = [make_batch(sequence, [b"%d" % sequence]) for sequence in range(20, 25)]
        segment.size = self._write(segment.path, batches)
        compacted = [make_batch(3, [b"3", b"4"]), make_batch(10, [b"10"], timestamp=now_ns, delay_ms=5000)]
        self._write(CompactedFile(folder, 1).path, compacted)
        compacted_file, _ = scan_compacted(self.disk, folder, 1)
        self.reader = LogReader(
            "t", self.reads, SegmentList([segment], 25), holes=[Hole(22, 23, 0, 0)], compacted=[compacted_file]
        )

    def _write(self, path: Path, batches: list[Batch]) -> int:
        data = b"".join(part for batch in batches for part in encode(batch))
        path.write_bytes(data)
        return len(data)

    def read(self, sequence: int) -> list[bytes] | None:
        """Ask as a channel does: again, once a thread has read."""
        batch = self.reader.batch_at(sequence)
        if batch is None:
            self.perform_loads()
            batch = self.reader.batch_at(sequence)
        return None if batch is None else bodies_of(batch)

    def perform_loads(self) -> list[type]:
        """Do what the thread does, and say what kinds of loads there were."""
        loads = list(self.reads.loads)
        self.reads.loads.clear()
        for load in loads:
            assert isinstance(load, Load | CompactedLoad)
            load.perform(self.disk)
            self.reader.loaded(load)
        return [type(load) for load in loads]

    def refuse(self, sequence: int) -> None:
        """Have the disk refuse this sequence for so long that readers bypass it."""
        self.disk.refuses = True
        self.read(sequence)
        self.now += READ_PATIENCE
        self.read(sequence)
        self.perform_loads()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.mark.parametrize(("sequence", "kind"), [(20, Load), (24, Load), (3, CompactedLoad), (10, CompactedLoad)])
def test_a_thread_is_asked_to_read_the_file_that_has_the_message(log: Log, sequence: int, kind: type) -> None:
    assert log.reader.batch_at(sequence) is None
    assert log.perform_loads() == [kind]


@pytest.mark.parametrize(
    ("sequence", "bodies"), [(20, [b"20"]), (24, [b"24"]), (3, [b"3", b"4"]), (4, [b"3", b"4"]), (10, [b"10"])]
)
def test_what_was_read_is_found(log: Log, sequence: int, bodies: list[bytes]) -> None:
    assert log.read(sequence) == bodies


@pytest.mark.parametrize(("sequence", "readable"), [
    (3, 3),
    (4, 4),
    (5, 20),  # no compacted file has it: on with the first segment
    (10, 10),
    (11, 20),
    (20, 20),
    (22, 23),  # damaged
])  # fmt: skip
def test_reading_goes_on_at_the_next_message_that_is_left(log: Log, sequence: int, readable: int) -> None:
    assert log.reader.next_readable(sequence) == readable


@pytest.mark.parametrize(("sequence", "end"), [(3, 5), (10, 11), (20, 25)])
def test_what_the_disk_refuses_for_long_is_bypassed_where_it_lies(log: Log, sequence: int, end: int) -> None:
    assert log.reader.end_of_refused(sequence) == sequence
    log.refuse(sequence)
    assert log.reader.end_of_refused(sequence) == end
    assert log.reader.refused == 1


@pytest.mark.parametrize("sequence", [3, 20])
def test_what_was_refused_is_asked_for_again(log: Log, sequence: int) -> None:
    log.refuse(sequence)
    segments, compacted_files = log.reader, log.reader.compacted
    (compacted_files if sequence == 20 else segments).ask_again()  # of which nothing is refused
    assert log.perform_loads() == []
    log.disk.refuses = False
    (segments if sequence == 20 else compacted_files).ask_again()
    assert len(log.perform_loads()) == 1
    assert log.reader.refused == 0
    assert log.reader.end_of_refused(sequence) == sequence


def test_compacted_messages_are_told_with_the_times_at_which_they_are_due(log: Log) -> None:
    assert list(log.reader.compacted_messages()) == [(3, 2, 0), (10, 1, WALL_MS + 5000 + 1)]
