"""The body of an answer, unpacked in small pieces as it arrives, with a size limit.

A few hundred kilobytes of gzip can be hundreds of megabytes of text, and text becomes objects that take ten times as
much memory. So we measure a body as it arrives: its size, and the memory that it would take once parsed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqadmin.upstream.slices import Slices

_PIECE: Final = 64 * 1024  # bytes to unpack at once, which takes about 0.2 ms
_GZIP: Final = 16 + zlib.MAX_WBITS
# Rough memory sizes in bytes of a small value in a list or object, an object, and a list.
_WEIGHTS: Final = ((b",", 64), (b"{", 192), (b"[", 72))
_TIMES: Final = 6  # an honest answer to /stats weighs about five times its size


class TooLarge(Exception):
    """The body is too large. The message continues a sentence that begins with "its answer"."""


class Body:
    """The unpacked part of the body so far."""

    def __init__(self, encoding: str, *, most: int) -> None:
        """Raise ValueError for a Content-Encoding (`encoding`) that we haven't asked for. `most` limits the size."""
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise ValueError(f"an answer packed with {encoding[:20]!r}")
        self.data = bytearray()
        self.weight = 0  # estimated bytes of memory that `data` would take once parsed
        self._most = most
        self._unpacker = zlib.decompressobj(_GZIP) if "gzip" in encoding else None

    def receive(self, received: bytes) -> Slices[None]:
        """Unpack received bytes, with a pause after each piece.

        Raise TooLarge, or ValueError for data that can't be unpacked or that follows the end of the packed data: zlib
        would keep all of that.
        """
        if self._unpacker is None:
            self._add(received)
            yield
            return
        while received:
            if self._unpacker.eof:
                raise ValueError("an answer that continues after the end of its packed data")
            try:
                piece = self._unpacker.decompress(received, _PIECE)
            except zlib.error as error:
                raise ValueError(f"an answer that cannot be unpacked: {error}") from error
            received = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            self._add(piece)
            yield

    def take(self) -> bytes:
        """Return the bytes unpacked since the last call, and start measuring again."""
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
