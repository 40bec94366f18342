"""A message, and its encoding in a message frame.

0        8         10       26
+--------+---------+--------+--------
|  i64   |   u16   |   16   |  rest
+--------+---------+--------+--------
timestamp  attempts    id      body

In a frame of type 3, encoded headers (see headers.py) come between id and body.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from nsqcommon.wire.headers import end_of_headers
from nsqcommon.wire.hot_record import HotRecord

HEADER_SIZE: Final = 26

_header: Final = Struct(">qH16s")


class Message(HotRecord):
    __slots__ = ("attempts", "body", "headers", "id", "timestamp")

    def __init__(self, timestamp: int, attempts: int, id: bytes, body: bytes, headers: bytes = b"") -> None:
        self.timestamp = timestamp  # time of its publish; wall time in nanoseconds
        self.attempts = attempts  # 1 on the first delivery
        self.id = id  # 16 hex digits
        self.body = body
        self.headers = headers  # encoded; empty if the frame had none


def decode_message(data: bytes, *, is_headed: bool = False) -> Message:
    """Decode a message from the data of its frame. Raises ValueError if that is too short."""
    if len(data) < HEADER_SIZE:
        raise ValueError(f"message too short {len(data)} < {HEADER_SIZE}")
    timestamp, attempts, message_id = _header.unpack_from(data)
    if is_headed:
        end = end_of_headers(data, HEADER_SIZE)
        return Message(timestamp, attempts, message_id, data[end:], data[HEADER_SIZE:end])
    return Message(timestamp, attempts, message_id, data[HEADER_SIZE:])


def encode_message(message: Message) -> bytes:
    # Attempts have 16 bits on the wire and wrap around, as in NSQ.
    return _header.pack(message.timestamp, message.attempts & 0xFFFF, message.id) + message.headers + message.body
