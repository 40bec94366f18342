"""The bodies of `POST /mpub` and `POST /hmpub`, split into messages as they arrive.

A body of 5 MiB can hold millions of messages. Splitting it once it is complete would block other clients for a second,
so we split each piece in the turn that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from nsqcommon.http_api import HttpError
from nsqcommon.wire.commands import HalfHeadedMpub, Publications
from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.mpub import (
    Offsets,
    count_missing,
    cut_messages,
    memory_of,
    message_missing,
    packed,
    read_count,
)

if TYPE_CHECKING:
    from nsqcommon.wire.limits import SizeLimits

_pack_size: Final = Struct(">I").pack
_SMALL_SIZES: Final = [_pack_size(size) for size in range(256)]  # a look-up is three times as fast as packing
_SIZE: Final = 4
_MOST_LINES: Final = 20_000  # per turn; 7 ms of work

MSG_TOO_BIG: Final = HttpError(413, "MSG_TOO_BIG", close=True)
BODY_TOO_BIG: Final = HttpError(413, "BODY_TOO_BIG", close=True)

Messages = tuple[bytes, Sequence[int]]  # each message's size and body; the offset of each size, and the end


class MpubBody(Protocol):
    def receive(self, piece: bytes) -> None: ...

    def first_part(self, piece: bytes) -> int:
        """Return the number of bytes to pass to `receive` in this turn. Pass the rest in later turns."""

    def cut(self) -> Messages | HttpError:
        """Return all messages, or an error, at the end of the body. Called once."""

    @property
    def held(self) -> int:
        """The approximate memory in use, in bytes."""


class LinesBody:
    """One message per line. Empty lines are skipped, as in NSQ."""

    def __init__(self, limits: SizeLimits) -> None:
        self._max_message = limits.max_message
        self._room = limits.max_body
        self._half = bytearray()  # the line that isn't complete yet
        # Not a list of pieces: joining it would copy everything in one turn, 13 MB for 5 MB of short lines.
        self._payload = BytesIO()
        self._offsets: Offsets = [0]
        self._message_too_big = False
        self._body_too_big = False

    def first_part(self, piece: bytes) -> int:
        size = len(piece)
        while (lines := piece.count(b"\n", 0, size)) > _MOST_LINES:
            size = size * _MOST_LINES // lines  # an estimate; we loop because the first lines may be the shortest
        return size

    def receive(self, piece: bytes) -> None:
        # If both a line and the body are too long, NSQ reports the line, provided it begins within the body's limit.
        # So we still split the part of the body within the limit.
        if len(piece) > self._room:
            self._body_too_big = True
            piece = piece[: self._room]
        self._room -= len(piece)
        if b"\n" not in piece:
            self._half += piece
            return
        if self._half:
            piece = bytes(self._half) + piece
            self._half.clear()
        lines = piece.split(b"\n")
        self._half += lines.pop()
        self._add(list(filter(None, lines)))

    def cut(self) -> Messages | HttpError:
        if self._half and not self._body_too_big:
            self._add([bytes(self._half)])
        if self._message_too_big:
            return MSG_TOO_BIG
        return BODY_TOO_BIG if self._body_too_big else (self._payload.getvalue(), self._offsets)

    @property
    def held(self) -> int:
        return len(self._half) + self._offsets[-1] + memory_of(self._offsets)

    def _add(self, lines: list[bytes]) -> None:
        if not lines or self._message_too_big:
            return
        sizes = list(map(len, lines))
        longest = max(sizes)
        if longest > self._max_message:
            self._message_too_big = True
            return
        pieces = [b""] * (2 * len(lines))
        pieces[0::2] = map(_SMALL_SIZES.__getitem__ if longest < len(_SMALL_SIZES) else _pack_size, sizes)
        pieces[1::2] = lines
        self._payload.write(b"".join(pieces))
        ends = accumulate(map(_SIZE.__add__, sizes), initial=self._offsets.pop())
        self._offsets.extend(ends)
        self._offsets = packed(self._offsets)


class HeadedBody:
    """The body of `/hmpub`: a count, then the size, headers and body of each message. Bytes after these are ignored."""

    def __init__(self, limits: SizeLimits) -> None:
        self._half = HalfHeadedMpub([b"HMPUB"], limits)
        # Over TCP, HMPUB begins with the body's size. A request has no such field, so we insert the largest size.
        self._half.held += _pack_size(limits.max_body)
        self._most = _SIZE + limits.max_body
        self._whole: Publications | None = None
        self._error: ProtocolError | None = None

    def receive(self, piece: bytes) -> None:
        if self._error is not None or self._whole is not None:
            return
        held = self._half.held
        held += piece[: self._most - len(held)]
        try:
            self._whole = self._half.cut(held, 0)
        except ProtocolError as error:
            self._error = error

    def cut(self) -> Publications | HttpError:
        """Return all messages, or an error, at the end of the body. Called once."""
        if self._whole is not None:
            return self._whole
        error = self._error or self._half.missing()
        return HttpError(413, error.fault.value.removeprefix("E_"), details={"reason": str(error)})

    @property
    def held(self) -> int:
        return self._half.size


class BinaryBody:
    """A count, then the size and body of each message. Bytes after the last message are ignored."""

    def __init__(self, limits: SizeLimits) -> None:
        self._limits = limits
        self._held = bytearray()
        self._count = 0  # 0: not read yet
        self._offsets: Offsets = [0]
        self._error: ProtocolError | None = None

    def first_part(self, piece: bytes) -> int:
        return len(piece)

    def receive(self, piece: bytes) -> None:
        if self._error is not None:
            return
        held = self._held
        held += piece[: self._limits.max_body - len(held)]
        try:
            if not self._count and len(held) >= _SIZE:
                self._count = read_count(held, 0, self._limits)
            if self._count:
                cut_messages(held, _SIZE, self._count, self._offsets, self._limits)
                self._offsets = packed(self._offsets)
        except ProtocolError as error:
            self._error = error

    def cut(self) -> Messages | HttpError:
        length, offsets = len(self._held) - _SIZE, self._offsets
        if self._error is None and not self._count:
            self._error = count_missing()
        elif self._error is None and (len(offsets) <= self._count or offsets[-1] > length):
            self._error = message_missing(length, offsets)
        if self._error is not None:
            return HttpError(413, self._error.fault.value.removeprefix("E_"))
        return bytes(memoryview(self._held)[_SIZE : _SIZE + offsets[-1]]), offsets

    @property
    def held(self) -> int:
        return len(self._held) + memory_of(self._offsets)
