"""Builds TLS contexts from nsqd's options: its own certificate, and its demands on clients' certificates."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.handshake import TlsServer
from nsqcommon.startup import StartupError
from nsqcommon.streams.tls import SecureLayer, TlsLayer
from nsqcommon.version import how_to_install

if TYPE_CHECKING:
    from nsqd.options import Options

ANY: Final = "require"
VERIFIED: Final = "require-verify"  # with any other word we don't ask for a certificate, as in NSQ


def tls_server(options: Options) -> TlsServer | None:
    """Return the server side of TLS, or None if TLS is off. Raises StartupError if the files are unusable."""
    if not options.tls_cert and not options.tls_key:
        return None
    context = _server_context(options)  # pyOpenSSL may serve instead, but ssl has the better error messages
    if options.tls_client_auth_policy == ANY:
        return TlsServer(_any_certificate(options))
    return TlsServer(partial(TlsLayer, context, server_side=True))


def _server_context(options: Options) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_readable(options.tls_cert, options.tls_key)
    try:
        context.minimum_version = ssl.TLSVersion(options.tls_min_version)
        if _is_old(options):
            context.set_ciphers("DEFAULT:@SECLEVEL=0")  # OpenSSL has no ciphers for such old versions at higher levels
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build TLS config - {error}") from error
    if options.tls_root_ca_file:
        _trust(context, options.tls_root_ca_file)
    elif options.tls_client_auth_policy == VERIFIED:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy == VERIFIED:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _any_certificate(options: Options) -> Callable[[], SecureLayer]:
    try:
        from nsqcommon.streams import any_certificate
    except ImportError as error:
        raise StartupError(
            "failed to build TLS config - --tls-client-auth-policy=require needs pyOpenSSL: "
            + how_to_install("any-client-certificate")
        ) from error
    try:
        return any_certificate.layer_maker(
            options.tls_cert, options.tls_key, min_version=options.tls_min_version, old_ciphers=_is_old(options)
        )
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build TLS config - {error}") from error


def client_context(options: Options) -> ssl.SSLContext:
    """Return the context for HTTPS requests to an authorization server. Raises StartupError if the file is unusable."""
    if options.tls_root_ca_file:
        _check_readable(options.tls_root_ca_file, what="client TLS")
    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
        context.minimum_version = ssl.TLSVersion(options.tls_min_version)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build client TLS config - {error}") from error
    return context


def _is_old(options: Options) -> bool:
    return options.tls_min_version < ssl.TLSVersion.TLSv1_2


def _check_readable(*paths: str, what: str = "TLS") -> None:
    """Raise StartupError if a file is unreadable, and name it, because the ssl module's errors don't."""
    for path in paths:
        try:
            open(path, "rb").close()
        except OSError as error:
            cause = (error.strerror or str(error)).lower()
            raise StartupError(f"failed to build {what} config - open {path}: {cause}") from error


def _trust(context: ssl.SSLContext, path: str) -> None:
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise StartupError("failed to build TLS config - failed to append certificate to pool") from error
