"""Cutting many equally long pieces at once."""

from __future__ import annotations

import pytest

from nsqcommon.wire.equal_pieces import equal_pieces


@pytest.mark.parametrize("count", [1, 63, 64, 65, 255, 256, 257, 1000])
@pytest.mark.parametrize(("start", "end"), [(0, 7), (2, 7), (0, 3), (2, 5), (4, 4)])
def test_pieces_are_what_slices_are(count: int, start: int, end: int) -> None:
    data = bytes(number % 251 for number in range(3 + 7 * count))
    expected = [data[at + start : at + end] for at in range(3, len(data), 7)]
    assert equal_pieces(data, 3, count, stride=7, start=start, end=end) == expected
    assert equal_pieces(bytearray(data), 3, count, stride=7, start=start, end=end) == expected
