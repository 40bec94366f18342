"""NSQ's deflate: one raw RFC 1951 stream per direction, with a sync flush after everything we send."""

from __future__ import annotations

import zlib
from typing import Final

from nsqcommon.streams.layer import StreamError

_RAW: Final = -15  # a window of 32 KiB; negative: no header
_MOST_AT_ONCE: Final = 128 * 1024  # decoded bytes; data may expand a thousandfold


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
        # We can't check for a tail instead, because zlib may hold back output even when the tail is empty.
        self.has_more = len(plain) == _MOST_AT_ONCE
        return plain
