"""One task that serves many sockets through an epoll of its own, on which trio waits as on any other descriptor.

Where the system has no epoll, `readiness.py` puts something slower in its place.

A trio task for each connection would cost two wake-ups, an epoll_ctl and a task switch for every small command. Here a
wake-up costs one poll, and everything that is ready is served in one *turn* (docs/decisions/0001). A connection's bytes
are the business of its handler, which is plain synchronous code.

A bug in a handler ends that one connection: see `_contain`.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import trio

from nsqcommon.cores import usable_cores, yield_core
from nsqcommon.net import format_name, keep_alive
from nsqcommon.readiness import make_readiness
from nsqcommon.turn import Turn, in_turn
from nsqcommon.wakeup import Wakeup
from nsqcommon.wire.frames import LARGE

if TYPE_CHECKING:
    from nsqcommon.budget import Budget
    from nsqcommon.wire.frames import Piece

log = logging.getLogger(__name__)

_READ_SIZE: Final = 120 * 1024  # at most; the allocator would map and unmap a larger buffer for each read
_SMALLEST_READ: Final = _READ_SIZE // 8  # while turns take too long
_MOST_UNSENT: Final = 1 << 20  # a peer that does not read its responses is not read from either
_SLICE: Final = 0.002  # seconds of serving before other trio tasks may run
_SHORTEST_SLEEP: Final = 0.001  # seconds; epoll counts in milliseconds
_LONGEST_TURN: Final = 0.005  # seconds after which the remaining ready connections wait for the next turn
_FEW: Final = 4  # connections that are read without asking whether the turn is full, which costs each of them something
_CLOSE_TIMEOUT: Final = 5.0  # how long a peer may take to read the last bytes we owe it
_LONGEST_LINGER: Final = 30.0  # seconds that a peer may go on sending after our last bytes
_MOST_DISCARDED: Final = 32 << 20  # bytes that it may send meanwhile: several times the largest body
_MOST_STALE_ALARMS: Final = 1000  # in addition to one for each connection
_CROWD_PAUSE: Final = 0.005  # seconds between two looks at whether a crowd has become smaller
_ACCEPT_PAUSE: Final = 0.1  # seconds to wait when the operating system has no descriptor left
_MOST_GATHERED: Final = 1024  # pieces in one `sendmsg` (IOV_MAX)
_NOTHING: Final = memoryview(b"")
_IN: Final = select.POLLIN  # quicker than an attribute of the module for each event; epoll has the same numbers
_OUT: Final = select.POLLOUT
_ERRORS: Final = select.POLLERR | select.POLLHUP


class Handler(Protocol):
    """The decisions of one connection. The poller reads the properties after every event, so they should be cheap."""

    def receive(self, data: bytes, now: float) -> None: ...

    def end(self) -> None:
        """Take note that the peer will send nothing more."""

    def bytes_to_send(self) -> Sequence[Piece]:
        """Return the pieces that may be sent now, and forget them."""

    def sent(self, unsent: int) -> None:
        """Take note that the operating system has taken everything but the last `unsent` bytes."""

    def abort(self) -> None:
        """Take note that the connection is gone."""

    def tick(self, now: float) -> None:
        """Act on `next_deadline`, which has come."""

    @property
    def next_deadline(self) -> float:
        """When `tick` has to be called; may be too early, never too late."""

    @property
    def reading(self) -> bool:
        """Whether the handler wants more data now. It has to accept data that come all the same."""

    @property
    def finished(self) -> bool:
        """Whether to close the connection once everything is sent."""

    @property
    def lingers(self) -> bool:
        """Whether to wait, once `finished`, until the peer has stopped sending, so that it gets our last bytes."""

    @property
    def aborted(self) -> bool:
        """Whether to close the connection at once."""

    @property
    def write_timeout(self) -> float:
        """How long the peer may leave sent data unread, in seconds."""


def _do_nothing() -> None: ...


def never() -> bool:
    return False


class Connection:
    """A socket, its handler, and the data that the socket has not taken yet."""

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
    __deletable__ = ("handler",)  # lets mypyc delete the attribute, as Python does

    def __init__(self, sock: socket.socket, peer: str, on_closed: Callable[[], None] = _do_nothing) -> None:
        self.sock = sock
        self.on_closed = on_closed
        self.fd = sock.fileno()
        self.peer = peer
        self.handler: Handler
        self.is_ours = True  # neither closed nor released to somebody else
        self.unsent = _NOTHING  # what the socket has not taken
        self.queued: list[bytes] = []  # what is to be sent after `unsent`
        self.queued_bytes = 0
        self.stuck_since = inf  # when the socket last took any of the unsent data; inf: none are unsent
        self.events = _IN
        self.marked = False  # is in the poller's list of connections that may have something to send
        self.reading = True  # the peer may still send, and we still read
        self.ended = False  # the peer will send nothing more
        self.alarm = inf  # the time of its valid entry in the poller's heap of alarms


MakeHandler = Callable[[Connection, Callable[[], None]], Handler]


class PolledTurn(Turn, Protocol):
    """A turn that serves many connections, the last of which may be read long after it began."""

    def take_time(self) -> float:
        """Take the time again and return it."""

    def is_full(self) -> bool:
        """Return whether so much is left to `finish` that further connections should wait for the next turn."""


T = TypeVar("T", bound=PolledTurn)


class Poller(Generic[T]):
    """Serves many sockets in turns. Every turn ends with `flush`, so `make_turn` is given that."""

    def __init__(self, make_turn: Callable[[Callable[[], None]], T], *, busy_poll: float = 0.0) -> None:
        self.turn = make_turn(self.flush)
        # Waking a sleeping process costs tens of microseconds, so the poller polls a little longer before it sleeps. On
        # a single core that would only take time from the peer.
        self._busy_poll = busy_poll if usable_cores() > 1 else 0.0
        self._ready = make_readiness()
        self._watched = -1  # a descriptor that is no connection's, see `watch`
        self._on_ready: Callable[[], object] = never
        self._is_soon: Callable[[], bool] = never
        self._connections: dict[int, Connection] = {}
        self._read_size = _READ_SIZE
        self._has_read_much = False  # in this turn, so that smaller reads would have made it shorter
        self._late: list[int] = []  # descriptors that the last turn had no time for
        self._served: list[int] = []  # descriptors that such a turn has served, in that order
        self._marked: list[Connection] = []  # those that may have something to send
        self._alarms: list[tuple[float, int, Connection]] = []
        self._serial = 0  # keeps alarms of the same time from comparing their connections
        self._alarm_set = Wakeup()
        self._sleeping_until = inf

    def __len__(self) -> int:
        return len(self._connections)

    # Connections

    async def accept(
        self,
        listener: socket.socket,
        make_handler: MakeHandler,
        budget: Budget,
        *,
        at_once: bool = False,
        is_crowded: Callable[[], bool] = never,
    ) -> None:
        """Accept connections from a listening, non-blocking socket until cancelled, but none while `is_crowded`.

        Others are served after each connection that is accepted: in a flood of handshakes, those that have connected
        come before new ones. Where there are no handshakes, `at_once` accepts all that are there, for a slice of time:
        otherwise an honest client behind five hundred others, with a long turn after each, would wait for seconds.
        """
        stop = monotonic() + _SLICE
        while True:
            await budget.wait_for_room()
            while is_crowded():  # noqa: ASYNC110 - an event would cost each handshake something, for a rare crowd
                await trio.sleep(_CROWD_PAUSE)
            try:
                sock, name = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                stop = monotonic() + _SLICE
            except OSError as error:  # no descriptor is left, or the peer has gone already
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
                except OSError as error:  # the peer reset it before we could use it
                    log.info("client(%s) - %s", format_name(name), error)
                    sock.close()
                    budget.give_back()
                if not at_once or monotonic() >= stop:
                    await trio.lowlevel.checkpoint()
                    stop = monotonic() + _SLICE

    def add(
        self, sock: socket.socket, peer: str, make_handler: MakeHandler, *, on_closed: Callable[[], None] = _do_nothing
    ) -> None:
        """Serve this connected socket from now on. `make_handler` gets the connection and a function that wakes it.

        Raise OSError if that is impossible. Then the handler is aborted, and socket and `on_closed` are the caller's.
        """
        sock.setblocking(False)
        connection = Connection(sock, peer, on_closed)

        def wake() -> None:
            if not connection.marked:
                connection.marked = True
                self._marked.append(connection)

        # The handler notes the time at which its client came, and an idle broker's last turn may be long ago.
        self.turn.begin()
        connection.handler = make_handler(connection, wake)
        try:
            self._ready.register(connection.fd, connection.events)
        except OSError:  # the system's bound on watches (fs.epoll.max_user_watches), or no memory
            connection.is_ours = False
            connection.handler.abort()
            del connection.handler
            raise
        self._connections[connection.fd] = connection
        self._watch_deadline(connection)

    def watch(self, descriptor: int, on_ready: Callable[[], object], *, is_soon: Callable[[], bool]) -> None:
        """Call `on_ready` in a turn when a thread has written to this descriptor, the only one that can be watched.

        `is_soon` tells whether clients wait for that call, and it will come so soon that other tasks should run after it.

        The poller does not read from the descriptor. After a turn that took too long it may miss the call, and without
        epoll it makes none, so a task has to wait for the descriptor as well.
        """
        if self._ready.watch_wakes(descriptor):
            self._watched, self._on_ready, self._is_soon = descriptor, on_ready, is_soon

    def release(self, connection: Connection) -> socket.socket:
        """Give the socket to the caller, who serves it from now on and calls `connection.on_closed` in the end.

        A handler may call this in `receive`, `tick` and `sent`.
        """
        self._forget(connection)
        del connection.handler
        return connection.sock

    def close_all(self, *, but: Callable[[Handler], bool] | None = None) -> None:
        """Close all connections at once, except those for whose handlers `but` returns True."""
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
            except Exception:  # the state that made an earlier step fail may make this one fail as well
                log.exception("client(%s) - internal error while it was dropped", connection.peer)
            # An alarm may keep the connection in memory for minutes, but must not keep all that the handler holds.
            del connection.handler

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.fd, None)
        connection.is_ours = False
        connection.alarm = inf
        with suppress(OSError):
            self._ready.unregister(connection.fd)

    # The task

    async def run(self) -> None:
        """Serve all connections until cancelled. The caller closes them afterwards with `close_all`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_deadlines)
            nursery.start_soon(self._ready.run, self._serve_for_a_while)

    def _serve_for_a_while(self) -> None:
        poll = self._ready.poll
        stop = monotonic() + _SLICE
        while events := poll(0):
            self._serve(events)
            now = monotonic()
            if now >= stop:
                return
            if self._is_soon():
                events = poll(_SHORTEST_SLEEP)
            elif self._busy_poll:
                patience = now + self._busy_poll
                while not (events := poll(0)) and monotonic() < patience:
                    yield_core()  # the peer that we wait for may run on our core
            else:
                continue
            if not events:
                return
            self._serve(events)

    def _serve(self, events: list[tuple[int, int]]) -> None:
        # Not `in_turn`, which would add some percent to the cost of a publish on a quiet node.
        now = self.turn.begin()
        stop = now + _LONGEST_TURN
        connections = self._connections
        if self._late:
            events = self._late_first(events)
        place = 0
        for fd, event in events:
            if now >= stop or (place >= _FEW and self.turn.is_full()):
                self._served = [fd for fd, _ in events[:place]]
                self._late = [fd for fd, _ in events[place:]]
                break
            place += 1
            connection = connections.get(fd)
            if connection is None:
                if fd == self._watched:
                    self._on_ready()
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
        """Sort the connections that the last turn had no time or room for first, and those that it has served last.

        A connection that was just served may be ready again at once. Only the order is remembered, and epoll reports
        each time which descriptors are ready. So nothing accumulates here while a crowd is always ready, and a
        descriptor that belongs to another connection by now does no harm.
        """
        ready = dict(events)
        first = [(fd, ready.pop(fd)) for fd in self._late if fd in ready]
        last = [(fd, ready.pop(fd)) for fd in self._served if fd in ready]
        self._late = []
        return [*first, *ready.items(), *last]

    def _read(self, connection: Connection, event: int) -> float:
        """Read and return the time of the read: asking for it again in the loop would cost some percent."""
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
        # Take the time after the data, once for each connection: a delay counts from the moment of its request. If it
        # counted from the beginning of a long turn, it would end too early.
        now = self.turn.take_time()
        if len(data) >= _SMALLEST_READ:
            self._has_read_much = True
        if data:
            connection.handler.receive(data, now)
        else:
            connection.ended = True
            connection.reading = False
            # Before `end`: the handler may add its last words, which `flush` still has to send.
            self._look_after(connection)
            if connection.is_ours:
                connection.handler.end()
        return now

    def _contain(self, connection: Connection) -> None:
        """End only this connection after an exception in its handler, which is a bug of ours."""
        log.exception("client(%s) - internal error, connection dropped", connection.peer)
        self._drop(connection)

    # Sending

    def flush(self) -> None:
        """Send what the connections have to send. This is the last step of a turn."""
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
        """Send what one connection has to send, and look after it, unless nothing about it has changed."""
        handler = connection.handler
        if handler.aborted:
            self._drop(connection)
            return
        if pieces := handler.bytes_to_send():
            if connection.unsent:  # wait until the socket takes more
                # Joined, because a view would keep a whole batch in memory for as long as the peer does not read.
                data = b"".join(pieces)
                connection.queued.append(data)
                connection.queued_bytes += len(data)
            else:
                if len(pieces) == 1:
                    self._send(connection, pieces[0])
                elif len(pieces[-1]) >= LARGE:
                    self._send_gathered(connection, pieces)
                else:
                    self._send(connection, b"".join(pieces))
                # `_look_after` would do nothing: it nearly always would, and to know that here is quicker.
                if (
                    not connection.unsent
                    and connection.is_ours
                    and connection.events == _IN
                    and not handler.finished
                    and handler.reading
                    and handler.next_deadline >= connection.alarm
                ):
                    return
        self._look_after(connection)

    def _send_rest(self, connection: Connection) -> None:
        self._send(connection, connection.unsent)
        if not connection.unsent and connection.queued and connection.is_ours:
            data = b"".join(connection.queued)
            connection.queued.clear()
            connection.queued_bytes = 0
            self._send(connection, data)

    def _send(self, connection: Connection, data: bytes | memoryview) -> None:
        """Give the socket as much of `data` as it takes; `data` begins with all that was unsent so far."""
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

    def _send_gathered(self, connection: Connection, pieces: Sequence[Piece]) -> None:
        """Give the socket as much of large pieces as it takes, without joining them first. Nothing is unsent so far."""
        try:
            count = connection.sock.sendmsg(pieces[:_MOST_GATHERED])
        except BlockingIOError:
            count = 0
        except OSError:
            self._drop(connection)
            return
        if count < sum(map(len, pieces)):
            connection.unsent = memoryview(_joined_from(pieces, count))  # joined, as in `_flush_one`
            connection.stuck_since = monotonic()
        connection.handler.sent(len(connection.unsent))

    def _look_after(self, connection: Connection) -> None:
        """Find out, after any event, whether the connection is over, which events it waits for, and until when."""
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
            self._ready.modify(connection.fd, events)
        if handler.next_deadline < connection.alarm or connection.stuck_since != inf:
            self._watch_deadline(connection)

    # Leaving

    def _leave(self, connection: Connection) -> None:
        """Finish with the handler at once, and with the socket as soon as the peer has stopped sending."""
        handler = connection.handler
        if connection.ended or not handler.lingers or not _half_close(connection.sock):
            self._drop(connection)
            return
        connection.handler = _Lingering(monotonic(), partial(self._drop, connection))
        connection.reading = True
        if connection.events != _IN:
            connection.events = _IN
            self._ready.modify(connection.fd, connection.events)
        self._watch_deadline(connection)
        handler.abort()

    # Time

    def _watch_deadline(self, connection: Connection) -> None:
        """Set an earlier alarm if the deadline needs one.

        A deadline that moves into the future costs nothing: the alarm stays, and looks at the deadline again when it
        rings.
        """
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
        """Drop the alarms of connections that have gone or have an earlier alarm.

        An alarm keeps its connection in memory until it would ring, which takes ten minutes at nsqlookupd; a thousand
        clients a second would leave 300 MB by then. At least half of the alarms are stale here, so each alarm pays for
        the removal of one other.
        """
        self._alarms = [it for it in self._alarms if it[2].alarm == it[0]]
        heapify(self._alarms)

    async def _keep_deadlines(self) -> None:
        while True:
            self._alarm_set.clear()
            self._sleeping_until = self._alarms[0][0] if self._alarms else inf
            # trio's clock has an offset of its own, so only a difference of times means the same to both.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._alarm_set.wait()
            with in_turn(self.turn) as now:
                self._ring(now)

    def _ring(self, now: float) -> None:
        """Ring the alarms that are due, for at most a slice. The others stay due.

        A handler may ask to be called again at once, so going on until none is due could take for ever.
        """
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
            # Data in the socket came in time, but nobody has read them yet if this process stood still. A peer that we
            # do not read from, because it does not read its answers, gains no time by having sent something.
            if connection.events & _IN:
                self._read(connection, _IN)
            if connection.is_ours and now >= connection.handler.next_deadline:
                connection.handler.tick(now)
        if connection.is_ours:
            self._watch_deadline(connection)


