"""nsqd as one tree of tasks: what it is made of, in which order it starts, and how it stops."""

from __future__ import annotations

import logging
import platform
import random
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from common import logs, web
from common.daemon import tune_garbage_collection, version_line, wait_for_signal
from common.net import AddressError, ListenError, bind, close_listener, format_listener, listening_port, parse_address
from common.options import MILLISECOND, seconds
from common.poller import Connection, Handler, MakeHandler, Poller
from common.resolver import Resolver
from common.systemd import READY, STOPPING, notify
from common.version import core_of
from nsqd import auth_servers, lookup, protocol, timers
from nsqd.broker.broker import Broker
from nsqd.broker.changes import Dropped, complete, missing_fronts, replay
from nsqd.broker.latency import LatencySettings
from nsqd.broker.message_id import IdSource
from nsqd.broker.store import NotSynced
from nsqd.drain import Drain, drain_on_signal
from nsqd.go_import.take_over import take_over
from nsqd.http import (
    Guard,
    NodeInfo,
    Publishing,
    QuickHttp,
    QuickRoutes,
    Reading,
    SecureHttp,
    TunnelEnd,
    make_app,
    refuse_plain,
)
from nsqd.http.history import MOST_READERS
from nsqd.http.memory import memory_now
from nsqd.log.history import MOST_FILES, History
from nsqd.log.retention import Retention
from nsqd.log.settings import LogSettings
from nsqd.log.store import MOST_DESCRIPTORS, Recovered, Store
from nsqd.options import TlsRequired
from nsqd.rights_file import RightsFile
from nsqd.statsd import StatsdLines, full_prefix, packets
from nsqd.statsd_push import push_to_statsd
from nsqd.tcp import client_maker, limits_of, rules_of
from nsqd.tls import VERIFIED, HandshakePace, layer_maker
from nsqd.turn import Turn
from nsqd.upgrade import Upgrades

if TYPE_CHECKING:
    from nsqd.http.history import InThread
    from nsqd.options import Options

log = logging.getLogger(__name__)

_RESERVED_DESCRIPTORS: Final = 2 * MOST_DESCRIPTORS + MOST_READERS * MOST_FILES + auth_servers.AT_ONCE + 128
_READING_THREADS: Final = 4  # for those who read history

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets that were really opened; with port 0 the options do not say which."""

    tcp: socket.socket
    http: socket.socket | None
    https: socket.socket | None = None

    @property
    def http_port(self) -> int:
        return listening_port(self.http) if self.http is not None else 0

    @property
    def https_port(self) -> int:
        return listening_port(self.https) if self.https is not None else 0


async def run(
    options: Options,
    *,
    wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal,
    heed_drain_signal: Callable[[Drain], Awaitable[None]] = drain_on_signal,
    task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `wait_for_shutdown` returns. StartupError when something keeps it from starting."""
    make_tls = layer_maker(options)
    auth_settings = auth_servers.settings_of(options)
    trio.socket.set_custom_hostname_resolver(Resolver())
    rights = _rights_of(options)
    with _opened_store(options) as store, _listening(options) as listening:
        log.info("%s", version_line("nsqd"))
        log.info("core: %s", core_of(protocol))
        log.info("ID: %d", options.node_id)
        options = _with_real_ports(options, listening)
        broker = _recovered_broker(store, options)
        turn = Turn(broker, store)
        poller = Poller(turn, busy_poll=seconds(options.busy_poll), most_connections=_most_connections())
        turn.flush = poller.flush
        upgrades = Upgrades(make_tls, HandshakePace())
        authorities = _authorities(auth_settings, rights, turn)
        lookupds = lookup.Lookup(broker, turn, lookup.settings_of(options, hostname=platform.node()))
        lookupds.configure(options.lookupd_tcp_address)
        settings = LiveSettings(options, lookupds)
        drain = Drain(broker, deadline=seconds(options.drain_deadline), say_goodbye=partial(lookupds.configure, ()))
        # The store outlives everyone who writes, the web everyone who may hand it a connection.
        reading = Reading(History(store), _in_thread(trio.CapacityLimiter(_READING_THREADS)))
        store.on_moved = reading.log_moved
        async with (
            _running_store(store, broker, turn),
            _web(broker, turn, settings, drain, listening, reading, _guard_of(rights, options)) as (web_server, routes),
        ):
            async with trio.open_nursery() as services:
                services.start_soon(poller.run)
                services.start_soon(timers.expire_messages, broker, turn)
                services.start_soon(timers.save_progress, broker, turn, store)
                services.start_soon(timers.apply_retention, broker, turn, store.settings.retention_interval)
                if authorities is not None:
                    services.start_soon(authorities.run)
                if rights is not None:
                    services.start_soon(rights.follow)
                make_client = client_maker(
                    broker, rules_of(options), upgrades, authorities.ask if authorities is not None else None
                )
                services.start_soon(poller.accept, listening.tcp, make_client)
                log.info("TCP: listening on %s", format_listener(listening.tcp))
                if listening.http is not None:
                    if options.tls_required is TlsRequired.YES:
                        await services.start(web.serve, refuse_plain(listening.https_port), [listening.http])
                    else:
                        services.start_soon(poller.accept, listening.http, _http_maker(poller, routes, web_server))
                    log.info("HTTP: listening on %s", format_listener(listening.http))
                if listening.https is not None:
                    make_https = _https_maker(poller, routes, web_server, upgrades, broker)
                    services.start_soon(poller.accept, listening.https, make_https)
                    log.info("HTTPS: listening on %s", format_listener(listening.https))
                services.start_soon(lookupds.run)
                services.start_soon(heed_drain_signal, drain)
                if options.statsd_address:
                    services.start_soon(_push_to_statsd, broker, options)
                tune_garbage_collection()
                task_status.started(listening)
                notify(READY)
                await _first_of(wait_for_shutdown, drain.wait)
                notify(STOPPING)
                _say_what_closes(listening)
                services.cancel_scope.cancel()
            reading.stop()
            turn.begin()
            poller.close_all()
            turn.finish()
        broker.record_progress()
    log.info("NSQ: bye")


