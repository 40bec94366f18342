from __future__ import annotations

from pathlib import Path

import pytest

from nsqd.log.segment import Segment
from nsqd.log.segment_list import SegmentList


def segment(base: int, size: int) -> Segment:
    return Segment(Path(str(base)), base, size)


@pytest.mark.parametrize(("sequence", "bytes_behind"), [
    (0, 1350),
    (10, 1350),  # the oldest
    (15, 850),
    (20, 350),
    (29, 215),
    (30, 200),
    (32, 100),
    (34, 0),
    (99, 0),
])  # fmt: skip
def test_bytes_are_counted_from_a_sequence_on(sequence: int, bytes_behind: int) -> None:
    segments = SegmentList([segment(10, 1000), segment(20, 150), segment(30, 200)], 34)
    assert segments.bytes_from(sequence) == bytes_behind


def test_a_log_without_messages_has_no_bytes() -> None:
    assert SegmentList([], 0).bytes_from(0) == 0
    assert SegmentList([segment(7, 0)], 7).bytes_from(7) == 0
