"""TLS without a socket: bytes in, bytes out."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Any, Final, Protocol

from nsqcommon.streams.layer import Layer, StreamError

_READ_SIZE: Final = 64 * 1024
_VERSIONS: Final = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}
# NSQ's names for cipher suites, by OpenSSL's names.
_SUITES: Final = {
    "RC4-SHA": "TLS_RSA_WITH_RC4_128_SHA",
    "DES-CBC3-SHA": "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-RC4-SHA": "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-RSA-RC4-SHA": "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "ECDHE-RSA-DES-CBC3-SHA": "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}


class SecureLayer(Layer, Protocol):
    """A layer that you can use as a `Layer` once `handshake` has returned True."""

    def handshake(self, data: bytes) -> bool:
        """Take the next step with the received data, and return whether the handshake is done.

        Raises StreamError. Afterwards, even after an error, send the bytes that `pending` returns.
        """

    def pending(self) -> bytes:
        """Return the bytes that TLS itself needs to send."""

    def goodbye(self) -> bytes:
        """Return the bytes that end our side of the stream. You can't encode anything afterwards."""

    @property
    def ended(self) -> bool:
        """Whether the peer has ended its side of the stream."""

    @property
    def version(self) -> str:
        """The TLS version in NSQ's spelling: TLS1.2."""

    @property
    def cipher_suite(self) -> str:
        """The cipher suite in NSQ's spelling: its name if NSQ knows one, otherwise a number."""

    @property
    def peer_common_name(self) -> str:
        """The common name in the peer's certificate, or "" if there is none."""


class TlsLayer:
    """Implements `SecureLayer`."""

    has_more: Final = False  # decrypting doesn't expand data

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.ended = False

    def handshake(self, data: bytes) -> bool:
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ValueError) as error:
            raise StreamError(_text_of(error)) from error
        return True

    def pending(self) -> bytes:
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # the peer hasn't ended its side yet, or the handshake never completed
            pass
        return self._outgoing.read()

    def encode(self, data: bytes) -> bytes:
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]  # one record at a time
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

    # Facts about the connection

    @property
    def version(self) -> str:
        return nsq_version(self._tls.version())

    @property
    def cipher_suite(self) -> str:
        cipher = self._tls.cipher()
        return nsq_suite(cipher[0] if cipher is not None else None)

    @property
    def peer_common_name(self) -> str:
        certificate: dict[str, Any] = self._tls.getpeercert() or {}
        names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
        return str(names[0]) if names else ""


# OpenSSL's names, translated into NSQ's


def nsq_version(name: str | None) -> str:
    return _VERSIONS.get(name or "", "")


def nsq_suite(name: str | None) -> str:
    return (_SUITES.get(name) or f"Unknown {_suite_numbers().get(name, 0)}") if name else ""


@lru_cache(maxsize=1)
def _suite_numbers() -> dict[str, int]:
    """Return the wire numbers of the cipher suites, by OpenSSL's names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return {cipher["name"]: cipher["id"] & 0xFFFF for cipher in context.get_ciphers()}


def _text_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"tls: {error.reason.lower().replace('_', ' ')}"
    return f"tls: {error}"
