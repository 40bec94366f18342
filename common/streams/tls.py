"""TLS without a socket: bytes in, bytes out."""

from __future__ import annotations

import ssl
from typing import Final

from common.streams.layer import StreamError

_READ_SIZE: Final = 64 * 1024


class TlsLayer:
    """Implements `Layer`, once `handshake` has said that it is done."""

    has_more: Final = False  # decrypting makes nothing longer

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.ended = False  # the peer has said that nothing more comes

    def handshake(self, data: bytes) -> bool:
        """Goes one step on with what came; says whether it is done. Raises StreamError. See `pending`."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ValueError) as error:
            raise StreamError(_text_of(error)) from error
        return True

    def pending(self) -> bytes:
        """What the other side has to see for TLS's own sake."""
        return self._outgoing.read()

    def encode(self, data: bytes) -> bytes:
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]  # a record at a time
        except ssl.SSLError as error:
            raise StreamError(_text_of(error)) from error
        return self._outgoing.read()

    def decode(self, data: bytes) -> bytes:
        self._incoming.write(data)
        pieces = []
        try:
            while piece := self._tls.read(_READ_SIZE):
                pieces.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise StreamError(_text_of(error)) from error
        return b"".join(pieces)

    # Who is there, and how well hidden

    @property
    def version(self) -> str:
        return self._tls.version() or ""

    @property
    def cipher(self) -> str:
        """OpenSSL's name of the suite."""
        cipher = self._tls.cipher()
        return cipher[0] if cipher is not None else ""

    @property
    def peer_common_name(self) -> str:
        """Of the certificate that the peer has shown and that was verified; "" if there is none."""
        certificate = self._tls.getpeercert() or {}
        for attributes in certificate.get("subject", ()):
            for name, value in attributes:
                if name == "commonName":
                    return str(value)
        return ""


def _text_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"tls: {error.reason.lower().replace('_', ' ')}"
    return f"tls: {error}"
