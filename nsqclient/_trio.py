"""The library on trio: waiting, and moving bytes to and from an nsqd. `nsqclient` exports its functions.

a client's tasks    in a nursery of their own, shielded until the block of `open_consumer` or `open_producer` has ended
an nsqd             two tasks of these, which read and write one socket without trio's own socket layer
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import trio

from nsqclient.core.config import Config
from nsqclient.core.errors import ConnectError, Disconnected, NSQError
from nsqclient.core.threads import for_thread
from nsqclient.shell.consumer import Consumer, DeadLetter, Handler, opened_consumer
from nsqclient.shell.groups import unwrapped
from nsqclient.shell.log import LOGGER
from nsqclient.shell.producer import Producer, Retry, opened_producer
from nsqclient.shell.runtime import RequestFailed, T, Work
from nsqclient.shell.targets import Dialable, Target, local_host, peer_of
from nsqcommon import http_client
from nsqcommon.http_client import HttpClient, HttpFailed
from nsqcommon.net import AddressError, parse_address
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqclient.core.connection import NsqdConnection
    from nsqclient.core.delivery import Delivery
    from nsqclient.core.hostpool import Strategy
    from nsqclient.core.publication import Outcome
    from nsqcommon.wire.http_exchange import Answer, Headers

_READ_SIZE: Final = 120 * 1024  # the allocator would map and unmap a larger buffer for each read
_DEADLINES: Final = 16  # a deadline is moved at most this often within its own length
_GOODBYE: Final = 0.5  # seconds for the peer to close its side


def open_consumer(
    topic: str | Sequence[str],
    channel: str,
    *,
    weights: Sequence[float] | None = None,
    nsqd: Sequence[Target] | Target = (),
    lookupd: Sequence[str] | str = (),
    config: Config = Config(),
    resolve: Callable[[str], str] | None = None,
    discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None = None,
    dead_letter: DeadLetter | None = None,
    startup: Literal["background", "require"] = "background",
    drop_unlisted_after: float | None = None,
    logger: logging.Logger = LOGGER,
) -> AbstractAsyncContextManager[Consumer]:
    """Open a consumer on trio. It stops at the end of the block.

    `topic` may be several topics. They share `max_in_flight` by `weights`, equal ones by default: each topic that has
    messages gets its part, and what it doesn't use goes to the others.

    At the end, you have `drain_timeout` to answer messages in flight. If the block raises or is cancelled, unanswered
    messages are requeued at once.

    `resolve` returns the address to dial for an nsqd, and `discovery_filter` the listed addresses to use. `dead_letter`
    is a topic or a function for messages that have used up `max_attempts`; with None nsqd buries them, or if it can't,
    they are logged and finished. `startup="require"` raises ConnectError if one of `nsqd` cannot be reached or no
    nsqlookupd answers; otherwise the consumer keeps trying in the background. An nsqd that is no longer listed stays, or
    with `drop_unlisted_after` is dropped after this many seconds.

    Raises ConfigError. If no nsqd will ever accept the consumer (an invalid name, no authorization), cancels the block
    and raises ProtocolError or AuthError.
    """
    return opened_consumer(
        OnTrio,
        topic,
        channel,
        weights=weights,
        nsqd=nsqd,
        lookupd=lookupd,
        config=config,
        resolve=resolve,
        discovery_filter=discovery_filter,
        dead_letter=dead_letter,
        startup=startup,
        drop_unlisted_after=drop_unlisted_after,
        logger=logger,
    )


async def serve_consumer(
    topic: str | Sequence[str],
    channel: str,
    handler: Handler,
    options: dict[str, Any],
    *,
    concurrency: int = 1,
    task_status: trio.TaskStatus[Consumer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `open_consumer(topic, channel, **options)` and its `run` as a task of trio.

    Start it with `await nursery.start(serve_consumer, ...)`, which returns the consumer.
    """
    async with open_consumer(topic, channel, **options) as consumer:
        task_status.started(consumer)
        await consumer.run(handler, concurrency=concurrency)


