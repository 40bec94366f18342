from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqd.log.journal import format as journal_format
from nsqd.log.journal.reader import BadBytes, walk_frames
from nsqd.log.segment import BLOCK_SIZE

PLAIN = st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.none())
CHANGES = st.lists(st.lists(PLAIN | st.lists(PLAIN).map(tuple), min_size=1, max_size=6).map(tuple), max_size=6)


@given(CHANGES)
def test_changes_come_back_as_tuples(changes: list[tuple[object, ...]]) -> None:
    encoded = journal_format.encode(changes)
    frame = journal_format.decode(encoded, 0)
    assert frame is not None
    assert frame.changes == tuple(changes)
    assert frame.end == len(encoded)


@given(CHANGES, st.data())
def test_torn_frame_is_no_frame(changes: list[tuple[object, ...]], data: st.DataObject) -> None:
    encoded = journal_format.encode(changes)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert journal_format.decode(encoded[:cut], 0) is None
    assert [type(found) for found in read(encoded[:cut])] == [BadBytes] * (cut > 0)


@given(CHANGES, st.data())
def test_any_flipped_bit_is_found(changes: list[tuple[object, ...]], data: st.DataObject) -> None:
    damaged = bytearray(journal_format.encode(changes))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert journal_format.decode(bytes(damaged), 0) is None


@given(st.binary(max_size=100), CHANGES)
def test_frame_is_found_behind_garbage(garbage: bytes, changes: list[tuple[object, ...]]) -> None:
    buffer = garbage + journal_format.encode(changes)
    *bad, frame = read(buffer)
    assert bad == [BadBytes(0, len(garbage), is_tail=False)] * bool(garbage)
    assert (frame.position, frame.end) == (len(garbage), len(buffer))


def test_magic_across_the_border_of_two_blocks_is_found() -> None:
    frame = journal_format.encode([("topic", "t")])
    for size in range(BLOCK_SIZE - 4, BLOCK_SIZE + 2):
        assert read(b"?" * size + frame)[-1].position == size


def read(buffer: bytes) -> list[journal_format.JournalFrame | BadBytes]:
    return list(walk_frames(lambda offset, size: buffer[offset : offset + size], len(buffer)))
