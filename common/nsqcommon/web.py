"""uvicorn inside the trio loop: the bridge between ASGI on asyncio and our daemons on trio.

We use only uvicorn's HTTP protocol class, not its server. The server would open its own listeners, wake up ten times a
second (an idle daemon should use no CPU) and take over signals. We pass it connections: `serve` accepts them, or other
code reads the first bytes of a connection, finds that the application must serve it, and calls `Web.adopt`. If the
poller has to keep the socket, because of TLS, it serves it with a `Web.handler`.

    open_web(app)  ──►  Web.adopt(sock, received)  ──►  asyncio transport ──┐
                   ──►  Web.handler(peer, wake)    ──►  PolledTransport   ──┴─► uvicorn's parser ──► app(scope, ...)
                                                                                   run_trio(fn)  ◄──┘

Handlers run as asyncio tasks on the loop that trio-asyncio runs inside trio. They may call the cores directly, and
await trio functions with `run_trio`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, cast

import httptools
import trio
import trio_asyncio
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from nsqcommon.http_api import (
    ABORT,
    COMMON_NAME,
    CUT_SHORT,
    ENDS_WITH_PEER,
    PEER_ENDED,
    PHRASES,
    REFUSE,
    HttpDate,
    canonical,
)
from nsqcommon.http_heads import BAD_REQUEST, HEADERS_TOO_LARGE, MOST_HEAD_BYTES, refusal_of
from nsqcommon.polled_transport import ProtocolHandler
from nsqcommon.turn import in_turn

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from nsqcommon.budget import Budget
    from nsqcommon.http_api import Message, Receive, Request, Scope, Send
    from nsqcommon.turn import Turn

App = Callable[["Scope", "Receive", "Send"], Awaitable[None]]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger(__name__)

GRACE: Final = 5.0  # seconds that a shutdown waits for responses in progress
# Seconds for which we still read from a connection that must close, so that the client sees the response instead of a
# reset. Go's server uses the same value.
LINGER: Final = 0.5
STALL: Final = 60.0  # seconds that a stream waits for a peer that reads nothing
_AROUND_HEADER: Final = len(b": \r\n")
_OUT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_READ_SIZE: Final = 1 << 16
_PAUSE_WITHOUT_DESCRIPTORS: Final = 0.1

# uvicorn's status lines have Python's phrases, in one table for the whole process.
STATUS_LINE.update({status: b"HTTP/1.1 %d %s\r\n" % (status, words) for status, words in PHRASES.items()})


def _do_nothing() -> None: ...


async def run_trio(function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
    """Await a trio function from an ASGI handler. Cancelling the handler cancels the function."""
    future = trio_asyncio.trio_as_aio(function)(*arguments)
    try:
        return cast(T, await future)
    finally:
        # trio-asyncio has set a `cancel` on the future that refers to the future. This reference cycle would also keep
        # the result alive, for each call. We can delete it, because no one can cancel a future that is done.
        with suppress(AttributeError):
            del future.cancel


async def linger(discard_rest: Callable[[], Awaitable[None]]) -> None:
    """Give `HttpApi` time to discard the rest of a refused body, as much as Go's server would take."""
    try:
        await asyncio.wait_for(discard_rest(), LINGER)
    except TimeoutError:
        pass


@asynccontextmanager
async def attend(request: Request, sent: Callable[[], int]) -> AsyncIterator[None]:
    """Watch the peer while `HttpApi` streams: notice when it leaves, and drop it if it reads nothing for too long."""
    tasks = (
        asyncio.ensure_future(request.wait_until_lost()),
        asyncio.ensure_future(_drop_when_stalled(request, sent)),
    )
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def _drop_when_stalled(request: Request, sent: Callable[[], int]) -> None:
    before = -1
    while (now := sent()) != before:
        before = now
        await asyncio.sleep(STALL)
    request.abort()


@asynccontextmanager
async def open_web(app: App, *, turn: Turn | None = None, grace: float | None = None) -> AsyncIterator[Web]:
    """Yield a `Web` that serves until the block ends. Then let responses in progress finish, and close all connections.

    Closing takes at most `grace` seconds, even if you cancel the block. Pass the poller's `turn` to use `Web.handler`.
    The poller has to run until the block has ended.
    """
    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(_log_bug)
        web = Web(app, loop, turn)
        try:
            yield web
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + (GRACE if grace is None else grace)):
                await web.close()
            web.abort()


