"""Frames, which the server sends: size and type in 32 bits each, then the data. The size includes the type.

The server encodes frames here, except message frames: `nsqd.broker.batch` encodes these in bulk. Clients decode all
frames here.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from nsqcommon.wire.hot_record import HotRecord

if TYPE_CHECKING:
    from nsqcommon.wire.faults import ProtocolError

Piece: TypeAlias = "bytes | memoryview"  # of a frame to send; a large body is a view
LARGE: Final = 4096  # bytes of a body; from here on, a copy costs more than another view for `sendmsg`


class FrameType(IntEnum):
    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2
    HEADED_MESSAGE = 3  # with headers; only for clients with that extension


_prefix: Final = Struct(">ii")
_TYPE_SIZE: Final = 4
_PREFIX_SIZE: Final = 8
_TYPES: Final = tuple(FrameType)


def response_frame(data: bytes) -> bytes:
    return _prefix.pack(_TYPE_SIZE + len(data), FrameType.RESPONSE) + data


def error_frame(error: ProtocolError) -> bytes:
    return error_frame_from_data(error.data)


def error_frame_from_data(data: bytes) -> bytes:
    """Return an error frame. `data` is the code and its detail."""
    return _prefix.pack(_TYPE_SIZE + len(data), FrameType.ERROR) + data


OK_FRAME: Final = response_frame(b"OK")
HEARTBEAT_FRAME: Final = response_frame(b"_heartbeat_")
CLOSE_WAIT_FRAME: Final = response_frame(b"CLOSE_WAIT")


class Frame(HotRecord):
    __slots__ = ("data", "type")

    def __init__(self, type: FrameType, data: bytes) -> None:
        self.type = type
        self.data = data


class BadFrame(Exception):
    """The server sent something other than a frame. You can't find the next one, so close the connection."""


class FrameReader:
    """Turns the server's stream into frames, however the network splits it.

    No frame may be larger than `max_size`, which also limits our memory. After `BadFrame`, throw the reader away.
    """

    __slots__ = ("_at", "_data", "_half", "_max_size", "_needed")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._data = b""
        self._at = 0
        self._half = bytearray()  # the part of a frame that has arrived
        self._needed = 0  # bytes that `_half` must have before we can parse on

    def receive(self, data: bytes) -> None:
        if self._half:
            self._half += data
            if len(self._half) < self._needed:
                return
            data = bytes(self._half)
            self._half.clear()
        if self._at < len(self._data):  # unread bytes of the previous data
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None if more bytes are needed. Raises BadFrame."""
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
