"""Frames: what the server says. Size and type, 32 bits each, then the data; the size counts type and data.

The server encodes them here (message frames are made in bulk by `nsqd.broker.batch`), clients read them.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

from common.wire.record import Record

if TYPE_CHECKING:
    from common.wire.faults import ProtocolError


class FrameType(IntEnum):
    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


_prefix: Final = Struct(">ii")
_TYPE_SIZE: Final = 4
_PREFIX_SIZE: Final = 8
_TYPES: Final = tuple(FrameType)


def response_frame(data: bytes) -> bytes:
    return _prefix.pack(_TYPE_SIZE + len(data), FrameType.RESPONSE) + data


def error_frame(error: ProtocolError) -> bytes:
    return worded_error_frame(error.data)


def worded_error_frame(data: bytes) -> bytes:
    """Return the frame of an error whose code and detail are `data`."""
    return _prefix.pack(_TYPE_SIZE + len(data), FrameType.ERROR) + data


OK_FRAME: Final = response_frame(b"OK")
HEARTBEAT_FRAME: Final = response_frame(b"_heartbeat_")
CLOSE_WAIT_FRAME: Final = response_frame(b"CLOSE_WAIT")


class Frame(Record):
    __slots__ = ("data", "type")

    def __init__(self, type: FrameType, data: bytes) -> None:
        self.type = type
        self.data = data


class BadFrame(Exception):
    """The server sent what is no frame. There is no way to find the next one: close the connection."""


class FrameReader:
    """A client's side of the stream, cut into frames, whatever the packet borders.

    Memory is bounded by `max_size`, which a frame's size may not exceed. After `BadFrame` the reader is dead.
    """

    __slots__ = ("_at", "_data", "_half", "_max_size", "_needed")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._data = b""
        self._at = 0
        self._half = bytearray()  # the frame that has begun, until all of it is here
        self._needed = 0  # bytes that `_half` must have before another look is worth it

    def receive(self, data: bytes) -> None:
        if self._half:
            self._half += data
            if len(self._half) < self._needed:
                return
            data = bytes(self._half)
            self._half.clear()
        if self._at < len(self._data):  # the last data were not read to their end
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def next_frame(self) -> Frame | None:
        """The next whole frame; None: more bytes are needed. Raises BadFrame."""
        data, at = self._data, self._at
        if not data:
            return None
        if len(data) - at < _PREFIX_SIZE:
            self._wait_for(_PREFIX_SIZE)
            return None
        size, number = _prefix.unpack_from(data, at)
        if not _TYPE_SIZE <= size <= self._max_size:
            raise BadFrame(f"frame size {size} out of range {_TYPE_SIZE}-{self._max_size}")
        if not 0 <= number < len(_TYPES):
            raise BadFrame(f"unknown frame type {number}")
        end = at + 4 + size
        if end > len(data):
            self._wait_for(4 + size)
            return None
        self._at = end
        return Frame(_TYPES[number], data[at + _PREFIX_SIZE : end])

    def _wait_for(self, needed: int) -> None:
        self._half += memoryview(self._data)[self._at :]
        self._needed = needed
        self._data = b""
        self._at = 0