async def serve(
    app: App,
    listeners: Sequence[socket.socket],
    *,
    budget: Budget,
    grace: float | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve listening, non-blocking sockets until cancelled. The caller has to close the listeners afterwards."""
    async with open_web(app, grace=grace) as web, trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept, listener, web, budget)
        task_status.started()


class Web:
    """The connections of one application."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop, turn: Turn | None = None) -> None:
        self._loop = loop
        self._turn = turn
        self._takes_turn_soon = False
        self._date = HttpDate()
        self._config = Config(
            _spelled_as_go(app, self._date),
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        self._config.load()
        self._state = ServerState()
        self._opening: set[asyncio.Task[None]] = set()
        self._all_closed = trio.Event()
        self._closing = False
        # Tasks outside the asyncio loop call `adopt`, and `run_trio` finds the loop through this context.
        self._context = copy_context()

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    def adopt(
        self, sock: socket.socket, received: bytes = b"", *, on_closed: Callable[[], None] = _do_nothing
    ) -> None:
        """Take over a connected, non-blocking socket, together with the bytes already `received` from it.

        We call `on_closed` when the connection has gone.
        """
        if self._closing:
            sock.close()
            on_closed()
            return

        def lost() -> None:
            on_closed()
            self._connection_lost()

        def connection() -> _Connection:
            return _SocketConnection(self._config, self._state, self._loop, self._date, lost, received)

        async def open_connection() -> None:
            try:
                await self._loop.connect_accepted_socket(connection, sock)
            except OSError:  # the connection ended in the meantime
                sock.close()
                on_closed()

        task = self._loop.create_task(open_connection(), context=self._context)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def handler(self, peer: str, wake: Callable[[], None], *, common_name: str = "") -> ProtocolHandler:
        """Return a handler for a TLS connection of the poller. Pass the name in the peer's certificate."""
        host, _, port = peer.rpartition(":")
        connection = _Connection(self._config, self._state, self._loop, self._date, self._connection_lost)
        handler = ProtocolHandler(
            connection,
            context=self._context,
            wake=wake,
            take_turn_soon=self._take_turn_soon,
            peername=(host.strip("[]"), int(port)) if host else None,  # a unix socket has no address
            sslcontext=True,  # uvicorn only asks whether there is one
            common_name=common_name,
        )
        if self._closing:
            connection.shutdown()
        return handler

    def _take_turn_soon(self) -> None:
        if not self._takes_turn_soon:
            self._takes_turn_soon = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Have the poller send what the connections have written."""
        self._takes_turn_soon = False
        if self._turn is not None:
            with in_turn(self._turn):
                pass

    async def close(self) -> None:
        """Close every connection after its current response, and wait for that. Call it from trio."""
        self._closing = True
        await trio_asyncio.aio_as_trio(self._wait_until_opened)()
        connections = cast("set[_Connection]", self._state.connections)
        for connection in tuple(connections):
            connection.shutdown()
        if connections:
            await self._all_closed.wait()

    def abort(self) -> None:
        """Abort all remaining connections."""
        for connection in tuple(self._state.connections):
            cast(_Connection, connection).transport.abort()
        self._take_turn()  # later, the loop would have gone

    async def _wait_until_opened(self) -> None:
        while self._opening:
            await asyncio.wait(tuple(self._opening))

    def _connection_lost(self) -> None:
        if self._closing and not self._state.connections:
            self._all_closed.set()


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, but without an idle timeout, and with Go's responses to unusual requests."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
        date: HttpDate,
        lost: Callable[[], None],
    ) -> None:
        super().__init__(config, state, {}, loop)
        self._date = date
        self._common_name = ""
        self._lost = lost
        self._unfinished = 0  # bytes read of a head that is still incomplete
        self._head_bytes = 0
        self._ended = False  # the peer will send nothing more
        self._gone: asyncio.Future[None] | None = None  # after a refused head; done when the connection has gone

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._common_name = transport.get_extra_info("common_name", "")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self.cycle is not None:
            self.cycle.body = bytearray()  # free it now: uvicorn's cycle is part of a reference cycle
        self._lost()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's says None, asyncio takes either
        """Return whether to stay connected. As in Go, a peer that has finished sending still gets its responses."""
        if self.transport.get_extra_info("sslcontext") is not None or self._gone is not None:
            return False  # TLS has no half-closed connections
        newest = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle | None", self.cycle)
        if newest is None or newest.response_complete or ENDS_WITH_PEER in newest.scope:
            return False
        if newest.more_body:
            cast("Scope", newest.scope)[CUT_SHORT] = True
            newest.message_event.set()
        cast("Scope", newest.scope)[PEER_ENDED] = True
        self._ended = True
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._gone is not None:
            return
        self._unfinished += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # We support no upgrades. As in Go, respond as if the request had not asked for one.
            self.parser = httptools.HttpRequestParser(self)
            rest = data[upgrade.args[0] :]
            if rest:
                self.data_received(rest)
        except httptools.HttpParserError:
            self.send_400_response("")
        else:
            if self._unfinished > MOST_HEAD_BYTES:
                self._refuse(HEADERS_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unfinished = 0
        self._head_bytes = 0
        self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        if self._common_name:
            cast("Scope", self.scope)[COMMON_NAME] = self._common_name

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + _AROUND_HEADER

    def on_headers_complete(self) -> None:
        self._unfinished = 0
        version = self.parser.get_http_version()
        refusal = refusal_of(version, self.headers, self._head_bytes, date=self._date())
        if refusal is not None:
            cast("Scope", self.scope)[REFUSE] = partial(self._refuse_in_turn, refusal)
            self.url = b"/"  # the real URL may be too long for uvicorn
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._unfinished = 0

    def send_400_response(self, msg: str) -> None:
        self._refuse(BAD_REQUEST)

    def on_response_complete(self) -> None:
        """Do what uvicorn does, but without a timer: NSQ keeps idle connections, and cancelled timers would add up."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._ended:
            self.transport.close()

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    async def _refuse_in_turn(self, answer: bytes) -> None:
        """Refuse a request whose turn it is, and return once the connection has ended.

        We go on discarding data for a while. If we closed a socket with unread data, the kernel would send a reset, and
        the peer would never see the response.
        """
        if self.transport.is_closing():
            return
        self._gone = self.loop.create_future()
        self.flow.resume_reading()
        self.transport.write(answer)
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer has gone
                self.transport.write_eof()
            self.loop.call_later(LINGER, self.transport.close)
        else:
            self.transport.close()
        await self._gone


class _SocketConnection(_Connection):
    """A connection over a transport of asyncio's own."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
        date: HttpDate,
        lost: Callable[[], None],
        received: bytes,
    ) -> None:
        super().__init__(config, state, loop, date, lost)
        self._received = received

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        # asyncio would read 256 KiB from each ready connection before it handles any request: 128 MB with five hundred
        # connections.
        transport.max_size = _READ_SIZE  # type: ignore[attr-defined]
        # Feed these before the transport reads by itself, so that later data can't overtake them.
        received, self._received = self._received, b""
        if received:
            self.data_received(received)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # asyncio's transport has a reference to one of its own methods. Without this line, each connection would wait
        # for the garbage collector.
        self.transport._read_ready_cb = None  # type: ignore[attr-defined]  # noqa: SLF001


class _CasedName(bytes):
    """A header name that keeps its spelling. uvicorn calls `lower` to compare a name, and then sends the result."""

    def lower(self) -> _CasedName:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes) and bytes.lower(self) == other.lower()

    def __hash__(self) -> int:
        return hash(bytes.lower(self))


def _spelled_as_go(app: App, date: HttpDate) -> App:
    """Wrap the application: spell headers as Go does, add the date, and refuse requests with a bad head."""

    async def spelled(scope: Scope, receive: Receive, send: Send) -> None:
        if (refuse := scope.get(REFUSE)) is not None:
            await refuse()
            return

        async def send_spelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[tuple[bytes, bytes]] = list(message["headers"])
                names = [name for name, _ in headers]
                if b"date" not in names:
                    at = names.index(b"content-length") if b"content-length" in names else len(names)
                    headers.insert(at, (b"date", date()))
                if b"connection" not in names and _wants_close(scope):
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": [(_CasedName(canonical(name)), value) for name, value in headers]}
            await send(message)

        await app(scope, receive, send_spelled)

    return spelled


def _wants_close(scope: Scope) -> bool:
    tokens = [token for name, value in scope["headers"] if name == b"connection" for token in value.split(b",")]
    return any(token.strip().lower() == b"close" for token in tokens)


async def _accept(listener: socket.socket, web: Web, budget: Budget) -> None:
    while True:
        await budget.wait_for_room()
        await trio.lowlevel.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                _log.error("accept failed - %s", error)
                await trio.sleep(_PAUSE_WITHOUT_DESCRIPTORS)  # clients wait in the backlog
            continue  # any other error: the client left before we accepted it
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            # asyncio does this only for listeners that name IPPROTO_TCP explicitly. Without it, a response's body waits
            # 40 ms for the client's delayed ACK of the head.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        budget.take()
        web.adopt(sock, on_closed=budget.give_back)


def _log_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a bug in one connection. trio-asyncio's default handler would end the whole daemon."""
    error = context.get("exception")
    _log.error("HTTP connection failed - %s", context.get("message"), exc_info=error)