# Parts


def _say_what_closes(listening: Listening) -> None:
    """In NSQ's words, which scripts may wait for."""
    for name, listener in (("TCP", listening.tcp), ("HTTP", listening.http), ("HTTPS", listening.https)):
        if listener is not None:
            log.info("%s: closing %s", name, format_listener(listener))
    log.info("NSQ: closing topics")
    log.info("NSQ: stopping subsystems")


async def _first_of(*functions: Callable[[], Awaitable[object]]) -> None:
    """Runs all of them until one returns."""

    async def run(function: Callable[[], Awaitable[object]]) -> None:
        await function()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for function in functions:
            nursery.start_soon(run, function)


async def _push_to_statsd(broker: Broker, options: Options) -> None:
    statsd = StatsdLines(options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral)

    def take_packets() -> list[bytes]:
        memory = memory_now() if options.statsd_mem_stats else None
        return packets(statsd.lines(broker.snapshot(clients=False), memory), options.statsd_udp_packet_size)

    await push_to_statsd(options.statsd_address, seconds(options.statsd_interval), take_packets)


def _rights_of(options: Options) -> RightsFile | None:
    return RightsFile(options.rights_file, names_count=_names_count(options)) if options.rights_file else None


def _names_count(options: Options) -> bool:
    """Whether somebody has vouched for the names in clients' certificates."""
    return options.tls_client_auth_policy == VERIFIED


def _guard_of(rights: RightsFile | None, options: Options) -> Guard | None:
    return Guard(lambda: rights.now, names_count=_names_count(options)) if rights is not None else None


def _authorities(
    settings: auth_servers.Settings | None, rights: RightsFile | None, turn: Turn
) -> auth_servers.AuthServers | None:
    if settings is None and rights is None:
        return None
    return auth_servers.AuthServers(settings, turn, known=rights.grant if rights is not None else None)


def _latency_of(options: Options) -> LatencySettings | None:
    percentiles = options.e2e_processing_latency_percentile
    return LatencySettings(percentiles, seconds(options.e2e_processing_latency_window_time)) if percentiles else None


