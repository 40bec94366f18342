"""nsqlookupd as one tree of tasks: its parts, their start order, and how they stop."""

from __future__ import annotations

import logging
import platform
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon import web
from nsqcommon.budget import Budget
from nsqcommon.certificate_files import CertificateFiles, certificate_metrics, renewable
from nsqcommon.daemon import tune_garbage_collection, version_line, wait_for_signal
from nsqcommon.handshake import MOST_UNDER_WAY, TlsServer
from nsqcommon.net import bind, close_listener, format_listener, listening_port
from nsqcommon.options import MILLISECOND, seconds
from nsqcommon.origin import OwnHosts
from nsqcommon.recipients import host_and_port
from nsqcommon.resolver import Resolver
from nsqcommon.same_site import SameSite
from nsqcommon.streams.tls import TlsLayer
from nsqcommon.version import NSQ_VERSION
from nsqcommon.waiting import Waiting
from nsqcommon.wire.lookup import PeerAddress
from nsqlookupd.dial_back import DialBack, DialBackRules, is_ours
from nsqlookupd.http_api import make_app
from nsqlookupd.registry import Registry
from nsqlookupd.tcp import Clients, ConnectionLimits
from nsqlookupd.tls import server_files

if TYPE_CHECKING:
    import ssl

    from nsqlookupd.options import Options

log = logging.getLogger(__name__)

_FOR_HTTP: Final = 4096  # descriptors, or half of the process's limit if that is less
_OWN: Final = 32  # of these, descriptors for the daemon's own files, or a quarter if that is less
_SHORTEST_SILENCE: Final = 60.0  # seconds; nsqd sends IDENTIFY at once, but people and probes may be slower


@dataclass(frozen=True, slots=True)
class Listening:
    """The open sockets. With port 0 the options don't tell their addresses."""

    tcp: socket.socket
    http: socket.socket


async def run(
    options: Options,
    *,
    wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal,
    task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `wait_for_shutdown` returns. Raise StartupError if an address or a TLS file can't be used."""
    files = server_files(options)
    certificates = renewable(files)
    trio.socket.set_custom_hostname_resolver(Resolver())
    with _listening(options) as listening:
        log.info("%s", version_line("nsqlookupd"))
        waiting, waiting_for_nodes = Waiting(), Waiting()
        registry = _registry(options, waiting, waiting_for_nodes)
        clients = _clients(options, registry, _address(options, listening), files)
        turn = clients.turn
        dial_back = DialBack(registry, turn, DialBackRules(options.networks, is_ours))
        if options.dial_back:
            registry.on_come = dial_back.add
        is_ready = True
        app = make_app(
            registry,
            turn,
            waiting,
            waiting_for_nodes,
            max_wait=seconds(options.max_lookup_wait),
            connections=lambda: len(clients),
            is_ready=lambda: is_ready,
            linger=web.linger,
            same_site=SameSite(_own_hosts(options), strict=True),
            certificate_metrics=partial(certificate_metrics, "nsqlookupd", certificates),
        )
        # HTTP closes before nsqd's connections: otherwise the last answers over HTTP would list no producers.
        async with trio.open_nursery() as connections:
            connections.start_soon(turn.keep_time)
            connections.start_soon(turn.clear_departed)
            connections.start_soon(dial_back.run)
            for certificate in certificates:
                connections.start_soon(certificate.follow)
            await connections.start(clients.run)
            async with trio.open_nursery() as services:
                services.start_soon(clients.accept, listening.tcp)
                log.info("TCP: listening on %s", format_listener(listening.tcp))
                await services.start(_serve_http, app, listening.http, clients)
                log.info("HTTP: listening on %s", format_listener(listening.http))
                tune_garbage_collection()
                task_status.started(listening)
                await wait_for_shutdown()
                is_ready = False
                log.info("TCP: closing %s", format_listener(listening.tcp))
                log.info("HTTP: closing %s", format_listener(listening.http))
                waiting.release()
                waiting_for_nodes.release()
                services.cancel_scope.cancel()
            connections.cancel_scope.cancel()


# Parts


async def _serve_http(
    app: web.App,
    listener: socket.socket,
    clients: Clients,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with web.open_web(app, poller=clients.poller) as web_server, trio.open_nursery() as nursery:
        nursery.start_soon(web_server.accept, listener, _http_budget(), clients.tls)
        task_status.started()


def _registry(options: Options, waiting: Waiting, waiting_for_nodes: Waiting) -> Registry:
    return Registry(
        inactive_timeout=seconds(options.inactive_producer_timeout),
        tombstone_lifetime=seconds(options.tombstone_lifetime),
        missing_lifetime=seconds(options.missing_lifetime),
        # Indexes start at the clock, so an index from before a restart never equals one of this run: a client with an
        # old index must get an answer at once, and not wait for the next change.
        first_index=time_ns() // MILLISECOND * 1000,
        on_change=waiting.wake,
        on_nodes_change=waiting_for_nodes.wake_all,
    )


def _clients(
    options: Options, registry: Registry, address: PeerAddress, files: CertificateFiles[ssl.SSLContext] | None
) -> Clients:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ConnectionLimits(
        # The rest is for HTTP: consumers have to find their nodes however many TCP connections are open here.
        most=int(descriptors) - _descriptors_for_http(),
        silence=max(_SHORTEST_SILENCE, 2 * seconds(options.inactive_producer_timeout)),
    )
    tls = None
    if files is not None:
        most = min(MOST_UNDER_WAY, limits.most // 2)
        tls = TlsServer(lambda: TlsLayer(files.now, server_side=True), most=most)
    return Clients(registry, address, limits, tls)


def _http_budget() -> Budget:
    """Return the number of descriptors reserved for HTTP. nsqd's connections have their own budget."""
    most = _descriptors_for_http()
    return Budget(most - min(_OWN, most // 4), "HTTP")


def _descriptors_for_http() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(_FOR_HTTP, int(descriptors) // 2)


def _own_hosts(options: Options) -> OwnHosts:
    own = (platform.node(), options.broadcast_address, host_and_port(options.http_address)[0])
    return OwnHosts(own, options.http_allowed_host)


def _address(options: Options, listening: Listening) -> PeerAddress:
    return PeerAddress(
        broadcast_address=options.broadcast_address,
        hostname=platform.node(),
        http_port=listening_port(listening.http),
        tcp_port=listening_port(listening.tcp),
        version=NSQ_VERSION,
    )


@contextmanager
def _listening(options: Options) -> Iterator[Listening]:
    tcp = bind(options.tcp_address)
    try:
        http = bind(options.http_address)
        try:
            yield Listening(tcp, http)
        finally:
            close_listener(http)
    finally:
        close_listener(tcp)
