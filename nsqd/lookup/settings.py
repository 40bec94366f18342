"""The settings for nsqlookupd, built from nsqd's options."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from nsqcommon.certificate_files import CertificateFiles, RenewedContext, load_chain, reason_of
from nsqcommon.options import SECOND
from nsqcommon.startup import StartupError
from nsqcommon.version import NSQ_VERSION
from nsqcommon.wire.lookup import identify_body

if TYPE_CHECKING:
    from nsqd.options import Options


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """The settings that don't change at run time."""

    me: bytes  # the body of IDENTIFY
    most: int  # bytes in a reply
    connect_timeout: float  # over HTTP
    request_timeout: float
    tls: ssl.SSLContext | None
    files: CertificateFiles[ssl.SSLContext] | None = None  # those of `tls`, if they may be renewed


def settings_of(options: Options, *, hostname: str, node: str) -> LookupSettings:
    """Return the settings. `node` is the id of the data path; the ports in `options` must be the actual ones.

    Raises StartupError if the TLS files are invalid.
    """
    files = _files_of(options) if options.lookupd_tls else None
    me = identify_body(
        broadcast_address=options.broadcast_address,
        hostname=hostname,
        http_port=options.broadcast_http_port,
        tcp_port=options.broadcast_tcp_port,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
        version=NSQ_VERSION,
        node=node,
        extensions=options.extensions,
    )
    return LookupSettings(
        me=me,
        most=min(options.max_body_size, options.max_identify_size),
        connect_timeout=options.http_client_connect_timeout / SECOND or inf,
        request_timeout=options.http_client_request_timeout / SECOND or inf,
        tls=RenewedContext(files) if files is not None else None,
        files=files,
    )


def _files_of(options: Options) -> CertificateFiles[ssl.SSLContext]:
    return CertificateFiles(
        "nsqlookupd",
        (options.lookupd_tls_root_ca_file, options.lookupd_tls_cert, options.lookupd_tls_key),
        partial(_context_of, options),
        certificate=options.lookupd_tls_cert,
    )


def _context_of(options: Options) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.lookupd_tls_root_ca_file or None)
        if options.lookupd_tls_cert:
            load_chain(context, options.lookupd_tls_cert, options.lookupd_tls_key)
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to build client TLS config - {reason_of(error)}") from error
    return context
