"""The certificates that clients are shown, and what is asked of theirs."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from common.startup import StartupError

if TYPE_CHECKING:
    from nsqd.options import Options


def server_context(options: Options) -> ssl.SSLContext | None:
    """None: no TLS. StartupError when the files cannot be used."""
    if not options.tls_cert and not options.tls_key:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.minimum_version = ssl.TLSVersion(options.tls_min_version)
        if context.minimum_version < ssl.TLSVersion.TLSv1_2:
            context.set_ciphers("DEFAULT:@SECLEVEL=0")  # OpenSSL has no others for what is so old
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build TLS config - {error}") from error
    if options.tls_root_ca_file:
        _trust(context, options.tls_root_ca_file)
    elif options.tls_client_auth_policy:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy in ("require", "require-verify"):
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: Options) -> ssl.SSLContext:
    """For asking an authorization server over https. StartupError when the file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
        context.minimum_version = ssl.TLSVersion(options.tls_min_version)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build client TLS config - {error}") from error
    return context


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise StartupError("failed to build TLS config - failed to append certificate to pool") from error
    except OSError as error:
        raise StartupError(f"failed to build TLS config - {error}") from error
