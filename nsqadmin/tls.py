"""The TLS settings of nsqadmin's own HTTPS listener. Those for its requests to nodes are in upstream/client.py."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING

from nsqadmin.options import TLS_1_3
from nsqcommon.certificate_files import CertificateFiles, load_chain, reason_of
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqadmin.options import Options


def server_files(options: Options) -> CertificateFiles[ssl.SSLContext] | None:
    """Load the files of the HTTPS listener, or return None without --tls-cert. Raise StartupError for unusable files."""
    if not options.serves_https:
        return None
    paths = (options.tls_cert, options.tls_key)
    return CertificateFiles("listeners", paths, partial(_server_context, options), certificate=options.tls_cert)


def _server_context(options: Options) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    is_new = options.tls_min_version == TLS_1_3
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_new else ssl.TLSVersion.TLSv1_2
    try:
        load_chain(context, options.tls_cert, options.tls_key)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build TLS config - {reason_of(error)}") from error
    return context
