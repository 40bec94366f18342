"""One task that serves many sockets: an epoll of its own, which trio waits for as for any other descriptor.

A trio task for each connection costs two wake-ups, an epoll_ctl and a task switch for every small command; here a wake-up
costs one poll, and everything that is ready is served in one *turn* (docs/decisions/0001). What a connection does with its bytes
is its handler's business, plain synchronous code.

A bug in a handler ends that one connection: see `_contain`.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import trio

from common.net import format_name, keep_alive
from common.turn import Turn, in_turn
from common.wakeup import Wakeup

if TYPE_CHECKING:
    from common.budget import Budget

log = logging.getLogger(__name__)

_READ_SIZE: Final = 120 * 1024  # at most: just below what the allocator maps and unmaps anew for each read
_SMALLEST_READ: Final = _READ_SIZE // 8  # while turns take too long
_MOST_UNSENT: Final = 1 << 20  # a peer that does not read its responses is not read from either
_SLICE: Final = 0.002  # seconds at a stretch before other tasks get their turn
_LONGEST_TURN: Final = 0.005  # seconds until connections that are ready wait for the next turn
_CLOSE_TIMEOUT: Final = 5.0  # how long a peer may take to read the last bytes we owe it
_LONGEST_LEAVE: Final = 30.0  # seconds that a peer may go on sending when all is said
_MOST_THROWN_AWAY: Final = 32 << 20  # bytes that it may send then: the largest body allowed, several times
_MOST_STALE_ALARMS: Final = 1000  # besides one for each connection
_ACCEPT_PAUSE: Final = 0.1  # seconds, when the operating system has no descriptor left
_NOTHING: Final = memoryview(b"")
_IN: Final = select.EPOLLIN  # quicker than to ask the module for each event
_OUT: Final = select.EPOLLOUT
_ERRORS: Final = select.EPOLLERR | select.EPOLLHUP


class Handler(Protocol):
    """One connection's decisions. The poller asks for the properties after every event, so they should be cheap."""

    def receive(self, data: bytes, now: float) -> None: ...

    def end(self) -> None:
        """The peer will send nothing more."""

    def bytes_to_send(self) -> list[bytes]: ...

    def sent(self, unsent: int) -> None:
        """Everything but the last `unsent` bytes is with the operating system."""

    def abort(self) -> None:
        """The connection is gone."""

    def tick(self, now: float) -> None:
        """`next_deadline` has come."""

    @property
    def next_deadline(self) -> float:
        """When `tick` is to be called; it may be too early, never too late."""

    @property
    def reading(self) -> bool:
        """Whether it wants more now; what comes all the same is its to keep."""

    @property
    def finished(self) -> bool:
        """To be closed when everything is sent."""

    @property
    def lingers(self) -> bool:
        """Whether the peer may still be sending when it is `finished`, and is to get its last words all the same."""

    @property
    def aborted(self) -> bool:
        """To be closed at once."""

    @property
    def write_timeout(self) -> float:
        """How long the peer may leave unread what it was sent, in seconds."""


def _do_nothing() -> None: ...


class Connection:
    """A socket, its handler, and what the socket has not taken yet."""

    __slots__ = (
        "alarm",
        "ended",
        "events",
        "fd",
        "handler",
        "is_ours",
        "marked",
        "on_closed",
        "peer",
        "queued",
        "queued_bytes",
        "reading",
        "sock",
        "stuck_since",
        "unsent",
    )
    __deletable__ = ("handler",)  # asks mypyc to let go of it as Python does

    def __init__(self, sock: socket.socket, peer: str, on_closed: Callable[[], None] = _do_nothing) -> None:
        self.sock = sock
        self.on_closed = on_closed
        self.fd = sock.fileno()
        self.peer = peer
        self.handler: Handler
        self.is_ours = True  # neither closed nor given away
        self.unsent = _NOTHING  # what the socket did not take
        self.queued: list[bytes] = []  # what came after that
        self.queued_bytes = 0
        self.stuck_since = inf
        self.events = _IN
        self.marked = False  # stands in the poller's list of those that may have something to send
        self.reading = True  # the peer may still send, and we still care
        self.ended = False  # the peer will send nothing more
        self.alarm = inf


MakeHandler = Callable[[Connection, Callable[[], None]], Handler]


class PolledTurn(Turn, Protocol):
    """A turn with many connections, of which the last ones are read long after it began."""

    def take_time(self) -> float:
        """Take the time anew."""


T = TypeVar("T", bound=PolledTurn)