def open_producer(
    addresses: Sequence[Target] | Target = (),
    *,
    lookupd: Sequence[str] | str = (),
    strategy: Strategy = "hostpool",
    config: Config = Config(),
    retry: Retry = "safe",
    retry_timeout: float = 60.0,
    max_pending: int = 1000,
    connect: Literal["lazy", "require"] = "lazy",
    logger: logging.Logger = LOGGER,
    nsqlookupd: Sequence[str] | str | None = None,
) -> AbstractAsyncContextManager[Producer]:
    """Open a producer on trio. It stops at the end of the block, and waits up to `drain_timeout` for nsqd's answers.

    With `lookupd` (`host:port` or URLs) the producer also publishes to all nsqds listed there; they may come and go. An
    nsqlookupd that fails or lists no nsqd removes none. An nsqd that is draining, full or unhealthy gets nothing new if
    there are better ones.

    `strategy` chooses among several nsqds: "hostpool" takes each in turn, leaving out those that fail; "round_robin"
    takes each in turn; "epsilon_greedy" mostly the quickest; "first" the first that works; "fewest_in_flight" the one
    with the fewest unanswered publishes; "near" one in the zone or region of `config`; "by_key" always the same one for
    the same key, so that a repeat goes there, or the next one if that fails; "by_group" the same for a group (without
    one, for a key), and "by_topic" for a topic; "all" and `quorum(n)` send to all.

    `retry` says what we retry for you. "safe": everything, without publishing anything twice. A message that was
    certainly not published, because there was no connection or it broke before nsqd had received the whole message, may
    go to any nsqd, up to three times to each. A message that may have been published is repeated at the same nsqd, with
    a key by which it recognizes the repeat, until it answers or `retry_timeout` seconds are over; then OutcomeUnknown
    has the key. NSQ's own nsqd knows no keys, so there the caller gets PublishUnknown. "anywhere": like "safe", but if
    the outcome remains unknown, any nsqd is tried, which can publish twice. "unsent": only messages that were certainly
    not published. "never": nothing; you get each failure. A message that an nsqd couldn't store goes to the other
    nsqds; an invalid one fails at once.

    Each connection has at most `max_pending` unanswered publishes, or 8 MiB; further publishes wait.
    `connect="require"` raises ConnectError if no nsqd can be reached.

    `nsqlookupd` is the former name of `lookupd`, deprecated.
    """
    return opened_producer(
        OnTrio,
        addresses,
        lookupd=lookupd,
        strategy=strategy,
        config=config,
        retry=retry,
        retry_timeout=retry_timeout,
        max_pending=max_pending,
        connect=connect,
        logger=logger,
        nsqlookupd=nsqlookupd,
    )


class OnTrio:
    """Implements `Runtime`."""

    clock = staticmethod(trio.current_time)
    checkpoint = staticmethod(trio.lowlevel.checkpoint)
    sleep = staticmethod(trio.sleep)
    parking_lot = trio.lowlevel.ParkingLot

    def scope(self, deadline: float = inf, *, is_shielded: bool = False) -> TrioScope:
        return TrioScope(deadline, is_shielded)

    async def fail_after(self, seconds: float, work: Work[T]) -> T:
        with trio.fail_after(seconds):
            return await work()

    async def together(self, works: Sequence[Work[T]]) -> list[T]:
        results: dict[int, T] = {}

        async def do(number: int, work: Work[T]) -> None:
            results[number] = await work()

        with unwrapped(trio.Cancelled, alike=True):
            async with trio.open_nursery() as nursery:
                for number, work in enumerate(works):
                    nursery.start_soon(do, number, work)
        return [results[number] for number in range(len(works))]

    @asynccontextmanager
    async def tasks(self, failed: Callable[[BaseException], None] | None = None) -> AsyncIterator[TrioTasks]:
        with unwrapped(trio.Cancelled):
            async with trio.open_nursery() as nursery:
                services = TrioTasks()
                try:  # a cancellation may come after the start, before it has been reported
                    await nursery.start(services.run)
                    yield services
                finally:
                    services.scope.cancel()

    @asynccontextmanager
    async def beside(self, work: Work[None], until: float) -> AsyncIterator[None]:
        with unwrapped(trio.Cancelled), trio.fail_at(until):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                yield
                nursery.cancel_scope.cancel()

    def is_stray(self, error: BaseException) -> bool:
        return False

    async def wait_for(self, outcome: Outcome) -> None:
        wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
        outcome.when_done(wake)

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            outcome.remove_waiter(wake)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def call_in_thread(
        self, handler: Callable[[Any], Any], message: Delivery, limiter: trio.CapacityLimiter | None
    ) -> None:
        copy = for_thread(message, trio.from_thread.run_sync)
        await trio.to_thread.run_sync(handler, copy, limiter=limiter)
        message.auto_response = copy.auto_response

    async def dial(self, target: Target, config: Config) -> TrioLink:
        return TrioLink(await dial(target, config), config)

    def requests(self, *, connect_timeout: float) -> KeptRequests:
        return KeptRequests(connect_timeout)

    async def post(
        self, host: str, port: int, target: str, *, name: str, tls: ssl.SSLContext | None, headers: Headers
    ) -> Answer:
        try:
            return await http_client.post(host, port, target, name=name, tls=tls, headers=headers)
        except HttpFailed as error:
            raise RequestFailed(str(error)) from error


