"""Serves many sockets in one task, with an epoll of its own that trio waits for like any other descriptor.

On systems without epoll, `portable_readiness.py` is a slower replacement.

With a trio task per connection, every small command would cost two wake-ups, an epoll_ctl and a task switch. Here, a
wake-up costs one poll, and we serve every ready connection in one *turn* (docs/decisions/0001). The poller only moves
bytes. Each connection has a handler, plain synchronous code that interprets them.

A bug in a handler ends only its own connection: see `_contain`.
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
_MOST_UNSENT: Final = 1 << 20  # if a peer leaves more than this unread, we stop reading from it
_SLICE: Final = 0.002  # seconds of serving before other trio tasks may run
_SHORTEST_SLEEP: Final = 0.001  # seconds; epoll counts in milliseconds
_LONGEST_TURN: Final = 0.005  # seconds; ready connections that are left over wait for the next turn
_FEW: Final = 4  # connections we serve before we start checking whether the turn is full, because the check costs time
_CLOSE_TIMEOUT: Final = 5.0  # seconds a peer has to read our last bytes
_LONGEST_LINGER: Final = 30.0  # seconds a peer may keep sending after our last bytes
_MOST_DISCARDED: Final = 32 << 20  # bytes it may send in that time: several times the largest body
_MOST_STALE_ALARMS: Final = 1000  # in addition to one for each connection
_CROWD_PAUSE: Final = 0.005  # seconds between two checks of `is_crowded`
_ACCEPT_PAUSE: Final = 0.1  # seconds to wait when we're out of descriptors
_MOST_GATHERED: Final = 1024  # pieces in one `sendmsg` (IOV_MAX)
_NOTHING: Final = memoryview(b"")
_IN: Final = select.POLLIN  # faster than looking it up in the module for each event; epoll uses the same numbers
_OUT: Final = select.POLLOUT
_ERRORS: Final = select.POLLERR | select.POLLHUP


class Handler(Protocol):
    """Makes the decisions for one connection. The poller reads the properties after every event, so keep them cheap."""

    def receive(self, data: bytes, now: float) -> None: ...

    def end(self) -> None:
        """Handle EOF: the peer won't send anything more."""

    def bytes_to_send(self) -> Sequence[Piece]:
        """Return the pieces to send now, and forget them."""

    def sent(self, unsent: int) -> None:
        """Handle a write. The last `unsent` bytes are still waiting; the operating system has accepted the others."""

    def abort(self) -> None:
        """Handle the loss of the connection."""

    def tick(self, now: float) -> None:
        """Handle a deadline: `next_deadline` has passed."""

    @property
    def next_deadline(self) -> float:
        """When to call `tick`. It may be too early, but never too late."""

    @property
    def reading(self) -> bool:
        """Whether to read more data now. The handler must still accept data if some arrives."""

    @property
    def finished(self) -> bool:
        """Whether to close the connection once everything is sent."""

    @property
    def lingers(self) -> bool:
        """Whether to wait, once `finished`, until the peer stops sending. That way, it gets our last bytes."""

    @property
    def aborted(self) -> bool:
        """Whether to close the connection now, without sending the rest."""

    @property
    def write_timeout(self) -> float:
        """How long the peer may leave sent data unread, in seconds."""


def _do_nothing() -> None: ...


def never() -> bool:
    return False


class Connection:
    """A socket, its handler, and the data that we couldn't send yet."""

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
        self.is_ours = True  # False once it's closed
        self.unsent = _NOTHING  # the rest of a partial write
        self.queued: list[bytes] = []  # to send after `unsent`
        self.queued_bytes = 0
        self.stuck_since = inf  # when the socket last accepted some of the unsent data; inf if nothing is unsent
        self.events = _IN
        self.marked = False  # it's in the poller's list of connections that may have data to send
        self.reading = True  # False after EOF, and once the handler has finished
        self.ended = False  # the peer won't send anything more
        self.alarm = inf  # the time of its valid entry in the poller's heap of alarms

    def half_close(self) -> bool:
        """Tell the peer that we won't send anything more. Returns False if the peer is gone."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return False
        return True


MakeHandler = Callable[[Connection, Callable[[], None]], Handler]


class PolledTurn(Turn, Protocol):
    """A turn that serves many connections, so it may already have taken a while when it reads from the last one."""

    def take_time(self) -> float:
        """Read the clock again, and return the turn's new time."""

    def is_full(self) -> bool:
        """Return whether `finish` already has so much to do that the remaining connections should wait."""


