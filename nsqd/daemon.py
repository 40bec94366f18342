"""nsqd as one tree of tasks: what it is made of, in which order it starts, and how it stops."""

from __future__ import annotations

import logging
import platform
import random
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from common import logs, web
from common.daemon import tune_garbage_collection, version_line, wait_for_signal
from common.net import bind, close_listener, format_listener, listening_port
from common.options import MILLISECOND, seconds
from common.poller import Connection, Handler, MakeHandler, Poller
from common.resolver import Resolver
from common.version import core_of
from nsqd import lookup, protocol, timers
from nsqd.broker.broker import Broker
from nsqd.broker.changes import Dropped, complete, missing_fronts, replay
from nsqd.broker.message_id import IdSource
from nsqd.broker.store import NotSynced
from nsqd.go_import.take_over import take_over
from nsqd.http import NodeInfo, Publishing, QuickHttp, QuickRoutes, Reading, make_app
from nsqd.http.history import MOST_READERS
from nsqd.log.history import MOST_FILES, History
from nsqd.log.retention import Retention
from nsqd.log.settings import LogSettings
from nsqd.log.store import MOST_DESCRIPTORS, Recovered, Store
from nsqd.tcp import client_maker, limits_of, rules_of
from nsqd.turn import Turn

if TYPE_CHECKING:
    from nsqd.http.history import InThread
    from nsqd.options import Options

log = logging.getLogger(__name__)

_RESERVED_DESCRIPTORS: Final = 2 * MOST_DESCRIPTORS + MOST_READERS * MOST_FILES + 128
_READING_THREADS: Final = 4  # for those who read history

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets that were really opened; with port 0 the options do not say which."""

    tcp: socket.socket
    http: socket.socket | None

    @property
    def http_port(self) -> int:
        return listening_port(self.http) if self.http is not None else 0


async def run(
    options: Options,
    *,
    wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal,
    task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `wait_for_shutdown` returns. StartupError when something keeps it from starting."""
    trio.socket.set_custom_hostname_resolver(Resolver())
    with _opened_store(options) as store, _listening(options) as listening:
        log.info("%s", version_line("nsqd"))
        log.info("core: %s", core_of(protocol))
        log.info("ID: %d", options.node_id)
        options = _with_real_ports(options, listening)
        broker = _recovered_broker(store, options)
        turn = Turn(broker, store)
        poller = Poller(turn, busy_poll=seconds(options.busy_poll), most_connections=_most_connections())
        turn.flush = poller.flush
        lookupds = lookup.Lookup(broker, turn, lookup.settings_of(options, hostname=platform.node()))
        lookupds.configure(options.lookupd_tcp_address)
        settings = LiveSettings(options, lookupds)
        # The store outlives everyone who writes, the web everyone who may hand it a connection.
        reading = Reading(History(store), _in_thread(trio.CapacityLimiter(_READING_THREADS)))
        store.on_moved = reading.log_moved
        async with (
            _running_store(store, broker, turn),
            _web(broker, turn, settings, listening, reading) as (web_server, routes),
        ):
            async with trio.open_nursery() as services:
                services.start_soon(poller.run)
                services.start_soon(timers.expire_messages, broker, turn)
                services.start_soon(timers.save_progress, broker, turn, store)
                services.start_soon(timers.apply_retention, broker, turn, store.settings.retention_interval)
                services.start_soon(poller.accept, listening.tcp, client_maker(broker, rules_of(options)))
                log.info("TCP: listening on %s", format_listener(listening.tcp))
                if listening.http is not None:
                    services.start_soon(poller.accept, listening.http, _http_maker(poller, routes, web_server))
                    log.info("HTTP: listening on %s", format_listener(listening.http))
                services.start_soon(lookupds.run)
                tune_garbage_collection()
                task_status.started(listening)
                await wait_for_shutdown()
                log.info("NSQ: stopping")
                services.cancel_scope.cancel()
            reading.stop()
            turn.begin()
            poller.close_all()
            turn.finish()
        broker.record_progress()
    log.info("NSQ: bye")


# Parts


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
    tcp = bind(options.tcp_address)
    try:
        http = bind(options.http_address) if options.http_address else None
        try:
            yield Listening(tcp, http)
        finally:
            if http is not None:
                close_listener(http)
    finally:
        close_listener(tcp)


def _recovered_broker(store: Store, options: Options) -> Broker:
    return restored_broker(store, store.recover(), options, now=monotonic(), timestamp=time_ns())


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
    return replace(
        options,
        broadcast_tcp_port=options.broadcast_tcp_port or max(0, listening_port(listening.tcp)),
        broadcast_http_port=options.broadcast_http_port or max(0, listening.http_port),
    )


@asynccontextmanager
async def _web(
    broker: Broker, turn: Turn, settings: LiveSettings, listening: Listening, reading: Reading
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
        run_trio=web.run_trio,
        reading=reading,
        linger=web.linger,
        attend=web.attend,
    )
    async with web.open_web(app, grace=seconds(options.drain_timeout)) as web_server:
        yield web_server, QuickRoutes(broker, publishing)


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


class LiveSettings:
    """The options of now; what `/config` changes takes effect here."""

    def __init__(self, options: Options, lookupds: lookup.Lookup) -> None:
        self.options = options
        self._lookupds = lookupds

    def replace(self, options: Options) -> None:
        self.options = options
        logs.set_level(options.log_level)
        self._lookupds.configure(options.lookupd_tcp_address)
