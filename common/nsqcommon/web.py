"""uvicorn inside the trio loop: the bridge between ASGI on asyncio and our daemons on trio.

We use only uvicorn's HTTP protocol class, not its server. The server would open its own listeners, wake up ten times a
second (an idle daemon should use no CPU) and take over signals. The poller accepts and reads the connections, because
it costs less than asyncio's transports, for which trio-asyncio has a task each. `Web.handler` serves a connection from
its beginning, or from the first request that other code leaves to the application.

    poller ──►  Web.handler(connection, wake)  ──►  PolledTransport ──► uvicorn's parser ──► app(scope, ...)
                                                                           run_trio(fn)  ◄──┘

Handlers run as asyncio tasks on the loop that trio-asyncio runs inside trio. They may call the cores directly, and
await trio functions with `run_trio`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Sized
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, cast

import httptools
import trio
import trio_asyncio
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
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
from nsqcommon.http_heads import BAD_REQUEST, HEADERS_TOO_LARGE, MOST_HEAD_BYTES, keeps_open, refusal_of
from nsqcommon.polled_transport import ProtocolHandler
from nsqcommon.poller import Poller
from nsqcommon.secure import SecureHandler
from nsqcommon.turn import in_turn

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from nsqcommon.budget import Budget
    from nsqcommon.handshake import TlsServer
    from nsqcommon.http_api import Message, Receive, Request, Scope, Send
    from nsqcommon.poller import Connection as PollerConnection

App = Callable[["Scope", "Receive", "Send"], Awaitable[None]]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger(__name__)

GRACE: Final = 5.0  # seconds that a shutdown waits for responses in progress
# Seconds for which we still read from a connection that must close, so that the client sees the response instead of a
# reset. Go's server uses the same value.
LINGER: Final = 0.5
STALL: Final = 60.0  # seconds that a stream waits for a peer that reads nothing
_MOST_WAITING: Final = 100  # requests of one connection that wait for earlier ones; above that, we don't read more
_AROUND_HEADER: Final = len(b": \r\n")

# uvicorn's status lines have Python's phrases, in one table for the whole process.
STATUS_LINE.update({status: b"HTTP/1.1 %d %s\r\n" % (status, words) for status, words in PHRASES.items()})


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
async def open_web(app: App, *, poller: Poller[Any] | None = None, grace: float | None = None) -> AsyncIterator[Web]:
    """Yield a `Web` that serves until the block ends. Then let responses in progress finish, and close all connections.

    Closing takes at most `grace` seconds, even if you cancel the block. A `poller` has to run until the block has
    ended. Without one, the `Web` runs its own.
    """
    if poller is None:
        async with _running_poller() as own, open_web(app, poller=own, grace=grace) as web:
            yield web
        return
    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(_log_bug)
        web = Web(app, loop, poller)
        try:
            yield web
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + (GRACE if grace is None else grace)):
                await web.close()
            web.abort()


@asynccontextmanager
async def _running_poller() -> AsyncIterator[Poller[_Turn]]:
    """Yield a poller that runs until the block has ended, even if you cancel the block."""
    poller = Poller(_Turn)
    scope = trio.CancelScope(shield=True)

    async def run() -> None:
        with scope:
            await poller.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield poller
        finally:
            scope.cancel()
            poller.close_all()


class _Turn:
    """Implements `nsqcommon.poller.PolledTurn` where there is no core that decides anything."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self.finish = flush

    def begin(self) -> float:
        return monotonic()

    take_time = begin

    def is_full(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Https:
    """A listener for HTTPS. Its budget is its own, so that a crowd there leaves room for plain HTTP."""

    listener: socket.socket
    tls: TlsServer
    budget: Budget


async def serve(
    app: App,
    listeners: Sequence[socket.socket],
    *,
    budget: Budget,
    https: Https | None = None,
    grace: float | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve listening, non-blocking sockets until cancelled. The caller has to close the listeners afterwards."""
    async with open_web(app, grace=grace) as web, trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(web.accept, listener, budget)
        if https is not None:
            nursery.start_soon(web.accept, https.listener, https.budget, https.tls)
        task_status.started()


class Web:
    """The connections of one application."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop, poller: Poller[Any]) -> None:
        self._loop = loop
        self.poller = poller
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
        self._all_closed = trio.Event()
        self._closing = False
        # The poller reads outside the asyncio loop, and `run_trio` finds the loop through this context.
        self._context = copy_context()

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    def handler(
        self, connection: PollerConnection, wake: Callable[[], None], *, secure: SecureHandler | None = None
    ) -> ProtocolHandler:
        """Return a handler for a connection of the poller, which is `secure` if it uses TLS."""
        protocol = _Connection(self._config, self._state, self._loop, self._date, self._connection_lost)
        handler = ProtocolHandler(
            protocol,
            context=self._context,
            wake=wake,
            poller=self.poller,
            half_close=connection.half_close if secure is None else None,
            peername=_address_of(connection),
            sslcontext=secure,  # uvicorn only asks whether there is one
            common_name=secure.common_name() if secure is not None else "",
        )
        if self._closing:
            protocol.shutdown()
        return handler

    async def accept(self, listener: socket.socket, budget: Budget, tls: TlsServer | None = None) -> None:
        """Serve the connections of a listener until cancelled, with TLS if `tls` is given."""
        if tls is None:
            # There are no handshakes to finish first, so accept all waiting connections in one go.
            await self.poller.accept(listener, self.handler, budget, at_once=True)
        else:
            make = partial(self._secure_handler, tls)
            await self.poller.accept(listener, make, budget, is_crowded=tls.queue_is_long)

    def _secure_handler(self, tls: TlsServer, connection: PollerConnection, wake: Callable[[], None]) -> SecureHandler:
        note = partial(_log.info, "[%s] HTTPS - %s", connection.peer)
        secure = SecureHandler(tls, now=monotonic(), wake=wake, note=note)
        secure.inner = self.handler(connection, wake, secure=secure)
        return secure

    def take_over(
        self,
        connection: PollerConnection,
        wake: Callable[[], None],
        received: bytes,
        *,
        secure: SecureHandler | None = None,
    ) -> None:
        """Serve a connection instead of its handler, or the one within `secure`, starting with the `received` bytes."""
        handler = self.handler(connection, wake, secure=secure)
        if secure is None:
            connection.handler = handler
        else:
            secure.inner = handler
        has_ended = connection.ended or (secure is not None and secure.has_ended)  # before there was this handler
        handler.receive(received, monotonic())
        if has_ended:
            handler.end()

    async def close(self) -> None:
        """Close every connection after its current response, and wait for that. Call it from trio."""
        self._closing = True
        connections = cast("set[_Connection]", self._state.connections)
        for connection in tuple(connections):
            connection.shutdown()
        self._take_turn()  # a crash may have ended the poller's task, and the idle connections don't need it
        if connections:
            await self._all_closed.wait()

    def abort(self) -> None:
        """Abort all remaining connections."""
        for connection in tuple(self._state.connections):
            cast(_Connection, connection).transport.abort()
        self._take_turn()  # later, the loop would have gone

    def _take_turn(self) -> None:
        with in_turn(self.poller.turn):
            pass

    def _connection_lost(self) -> None:
        if self._closing and not self._state.connections:
            self._all_closed.set()


def _address_of(connection: PollerConnection) -> tuple[str, int] | None:
    """Return the peer's host and port, or None for a unix socket. Its peer may have a name, even one like `a:b`."""
    if connection.sock.family == socket.AF_UNIX:
        return None
    host, _, port = connection.peer.rpartition(":")
    return host.strip("[]"), int(port)


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
        self._running: RequestResponseCycle | None = None  # `cycle` is the newest, which may have to wait for this one
        self._gone: asyncio.Future[None] | None = None  # after a refused head; done when the connection has gone

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._common_name = transport.get_extra_info("common_name", "")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # tells only the newest request
        running, self._running = self._running, None
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self.cycle is not None:
            self.cycle.body = bytearray()  # free it now: uvicorn's cycle is part of a reference cycle
        self._lost()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's says None, asyncio takes either
        """Return whether to stay connected. As in Go, a peer that has finished sending still gets its responses."""
        if self.transport.get_extra_info("sslcontext") is not None or self._gone is not None:
            return False  # TLS has no half-closed connections
        running = self._running
        if running is None or running.response_complete or ENDS_WITH_PEER in running.scope:
            return False
        for cycle in (running, *(waiting for waiting, _ in self.pipeline)):
            cast("Scope", cycle.scope)[PEER_ENDED] = True
        if self.cycle.more_body:
            cast("Scope", self.cycle.scope)[CUT_SHORT] = True
            self.cycle.message_event.set()
        self._ended = True
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._gone is not None:
            return
        self._unfinished += len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        else:
            if self._unfinished > MOST_HEAD_BYTES:
                self._refuse(HEADERS_TOO_LARGE)

    def _parse(self, data: bytes) -> bytes:
        """Parse the data up to the end of a request that asks for an upgrade. Return the bytes after that request."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # We support no upgrades. As in Go, respond as if the request had not asked for one.
            self.parser = httptools.HttpRequestParser(self)
            return data[upgrade.args[0] :]
        return b""

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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

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
        self.pipeline.clear()
        self.flow.resume_reading()
        self.transport.write(answer)
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer has gone
                self.transport.write_eof()
            self.loop.call_later(LINGER, self.transport.close)
        else:
            self.transport.close()
        await self._gone


class _Flow(FlowControl):
    """Doesn't read while many requests wait for earlier ones. uvicorn's would read on after each response."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if len(self._waiting) < _MOST_WAITING:
            super().resume_reading()


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
                if b"connection" not in names and not keeps_open("1.1", scope["headers"]):
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": [(_CasedName(canonical(name)), value) for name, value in headers]}
            await send(message)

        await app(scope, receive, send_spelled)

    return spelled


def _log_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a bug in one connection. trio-asyncio's default handler would end the whole daemon."""
    error = context.get("exception")
    _log.error("HTTP connection failed - %s", context.get("message"), exc_info=error)
