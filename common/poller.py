"""One task that serves many sockets: an epoll of its own, which trio waits for as for any other descriptor.

A trio task for each connection costs two wake-ups, an epoll_ctl and a task switch for every small command; here a wake-up
costs one poll, and everything that is ready is served in one *turn* (docs/decisions/0001). What a connection does with its bytes
is its handler's business, plain synchronous code.

A bug in a handler ends that one connection: see `_guarded`, the one place that catches everything.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from time import monotonic
from typing import Final, Protocol

import trio

from common.net import format_name

log = logging.getLogger(__name__)

_READ_SIZE: Final = 256 * 1024
_MOST_UNSENT: Final = 4 << 20  # a peer that does not read its responses is not read from either
_SLICE: Final = 0.002  # seconds at a stretch before other tasks get their turn
_CLOSE_TIMEOUT: Final = 5.0  # how long a peer may take to read the last bytes we owe it
_ACCEPT_PAUSE: Final = 0.1  # seconds, when the operating system has no descriptor left
_ERRORS: Final = select.EPOLLERR | select.EPOLLHUP


class Handler(Protocol):
    """One connection's decisions."""

    def receive(self, data: bytes, now: float) -> None: ...

    def end(self) -> None:
        """The peer will send nothing more."""

    def bytes_to_send(self) -> list[bytes]: ...

    def sent(self, unsent: int) -> None:
        """Everything but the last `unsent` bytes is with the operating system."""

    @property
    def reading(self) -> bool:
        """Whether it wants more now; what comes all the same is its to keep."""

    @property
    def finished(self) -> bool:
        """To be closed when everything is sent."""

    @property
    def aborted(self) -> bool:
        """To be closed at once."""

    def abort(self) -> None:
        """The connection is gone."""

    @property
    def next_deadline(self) -> float: ...

    @property
    def write_timeout(self) -> float: ...

    def tick(self, now: float) -> None:
        """A deadline may have come."""


class Turn(Protocol):
    """What surrounds everything that enters the cores."""

    def begin(self) -> float:
        """Takes the time of this turn and returns it."""

    def finish(self) -> None:
        """Has everything that was decided written, delivered and, through `Poller.flush`, sent."""


class Connection:
    """A socket, its handler, and what the socket has not taken yet."""

    __slots__ = ("alarm", "events", "fd", "handler", "marked", "peer", "reading", "sock", "stuck_since", "unsent")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.handler: Handler
        self.unsent: memoryview = memoryview(b"")
        self.stuck_since = inf
        self.events = select.EPOLLIN
        self.marked = False  # stands in the poller's list of those that may have something to send
        self.reading = True
        self.alarm = inf


MakeHandler = Callable[[Connection, Callable[[], None]], Handler]


