"""The TLS settings of both listeners."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING

from nsqcommon.certificate_files import CertificateFiles, load_chain, reason_of
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqlookupd.options import Options


def server_files(options: Options) -> CertificateFiles[ssl.SSLContext] | None:
    """Load the files of both listeners, or return None without --tls-cert. Raise StartupError for unusable files."""
    if not options.tls_cert:
        return None
    paths = (options.tls_cert, options.tls_key, options.tls_root_ca_file)
    return CertificateFiles("listeners", paths, partial(_server_context, options), certificate=options.tls_cert)


def _server_context(options: Options) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        load_chain(context, options.tls_cert, options.tls_key)
        if options.tls_root_ca_file:
            context.load_verify_locations(options.tls_root_ca_file)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build TLS config - {reason_of(error)}") from error
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
