"""One topic of a consumer: finds its nsqds, and keeps a connection to each.

discovery        one task for each nsqlookupd
nsqds            dial, serve, wait, again; one task for each address
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from nsqclient.core.errors import ConnectError, NSQError
from nsqclient.core.events import Connected, ConnectFailed, Disconnected, Event, Unreachable
from nsqclient.core.listings import Listings, parse_lookupd
from nsqclient.core.reconnect import Reconnect
from nsqclient.shell.discovery import Discovery
from nsqclient.shell.runtime import Flag
from nsqclient.shell.tls import tls_maker

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.consumption import ConsumerConnection, Consumption
    from nsqclient.core.listings import ListedNsqd
    from nsqclient.shell.runtime import CancelScope, ClientTasks, ParkingLot, Runtime, SocketLink
    from nsqclient.shell.sources import Sources
    from nsqclient.shell.targets import Target

_UNREACHABLE_AFTER: Final = 3  # failed attempts in a row to connect to an nsqd from nsqlookupd
_DIALS: Final = 8  # at the same time

T = TypeVar("T")


class Dials:
    """Limits how many connections of a consumer are opened at the same time."""

    def __init__(self, runtime: Runtime, config: Config) -> None:
        self._runtime = runtime
        self._config = config
        self._count = 0
        self._may_dial = runtime.parking_lot()

    async def dial(self, target: Target) -> SocketLink | None:
        while self._count >= _DIALS:
            await self._may_dial.park()
        self._count += 1
        try:
            return await self._runtime.dial(target, self._config)
        finally:
            self._count -= 1
            self._may_dial.unpark_all()


class Subscription:
    """The nsqds of one topic of a consumer."""

    def __init__(
        self,
        runtime: Runtime,
        topic: str,
        sources: Sources[Target],
        config: Config,
        *,
        random: Random,
        emit: Callable[[Event], None],
        dials: Dials,
        changed: ParkingLot,
        drop_unlisted_after: float | None,
    ) -> None:
        self.topic = topic
        self.nodes: dict[str, ConsumerNode] = {}
        self._runtime = runtime
        self._sources = sources
        self._config = config
        self._random = random
        self._emit = emit
        self._dials = dials
        self._changed = changed  # woken when an nsqd's task or connection has ended
        self._drop_after = drop_unlisted_after
        self._tasks: ClientTasks | None = None
        self._core: Consumption | None = None
        self._listings = Listings(topic)
        lookupds = list(map(parse_lookupd, sources.lookupd))
        self._discovery = (
            Discovery(runtime, self._listings, lookupds, config, random=random, emit=emit, apply=self._apply)
            if lookupds
            else None
        )

    def emit(self, event: Event) -> None:
        """Handle an event of the core, and pass it on."""
        if isinstance(event, Connected) and event.address in self.nodes:
            self.nodes[event.address].first_try.set()
        self._emit(event)

    def start(self, core: Consumption, tasks: ClientTasks) -> None:
        """Connect to the given nsqds, and begin to look for others."""
        self._core = core
        self._tasks = tasks
        core.expect(set(self._sources.given))
        for address in self._sources.given:
            self._follow(address)
        if self._discovery is not None:
            tasks.start(self._discovery.run)

    async def wait_for_start(self) -> None:
        """Return once all given nsqds are connected and each nsqlookupd was asked. Raise ConnectError if that fails."""
        for node in list(self.nodes.values()):
            await node.first_try.wait()
            if node.error is not None:
                raise self._our_core().failure or node.error  # the consumer raises the failure, and once is enough
        if self._discovery is not None:
            await self._discovery.first_round.wait()
            if not self._listings.has_begun:
                raise ConnectError("no nsqlookupd could be asked")

    def stop(self) -> None:
        """Interrupt dials, pauses and handshakes that are no longer needed."""
        for node in self.nodes.values():
            node.stop()

    def _our_core(self) -> Consumption:
        assert self._core is not None
        return self._core

    def _our_tasks(self) -> ClientTasks:
        assert self._tasks is not None
        return self._tasks

    def _apply(self) -> None:
        """Follow the nsqds in the current list."""
        listed = self._listings.nsqds
        given, chosen = self._sources.given, self._sources.chosen(listed)
        for address in chosen:
            self._follow(address)
        for address, node in self.nodes.items():
            node.listed = listed.get(address)
            node.is_wanted = address in given or address in chosen
            self._watch_listing(node)
        self._our_core().expect({*given, *chosen})

    def _follow(self, address: str) -> None:
        if address not in self.nodes and not self._our_core().is_stopping:
            self.nodes[address] = node = ConsumerNode(address, self._runtime)
            self._our_tasks().start(partial(self._keep_connected, node))

    def _watch_listing(self, node: ConsumerNode) -> None:
        if node.is_wanted:
            if node.absence is not None:
                node.absence.cancel()
        elif self._drop_after is not None and node.absence is None:
            node.absence = self._runtime.scope()
            self._our_tasks().start(partial(self._drop_unless_listed, node, node.absence, self._drop_after))

    async def _drop_unless_listed(self, node: ConsumerNode, absence: CancelScope, seconds: float) -> None:
        if await absence.run(partial(self._sleep, seconds), False):
            node.stop()
            if node.connection is not None and node.connection.is_open:
                self._our_core().retire(node.connection)
        node.absence = None

    async def _sleep(self, seconds: float) -> bool:
        await self._runtime.sleep(seconds)
        return True

    async def _keep_connected(self, node: ConsumerNode) -> None:
        core = self._our_core()
        reconnect = Reconnect(self._config, self._random)
        try:
            while node.is_wanted and not core.is_stopping:
                node.error = await self._connect_once(node, reconnect)
                node.first_try.set()
                if self._discovery is not None:
                    self._discovery.hurry()
                if not core.is_stopping:
                    await node.unless_stopped(partial(self._runtime.sleep, reconnect.pause()), None)
        finally:
            del self.nodes[node.address]
            self._changed.unpark_all()

    async def _connect_once(self, node: ConsumerNode, reconnect: Reconnect) -> NSQError | None:
        """Dial, and serve the connection until it ends. Return the error, or None if we closed it."""
        core = self._our_core()
        target = self._sources.target(node.address)
        make_tls = tls_maker(target, self._config)
        connection: ConsumerConnection | None = None
        error: NSQError | None = None
        try:
            link = await node.unless_stopped(partial(self._dials.dial, target), None)
            if link is not None:
                connection = core.connect(node.address, make_tls=make_tls, wake=link.wake)
                node.connection = connection
                await link.serve(connection)
        except NSQError as caught:
            error = caught
        finally:
            node.connection = None
            if connection is not None:
                core.connection_closed(connection, error)
            self._changed.unpark_all()
        if connection is not None and connection.is_open:
            reconnect.worked(connection.opened_at, self._runtime.clock())
            node.failures = 0
            self._emit(Disconnected(node.address, str(error or ""), len(core.connections)))
        elif error is not None:
            self._failed_to_connect(node, error)
        return error

    def _failed_to_connect(self, node: ConsumerNode, error: NSQError) -> None:
        node.failures += 1
        self._emit(ConnectFailed(node.address, str(error), node.failures))
        if node.listed is not None and node.failures == _UNREACHABLE_AFTER:
            listed = node.listed
            self._emit(Unreachable(node.address, listed.hostname, listed.remote_address, node.failures))


class ConsumerNode:
    """One nsqd of a consumer and the state of its connection."""

    def __init__(self, address: str, runtime: Runtime) -> None:
        self.address = address
        self.listed: ListedNsqd | None = None  # its entry in nsqlookupd
        self.is_wanted = True
        self.absence: CancelScope | None = None  # around the wait before we drop it, unless it is listed again
        self.first_try = Flag(runtime)  # set once it has connected or failed
        self.error: NSQError | None = None  # of the last attempt
        self.failures = 0  # failed attempts in a row
        self.connection: ConsumerConnection | None = None
        self._runtime = runtime
        self._wait: CancelScope | None = None  # around a dial or the pause before it

    async def unless_stopped(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Return the result of a dial or a pause, or `otherwise` if `stop` interrupted it."""
        self._wait = wait = self._runtime.scope()
        try:
            return await wait.run(work, otherwise)
        finally:
            self._wait = None

    def stop(self) -> None:
        """Interrupt a dial, a pause or a handshake that is no longer needed."""
        if self._wait is not None:
            self._wait.cancel()
        if self.connection is not None and not self.connection.is_open:
            self.connection.close()