class Poller:
    def __init__(self, turn: Turn, *, busy_poll: float = 0.0) -> None:
        self._turn = turn
        # Waking a sleeping process costs tens of microseconds, so before it sleeps it asks for a little while longer.
        # On a single core that would only take the peer's time.
        self._busy_poll = busy_poll if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._marked: list[Connection] = []
        self._alarms: list[tuple[float, int, Connection]] = []
        self._serial = 0
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)
        self._alarm_set = trio.Event()
        self._sleeping_until = inf

    def __len__(self) -> int:
        return len(self._connections)

    # Connections

    async def accept(self, listener: socket.socket, make_handler: MakeHandler) -> None:
        """Takes connections from a listening, non-blocking socket until cancelled."""
        while True:
            try:
                sock, name = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
            except OSError as error:  # out of descriptors, or the peer has gone already
                log.warning("accept failed: %s", error)
                await trio.sleep(_ACCEPT_PAUSE)
            else:
                if listener.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self.add(sock, format_name(name), make_handler)

    def add(self, sock: socket.socket, peer: str, make_handler: MakeHandler) -> None:
        """Serves this connected socket from now on. `make_handler` is given the connection and its `wake`."""
        sock.setblocking(False)
        connection = Connection(sock, peer)

        def wake() -> None:
            if not connection.marked:
                connection.marked = True
                self._marked.append(connection)

        connection.handler = make_handler(connection, wake)
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, connection.events)
        self._watch_deadlines(connection)

    def release(self, connection: Connection) -> socket.socket:
        """Gives the socket away; whoever gets it serves it from now on. Handlers may do so in `receive` and `sent`."""
        self._forget(connection)
        return connection.sock

    def close_all(self) -> None:
        for connection in tuple(self._connections.values()):
            self._drop(connection)

    def _is_ours(self, connection: Connection) -> bool:
        return self._connections.get(connection.fd) is connection

    def _drop(self, connection: Connection) -> None:
        if self._is_ours(connection):
            self._forget(connection)
            connection.sock.close()
            connection.handler.abort()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.fd, None)
        connection.reading = False
        connection.alarm = inf
        with suppress(OSError):
            self._epoll.unregister(connection.fd)

    # The task

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_deadlines)
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._serve_for_a_while()
                await trio.lowlevel.checkpoint()

    def _serve_for_a_while(self) -> None:
        poll = self._epoll.poll
        stop = monotonic() + _SLICE
        while events := poll(0):
            self._serve(events)
            now = monotonic()
            if now >= stop:
                return
            if self._busy_poll:
                patience = now + self._busy_poll
                while not (events := poll(0)) and monotonic() < patience:
                    pass
                if not events:
                    return
                self._serve(events)

    def _serve(self, events: list[tuple[int, int]]) -> None:
        now = self._turn.begin()
        connections = self._connections
        for fd, event in events:
            connection = connections.get(fd)
            if connection is None:
                continue
            self._guarded(connection, self._serve_one, event, now)
        self._turn.finish()

    def _guarded(self, connection: Connection, step: Callable[..., None], *arguments: float) -> None:
        """One step for one connection. If it fails, that is our bug, and only this connection pays for it."""
        try:
            step(connection, *arguments)
        except Exception:
            log.exception("client(%s) - internal error, connection dropped", connection.peer)
            self._drop(connection)

    def _serve_one(self, connection: Connection, event: int, now: float) -> None:
        if event & select.EPOLLOUT:
            self._send(connection)
        if event & ~select.EPOLLOUT:
            self._read(connection, event, now)

    def _read(self, connection: Connection, event: int, now: float) -> None:
        if not connection.reading:
            if event & _ERRORS:
                self._drop(connection)
            return
        try:
            count = connection.sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        if count:
            connection.handler.receive(bytes(self._view[:count]), now)
        else:
            self._stop_reading(connection)
            connection.handler.end()

    def _stop_reading(self, connection: Connection) -> None:
        connection.reading = False
        self._want(connection)

    def _want(self, connection: Connection) -> None:
        """Tells the epoll what this connection waits for."""
        events = 0
        if connection.reading and len(connection.unsent) <= _MOST_UNSENT and connection.handler.reading:
            events |= select.EPOLLIN
        if connection.unsent:
            events |= select.EPOLLOUT
        if events != connection.events:
            connection.events = events
            self._epoll.modify(connection.fd, events)

    # Sending

    def flush(self) -> None:
        """Sends what connections have to send. The last step of a turn."""
        while self._marked:
            marked, self._marked = self._marked, []
            for connection in marked:
                connection.marked = False
                if self._is_ours(connection):
                    self._guarded(connection, self._flush_one)

    def _flush_one(self, connection: Connection) -> None:
        handler = connection.handler
        if handler.aborted:
            self._drop(connection)
            return
        if pieces := handler.bytes_to_send():
            if connection.unsent:
                pieces.insert(0, bytes(connection.unsent))
            connection.unsent = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            self._send(connection)
        elif not connection.unsent and handler.finished:
            self._drop(connection)
        if self._is_ours(connection):
            if connection.reading and handler.finished:
                connection.reading = False
            self._want(connection)
            self._watch_deadlines(connection)

    def _send(self, connection: Connection) -> None:
        unsent = connection.unsent
        try:
            while unsent:
                unsent = unsent[connection.sock.send(unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        progress = len(unsent) < len(connection.unsent)
        connection.unsent = unsent
        connection.handler.sent(len(unsent))
        if not self._is_ours(connection):
            return
        if not unsent:
            connection.stuck_since = inf
            if connection.handler.finished:
                self._drop(connection)
                return
        elif progress or connection.stuck_since == inf:
            connection.stuck_since = monotonic()
        self._want(connection)
        self._watch_deadlines(connection)

    # Time

    def _deadline(self, connection: Connection) -> float:
        deadline = connection.handler.next_deadline
        if connection.stuck_since != inf:
            deadline = min(deadline, connection.stuck_since + _patience(connection.handler))
        return deadline

    def _watch_deadlines(self, connection: Connection) -> None:
        """Deadlines that move into the future cost nothing: the alarm stays and finds out when it rings."""
        deadline = self._deadline(connection)
        if deadline < connection.alarm:
            connection.alarm = deadline
            self._serial += 1
            heappush(self._alarms, (deadline, self._serial, connection))
            if deadline < self._sleeping_until:
                self._alarm_set.set()

    async def _keep_deadlines(self) -> None:
        while True:
            self._alarm_set = trio.Event()
            self._sleeping_until = self._alarms[0][0] if self._alarms else inf
            # trio's clock has an offset of its own, so only the distance means the same to both.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._alarm_set.wait()
            now = self._turn.begin()
            self._ring(now)
            self._turn.finish()

    def _ring(self, now: float) -> None:
        while self._alarms and self._alarms[0][0] <= now:
            when, _, connection = heappop(self._alarms)
            if connection.alarm != when or not self._is_ours(connection):
                continue
            connection.alarm = inf
            if self._deadline(connection) <= now:
                self._guarded(connection, self._ring_one, now)
            if self._is_ours(connection):
                self._watch_deadlines(connection)

    def _ring_one(self, connection: Connection, now: float) -> None:
        if now >= connection.stuck_since + _patience(connection.handler):
            log.info("client(%s) - does not read, connection dropped", connection.peer)
            self._drop(connection)
        else:
            connection.handler.tick(now)


def _patience(handler: Handler) -> float:
    """How long a peer may leave unread what it was sent."""
    return min(handler.write_timeout, _CLOSE_TIMEOUT) if handler.finished else handler.write_timeout
