"""TLS that requires a client certificate, but accepts any issuer.

Python's ssl can't request a certificate without verifying it. OpenSSL can, and pyOpenSSL exposes that. Only this module
needs pyOpenSSL (the extra `any-client-certificate`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cryptography.x509 import NameOID
from OpenSSL import SSL

from nsqcommon.streams.layer import StreamError
from nsqcommon.streams.tls import SecureLayer, nsq_suite, nsq_version

_READ_SIZE: Final = 64 * 1024
_LONGEST_RECORD: Final = 16 * 1024
_NEEDS_A_CERTIFICATE: Final = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT


def layer_maker(certificate: str, key: str, *, min_version: int, old_ciphers: bool) -> Callable[[], SecureLayer]:
    """Return a function that creates the server's layer for a connection.

    Raises OSError or ValueError if the files are unusable.
    """
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(min_version)
    if old_ciphers:
        context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
    try:
        context.use_certificate_chain_file(certificate)
        context.use_privatekey_file(key)
        context.check_privatekey()
    except SSL.Error as error:
        raise ValueError(_text_of(error)) from error
    context.set_verify(_NEEDS_A_CERTIFICATE, lambda connection, certificate, error, depth, ok: True)
    # A resumed session would reuse the certificate of an earlier connection, but each one must show its own.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET)
    return lambda: AnyCertificateLayer(context)


class AnyCertificateLayer:
    """Implements `SecureLayer`."""

    has_more: Final = False  # decrypting doesn't expand data

    def __init__(self, context: SSL.Context) -> None:
        self._tls = SSL.Connection(context, None)
        self._tls.set_accept_state()
        self.ended = False

    def handshake(self, data: bytes) -> bool:
        try:
            self._take(data)
            self._tls.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise StreamError(_text_of(error)) from error
        return True

    def _take(self, data: bytes) -> None:
        while data:
            data = data[self._tls.bio_write(data) :]

    def pending(self) -> bytes:
        pieces = []
        try:
            while True:
                pieces.append(self._tls.bio_read(_READ_SIZE))
        except SSL.WantReadError:
            return b"".join(pieces)

    def goodbye(self) -> bytes:
        try:
            self._tls.shutdown()
        except SSL.Error:  # the handshake never completed
            pass
        return self.pending()

    def encode(self, data: bytes) -> bytes:
        try:
            for start in range(0, len(data), _LONGEST_RECORD):
                self._tls.sendall(data[start : start + _LONGEST_RECORD])
        except SSL.Error as error:
            raise StreamError(_text_of(error)) from error
        return self.pending()

    def decode(self, data: bytes) -> bytes:
        pieces = []
        try:
            self._take(data)
            while True:
                pieces.append(self._tls.recv(_READ_SIZE))
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            self.ended = True
        except SSL.Error as error:
            raise StreamError(_text_of(error)) from error
        return b"".join(pieces)

    @property
    def version(self) -> str:
        return nsq_version(self._tls.get_protocol_version_name())

    @property
    def cipher_suite(self) -> str:
        return nsq_suite(self._tls.get_cipher_name())

    @property
    def peer_common_name(self) -> str:
        certificate = self._tls.get_peer_certificate(as_cryptography=True)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) if certificate is not None else ()
        return str(names[0].value) if names else ""


def _text_of(error: SSL.Error) -> str:
    reasons = [reason for entry in error.args[:1] for _, _, reason in entry if reason]
    return f"tls: {reasons[0] if reasons else 'connection ended'}"