T = TypeVar("T", bound=PolledTurn)


class Poller(Generic[T]):
    """Serves many sockets in turns. We pass `flush` to `make_turn`, because each turn has to end by calling it."""

    def __init__(self, make_turn: Callable[[Callable[[], None]], T], *, busy_poll: float = 0.0) -> None:
        self.turn = make_turn(self.flush)
        # Waking a sleeping process costs tens of microseconds, so we keep polling for a moment before we sleep. On a
        # single core that would only take time away from the peer.
        self._busy_poll = busy_poll if usable_cores() > 1 else 0.0
        self._ready = make_readiness()
        self._watched = -1  # a descriptor that isn't a connection, see `watch`
        self._on_ready: Callable[[], object] = never
        self._is_soon: Callable[[], bool] = never
        self._connections: dict[int, Connection] = {}
        self._read_size = _READ_SIZE
        self._has_read_much = False  # in this turn; only then would smaller reads have shortened it
        self._late: list[int] = []  # descriptors that the last turn had no time for
        self._served: list[int] = []  # descriptors that it served before time ran out, in order
        self._marked: list[Connection] = []  # connections that may have data to send
        self._alarms: list[tuple[float, int, Connection]] = []
        self._serial = 0  # breaks ties in the heap, because connections can't be compared
        self._alarm_set = Wakeup()
        self._turn_wanted = Wakeup()
        self._others_have_work = False
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
        """Accept connections from a listening, non-blocking socket until cancelled, except while `is_crowded()`.

        By default, we serve other tasks after each accepted connection, so that in a flood of handshakes, connected
        clients come before new ones. With `at_once`, for listeners without handshakes, we accept for a whole slice of
        time instead. Otherwise a client with five hundred others ahead of it in the queue would wait for five hundred
        turns, and if they are long, that takes seconds.
        """
        stop = monotonic() + _SLICE
        while True:
            await budget.wait_for_room()
            while is_crowded():  # noqa: ASYNC110 - crowds are rare, and an event would cost every handshake time
                await trio.sleep(_CROWD_PAUSE)
            try:
                sock, name = listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(listener)
                stop = monotonic() + _SLICE
            except OSError as error:  # we're out of descriptors, or the peer has already gone
                log.warning("accept failed: %s", error)
                await trio.sleep(_ACCEPT_PAUSE)
            else:
                budget.take()
                try:
                    if listener.family != socket.AF_UNIX:
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        keep_alive(sock)
                    self.add(sock, format_name(name), make_handler, on_closed=budget.give_back)
                    if self._marked:  # the new handshake may have replaced another one, whose connection we close now
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
        """Start serving a connected socket. `make_handler` receives the connection and a function that wakes it.

        Raises OSError if the system can't watch the socket. In that case the handler is aborted, and the caller has to
        close the socket and call `on_closed`.
        """
        sock.setblocking(False)
        connection = Connection(sock, peer, on_closed)

        def wake() -> None:
            if not connection.marked:
                connection.marked = True
                self._marked.append(connection)

        # Update the turn's time: the handler records when its client connected, and an idle broker's last turn may be
        # minutes old.
        self.turn.begin()
        connection.handler = make_handler(connection, wake)
        try:
            self._ready.register(connection.fd, connection.events)
        except OSError:  # the system's limit on watches is reached (fs.epoll.max_user_watches), or it's out of memory
            connection.is_ours = False
            connection.handler.abort()
            del connection.handler
            raise
        self._connections[connection.fd] = connection
        self._watch_deadline(connection)

    def watch(self, descriptor: int, on_ready: Callable[[], object], *, is_soon: Callable[[], bool]) -> None:
        """Call `on_ready` in a turn whenever a thread has written to this descriptor. You can watch only one.

        `is_soon` returns whether clients are waiting for that call and it's due within a millisecond. If so, the poller
        waits in its own poll for that long instead of running other tasks first.

        This is only a shortcut. The poller may miss a write after a turn that took too long, and without epoll it never
        sees one. So you need a task that waits for the descriptor too. That task also has to read from it, because the
        poller doesn't.
        """
        if self._ready.watch_wakes(descriptor):
            self._watched, self._on_ready, self._is_soon = descriptor, on_ready, is_soon

    def close_all(self, *, but: Callable[[Handler], bool] | None = None) -> None:
        """Close all connections now, except where `but` returns True for the handler."""
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
            except Exception:  # we may be here because the handler's state is broken, so this can fail too
                log.exception("client(%s) - internal error while it was dropped", connection.peer)
            # An alarm can keep the connection in memory for minutes. Don't let it keep the handler's data as well.
            del connection.handler

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.fd, None)
        connection.is_ours = False
        connection.alarm = inf
        with suppress(OSError):
            self._ready.unregister(connection.fd)

    def take_turn_soon(self) -> None:
        """Take a turn without waiting for an event. Call it after `wake()` if you aren't in a turn."""
        self._turn_wanted.set()

    def let_others_run(self) -> None:
        """Let other tasks run before we poll for more events. Call it in a turn that has given them work."""
        self._others_have_work = True

    # The task

    async def run(self) -> None:
        """Serve all connections until cancelled. Call `close_all` afterwards."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_deadlines)
            nursery.start_soon(self._take_wanted_turns)
            nursery.start_soon(self._ready.run, self._serve_for_a_while)

    def _serve_for_a_while(self) -> None:
        poll = self._ready.poll
        stop = monotonic() + _SLICE
        while events := poll(0):
            self._serve(events)
            now = monotonic()
            if now >= stop or self._others_have_work:
                self._others_have_work = False
                return
            if self._is_soon():
                events = poll(_SHORTEST_SLEEP)
            elif self._busy_poll:
                patience = now + self._busy_poll
                while not (events := poll(0)) and monotonic() < patience:
                    yield_core()  # the peer that we're waiting for may need our core
            else:
                continue
            if not events:
                return
            self._serve(events)

    def _serve(self, events: list[tuple[int, int]]) -> None:
        # We don't use `in_turn` here, because it would add a few percent to a publish on a quiet node.
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
        """Order the events: connections that the last turn didn't reach come first, the ones that it served come last.

        For example, the last turn served 1 to 4 of 1 to 9, and now 2, 5, 6 and 10 are ready. The order is 5, 6, 10, 2.

        We remember only the order, because epoll reports the ready descriptors each time. So nothing accumulates here
        under constant load, and it does no harm if a descriptor now belongs to another connection.
        """
        ready = dict(events)
        first = [(fd, ready.pop(fd)) for fd in self._late if fd in ready]
        last = [(fd, ready.pop(fd)) for fd in self._served if fd in ready]
        self._late = []
        return [*first, *ready.items(), *last]

    def _read(self, connection: Connection, event: int) -> float:
        """Read from the connection and return the time, because reading the clock again would cost a few percent."""
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
        # Take the time after the read, for each connection: a deferral counts from the moment its request arrived. If
        # it counted from the beginning of a long turn, it would end too early.
        now = self.turn.take_time()
        if len(data) >= _SMALLEST_READ:
            self._has_read_much = True
        if data:
            connection.handler.receive(data, now)
        else:
            connection.ended = True
            connection.reading = False
            # Do this before `end`, because the handler may add a last answer there, which `flush` still has to send.
            self._look_after(connection)
            if connection.is_ours:
                connection.handler.end()
        return now

    def _contain(self, connection: Connection) -> None:
        """Drop only this connection after an exception in its handler, which is a bug of ours."""
        log.exception("client(%s) - internal error, connection dropped", connection.peer)
        self._drop(connection)

    # Sending

    def flush(self) -> None:
        """Send the pending data of all marked connections. This is the last step of a turn."""
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
        """Send the pending data of one connection, and update its events and alarm if they may have changed."""
        handler = connection.handler
        if handler.aborted:
            self._drop(connection)
            return
        if pieces := handler.bytes_to_send():
            if connection.unsent:  # the socket is full
                # Join the pieces: a view would keep a whole batch in memory until the peer reads.
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
                # The usual case, in which `_look_after` has nothing to do. Checking here is quicker than the call.
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
        """Send as much of `data` as the socket accepts. `data` has to begin with the connection's unsent data."""
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
        """Send as much as the socket accepts, without joining the pieces first. `connection.unsent` must be empty."""
        try:
            count = connection.sock.sendmsg(pieces[:_MOST_GATHERED])
        except BlockingIOError:
            count = 0
        except OSError:
            self._drop(connection)
            return
        if count < sum(map(len, pieces)):
            connection.unsent = memoryview(_joined_from(pieces, count))  # joined for the reason given in `_flush_one`
            connection.stuck_since = monotonic()
        connection.handler.sent(len(connection.unsent))

    def _look_after(self, connection: Connection) -> None:
        """Close the connection if it's over, otherwise update its events and its alarm. Call this after any event."""
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
        """Abort the handler now, and close the socket once the peer has stopped sending."""
        handler = connection.handler
        if connection.ended or not handler.lingers or not connection.half_close():
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

        It costs nothing to move a deadline further into the future: we keep the alarm, and check the deadline again
        when it rings.
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
        """Drop the alarms of connections that are gone or that have an earlier alarm.

        Until it rings, an alarm keeps its connection in memory. In nsqlookupd that's ten minutes, so with a thousand
        clients a second, stale alarms would add up to 300 MB. We do this only when at least half of the alarms are
        stale, so on average, each new alarm pays for removing one stale one.
        """
        self._alarms = [it for it in self._alarms if it[2].alarm == it[0]]
        heapify(self._alarms)

    async def _take_wanted_turns(self) -> None:
        while True:
            await self._turn_wanted.wait()
            with in_turn(self.turn):
                pass

    async def _keep_deadlines(self) -> None:
        while True:
            self._alarm_set.clear()
            self._sleeping_until = self._alarms[0][0] if self._alarms else inf
            # trio's clock starts at an arbitrary value, so we can pass differences between the clocks, but no times.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._alarm_set.wait()
            with in_turn(self.turn) as now:
                self._ring(now)

    def _ring(self, now: float) -> None:
        """Ring the alarms that are due, for at most a slice of time. The others stay due.

        A handler may set an alarm that is due immediately, so a loop until nothing is due might never end.
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
            log.info("client(%s) - has stopped reading, connection dropped", connection.peer)
            self._drop(connection)
            return
        if now >= connection.handler.next_deadline:
            # If our process was suspended, data that arrived in time may still be in the socket, so read it before
            # giving up on the peer. If we don't read the peer's data because it leaves ours unread, skip that.
            if connection.events & _IN:
                self._read(connection, _IN)
            if connection.is_ours and now >= connection.handler.next_deadline:
                connection.handler.tick(now)
        if connection.is_ours:
            self._watch_deadline(connection)


def read_size_after(size: int, *, too_long: bool) -> int:
    """Return the maximum number of bytes to read from each connection in the next turn.

    While turns take too long, we read less from each connection. That limits the time to serve all of them once,
    whatever they send.
    """
    return max(_SMALLEST_READ, size // 2) if too_long else min(_READ_SIZE, size * 2)


def _joined_from(pieces: Sequence[Piece], count: int) -> bytes:
    """Return the pieces joined, without their first `count` bytes."""
    place = 0
    while count >= len(pieces[place]):
        count -= len(pieces[place])
        place += 1
    return b"".join((memoryview(pieces[place])[count:], *pieces[place + 1 :]))


class _Lingering:
    """A handler that reads and discards the data that a peer is still sending.

    Closing a socket with unread data resets it. Then the peer's next `send` fails, and it never gets to read our last
    bytes, such as the error that explains why we close. So we shut down only our side after our last bytes, and let the
    peer keep sending for a while.
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


def _patience(handler: Handler) -> float:
    """Return how long the peer may leave sent data unread, in seconds: at most `_CLOSE_TIMEOUT` once we're closing."""
    return min(handler.write_timeout, _CLOSE_TIMEOUT) if handler.finished else handler.write_timeout
