"""Appending to a segment: what the segment counts, and how old it is for retention."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqcommon.wakeup import Wakeup
from nsqd.broker.batch import Batch
from nsqd.log.files import Buffers, Files
from nsqd.log.segment import Segment
from nsqd.log.segment_list import SegmentList
from nsqd.log.writing.segment_writer import OpenWriters, SegmentWriter
from nsqd.log.writing.write_buffer import WriteBuffer
from tests.nsqd.log.batches import make_batch


class FullDisk(Files):
    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        raise OSError


class Log:
    def __init__(self, folder: Path, files: Files, *, remembers_keys: bool = False) -> None:
        self.segments = SegmentList([], 0)
        writers = OpenWriters(files, Wakeup())
        self.writer = SegmentWriter(folder, writers, self.segments, remembers_keys=remembers_keys)
        self.writer.roll(0)

    def write(self, *batches: Batch) -> Segment:
        buffer = WriteBuffer()
        for batch in batches:
            buffer.add(batch)
        segment = self.segments.active
        assert segment is not None
        self.writer.write(segment, buffer.batches, buffer.buffers, buffer.size)
        return segment


def with_key(batch: Batch) -> Batch:
    batch.key = b"k"
    return batch


def test_a_segment_counts_what_was_written_to_it(tmp_path: Path) -> None:
    log = Log(tmp_path, Files())
    log.write(make_batch(0, [b"x"]))
    segment = log.write(make_batch(1, [b"y", b"z"]), make_batch(3, [b"w"]))
    assert segment.size == segment.path.stat().st_size
    assert log.segments.tail == 4


def test_a_write_that_fails_counts_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path, FullDisk())
    with pytest.raises(OSError):
        log.write(make_batch(0, [b"x"], timestamp=5))
    active = log.segments.active
    assert active is not None
    assert (active.size, active.newest, log.segments.tail) == (0, 0, 0)


def test_a_segment_is_as_old_as_its_newest_message(tmp_path: Path) -> None:
    log = Log(tmp_path, Files())
    assert log.write(make_batch(0, [b"x"], timestamp=5), make_batch(1, [b"x"], timestamp=9)).newest == 9
    assert log.write(make_batch(2, [b"x"], timestamp=7)).newest == 9  # the clock was set back


@pytest.mark.parametrize(("remembers_keys", "keyed"), [(True, 5), (False, 0)])
def test_a_segment_knows_its_newest_key_if_keys_are_remembered(
    tmp_path: Path, *, remembers_keys: bool, keyed: int
) -> None:
    log = Log(tmp_path, Files(), remembers_keys=remembers_keys)
    log.write(with_key(make_batch(0, [b"x"], timestamp=5)))
    assert log.write(make_batch(1, [b"x"], timestamp=9)).keyed == keyed
