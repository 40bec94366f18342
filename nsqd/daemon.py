"""nsqd as one tree of tasks: builds the parts, starts them in order, and stops them in reverse."""

from __future__ import annotations

import logging
import platform
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import trio

from nsqcommon import logs, web
from nsqcommon.budget import Budget
from nsqcommon.certificate_files import CertificateFiles, certificate_metrics, renewable
from nsqcommon.cors import Cors
from nsqcommon.daemon import first_of, tune_garbage_collection, version_line, wait_for_signal
from nsqcommon.handshake import TlsServer
from nsqcommon.net import listening_port
from nsqcommon.options import MILLISECOND, seconds
from nsqcommon.origin import OwnHosts
from nsqcommon.poller import Poller
from nsqcommon.recipients import host_and_port
from nsqcommon.resolver import Resolver
from nsqcommon.same_site import OF_BROWSERS, SameSite
from nsqcommon.slices import Slices
from nsqcommon.systemd import READY, STOPPING, notify
from nsqcommon.turn import in_turn
from nsqcommon.version import core_of, suite_version
from nsqcommon.wakeup import Wakeup
from nsqcommon.wire.identify import HttpEndpoint
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd import timers
from nsqd.auth import servers as auth_servers
from nsqd.auth.rights_file import RightsFile
from nsqd.broker import stats
from nsqd.broker.leases import LeaseLimits, Leases
from nsqd.broker.rules import NO_RULES
from nsqd.client import protocol
from nsqd.client.tcp import client_maker, limits_of, rules_of
from nsqd.drain import Drain, drain_on_signal
from nsqd.http import Guard, HistoryReads, NodeInfo, Publishing, QuickRoutes, make_app
from nsqd.http.changes import Changes
from nsqd.http.consuming import PATHS, TAKING
from nsqd.http.history import MOST_READERS
from nsqd.http.leasing import LeaseSettings, Leasing
from nsqd.listeners import Acceptors, Budgets, OpenListeners, is_of_web, listening_on, log_closing
from nsqd.log.files import Files
from nsqd.log.history import MOST_FILES, LogHistory
from nsqd.log.writing.segment_writer import MOST_DESCRIPTORS
from nsqd.lookup.broadcast import choose_address
from nsqd.lookup.lookup import Lookup
from nsqd.lookup.settings import settings_of
from nsqd.options import TlsRequired
from nsqd.policy.policy_file import PolicyFile
from nsqd.policy.rollout import Rollout
from nsqd.policy_copy import read_copy, write_copy
from nsqd.readers import Readers
from nsqd.readers_file import ReadersFile
from nsqd.start import locked_store, opened_store, recovered_broker, remote_copy, running_store, take_over_from_go
from nsqd.stats.memory import memory_now
from nsqd.stats.statsd import StatsdLines, full_prefix, packets
from nsqd.stats.statsd_push import push_to_statsd
from nsqd.tls import VERIFIED, server_files
from nsqd.turn import Turn

if TYPE_CHECKING:
    from nsqcommon.poller import MakeHandler
    from nsqd.broker.broker import Broker
    from nsqd.broker.idle import Expired
    from nsqd.http.history import InThread
    from nsqd.log.store import DiskStore
    from nsqd.options import Options
    from nsqd.remote.copy import RemoteCopy

log = logging.getLogger(__name__)

