"""The body of `POST /mpub`, cut into messages as it arrives.

A body of 5 MiB can hold millions of messages. Cutting all of them when the body is complete would hold up everybody
else for a second, so each piece is cut in the turn in which it is read.
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
_SMALL_SIZES: Final = [_pack_size(size) for size in range(256)]  # a third of the time, for each of 60,000 lines
_SIZE: Final = 4
_MOST_LINES: Final = 20_000  # at once: 7 ms of work

MSG_TOO_BIG: Final = HttpError(413, "MSG_TOO_BIG", close=True)
BODY_TOO_BIG: Final = HttpError(413, "BODY_TOO_BIG", close=True)

Messages = tuple[bytes, Sequence[int]]  # sizes and bodies; then the offset of each size, and the end


class MpubBody(Protocol):
    def receive(self, piece: bytes) -> None: ...

    def first_part(self, piece: bytes) -> int:
        """Return how many bytes of the piece to receive at once. The rest should come after others have had their turn."""

    def cut(self) -> Messages | HttpError:
        """Return all messages of the body, which ends here. Called once."""

    @property
    def held(self) -> int:
        """The bytes of memory it takes so far, roughly."""


class LinesBody:
    """One message per line. Empty lines are not messages."""

    def __init__(self, limits: SizeLimits) -> None:
        self._max_message = limits.max_message
        self._room = limits.max_body
        self._half = bytearray()  # the line that is not complete yet
        # Joining pieces at the end would copy all of them in one turn: with their sizes, short lines make 13 MB of 5.
        self._payload = BytesIO()
        self._offsets: Offsets = [0]
        self._message_too_big = False
        self._body_too_big = False

    def first_part(self, piece: bytes) -> int:
        size = len(piece)
        while (lines := piece.count(b"\n", 0, size)) > _MOST_LINES:
            size = size * _MOST_LINES // lines  # or less, if the lines at the beginning are shorter than the others
        return size

    def receive(self, piece: bytes) -> None:
        # NSQ reads line by line and counts bytes: of two errors, it reports a long line that begins within the limit.
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
    """The body of an HMPUB: a count, then size, headers and body of each message. More bytes behind them are dropped."""

    def __init__(self, limits: SizeLimits) -> None:
        self._half = HalfHeadedMpub([b"HMPUB"], limits)
        # The command says how long it is; a request may end anywhere.
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
        """Return all messages of the body, which ends here."""
        if self._whole is not None:
            return self._whole
        error = self._error or self._half.missing()
        return HttpError(413, error.fault.value.removeprefix("E_"), details={"reason": str(error)})

    @property
    def held(self) -> int:
        return self._half.size


class BinaryBody:
    """A count, then a size and a body for each message. Bytes after the last message are dropped."""

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