class TrioScope:
    """Implements `CancelScope`."""

    __slots__ = ("_scope",)

    def __init__(self, deadline: float, is_shielded: bool) -> None:
        self._scope = trio.CancelScope(deadline=deadline, shield=is_shielded)

    async def run(self, work: Work[T], otherwise: T) -> T:
        # The scope removes its own cancellations from a group, which may leave a single error.
        with unwrapped(trio.Cancelled), self._scope:
            return await work()
        return otherwise

    def cancel(self) -> None:
        self._scope.cancel()

    def set_deadline(self, deadline: float) -> None:
        self._scope.deadline = deadline


class TrioTasks:
    """Implements `ClientTasks` with a nursery that is shielded from outside."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    def start(self, work: Work[None]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(work)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as self._nursery:
                await trio.lowlevel.checkpoint()  # if the caller was cancelled, it won't cancel the scope
                self.scope.shield = True
                task_status.started()
                await trio.sleep_forever()


class KeptRequests:
    """Implements `Requests`. Long polls have their own connections, because they have their own timeout."""

    def __init__(self, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._clients: dict[float, HttpClient] = {}  # by the timeout of their requests

    async def get(
        self, host: str, port: int, target: str, *, tls: ssl.SSLContext | None, headers: Headers, timeout: float
    ) -> Answer:
        client = self._clients.get(timeout)
        if client is None:
            client = self._clients[timeout] = HttpClient(connect_timeout=self._connect_timeout, timeout=timeout)
        try:
            return await client.get(host, port, target, tls=tls, headers=headers)
        except HttpFailed as error:
            raise RequestFailed(str(error)) from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close_idle()


# The socket of a connection


class TrioLink:
    """Implements `SocketLink`: one task reads, and one writes whatever the socket didn't take at once."""

    def __init__(self, transport: ByteStream, config: Config) -> None:
        self._transport = transport
        self._config = config
        self._wakeup = Wakeup()
        self._connection: NsqdConnection | None = None
        self._is_writing = False
        self._rest = b""  # unsent part of the last write
        self._is_held = False
        self._error: NSQError | None = None

    def wake(self) -> None:
        if not self._is_held:
            self._wakeup.set()

    async def serve(self, connection: NsqdConnection) -> None:
        transport = self._transport
        self._connection = connection
        connection.peer = transport.peer
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, connection, transport, nursery.cancel_scope)
                await self._write(connection, transport)
                nursery.cancel_scope.cancel()
            if self._error is not None:
                raise self._error
            await self._end(connection, transport)
        finally:
            self._connection = None
            with trio.CancelScope(shield=True):
                await transport.close()

    def hold(self) -> None:
        self._is_held = not (self._is_writing or self._rest)

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._flush()

    def _flush(self) -> None:
        connection = self._connection
        if connection is None:
            return
        data = connection.bytes_to_send()
        sent = 0
        with suppress(Disconnected):  # the reading or writing task gets the same error
            sent = self._transport.send_now(data)
        if sent == len(data):
            connection.written(trio.current_time())
        else:
            self._rest = data[sent:]
            self._wakeup.set()

    async def _read(self, connection: NsqdConnection, transport: ByteStream, scope: trio.CancelScope) -> None:
        timeout = self._config.read_timeout
        slack = timeout / _DEADLINES  # moving a deadline costs as much as a message
        now = moved_at = trio.current_time()
        try:
            with trio.CancelScope(deadline=now + timeout + slack) as waiting:
                while True:
                    data = await transport.receive()
                    if not data:
                        raise Disconnected("connection closed by nsqd")
                    now = trio.current_time()
                    if now > moved_at + slack:
                        moved_at = now
                        waiting.deadline = now + timeout + slack
                    connection.receive(data, now)
            if waiting.cancelled_caught:
                raise Disconnected("IO error - read: i/o timeout")
        except NSQError as error:
            self._error = self._error or error
            scope.cancel()

    async def _write(self, connection: NsqdConnection, transport: ByteStream) -> None:
        timeout = self._config.write_timeout
        try:
            while True:
                data, self._rest = self._rest or connection.bytes_to_send(), b""
                if data:
                    self._is_writing = True
                    await transport.send(data, timeout=timeout)
                    self._is_writing = False
                    connection.written(trio.current_time())
                elif connection.finished:
                    return
                else:
                    await self._wakeup.wait()
        except NSQError as error:
            self._error = self._error or error

    async def _end(self, connection: NsqdConnection, transport: ByteStream) -> None:
        with trio.move_on_after(_GOODBYE), suppress(Disconnected):
            if goodbye := connection.goodbye():
                await transport.send(goodbye, timeout=_GOODBYE)
            await transport.end()


