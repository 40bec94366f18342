"""Builds TLS contexts from nsqd's options: its own certificate, and its demands on clients' certificates.

`CertificateFiles` calls these functions again for renewed files.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.certificate_files import CertificateFiles, load_chain, reason_of
from nsqcommon.startup import StartupError
from nsqcommon.streams.tls import SecureLayer, TlsLayer
from nsqcommon.version import how_to_install

if TYPE_CHECKING:
    from nsqd.options import Options

ANY: Final = "require"
VERIFIED: Final = "require-verify"  # with any other word we don't ask for a certificate, as in NSQ


MakeLayer = Callable[[], SecureLayer]


def server_files(options: Options) -> CertificateFiles[MakeLayer] | None:
    """Load the files of all listeners, or return None if TLS is off. Raises StartupError if the files are unusable.

    What they make is the server's side of one connection.
    """
    if not options.tls_cert and not options.tls_key:
        return None
    paths = (options.tls_cert, options.tls_key, options.tls_root_ca_file)
    return CertificateFiles("listeners", paths, partial(_layer_maker, options), certificate=options.tls_cert)


def _layer_maker(options: Options) -> MakeLayer:
    context = _server_context(options)  # pyOpenSSL may serve instead, but ssl has the better error messages
    if options.tls_client_auth_policy == ANY:
        return _any_certificate(options)
    return partial(TlsLayer, context, server_side=True)


def _server_context(options: Options) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_readable(options.tls_cert, options.tls_key)
    try:
        context.minimum_version = ssl.TLSVersion(options.tls_min_version)
        if _is_old(options):
            context.set_ciphers("DEFAULT:@SECLEVEL=0")  # OpenSSL has no ciphers for such old versions at higher levels
        load_chain(context, options.tls_cert, options.tls_key)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build TLS config - {reason_of(error)}") from error
    if options.tls_root_ca_file:
        _trust(context, options.tls_root_ca_file)
    elif options.tls_client_auth_policy == VERIFIED:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy == VERIFIED:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _any_certificate(options: Options) -> MakeLayer:
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


def client_files(options: Options) -> CertificateFiles[ssl.SSLContext]:
    """Load the file for HTTPS requests to an authorization server. Raises StartupError if the file is unusable."""
    return CertificateFiles("authorization servers", (options.tls_root_ca_file,), partial(_client_context, options))


def _client_context(options: Options) -> ssl.SSLContext:
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
