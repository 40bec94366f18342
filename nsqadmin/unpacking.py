"""An answer's body as it comes, unpacked in small pieces, with a bound on what it becomes.

A few hundred kilobytes of gzip can be hundreds of megabytes of text, and text becomes objects that take ten times as
much. So a body is measured as it comes: by its size, and by what it would take once it is read.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqadmin.slices import Slices

_PIECE: Final = 64 * 1024  # bytes that are unpacked at once: about 0.2 ms
_GZIP: Final = 16 + zlib.MAX_WBITS
# What values take in memory, roughly: an entry of a list or object with a small value, an object, a list.
_WEIGHTS: Final = ((b",", 64), (b"{", 192), (b"[", 72))
_TIMES: Final = 6  # an honest answer of /stats weighs about five times its size


class TooLarge(Exception):
    """The body is beyond its bound. The message goes after "its answer"."""


class Body:
    """`encoding` is the header's. Raises ValueError for one that we have not asked for."""

    def __init__(self, encoding: str, *, most: int) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise ValueError(f"an answer packed with {encoding[:20]!r}")
        self.data = bytearray()
        self.weight = 0  # in bytes
        self._most = most
        self._unpacker = zlib.decompressobj(_GZIP) if "gzip" in encoding else None

    def receive(self, received: bytes) -> Slices[None]:
        """Pauses after each piece. Raises TooLarge, and ValueError for what cannot be unpacked."""
        if self._unpacker is None:
            self._add(received)
            yield
            return
        while received:
            try:
                piece = self._unpacker.decompress(received, _PIECE)
            except zlib.error as error:
                raise ValueError(f"an answer that cannot be unpacked: {error}") from error
            received = self._unpacker.unconsumed_tail
            self._add(piece)
            yield

    def take(self) -> bytes:
        """What has come since the last time; it is measured anew from here on."""
        data, self.data, self.weight = bytes(self.data), bytearray(), 0
        return data

    def _add(self, piece: bytes) -> None:
        self.data += piece
        if len(self.data) > self._most:
            raise TooLarge(f"is larger than {megabytes(self._most)}")
        self.weight += sum(weight * piece.count(sign) for sign, weight in _WEIGHTS)
        if self.weight > _TIMES * self._most:
            raise TooLarge(f"has more values than fit into {megabytes(_TIMES * self._most)} of memory")


def megabytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count:,} bytes"
