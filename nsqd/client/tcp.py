"""Serves NSQ clients over TCP or a Unix socket: creates each protocol from nsqd's options, and logs its events.

common/nsqcommon/poller.py reads and writes the sockets, and common/nsqcommon/budget.py limits their number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.options import MILLISECOND
from nsqcommon.version import NSQ_VERSION
from nsqcommon.wire.commands import SizeLimits
from nsqcommon.wire.identify import ClientSettings, HttpEndpoint, Negotiation, ServerFeatures
from nsqd.client.protocol import ClientProtocol
from nsqd.client.rules import ClientRules
from nsqd.client.upgrade import UpgradedClient
from nsqd.options import TlsRequired

if TYPE_CHECKING:
    from nsqcommon.handshake import TlsServer
    from nsqcommon.poller import Connection, Handler, MakeHandler
    from nsqcommon.wire.unfinished import UnfinishedBodies
    from nsqd.broker.broker import Broker
    from nsqd.client.authorization import Ask
    from nsqd.client.note import NoteKind
    from nsqd.options import Options

log = logging.getLogger(__name__)

_LINES: Final[dict[NoteKind, tuple[int, str]]] = {
    "info": (logging.INFO, "[%s] %s"),
    "error": (logging.ERROR, "[%s] - %s"),
    "lost": (logging.ERROR, "client(%s) - failed to read command - %s"),
    "magic": (logging.INFO, "CLIENT(%s): desired protocol magic '%s'"),
    "exit": (logging.INFO, "PROTOCOL(V2): [%s] exiting ioloop%s"),
}


def rules_of(options: Options, http: HttpEndpoint) -> ClientRules:
    features = ServerFeatures(
        max_rdy_count=options.max_rdy_count,
        version=NSQ_VERSION,
        max_msg_timeout_ms=options.max_msg_timeout // MILLISECOND,
        max_heartbeat_interval_ms=options.max_heartbeat_interval // MILLISECOND,
        max_output_buffer_size=options.max_output_buffer_size,
        min_output_buffer_timeout_ms=options.min_output_buffer_timeout // MILLISECOND,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout // MILLISECOND,
        max_deflate_level=options.max_deflate_level,
        tls=bool(options.tls_cert),
        snappy=options.snappy,
        deflate=options.deflate,
        auth_required=bool(options.auth_http_address or options.rights_file),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
        extensions=options.extensions,
        http=http,
    )
    defaults = ClientSettings(
        output_buffer_timeout_ms=options.output_buffer_timeout // MILLISECOND,
        msg_timeout_ms=options.msg_timeout // MILLISECOND,
    )
    return ClientRules(
        limits=limits_of(options),
        features=features,
        defaults=defaults,
        max_req_timeout_ms=options.max_req_timeout // MILLISECOND,
        max_defer_timeout_ms=options.defer_limit // MILLISECOND,
        max_channel_consumers=options.max_channel_consumers,
        tls_required=options.tls_required is not TlsRequired.NO,
    )


def limits_of(options: Options) -> SizeLimits:
    return SizeLimits(
        max_message=options.max_msg_size, max_body=options.max_body_size, max_identify=options.max_identify_size
    )


def client_maker(
    broker: Broker, rules: ClientRules, tls_server: TlsServer | None, ask: Ask | None, unfinished: UnfinishedBodies
) -> MakeHandler:
    """Return a function that creates the handler of each new connection.

    Each client keeps two partials, because two closures would take 350 bytes more.
    """

    def upgrade(
        connection: Connection, wake: Callable[[], None], client: ClientProtocol, granted: Negotiation, early: bytes
    ) -> None:
        connection.handler = UpgradedClient(
            client,
            granted,
            tls_server,
            early=early,
            now=broker.turn.now,
            wake=wake,
            note=partial(log.error, "[%s] - %s", connection.peer),
        )

    def make(connection: Connection, wake: Callable[[], None]) -> Handler:
        peer = connection.peer
        log.info("TCP: new client(%s)", peer)
        host = "" if peer == "@" else peer.rpartition(":")[0].strip("[]")
        return ClientProtocol(
            broker,
            rules,
            remote_address=peer,
            remote_host=host,
            wake=wake,
            note=partial(_note, peer),
            upgrade=partial(upgrade, connection, wake),
            ask=ask,
            unfinished=unfinished,
        )

    return make


def _note(peer: str, kind: NoteKind, text: bytes) -> None:
    level, line = _LINES[kind]
    log.log(level, line, peer, text.decode("utf-8", "backslashreplace"))
