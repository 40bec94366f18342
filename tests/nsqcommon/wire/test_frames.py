from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import (
    CLOSE_WAIT_FRAME,
    HEARTBEAT_FRAME,
    OK_FRAME,
    BadFrame,
    Frame,
    FrameReader,
    FrameType,
    error_frame,
    response_frame,
)


def read_all(reader: FrameReader) -> list[Frame]:
    return list(iter(reader.next_frame, None))


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (OK_FRAME, "00000006 00000000 4f4b"),
        (HEARTBEAT_FRAME, "0000000f 00000000" + b"_heartbeat_".hex()),
        (CLOSE_WAIT_FRAME, "0000000e 00000000" + b"CLOSE_WAIT".hex()),
        (
            error_frame(ProtocolError(Fault.INVALID, "invalid command FOO")),
            "00000021 00000001" + b"E_INVALID invalid command FOO".hex(),
        ),
        (error_frame(ProtocolError(Fault.BAD_PROTOCOL)), "00000012 00000001" + b"E_BAD_PROTOCOL".hex()),
    ],
)
def test_frames_are_the_bytes_of_the_conformance_vectors(frame: bytes, expected: str) -> None:
    assert frame == bytes.fromhex(expected)


def test_reader_gives_the_frames_in_their_order() -> None:
    reader = FrameReader(100)
    reader.receive(OK_FRAME + error_frame(ProtocolError(Fault.INVALID, "x")) + response_frame(b""))
    assert read_all(reader) == [
        Frame(FrameType.RESPONSE, b"OK"),
        Frame(FrameType.ERROR, b"E_INVALID x"),
        Frame(FrameType.RESPONSE, b""),
    ]


@given(st.lists(st.tuples(st.sampled_from(FrameType), st.binary(max_size=40))), st.data())
def test_packet_borders_do_not_matter(sent: list[tuple[FrameType, bytes]], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">ii", 4 + len(body), kind) + body for kind, body in sent)
    reader, got = FrameReader(100), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        reader.receive(stream[:cut])
        got += read_all(reader)
        stream = stream[cut:]
    assert got == [Frame(kind, body) for kind, body in sent]


def test_two_pieces_received_before_reading_are_both_read() -> None:
    reader = FrameReader(100)
    reader.receive(OK_FRAME[:7])
    reader.receive(OK_FRAME[7:] + OK_FRAME)
    assert len(read_all(reader)) == 2


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3, 101, 2**31 - 1])
def test_frame_size_out_of_range_is_refused_before_its_data_come(size: int) -> None:
    reader = FrameReader(100)
    reader.receive(struct.pack(">ii", size, 0))
    with pytest.raises(BadFrame, match=f"frame size {size} out of range 4-100"):
        reader.next_frame()


@pytest.mark.parametrize("kind", [-1, 4, 2**31 - 1])
def test_unknown_frame_type_is_refused(kind: int) -> None:
    reader = FrameReader(100)
    reader.receive(struct.pack(">ii", 6, kind) + b"OK")
    with pytest.raises(BadFrame, match="unknown frame type"):
        reader.next_frame()


def test_big_frame_in_small_pieces_is_joined_once() -> None:
    frame = response_frame(bytes(200_000))
    reader = FrameReader(1_000_000)
    for at in range(0, len(frame), 7):
        assert reader.next_frame() is None
        reader.receive(frame[at : at + 7])
    assert reader.next_frame() == Frame(FrameType.RESPONSE, bytes(200_000))
    assert reader.next_frame() is None


@given(st.lists(st.binary(max_size=30)))
def test_garbage_raises_nothing_but_bad_frame(pieces: list[bytes]) -> None:
    reader = FrameReader(64)
    try:
        for piece in pieces:
            reader.receive(piece)
            for frame in read_all(reader):
                assert len(frame.data) <= 60
    except BadFrame:
        pass