def _most_connections() -> int:
    """All descriptors but those that logs, their syncs and the web server may need."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(limit) - min(_RESERVED_DESCRIPTORS, limit // 2)


@contextmanager
def _opened_store(options: Options) -> Iterator[Store]:
    store = Store.open(
        options.data_path or ".",
        LogSettings(
            max_bytes_per_file=options.max_bytes_per_file,
            mem_queue_size=options.mem_queue_size,
            mem_queue_bytes=options.mem_queue_bytes,
            sync_every=options.sync_every,
            sync_timeout=seconds(options.sync_timeout),
            ack=options.ack,
            disk_reserve=options.disk_reserve,
            topic_ack=dict(item.rsplit("=", 1) for item in options.topic_ack),
            retention=Retention(options.retention_time, options.retention_bytes),
            topic_retention={topic: Retention(*given) for topic, given in options.topic_retentions.items()},
        ),
    )
    try:
        _take_over_from_go(store, options)
        yield store
    finally:
        store.close()


def _take_over_from_go(store: Store, options: Options) -> None:
    take_over(
        store.data_path,
        store.files,
        begin=options.import_go,
        node_id=options.node_id,
        max_msg_size=options.max_msg_size,
        max_bytes_per_file=options.max_bytes_per_file,
    )


@contextmanager
def _listening(options: Options) -> Iterator[Listening]:
    with ExitStack() as opened:

        def listen(address: str) -> socket.socket:
            listener = bind(address)
            opened.callback(close_listener, listener)
            return listener

        yield Listening(
            tcp=listen(options.tcp_address),
            http=listen(options.http_address) if options.http_address else None,
            https=listen(_tcp_only(options.https_address)) if options.https_address and options.tls_cert else None,
        )


def _tcp_only(address: str) -> str:
    """NSQ has HTTP on a unix socket, and HTTPS on none."""
    with suppress(AddressError):  # what else is wrong with it is found out by listening
        if parse_address(address).is_unix:
            raise ListenError(f"listen ({address}) failed - listen tcp: address {address}: missing port in address")
    return address


def _recovered_broker(store: Store, options: Options) -> Broker:
    recovered = store.recover()
    timestamp = time_ns()  # before the other clock, so that a pause in between makes nothing early
    return restored_broker(store, recovered, options, now=monotonic(), timestamp=timestamp)


def restored_broker(store: Store, recovered: Recovered, options: Options, *, now: float, timestamp: int) -> Broker:
    """The broker as it was, from what the store has found."""
    ids = IdSource(options.node_id, timestamp=timestamp, reserved=recovered.ids_reserved, reserve=store.reserve_ids)
    broker = Broker(
        store,
        ids=ids,
        now=now,
        timestamp=timestamp,
        mem_queue_size=options.mem_queue_size,
        mem_queue_bytes=options.mem_queue_bytes,
        max_msg_timeout=seconds(options.max_msg_timeout),
        random_percent=partial(random.Random().randrange, 100),
        latency=_latency_of(options),
        prefers_near_consumers=options.prefers_near_consumers,
    )
    broker.health = lambda: store.health
    broker.note = lambda text: log.info("%s", text)
    broker.learns = bool(options.lookupd_tcp_address)
    dropped = Dropped()
    states = replay(dropped.noted(recovered.changes))
    journal_is_whole = recovered.journal_is_whole
    # The folder of a deleted topic may be there anew, if a kill came between the making and the journal.
    deleted = dropped.topics if journal_is_whole else set()
    firsts = {name: topic_log.first for name, topic_log in recovered.logs.items() if name not in deleted}
    untold = complete(
        states,
        recovered.topology,
        firsts,
        journal_is_whole=journal_is_whole,
        carried=lambda topic: recovered.logs[topic].carried_messages(),
        deleted=dropped.channels,
    )
    for name in untold:
        log.warning("TOPIC(%s): channels that the journal has lost read their topic again", name)
    for name, start, end in missing_fronts(states, {name: it.first for name, it in recovered.logs.items()}):
        store.lacks_front(name, start, end)
    broker.restore(states, recovered.logs, untold=untold)
    if broker.topology() != recovered.topology:  # it was damaged, or is older than the journal
        store.set_topology(broker.topology())
    for name, count in broker.lost.items():
        log.error("TOPIC(%s): %d messages that channels wait for are not on disk any more", name, count)
    return broker


@asynccontextmanager
async def _running_store(store: Store, broker: Broker, turn: Turn) -> AsyncIterator[None]:
    def loaded(topic: str) -> None:
        turn.begin()
        broker.loaded(topic)
        turn.finish()

    def settled() -> None:
        turn.begin()
        turn.finish()

    store.on_loaded = loaded
    store.on_settled = settled
    store.snapshot_topic = broker.snapshot_topic
    store.exceptions_of = broker.exceptions
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        # What recovery had to clamp must be on disk before the first append, or new messages would count as finished.
        try:
            await store.sync()
        except NotSynced as error:
            # A disk that is full can be consumed empty. Until the journal is on it, publishing is refused.
            store.distrust_journal(str(error))
        yield
        nursery.cancel_scope.cancel()


def _with_real_ports(options: Options, listening: Listening) -> Options:
    http_port = options.broadcast_http_port or max(0, listening.http_port)
    return replace(
        options,
        broadcast_tcp_port=options.broadcast_tcp_port or max(0, listening_port(listening.tcp)),
        broadcast_http_port=http_port,
        statsd_prefix=full_prefix(options.statsd_prefix, options.broadcast_address, http_port),
    )


@asynccontextmanager
async def _web(
    broker: Broker,
    turn: Turn,
    settings: LiveSettings,
    drain: Drain,
    listening: Listening,
    reading: Reading,
    guard: Guard | None,
) -> AsyncIterator[tuple[web.Web, QuickRoutes]]:
    options = settings.options
    publishing = Publishing(broker, limits_of(options), max_defer_ms=options.defer_limit // MILLISECOND)
    node = NodeInfo(
        hostname=platform.node(),
        tcp_port=listening_port(listening.tcp),
        http_port=listening.http_port,
    )
    app = make_app(
        broker,
        turn,
        settings,
        publishing,
        node,
        start_drain=drain.start,
        run_trio=web.run_trio,
        reading=reading,
        linger=web.linger,
        attend=web.attend,
        guard=guard,
    )
    async with web.open_web(app, grace=seconds(options.drain_timeout)) as web_server:
        yield web_server, QuickRoutes(broker, publishing, guard=guard)


def _in_thread(limiter: trio.CapacityLimiter) -> InThread:
    async def in_thread(function: Callable[[], T]) -> T:
        # What comes back through trio-asyncio lies in cycles until the collector runs, which is seldom: not a megabyte each.
        result: list[T] = []
        await web.run_trio(partial(trio.to_thread.run_sync, lambda: result.append(function()), limiter=limiter))
        return result.pop()

    return in_thread


def _http_maker(poller: Poller, routes: QuickRoutes, web_server: web.Web) -> MakeHandler:
    """Publishing is served on the poller; a connection that asks for anything else goes to the web server for good."""

    def make(connection: Connection, wake: Callable[[], None]) -> Handler:
        def hand_off(received: bytes) -> None:
            web_server.adopt(poller.release(connection), received)

        return QuickHttp(routes, hand_off=hand_off, wake=wake)

    return make


def _https_maker(
    poller: Poller, routes: QuickRoutes, web_server: web.Web, upgrades: Upgrades, broker: Broker
) -> MakeHandler:
    """As `_http_maker`, behind TLS."""
    assert upgrades.tls is not None
    make_tls = upgrades.tls

    def make(connection: Connection, wake: Callable[[], None]) -> Handler:
        peer = connection.peer
        secure = SecureHttp(
            make_tls(), upgrades.pace, now=broker.now, wake=wake, note=partial(log.info, "[%s] HTTPS - %s", peer)
        )

        def hand_off(received: bytes) -> None:
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:  # out of descriptors
                log.warning("[%s] HTTPS - %s", peer, error)
                secure.give_up()
                return
            near = TunnelEnd(wake)

            def make_far(_: Connection, wake: Callable[[], None]) -> Handler:
                end = TunnelEnd(wake)
                end.join(near)
                return end

            poller.add(ours, peer, make_far)
            theirs.setblocking(False)
            host, _, port = peer.rpartition(":")
            web_server.adopt(theirs, received, client=(host.strip("[]"), int(port)), common_name=secure.common_name())
            secure.inner = near

        secure.inner = QuickHttp(routes, hand_off=hand_off, wake=wake, common_name=secure.common_name)
        return secure

    return make


class LiveSettings:
    """The options of now; what `/config` changes takes effect here."""

    def __init__(self, options: Options, lookupds: lookup.Lookup) -> None:
        self.options = options
        self._lookupds = lookupds

    def replace(self, options: Options) -> None:
        self.options = options
        logs.set_level(options.log_level)
        self._lookupds.configure(options.lookupd_tcp_address)