class Poller(Generic[T]):
    """Serves many sockets in turns, of which each ends with `flush`: so the poller has its turn made with that."""

    def __init__(self, make_turn: Callable[[Callable[[], None]], T], *, busy_poll: float = 0.0) -> None:
        self.turn = make_turn(self.flush)
        # Waking a sleeping process costs tens of microseconds, so before it sleeps it asks for a little while longer.
        # On a single core that would only take the peer's time.
        self._busy_poll = busy_poll if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._read_size = _READ_SIZE
        self._has_read_much = False  # in this turn, so that a smaller size would have made it shorter
        self._late: list[int] = []  # descriptors that the last turn had no time for ...
        self._served: list[int] = []  # ... and those that it has served then, in that order
        self._marked: list[Connection] = []
        self._alarms: list[tuple[float, int, Connection]] = []
        self._serial = 0
        self._alarm_set = Wakeup()
        self._sleeping_until = inf

    def __len__(self) -> int:
        return len(self._connections)

    # Connections

    async def accept(
        self, listener: socket.socket, make_handler: MakeHandler, budget: Budget, *, at_once: bool = False
    ) -> None:
        """Take connections from a listening, non-blocking socket until cancelled.

        One by one: in a flood, those who have come are served before more are let in, as each may cost a handshake. At a
        door without handshakes they are taken `at_once`: behind five hundred others, with a long turn after each, an
        honest client would wait for seconds.
        """
        stop = monotonic() + _SLICE
        while True:
            await budget.wait_for_room()
            try:
                sock, name = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                stop = monotonic() + _SLICE
            except OSError as error:  # out of descriptors, or the peer has gone already
                log.warning("accept failed: %s", error)
                await trio.sleep(_ACCEPT_PAUSE)
            else:
                budget.take()
                try:
                    if listener.family != socket.AF_UNIX:
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        keep_alive(sock)
                    self.add(sock, format_name(name), make_handler, on_closed=budget.give_back)
                    if self._marked:  # a handshake may have made room for this one
                        with in_turn(self.turn):
                            pass
                except OSError as error:  # reset before we could look at it
                    log.info("client(%s) - %s", format_name(name), error)
                    sock.close()
                    budget.give_back()
                if not at_once or monotonic() >= stop:
                    await trio.lowlevel.checkpoint()
                    stop = monotonic() + _SLICE

    def add(
        self, sock: socket.socket, peer: str, make_handler: MakeHandler, *, on_closed: Callable[[], None] = _do_nothing
    ) -> None:
        """Serves this connected socket from now on. `make_handler` is given the connection and its `wake`."""
        sock.setblocking(False)
        connection = Connection(sock, peer, on_closed)

        def wake() -> None:
            if not connection.marked:
                connection.marked = True
                self._marked.append(connection)

        self.turn.begin()  # the handler notes when its client came, and an idle broker's last turn may be long ago
        connection.handler = make_handler(connection, wake)
        self._epoll.register(connection.fd, connection.events)
        self._connections[connection.fd] = connection
        self._watch_deadline(connection)

    def release(self, connection: Connection) -> socket.socket:
        """Gives the socket away; whoever gets it serves it from now on, and calls `connection.on_closed` in the end.

        Handlers may do so in `receive` and `sent`.
        """
        self._forget(connection)
        del connection.handler
        return connection.sock

    def close_all(self, *, but: Callable[[Handler], bool] | None = None) -> None:
        for connection in tuple(self._connections.values()):
            if but is None or not but(connection.handler):
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.is_ours:
            self._forget(connection)
            connection.sock.close()
            connection.on_closed()
            try:
                connection.handler.abort()
            except Exception:  # the state that made a step fail may make this fail as well
                log.exception("client(%s) - internal error while it was dropped", connection.peer)
            del connection.handler  # an alarm may keep the connection for a minute, but not all that the handler holds

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.fd, None)
        connection.is_ours = False
        connection.alarm = inf
        with suppress(OSError):
            self._epoll.unregister(connection.fd)

    # The task

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_deadlines)
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())  # always lets others run first
                self._serve_for_a_while()

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
                    os.sched_yield()  # the peer that we wait for may share our core
                if not events:
                    return
                self._serve(events)

    def _serve(self, events: list[tuple[int, int]]) -> None:
        # Not `in_turn`, which would be some percent of all that a publish on a quiet node costs.
        now = self.turn.begin()
        stop = now + _LONGEST_TURN
        connections = self._connections
        if self._late:
            events = self._late_first(events)
        place = 0
        for fd, event in events:
            if now >= stop:
                self._served = [fd for fd, _ in events[:place]]
                self._late = [fd for fd, _ in events[place:]]
                break
            place += 1
            connection = connections.get(fd)
            if connection is None:
                continue
            try:
                if event & _OUT:
                    self._send_rest(connection)
                    self._look_after(connection)
                    now = monotonic()
                if event & ~_OUT and connection.is_ours:
                    now = self._read(connection, event)
            except Exception:
                self._contain(connection)
                now = monotonic()
        if self._has_read_much:
            self._has_read_much = False
            self._read_size = read_size_after(self._read_size, too_long=monotonic() >= stop)
        self.turn.finish()

    def _late_first(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Put those first that the last turn had no time for, and those last that it has served, which may be ready at once.

        Only their order is remembered. What is ready epoll tells each time, so nothing piles up here while a crowd is always
        ready, and a descriptor that is another connection's by now is no danger.
        """
        ready = dict(events)
        first = [(fd, ready.pop(fd)) for fd in self._late if fd in ready]
        last = [(fd, ready.pop(fd)) for fd in self._served if fd in ready]
        self._late = []
        return [*first, *ready.items(), *last]

    def _read(self, connection: Connection, event: int) -> float:
        """Return when it was read, as the loop that asks for the time once more would pay some percent for it."""
        if not connection.reading:
            if event & _ERRORS:
                self._drop(connection)
            return monotonic()
        try:
            data = connection.sock.recv(self._read_size)
        except BlockingIOError:
            return monotonic()
        except OSError:
            self._drop(connection)
            return monotonic()
        # Taken after the data, once for each connection: a delay counts from when it was asked for, and with the time at
        # which a long turn began it would end too early.
        now = self.turn.take_time()
        if len(data) >= _SMALLEST_READ:
            self._has_read_much = True
        if data:
            connection.handler.receive(data, now)
        else:
            connection.ended = True
            connection.reading = False
            self._look_after(connection)  # before the handler has its last word, which the flush still has to send
            if connection.is_ours:
                connection.handler.end()
        return now

    def _contain(self, connection: Connection) -> None:
        """Called for any exception of a handler: that is our bug, and only this connection pays for it."""
        log.exception("client(%s) - internal error, connection dropped", connection.peer)
        self._drop(connection)

    # Sending

    def flush(self) -> None:
        """Sends what connections have to send. The last step of a turn."""
        while self._marked:
            marked, self._marked = self._marked, []
            for connection in marked:
                connection.marked = False
                if connection.is_ours:
                    try:
                        self._flush_one(connection)
                    except Exception:
                        self._contain(connection)

    def _flush_one(self, connection: Connection) -> None:
        handler = connection.handler
        if handler.aborted:
            self._drop(connection)
            return
        if pieces := handler.bytes_to_send():
            if connection.unsent:  # these are sent when the socket is ready for more
                connection.queued += pieces
                connection.queued_bytes += sum(map(len, pieces))
            else:
                self._send(connection, pieces[0] if len(pieces) == 1 else b"".join(pieces))
                if self._goes_on_as_before(connection):
                    return
        self._look_after(connection)

    def _goes_on_as_before(self, connection: Connection) -> bool:
        """Whether nothing has to be looked after: nearly always, and quicker to find out than to look."""
        if connection.unsent or not connection.is_ours or connection.events != _IN:
            return False
        handler = connection.handler
        return not handler.finished and handler.reading and handler.next_deadline >= connection.alarm

    def _send_rest(self, connection: Connection) -> None:
        self._send(connection, connection.unsent)
        if not connection.unsent and connection.queued and connection.is_ours:
            data = b"".join(connection.queued)
            connection.queued.clear()
            connection.queued_bytes = 0
            self._send(connection, data)

    def _send(self, connection: Connection, data: bytes | memoryview) -> None:
        """Gives the socket what it takes of `data`, which begins with all that was unsent so far."""
        handler = connection.handler
        try:
            count = connection.sock.send(data)
        except BlockingIOError:
            count = 0
        except OSError:
            self._drop(connection)
            return
        if count == len(data):
            connection.unsent = _NOTHING
            connection.stuck_since = inf
            handler.sent(connection.queued_bytes)
        else:
            connection.unsent = memoryview(data)[count:]
            if count or connection.stuck_since == inf:
                connection.stuck_since = monotonic()
            handler.sent(len(connection.unsent) + connection.queued_bytes)

    def _look_after(self, connection: Connection) -> None:
        """After anything happened to a connection: is it over, what does it wait for, and until when?"""
        if not connection.is_ours:
            return
        handler = connection.handler
        if handler.finished:
            if not connection.unsent:
                self._leave(connection)
                return
            connection.reading = False
        events = 0
        if connection.reading and handler.reading and len(connection.unsent) + connection.queued_bytes <= _MOST_UNSENT:
            events = _IN
        if connection.unsent:
            events |= _OUT
        if events != connection.events:
            connection.events = events
            self._epoll.modify(connection.fd, events)
        if handler.next_deadline < connection.alarm or connection.stuck_since != inf:
            self._watch_deadline(connection)

    # Leaving

    def _leave(self, connection: Connection) -> None:
        """All is said: the handler is done with it, and the socket as soon as the peer is."""
        handler = connection.handler
        if connection.ended or not handler.lingers or not _half_close(connection.sock):
            self._drop(connection)
            return
        connection.handler = _Leaving(monotonic(), partial(self._drop, connection))
        connection.reading = True
        if connection.events != _IN:
            connection.events = _IN
            self._epoll.modify(connection.fd, connection.events)
        self._watch_deadline(connection)
        handler.abort()

    # Time

    def _watch_deadline(self, connection: Connection) -> None:
        """Deadlines that move into the future cost nothing: the alarm stays and finds out when it rings."""
        deadline = connection.handler.next_deadline
        if connection.stuck_since != inf:
            deadline = min(deadline, connection.stuck_since + _patience(connection.handler))
        if deadline < connection.alarm:
            connection.alarm = deadline
            self._serial += 1
            heappush(self._alarms, (deadline, self._serial, connection))
            if len(self._alarms) > 2 * len(self._connections) + _MOST_STALE_ALARMS:
                self._forget_stale_alarms()
            if deadline < self._sleeping_until:
                self._alarm_set.set()

    def _forget_stale_alarms(self) -> None:
        """Drop the alarms of connections that have gone or have an earlier one.

        An alarm keeps its connection until it would ring, after ten minutes at nsqlookupd, and a thousand clients a second
        would have left 300 MB by then. At least half of the alarms are stale here, so each alarm pays for one other.
        """
        self._alarms = [it for it in self._alarms if it[2].alarm == it[0]]
        heapify(self._alarms)

    async def _keep_deadlines(self) -> None:
        while True:
            self._alarm_set.clear()
            self._sleeping_until = self._alarms[0][0] if self._alarms else inf
            # trio's clock has an offset of its own, so only the distance means the same to both.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._alarm_set.wait()
            with in_turn(self.turn) as now:
                self._ring(now)

    def _ring(self, now: float) -> None:
        """Ring what is due, for a slice's time. The rest stays due, as a handler may ask to be called again at once."""
        stop = monotonic() + _SLICE
        while self._alarms and self._alarms[0][0] <= now and monotonic() < stop:
            when, _, connection = heappop(self._alarms)
            if connection.alarm != when or not connection.is_ours:
                continue
            connection.alarm = inf
            try:
                self._ring_one(connection, now)
            except Exception:
                self._contain(connection)

    def _ring_one(self, connection: Connection, now: float) -> None:
        if now >= connection.stuck_since + _patience(connection.handler):
            log.info("client(%s) - does not read, connection dropped", connection.peer)
            self._drop(connection)
            return
        if now >= connection.handler.next_deadline:
            # What lies in the socket came in time. If we stood still ourselves, nobody has looked at it yet. But whoever is
            # not read from, as it does not read its answers, gets no more time by what it has sent.
            if connection.events & _IN:
                self._read(connection, _IN)
            if connection.is_ours and now >= connection.handler.next_deadline:
                connection.handler.tick(now)
        if connection.is_ours:
            self._watch_deadline(connection)


def read_size_after(size: int, *, too_long: bool) -> int:
    """Return how much to read from a socket at once in the next turn.

    A hundred peers may each send what takes milliseconds to cut, and everybody else waits for all of them. When a turn takes
    too long less is read from each, so that a round over all of them is short, whatever they send.
    """
    return max(_SMALLEST_READ, size // 2) if too_long else min(_READ_SIZE, size * 2)


class _Leaving:
    """Reads what a peer is still sending, and throws it away.

    A socket that is closed with something unread is reset: the peer's next `send` fails, and it never looks at the error
    that would have told it why. So it sees the end of our stream behind the last words, and is heard out within limits.
    """

    def __init__(self, now: float, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._ends = now + _LONGEST_LEAVE
        self._thrown_away = 0
        self.next_deadline = now + _CLOSE_TIMEOUT
        self.write_timeout = _CLOSE_TIMEOUT
        self.reading = True
        self.finished = False
        self.lingers = False
        self.aborted = False

    def receive(self, data: bytes, now: float) -> None:
        self._thrown_away += len(data)
        self.next_deadline = min(now + _CLOSE_TIMEOUT, self._ends)
        if self._thrown_away > _MOST_THROWN_AWAY:
            self._drop()

    def end(self) -> None:
        self._drop()

    def tick(self, now: float) -> None:
        self._drop()

    def bytes_to_send(self) -> list[bytes]:
        return []

    def sent(self, unsent: int) -> None: ...

    def abort(self) -> None: ...


def _half_close(sock: socket.socket) -> bool:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:  # the peer has gone
        return False
    return True


def _patience(handler: Handler) -> float:
    """How long a peer may leave unread what it was sent."""
    return min(handler.write_timeout, _CLOSE_TIMEOUT) if handler.finished else handler.write_timeout
