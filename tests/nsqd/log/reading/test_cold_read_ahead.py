"""Which channels read sequentially, and how far to read ahead of them."""

from __future__ import annotations

from pathlib import Path

from nsqd.log.files import Files
from nsqd.log.reading.cold import AHEAD_BYTES, MOST_STREAMS, ReadAhead, SequentialReaders
from nsqd.log.segment import Segment

STEP = 100_000  # bytes of one read


def segment(base: int = 0, size: int = 20 * AHEAD_BYTES) -> Segment:
    return Segment(Path(f"{base}.log"), base, size)


def pieces(streams: SequentialReaders, one: Segment, first: int, end: int) -> list[tuple[int, int]]:
    return [piece for offset in range(first, end, STEP) if (piece := streams.next_piece(one, offset)) is not None]


def test_each_byte_is_read_ahead_once() -> None:
    found = pieces(SequentialReaders(), segment(), STEP, 10 * AHEAD_BYTES)
    assert found == [(STEP + n * AHEAD_BYTES, AHEAD_BYTES) for n in range(len(found))]


def test_at_most_two_pieces_are_ahead() -> None:
    streams, one = SequentialReaders(), segment()
    for offset in range(STEP, 10 * AHEAD_BYTES, STEP):
        while (piece := streams.next_piece(one, offset)) is not None:
            assert sum(piece) <= offset + 2 * AHEAD_BYTES


def test_end_of_a_segment_is_left_out() -> None:
    one = segment(size=3 * AHEAD_BYTES)
    assert all(start + size <= one.size for start, size in pieces(SequentialReaders(), one, STEP, one.size))
    assert SequentialReaders().next_piece(segment(size=AHEAD_BYTES), STEP) is None


def test_readers_do_not_take_turns_in_one_stream() -> None:
    streams, one = SequentialReaders(), segment()
    together = [
        piece
        for offset in range(STEP, 4 * AHEAD_BYTES, STEP)
        for place in (offset, offset + 8 * AHEAD_BYTES)
        if (piece := streams.next_piece(one, place)) is not None
    ]
    alone = pieces(SequentialReaders(), one, STEP, 4 * AHEAD_BYTES)
    beyond = pieces(SequentialReaders(), one, STEP + 8 * AHEAD_BYTES, 12 * AHEAD_BYTES)
    assert sorted(together) == alone + beyond


def test_reader_that_went_faster_than_what_was_read_ahead_begins_anew_where_it_is() -> None:
    streams, one = SequentialReaders(), segment()
    streams.next_piece(one, STEP)
    assert streams.next_piece(one, 2 * AHEAD_BYTES) == (2 * AHEAD_BYTES, AHEAD_BYTES)


def test_those_who_stopped_reading_are_forgotten() -> None:
    streams = SequentialReaders()
    for base in range(100):
        streams.next_piece(segment(base), STEP)
    assert len(streams) == MOST_STREAMS


def test_segment_that_has_gone_is_no_matter(tmp_path: Path) -> None:
    ahead = ReadAhead("t", Segment(tmp_path / "gone.log", 0, AHEAD_BYTES), 0, AHEAD_BYTES)
    ahead.perform(Files())
    assert ahead.error is None
    assert not ahead.must_retry