class ByteStream(Protocol):
    """Bytes in both directions. Every method may raise Disconnected."""

    @property
    def peer(self) -> str:
        """The peer's IP address; empty if it has none."""

    async def receive(self) -> bytes:
        """Return received bytes, or b"" at the end of the stream. This is a checkpoint."""

    def send_now(self, data: bytes) -> int:
        """Send as much as possible without waiting, and return the number of bytes."""

    async def send(self, data: bytes, *, timeout: float) -> None:
        """Send all of `data`; `timeout` is the longest time without progress."""

    async def end(self) -> None:
        """Half-close the stream and read until the peer has closed its half. Closing earlier could lose sent data."""

    async def close(self) -> None:
        """Close the stream at once."""


async def dial(target: Target, config: Config) -> ByteStream:
    """Connect to an nsqd. Raise ConnectError."""
    try:
        with trio.fail_after(config.dial_timeout):
            if isinstance(target, Dialable):
                return StreamTransport(await target.connect())
            where = parse_address(target)
            if where.is_unix:
                return SocketTransport(await trio.open_unix_socket(where.path))
            stream = await trio.open_tcp_stream(where.host, where.port, local_address=local_host(config))
            return SocketTransport(stream)
    except trio.TooSlowError as error:
        raise ConnectError(f"dial {target}: i/o timeout") from error
    except (OSError, AddressError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise ConnectError(f"dial {target}: {_cause(error)}") from error


class SocketTransport:
    """Implements `ByteStream` for a socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        # trio's sockets can't try without waiting, and waiting costs a turn of the loop for each read and write.
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)

    @property
    def peer(self) -> str:
        return peer_of(self._socket)

    async def receive(self) -> bytes:
        # Waiting before the read costs more if there are data, and less if there are none. Usually there are none,
        # because data that were sent together have arrived together.
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(_READ_SIZE)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                raise Disconnected(_cause(error)) from error

    def send_now(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise Disconnected(_cause(error)) from error

    async def send(self, data: bytes, *, timeout: float) -> None:
        at = self.send_now(data)
        while at < len(data):
            with trio.move_on_after(timeout) as scope:
                await trio.lowlevel.wait_writable(self._socket)
            if scope.cancelled_caught:
                raise Disconnected("IO error - write: i/o timeout")
            at += self.send_now(data[at:])

    async def end(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        while await self.receive():
            pass

    async def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class StreamTransport:
    """Implements `ByteStream` for any trio stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    @property
    def peer(self) -> str:
        return ""

    async def receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_READ_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise Disconnected(_cause(error)) from error

    def send_now(self, data: bytes) -> int:
        return 0

    async def send(self, data: bytes, *, timeout: float) -> None:
        try:
            with trio.fail_after(timeout):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            raise Disconnected("IO error - write: i/o timeout") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise Disconnected(_cause(error)) from error

    async def end(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
            while await self.receive():
                pass

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


def _cause(error: BaseException) -> str:
    """Return the text of the innermost cause.

    trio wraps the errors of all addresses of a name, and stream errors. Its own texts repeat the address.
    """
    inner = error.__cause__
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    cause = inner or error
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror | ssl.SSLError):
        return os.strerror(cause.errno).lower()
    return ((cause.strerror if isinstance(cause, OSError) else None) or str(cause)).lower()
