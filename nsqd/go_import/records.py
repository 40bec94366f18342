"""The records of Go's disk queues: an i32 length, then a message as in a message frame, including its attempts."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from nsqcommon.wire.message import HEADER_SIZE

LENGTH_SIZE: Final = 4
SMALLEST: Final = HEADER_SIZE  # the length of the shortest record, whose body is empty

# timestamp, attempts, id, body. A plain tuple is fast, and an import handles millions.
GoMessage = tuple[int, int, bytes, bytes]

_unpack_length: Final = Struct(">i").unpack_from
_unpack_front: Final = Struct(">iqH16s").unpack_from
_FRONT: Final = LENGTH_SIZE + HEADER_SIZE
_HEX_DIGITS: Final = b"0123456789abcdef"


class SplitResult(NamedTuple):
    position: int  # offset of the first record that is incomplete or bad
    needed: int  # bytes needed to continue with that record; 0: it isn't a record


def split_records(data: bytes, *, largest: int, messages: list[GoMessage]) -> SplitResult:
    """Append the complete records at the start of the data to `messages`. A record longer than `largest` is bad."""
    position, end = 0, len(data)
    while end - position >= _FRONT:
        length, timestamp, attempts, message_id = _unpack_front(data, position)
        if not SMALLEST <= length <= largest:
            return SplitResult(position, 0)
        following = position + LENGTH_SIZE + length
        if following > end:
            return SplitResult(position, LENGTH_SIZE + length)
        messages.append((timestamp, attempts, message_id, data[position + _FRONT : following]))
        position = following
    if end - position >= LENGTH_SIZE and not SMALLEST <= length_at(data, position) <= largest:
        return SplitResult(position, 0)
    return SplitResult(position, _FRONT)


def length_at(data: bytes, position: int) -> int:
    length: int = _unpack_length(data, position)[0]
    return length


def number_of(message_id: bytes) -> int | None:
    """Return the number in an id of 16 lower-case hex digits, or None if the id is anything else."""
    return None if message_id.translate(None, _HEX_DIGITS) else int(message_id, 16)


class Digest:
    """A hash over the messages of a queue, in order."""

    _pack: Final = Struct(">QqHI").pack
    _MOST_PIECES: Final = 2_000

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._pieces: list[bytes] = []
        self.count = 0

    def add(self, number: int, timestamp: int, attempts: int, body: bytes) -> None:
        pieces = self._pieces
        pieces.append(self._pack(number, timestamp, attempts, len(body)))
        pieces.append(body)
        self.count += 1
        if len(pieces) >= self._MOST_PIECES:
            self._hash.update(b"".join(pieces))
            pieces.clear()

    def result(self) -> tuple[int, str]:
        """Return the number of messages and their hash."""
        self._hash.update(b"".join(self._pieces))
        self._pieces.clear()
        return self.count, self._hash.hexdigest()
