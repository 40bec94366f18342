"""One nsqd of a producer: its connection, and when to try again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

from nsqclient.core.errors import ConnectError, NSQError, Stopped
from nsqclient.core.events import ConnectFailed, Disconnected, Event
from nsqclient.core.publication import Outcome, ProducerConnection
from nsqclient.core.reconnect import Reconnect
from nsqclient.core.stats import NodeStats
from nsqclient.shell.identity import our_identity
from nsqclient.shell.runtime import Flag, within
from nsqclient.shell.tls import tls_maker

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.shell.runtime import ClientTasks, Runtime, SocketLink
    from nsqclient.shell.targets import Target
    from nsqcommon.streams.tls import SecureLayer

FIRST_PAUSE: Final = 0.1  # seconds before another attempt to connect
LONGEST_PAUSE: Final = 15.0
_LATELY: Final = 60.0  # pauses stay short for so long after losing a node from nsqlookupd; seconds
_LONGEST_PAUSE_LATELY: Final = 1.0
_LARGE: Final = 16 * 1024  # a command of this many bytes is sent at once, so that nsqd can start reading


@dataclass(frozen=True, slots=True)
class Shared:
    """State that a producer shares with its nodes."""

    runtime: Runtime
    tasks: Callable[[], ClientTasks]
    config: Config
    max_pending: int
    emit: Callable[[Event], None]
    random: Random
    connection_changed: Callable[[ProducerNode, bool], None]  # with True when a connection opens, False when it closes
    nodes_move: bool  # nsqlookupd lists them


class ProducerNode:
    """One nsqd of a producer. The first publish connects; from then on the connection is kept open."""

    def __init__(self, target: Target, shared: Shared, number: int) -> None:
        runtime = shared.runtime
        self.address = str(target)
        self.number = number
        self.users = 0  # publishes in progress, with their repeats; counted only if nodes come and go
        self.log_id = ""  # the log with its messages and keys, from its last IDENTIFY answer; "" if unknown
        self.connection: ProducerConnection | None = None  # None unless it is open
        self.target = target
        self._shared = shared
        self._runtime = runtime
        self._reconnect = Reconnect(shared.config, shared.random, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._error: NSQError = Stopped("stopped")  # of the last attempt to connect
        self._last_error: NSQError = Stopped("stopped")  # for everything that waits when this node ends
        self._published = 0  # messages on earlier connections
        self._failed = 0  # messages on earlier connections
        self._failures = 0  # of attempts to connect, in a row
        self._lost_at = -inf  # when the last connection ended
        self._link: SocketLink | None = None  # of `connection`
        self._scope = runtime.scope()  # of the task that keeps the connection open
        self._is_over = False  # that task has ended: no more attempts
        self._demand = Flag(runtime)
        self._heartbeats = runtime.parking_lot()
        self._room = runtime.parking_lot()
        self._tries = runtime.parking_lot()  # waiting for the end of an attempt to connect

    def begin(self) -> None:
        """Keep a connection open from now on. Called at the first publish."""
        self._shared.tasks().start(self._run)

    def hurry(self) -> None:
        """Try to connect at once, if there is no connection."""
        if self.usable is None:
            self._demand.set()

    def drop(self) -> None:
        """Close the connection, because this nsqd is no longer used."""
        self._last_error = ConnectError(f"nsqlookupd does not list {self.address} any more")
        self._scope.cancel()

    async def wait_for_heartbeat(self) -> None:
        """Return when the next heartbeat has arrived, or the connection is gone."""
        await self._heartbeats.park()

    async def wait_for_room(self) -> None:
        """Return when the connection may have room for another publish, or is closed."""
        await self._room.park()

    def publish(self, connection: ProducerConnection, command: bytes, receipt: Outcome) -> None:
        """Queue a command on the open connection; `receipt` will hold its outcome."""
        link = self._link
        assert link is not None  # there is a connection
        if connection.pending and len(command) < _LARGE:
            connection.publish(command, receipt)
        else:
            # A single or large command is written at once if the link can do that.
            link.hold()
            connection.publish(command, receipt)
            link.release()

    async def connected(self) -> ProducerConnection:
        """Return the connection once it is open. Raise ConnectError if the next attempt fails."""
        if self.usable is None:
            self._demand.set()
            if not self._is_over:
                await self._tries.park()
        connection = self.usable
        if connection is None:
            raise self._error
        return connection

    @property
    def usable(self) -> ProducerConnection | None:
        """The connection, unless it is closing."""
        connection = self.connection
        return None if connection is None or connection.is_closed else connection

    def _pause(self) -> float:
        """Return the seconds until the next attempt to connect.

        A node that was just lost is probably restarting, and should get its share of publishes soon.
        """
        pause = self._reconnect.pause()
        is_awaited = self._shared.nodes_move and self._runtime.clock() < self._lost_at + _LATELY
        return min(pause, _LONGEST_PAUSE_LATELY) if is_awaited else pause

    async def _run(self) -> None:
        try:
            await self._scope.run(self._keep_connected, None)
        finally:
            self._error = self._last_error
            self._is_over = True
            self._tries.unpark_all()

    async def _keep_connected(self) -> None:
        await self._demand.wait()
        while True:
            self._demand.clear()
            await self._connect_once()
            await within(self._runtime, self._pause(), self._demand.wait, None)

    async def _connect_once(self) -> None:
        config = self._shared.config
        connection: ProducerConnection | None = None
        error: NSQError | None = None  # None: we closed the connection
        try:
            make_tls = tls_maker(self.target, config)
            self._link = link = await self._runtime.dial(self.target, config)
            connection = self._new_connection(link, make_tls)
            await link.serve(connection)
        except NSQError as caught:
            error = caught
        finally:
            self._link = None
            self._closed(connection, error)
            self._heartbeats.unpark_all()

    def _new_connection(self, link: SocketLink, make_tls: Callable[[], SecureLayer] | None) -> ProducerConnection:
        shared = self._shared
        connection = ProducerConnection(
            self.address,
            shared.config,
            our_identity(),
            max_pending=shared.max_pending,
            make_tls=make_tls,
            wake=link.wake,
            emit=shared.emit,
            on_open=lambda: self._opened(connection),
            on_room=self._room.unpark_all,
            on_heartbeat=self._heartbeats.unpark_all,
        )
        return connection

    def _opened(self, connection: ProducerConnection) -> None:
        self.connection = connection
        self.log_id = connection.log_id
        self._failures = 0
        self._tries.unpark_all()
        self._shared.connection_changed(self, True)

    def _closed(self, connection: ProducerConnection | None, error: NSQError | None) -> None:
        """Settle everything that is pending on the connection.

        `connection` is None if not even a socket was opened, and `error` is None if we closed the connection.
        """
        self.connection = None
        self._error = error if isinstance(error, ConnectError) else ConnectError(f"not connected: {error or 'closed'}")
        if connection is not None:
            connection.lost(error)
            self._published += connection.published
            self._failed += connection.failed
        if connection is not None and connection.is_open:
            self._lost_at = self._runtime.clock()
            self._reconnect.worked(connection.opened_at, self._lost_at)
            self._shared.emit(Disconnected(self.address, str(error or ""), 0))
        else:
            if error is not None:
                self._failures += 1
                self._shared.emit(ConnectFailed(self.address, str(error), self._failures))
            self._tries.unpark_all()
        self._shared.connection_changed(self, False)

    @property
    def is_connected(self) -> bool:
        return self.usable is not None

    @property
    def pending(self) -> int:
        """The number of unanswered publishes."""
        return len(self.connection.pending) if self.connection is not None else 0

    @property
    def published(self) -> int:
        """The number of messages accepted by this nsqd."""
        return self._published + (self.connection.published if self.connection is not None else 0)

    @property
    def failed(self) -> int:
        """The number of messages that were not published, as far as we know."""
        return self._failed + (self.connection.failed if self.connection is not None else 0)

    def stats(self) -> NodeStats:
        """Return the current figures."""
        connection = self.connection
        return NodeStats(
            address=self.address,
            connected=connection is not None,
            pending=len(connection.pending) if connection is not None else 0,
            pending_bytes=connection.pending_bytes if connection is not None else 0,
            server_version=connection.terms.version if connection is not None else "",
        )
