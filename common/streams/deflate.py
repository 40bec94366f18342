"""NSQ's deflate: one raw RFC 1951 stream in each direction, flushed with a sync marker whenever something is sent."""

from __future__ import annotations

import zlib
from typing import Final

from common.streams.layer import StreamError

_RAW: Final = -15  # zlib's sign for "no header", and a window of 32 KiB
_MOST_AT_ONCE: Final = 128 * 1024  # about what is read at once without it; a thousandfold of what came is possible


class DeflateLayer:
    """Implements `Layer`."""

    def __init__(self, level: int) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._decompressor = zlib.decompressobj(_RAW)
        self.has_more = False

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        decompressor = self._decompressor
        try:
            plain = decompressor.decompress(decompressor.unconsumed_tail + data, _MOST_AT_ONCE)
        except zlib.error as error:
            raise StreamError(f"deflate: {error}") from error
        if decompressor.unused_data:
            raise StreamError("deflate: bytes after the end of the stream")
        # The tail may be empty while zlib still holds back output of its own.
        self.has_more = len(plain) == _MOST_AT_ONCE
        return plain
