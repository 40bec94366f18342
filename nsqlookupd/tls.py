"""The TLS settings of both listeners."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqlookupd.options import Options


def server_context(options: Options) -> ssl.SSLContext | None:
    """Return the context of both listeners, or None without --tls-cert. Raise StartupError for unusable files."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key or None)
        if options.tls_root_ca_file:
            context.load_verify_locations(options.tls_root_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"failed to build TLS config - {error}") from error
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
