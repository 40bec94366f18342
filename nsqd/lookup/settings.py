"""The settings for nsqlookupd, built from nsqd's options."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

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


def settings_of(options: Options, *, hostname: str, node: str) -> LookupSettings:
    """Return the settings. `node` is the id of the data path; the ports in `options` must be the actual ones.

    Raises StartupError if the TLS files are invalid.
    """
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
        tls=_tls_of(options),
    )


def _tls_of(options: Options) -> ssl.SSLContext | None:
    if not options.lookupd_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.lookupd_tls_root_ca_file or None)
        if options.lookupd_tls_cert:
            context.load_cert_chain(options.lookupd_tls_cert, options.lookupd_tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"failed to build client TLS config - {error}") from error
    return context