# Logs keep files open for writing and for reading, up to MOST_DESCRIPTORS each. 128 are for everything else.
_RESERVED_DESCRIPTORS: Final = 2 * MOST_DESCRIPTORS + MOST_READERS * MOST_FILES + auth_servers.AT_ONCE + 128
_READING_THREADS: Final = 4  # for requests that read history
_SHARE_OF_HTTP: Final = 4  # HTTP and HTTPS get a quarter of the descriptors for connections

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trust:
    """Authentication and authorization: TLS, an authorization server, and the rights file."""

    tls: TlsServer | None
    auth: auth_servers.AuthSettings | None
    rights: RightsFile | None
    certificates: tuple[CertificateFiles[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """The parts of a node, assembled but not running yet."""

    options: Options
    trust: _Trust
    certificates: tuple[CertificateFiles[Any], ...]
    policy: PolicyFile | None
    changes: Changes
    store: DiskStore
    broker: Broker
    turn: Turn
    poller: Poller[Turn]
    authorities: auth_servers.AuthServers | None
    lookupds: Lookup
    settings: LiveSettings
    drain: Drain
    reading: HistoryReads
    leasing: Leasing
    first_http_consumer: Wakeup
    readers: Readers
    readers_file: ReadersFile
    unfinished: UnfinishedBodies


class HeedDrainSignal(Protocol):
    """Waits for drain signals until cancelled, and starts the drain."""

    async def __call__(self, drain: Drain, *, task_status: trio.TaskStatus[None]) -> None: ...


async def run(
    options: Options,
    *,
    wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal,
    watch_drain_signal: HeedDrainSignal = drain_on_signal,
    task_status: trio.TaskStatus[OpenListeners] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `wait_for_shutdown` returns or a drain completes. Raises StartupError if the node can't start.

    A standby counts as started when it waits for its name.
    """
    trust = _trust_of(options)
    policy = _policy_of(options)
    trio.socket.set_custom_hostname_resolver(Resolver())

    def announce(listening: OpenListeners) -> None:
        task_status.started(listening)
        notify(READY)

    if options.standby:
        with _locked(options, policy) as (store, copy), listening_on(options, serves=False) as listening:
            _log_start(options)
            options = _with_real_ports(await _with_broadcast_address(options), listening)
            if not await _wait_for_name(
                copy, store, options, trust, listening, wait_for_shutdown, partial(announce, listening)
            ):
                notify(STOPPING)
                log.info("NSQ: bye")
                return
            take_over_from_go(store, options)
            node = _assemble(options, trust, policy, store)
            listening.begin()
            await _serve(node, listening, wait_for_shutdown, watch_drain_signal, _do_nothing)
    else:
        with opened_store(options, policy) as store, listening_on(options) as listening:
            _log_start(options)
            options = _with_real_ports(await _with_broadcast_address(options), listening)
            node = _assemble(options, trust, policy, store)
            await _serve(node, listening, wait_for_shutdown, watch_drain_signal, partial(announce, listening))
    log.info("NSQ: bye")


@contextmanager
def _locked(options: Options, policy: PolicyFile | None) -> Iterator[tuple[DiskStore, RemoteCopy]]:
    copy = remote_copy(options)
    assert copy is not None, "the options were checked"
    with locked_store(options, policy, copy) as store:
        yield store, copy


async def _wait_for_name(
    copy: RemoteCopy,
    store: DiskStore,
    options: Options,
    trust: _Trust,
    listening: OpenListeners,
    wait_for_shutdown: Callable[[], Awaitable[object]],
    announce: Callable[[], None],
) -> bool:
    """Wait until this process owns its name. Return False if it was asked to stop before."""
    from nsqd.standby import wait_for_name  # imported here, because most nodes are no standbys

    return await wait_for_name(
        copy,
        store,
        options,
        listening.http,
        wait_for_shutdown,
        announce,
        rights=trust.rights,
        guard=_guard_of(trust.rights, options),
        only_probes=options.tls_required is TlsRequired.YES,
    )


def _do_nothing() -> None: ...


async def _serve(
    node: _Node,
    listening: OpenListeners,
    wait_for_shutdown: Callable[[], Awaitable[object]],
    watch_drain_signal: HeedDrainSignal,
    announce: Callable[[], None],
) -> None:
    store, policy, tls = node.store, node.policy, node.trust.tls
    if policy is not None:
        policy.save_copies_with(partial(write_copy, store.files, store.data_path.folder))
    budgets = _budgets(listening)
    if tls is not None:  # handshakes may take half of the descriptors; the rest is for clients
        tls.most = min(tls.most, budgets.https.most // 2 if listening.https else budgets.tcp.most // 2)
    # The store outlives everything that writes to it, the poller outlives the responses it sends, and the web server
    # outlives everything that may hand it a connection.
    async with (
        running_store(store, node.broker, node.poller, wake_readers=node.reading.loads.wake),
        _polling(node),
        _web(node, listening, budgets) as acceptors,
    ):
        async with trio.open_nursery() as services:
            _start_upkeep(services, node)
            await acceptors.start(services)
            services.start_soon(node.lookupds.run, node.turn)
            await services.start(watch_drain_signal, node.drain)  # before READY: the next signal may come right away
            suite_version()  # fills its cache: otherwise the first /metrics imports 30 modules, which takes 20 ms
            tune_garbage_collection()
            announce()
            await first_of(wait_for_shutdown, node.drain.wait)
            notify(STOPPING)
            if node.drain.end():
                await node.lookupds.leave(for_good=node.drain.is_for_good)
            log_closing(listening)
            services.cancel_scope.cancel()
        if store.remote is not None:
            await store.remote.answer_publishers(node.turn)
        node.reading.stop()
        node.leasing.stop()
        _close(node, keep_web=True)
    timers.record_progress(node.broker, store)


def _assemble(options: Options, trust: _Trust, policy: PolicyFile | None, store: DiskStore) -> _Node:
    broker = recovered_broker(store, options, policy or NO_RULES)
    lookup_settings = settings_of(options, hostname=platform.node(), node=store.data_path.node)
    lookupds = Lookup(broker, lookup_settings)
    lookupds.configure(options.lookupd_tcp_address)
    make_turn = partial(_turn_of, broker, store, lookupds)
    poller = Poller(make_turn, busy_poll=seconds(options.busy_poll))
    turn = poller.turn
    reading = _reading(store)

    readers = Readers()
    readers_file = ReadersFile(store.data_path, store.files, readers, broker.topics)
    readers_file.load()

    store.disk_looked_at(store.look_at_disk())
    lookupds.set_health(store.faults.state)  # so that the first registration includes it

    settings = LiveSettings(options, lookupds)
    authorities = _authorities(trust, turn)
    first_http_consumer = Wakeup()
    return _Node(
        options=options,
        trust=trust,
        certificates=(*trust.certificates, *renewable(lookup_settings.files)),
        policy=policy,
        changes=Changes(time_ns),
        store=store,
        broker=broker,
        turn=turn,
        poller=poller,
        authorities=authorities,
        lookupds=lookupds,
        settings=settings,
        drain=Drain(
            broker,
            deadline=seconds(options.drain_deadline),
            stay=seconds(options.drain_stay),
            announce=lookupds.set_draining,
            on_closed=reading.logs_closed,
        ),
        reading=reading,
        leasing=Leasing(
            Leases(broker.turn, _lease_limits(options), on_first_consumer=first_http_consumer.set),
            _lease_settings(options),
            ask=authorities.ask if authorities is not None and trust.rights is None else None,
        ),
        first_http_consumer=first_http_consumer,
        readers=readers,
        readers_file=readers_file,
        unfinished=UnfinishedBodies(options.max_unfinished_bytes),
    )


def _lease_limits(options: Options) -> LeaseLimits:
    return LeaseLimits(
        in_channel=options.max_channel_leases,
        of_holder=options.max_holder_leases,
        waiting=options.max_waiting_subs,
        consumers=options.max_channel_consumers,
    )


def _lease_settings(options: Options) -> LeaseSettings:
    longest = seconds(options.max_msg_timeout)
    return LeaseSettings(
        lease=min(seconds(options.msg_timeout), longest),
        longest_lease=longest,
        longest_delay_ms=options.max_req_timeout // MILLISECOND,
    )


def _turn_of(broker: Broker, store: DiskStore, lookupds: Lookup, flush: Callable[[], None]) -> Turn:
    return Turn(broker, store, announce=lookupds.announce, flush=flush, remote=store.remote)


# Parts


def _log_start(options: Options) -> None:
    log.info("%s", version_line("nsqd"))
    log.info("core: %s", core_of(protocol))
    log.info("ID: %d", options.node_id)


def _start_upkeep(nursery: trio.Nursery, node: _Node) -> None:
    """Start the periodic tasks."""
    broker, turn, store, trust = node.broker, node.turn, node.store, node.trust
    nursery.start_soon(timers.expire_messages, broker, turn)
    nursery.start_soon(timers.save_progress, broker, turn, store)
    nursery.start_soon(timers.retry_postponed, broker, turn)
    nursery.start_soon(timers.reclaim_memory, broker, turn)
    nursery.start_soon(timers.watch_data_path, store.look_at_disk, store.disk_looked_at)
    nursery.start_soon(_announce_health, store, node.lookupds)
    nursery.start_soon(timers.apply_retention, broker, turn, lambda: store.settings.retention_interval)
    nursery.start_soon(node.readers_file.keep)
    nursery.start_soon(timers.sweep_leases, node.leasing.leases, turn, node.first_http_consumer)
    for certificate in node.certificates:
        nursery.start_soon(certificate.follow)
    if trust.tls is not None:
        nursery.start_soon(timers.return_memory, trust.tls)
    if node.options.statsd_address:
        nursery.start_soon(_push_to_statsd, broker, node.options)
    if node.authorities is not None:
        nursery.start_soon(node.authorities.run)
    if trust.rights is not None:
        nursery.start_soon(trust.rights.follow)
    if node.policy is not None:
        policy, changes = node.policy, node.changes
        rollout = Rollout(policy, broker, turn, store)
        nursery.start_soon(policy.follow, partial(rollout.start, nursery))
        nursery.start_soon(
            timers.expire_idle, broker, turn, lambda: policy.expiry_interval, partial(_note_expiry, changes)
        )


async def _announce_health(store: DiskStore, lookupds: Lookup) -> None:
    """Register the node's health with the nsqlookupds whenever it changes."""
    while True:
        await store.wakeups.health.wait()
        lookupds.set_health(store.faults.state)


def _note_expiry(changes: Changes, expired: Expired) -> None:
    what = f"{'would_' if expired.is_dry_run else ''}expire_{'channel' if expired.channel else 'topic'}"
    changes.record_expiry(what, expired.topic, expired.channel, f"expire_after={expired.after:g}s")


@asynccontextmanager
async def _polling(node: _Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.poller.run)
        yield
        nursery.cancel_scope.cancel()
    _close(node)


def _close(node: _Node, *, keep_web: bool = False) -> None:
    """Close the clients' connections without a goodbye, as NSQ does.

    `keep_web` leaves those of the web server open, so that it can finish its responses.
    """
    with in_turn(node.turn):
        node.poller.close_all(but=is_of_web if keep_web else None)


async def _push_to_statsd(broker: Broker, options: Options) -> None:
    statsd = StatsdLines(options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral)

    async def take_packets() -> list[bytes]:
        slices = Slices(trio.lowlevel.checkpoint)
        memory = memory_now() if options.statsd_mem_stats else None
        snapshot = stats.snapshot_of(broker, await slices.all_of(stats.topic_snapshots(broker, clients=False)), ())
        return packets(await slices.all_of(statsd.lines(snapshot, memory)), options.statsd_udp_packet_size)

    await push_to_statsd(options.statsd_address, seconds(options.statsd_interval), take_packets)


def _trust_of(options: Options) -> _Trust:
    files = server_files(options)
    auth = auth_servers.settings_of(options)
    return _Trust(
        tls=TlsServer(lambda: files.now()) if files is not None else None,
        auth=auth,
        rights=_rights_of(options),
        certificates=renewable(files, auth.files if auth is not None else None),
    )


def _policy_of(options: Options) -> PolicyFile | None:
    if not options.policy_file:
        return None
    return PolicyFile(
        options.policy_file,
        copy=read_copy(Files(), Path(options.data_path or ".")),
        may_wait_for_store=bool(options.remote),
    )


def _rights_of(options: Options) -> RightsFile | None:
    return RightsFile(options.rights_file, trust_common_names=_names_count(options)) if options.rights_file else None


def _names_count(options: Options) -> bool:
    """Return whether TLS verifies client certificates, so that their names can be trusted."""
    return options.tls_client_auth_policy == VERIFIED


def _guard_of(rights: RightsFile | None, options: Options) -> Guard | None:
    return Guard(lambda: rights.now, trust_common_names=_names_count(options)) if rights is not None else None


def _authorities(trust: _Trust, turn: Turn) -> auth_servers.AuthServers | None:
    if trust.auth is None and trust.rights is None:
        return None
    return auth_servers.AuthServers(trust.auth, turn, known=trust.rights.grant if trust.rights is not None else None)


def _budgets(listening: OpenListeners) -> Budgets:
    """Divide the file descriptors among the listeners, except those reserved for logs, syncs and our own requests.

    TCP clients never get HTTP's share, because probes and operators must get through even if the node is full.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = int(limit) - min(_RESERVED_DESCRIPTORS, limit // 2)
    web_listeners = [it for it in (listening.http, listening.https) if it is not None]
    for_http = most // _SHARE_OF_HTTP if web_listeners else 0
    each = for_http // max(1, len(web_listeners))
    return Budgets(Budget(most - for_http, "TCP"), Budget(each, "HTTP"), Budget(each, "HTTPS"))


async def _with_broadcast_address(options: Options) -> Options:
    if options.broadcast_address:
        return options
    chosen = await choose_address(
        platform.node(), tcp_address=options.tcp_address, lookupds=options.lookupd_tcp_address
    )
    log.info("NSQ: broadcast address %s: %s; set another with --broadcast-address", *chosen)
    return replace(options, broadcast_address=chosen.address)


def _with_real_ports(options: Options, listening: OpenListeners) -> Options:
    # max(0, ...), because the port of a unix socket is -1.
    http_port = options.broadcast_http_port or max(0, listening.http_port)
    return replace(
        options,
        broadcast_tcp_port=options.broadcast_tcp_port or max(0, listening_port(listening.tcp)),
        broadcast_http_port=http_port,
        statsd_prefix=full_prefix(options.statsd_prefix, options.broadcast_address, http_port),
    )


@asynccontextmanager
async def _web(node: _Node, listening: OpenListeners, budgets: Budgets) -> AsyncIterator[Acceptors]:
    """Run the web server, and yield the acceptors, which haven't been started yet."""
    options, broker = node.options, node.broker
    publishing = Publishing(broker, limits_of(options), max_defer_ms=options.defer_limit // MILLISECOND)
    guard = _guard_of(node.trust.rights, options)
    cors = Cors(options.http_cors_origin, PATHS)
    app = make_app(
        broker,
        node.turn,
        node.settings,
        publishing,
        NodeInfo(
            hostname=platform.node(),
            tcp_port=listening_port(listening.tcp),
            http_port=listening.http_port,
            node=node.store.data_path.node,
            worker=options.worker,
        ),
        start_drain=node.drain.start,
        take_drain_back=node.drain.take_back,
        is_draining=lambda: node.drain.is_draining,
        run_trio=web.run_trio,
        reading=node.reading,
        leasing=node.leasing,
        readers=node.readers,
        policy=node.policy,
        changes=node.changes,
        linger=web.linger,
        attend=web.attend,
        guard=guard,
        same_site=SameSite(_own_hosts(options), strict=options.http_same_site, cors=cors, taking=TAKING),
        cors=cors,
        unfinished=node.unfinished,
        certificate_metrics=partial(certificate_metrics, "nsqd", node.certificates),
    )
    async with web.open_web(app, poller=node.poller, grace=seconds(options.drain_timeout)) as web_server:
        yield Acceptors(
            listening=listening,
            budgets=budgets,
            poller=node.poller,
            web=web_server,
            routes=QuickRoutes(
                broker,
                publishing,
                guard=guard,
                unfinished=node.unfinished,
                left_out=OF_BROWSERS if options.http_same_site else frozenset(),
            ),
            make_client=_client_maker(node, listening),
            tls=node.trust.tls,
            serves_plain_http=options.tls_required is not TlsRequired.YES,
            now=lambda: broker.turn.now,
        )


def _own_hosts(options: Options) -> OwnHosts:
    addresses = (options.http_address, options.https_address)
    own = [platform.node(), options.broadcast_address, *(host_and_port(address)[0] for address in addresses)]
    return OwnHosts(own, options.http_allowed_host)


def _client_maker(node: _Node, listening: OpenListeners) -> MakeHandler:
    ask = node.authorities.ask if node.authorities is not None else None
    rules = rules_of(node.options, _http_place(node, listening))
    return client_maker(node.broker, rules, node.trust.tls, ask, node.unfinished)


def _http_place(node: _Node, listening: OpenListeners) -> HttpEndpoint:
    options = node.options
    is_plain = listening.http is not None and options.tls_required is not TlsRequired.YES
    return HttpEndpoint(
        port=options.broadcast_http_port if is_plain else 0,
        https_port=listening.https_port if node.trust.tls is not None else 0,
        node=node.store.data_path.node,
    )


def _reading(store: DiskStore) -> HistoryReads:
    return HistoryReads(LogHistory(store), _in_thread(trio.CapacityLimiter(_READING_THREADS)))


def _in_thread(limiter: trio.CapacityLimiter) -> InThread:
    async def in_thread(function: Callable[[], T]) -> T:
        # A result returned through trio-asyncio ends up in a reference cycle, and stays until the garbage collector
        # runs, which is rare. Ours may be a megabyte, so we pass it through a list instead.
        result: list[T] = []
        await web.run_trio(partial(trio.to_thread.run_sync, lambda: result.append(function()), limiter=limiter))
        return result.pop()

    return in_thread


class LiveSettings:
    """The current options. `/config` changes them here."""

    def __init__(self, options: Options, lookupds: Lookup) -> None:
        self.options = options
        self._lookupds = lookupds

    def replace(self, options: Options) -> None:
        self.options = options
        logs.set_level(options.log_level)
        self._lookupds.configure(options.lookupd_tcp_address)