def read_size_after(size: int, *, too_long: bool) -> int:
    """Return the most to read from a connection in the next turn.

    While turns take too long, less is read from each connection, so that a round over all of them is short, whatever
    they send.
    """
    return max(_SMALLEST_READ, size // 2) if too_long else min(_READ_SIZE, size * 2)


def _joined_from(pieces: Sequence[Piece], count: int) -> bytes:
    """Return what follows the first `count` bytes of these pieces."""
    place = 0
    while count >= len(pieces[place]):
        count -= len(pieces[place])
        place += 1
    return b"".join((memoryview(pieces[place])[count:], *pieces[place + 1 :]))


class _Lingering:
    """A handler that reads what a peer is still sending and discards it.

    Closing a socket with unread data resets it: the peer's next `send` fails, and the peer never reads the error that
    would have explained why. So the peer gets the end of our stream after our last bytes, and may go on sending within
    limits.
    """

    def __init__(self, now: float, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._ends = now + _LONGEST_LINGER
        self._discarded = 0
        self.next_deadline = now + _CLOSE_TIMEOUT
        self.write_timeout = _CLOSE_TIMEOUT
        self.reading = True
        self.finished = False
        self.lingers = False
        self.aborted = False

    def receive(self, data: bytes, now: float) -> None:
        self._discarded += len(data)
        self.next_deadline = min(now + _CLOSE_TIMEOUT, self._ends)
        if self._discarded > _MOST_DISCARDED:
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
    """Return how long a peer may leave sent data unread."""
    return min(handler.write_timeout, _CLOSE_TIMEOUT) if handler.finished else handler.write_timeout
