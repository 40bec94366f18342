"""The library for asyncio: `from nsqclient import aio`, with the same settings, messages, errors and flow control.

docs/how-to/python-client.md lists the differences. This module has the parts that depend on asyncio: waiting, and
moving bytes to and from an nsqd.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from nsqclient.core.config import Config
from nsqclient.core.errors import ConfigError, ConnectError, Disconnected, NSQError
from nsqclient.core.threads import for_thread
from nsqclient.shell.consumer import Consumer, DeadLetter, opened_consumer
from nsqclient.shell.groups import unwrapped
from nsqclient.shell.log import LOGGER
from nsqclient.shell.message import Message
from nsqclient.shell.producer import Producer, Receipt, Retry, opened_producer
from nsqclient.shell.runtime import RequestFailed, T, Work
from nsqclient.shell.targets import Target, local_host
from nsqcommon.net import AddressError, join_host_port, parse_address
from nsqcommon.wire.http_exchange import MOST_BYTES, Answer, BadResponse, Headers, ResponseReader, request_bytes

if TYPE_CHECKING:
    from nsqclient.core.connection import NsqdConnection
    from nsqclient.core.delivery import Delivery
    from nsqclient.core.hostpool import Strategy
    from nsqclient.core.publication import Outcome

__all__ = ["Consumer", "Message", "Producer", "Receipt", "open_consumer", "open_producer"]

_READ_SIZE: Final = 64 * 1024


def open_consumer(
    topic: str | Sequence[str],
    channel: str,
    *,
    weights: Sequence[float] | None = None,
    nsqd: Sequence[str] | str = (),
    lookupd: Sequence[str] | str = (),
    config: Config = Config(),
    resolve: Callable[[str], str] | None = None,
    discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None = None,
    dead_letter: DeadLetter | None = None,
    startup: Literal["background", "require"] = "background",
    drop_unlisted_after: float | None = None,
    logger: logging.Logger = LOGGER,
) -> AbstractAsyncContextManager[Consumer]:
    """Open a consumer on asyncio. The arguments are those of nsqclient.open_consumer.

    If no nsqd will ever accept the consumer, the block isn't cancelled: iteration and `run` raise the error.
    """
    _check_addresses(nsqd)
    return opened_consumer(
        OnAsyncio,
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


def open_producer(
    addresses: Sequence[str] | str = (),
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
    """Open a producer on asyncio. The arguments are those of nsqclient.open_producer."""
    _check_addresses(addresses)
    return opened_producer(
        OnAsyncio,
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


def _check_addresses(given: object) -> None:
    for it in given if isinstance(given, Sequence) and not isinstance(given, str) else [given]:
        if not isinstance(it, str):
            raise ConfigError("nsqd", it, f"{it} is for trio: nsqclient.aio connects to addresses only")


class OnAsyncio:
    """Implements `Runtime`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def parking_lot(self) -> AsyncioParkingLot:
        return AsyncioParkingLot(self._loop)

    def scope(self, deadline: float = inf, *, is_shielded: bool = False) -> AsyncioScope:
        # No shield needed: asyncio raises a cancellation once, and not again at the next wait.
        return AsyncioScope(self._loop, deadline)

    async def fail_after(self, seconds: float, work: Work[T]) -> T:
        async with asyncio.timeout(seconds):
            return await work()

    async def together(self, works: Sequence[Work[T]]) -> list[T]:
        with unwrapped(asyncio.CancelledError, alike=True):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_coroutine(work)) for work in works]
        return [task.result() for task in tasks]

    @asynccontextmanager
    async def tasks(self, failed: Callable[[BaseException], None] | None = None) -> AsyncIterator[AsyncioTasks]:
        services = AsyncioTasks(self._loop, failed)
        try:
            yield services
        finally:
            await services.end()

    @asynccontextmanager
    async def beside(self, work: Work[None], until: float) -> AsyncIterator[None]:
        task = self._loop.create_task(_coroutine(work))
        try:
            async with asyncio.timeout_at(until):
                yield
        finally:
            task.cancel()

    def is_stray(self, error: BaseException) -> bool:
        task = asyncio.current_task(self._loop)
        return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()

    def wait_for(self, outcome: Outcome) -> Awaitable[None]:
        answered = self._loop.create_future()
        outcome.when_done(partial(_wake, answered))
        return answered

    async def call_in_thread(self, handler: Callable[[Any], Any], message: Delivery, limiter: Executor | None) -> None:
        copy = for_thread(message, self._ask)
        call = partial(copy_context().run, handler, copy)
        if limiter is None:
            await self._loop.run_in_executor(None, call)
        else:  # not by `run_in_executor`, which refuses it on trio-asyncio
            await asyncio.wrap_future(limiter.submit(call), loop=self._loop)
        message.auto_response = copy.auto_response

    def _ask(self, answer: Callable[[], bool]) -> bool:
        """Answer a message in the loop, and return to the thread whether that had an effect."""
        done: Future[bool] = Future()

        def settle() -> None:
            try:
                done.set_result(answer())
            except BaseException as error:  # otherwise the thread would wait forever
                done.set_exception(error)

        self._loop.call_soon_threadsafe(settle)
        return done.result()

    async def dial(self, target: Target, config: Config) -> AsyncioLink:
        assert isinstance(target, str)
        return await dial(target, config)

    def requests(self, *, connect_timeout: float) -> SingleRequests:
        return SingleRequests()

    async def post(
        self, host: str, port: int, target: str, *, name: str, tls: ssl.SSLContext | None, headers: Headers
    ) -> Answer:
        try:
            return await exchange("POST", host, port, target, name=name, headers=headers, tls=tls)
        except (OSError, ValueError, BadResponse) as error:
            raise RequestFailed(str(error)) from error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _coroutine(work: Work[T]) -> T:
    return await work()


class AsyncioParkingLot:
    """Implements `ParkingLot`."""

    __slots__ = ("_loop", "_parked")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parked: deque[asyncio.Future[bool]] = deque()  # the result tells how many to wake

    def __len__(self) -> int:
        return len(self._parked)

    async def park(self) -> None:
        waiter = self._loop.create_future()
        self._parked.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):
                    self._parked.remove(waiter)
            elif waiter.done() and waiter.result():
                self.unpark()  # wake another task instead
            raise

    def unpark(self, *, count: int = 1) -> None:
        parked = self._parked
        while count and parked:
            waiter = parked.popleft()
            if not waiter.done():
                waiter.set_result(True)
                count -= 1

    def unpark_all(self) -> None:
        while self._parked:
            waiter = self._parked.popleft()
            if not waiter.done():
                waiter.set_result(False)


class AsyncioScope:
    """Implements `CancelScope` as a timeout; to cancel, we set it to now."""

    __slots__ = ("_deadline", "_loop", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._loop = loop
        self._deadline = deadline
        self._timeout: asyncio.Timeout | None = None

    async def run(self, work: Work[T], otherwise: T) -> T:
        self._timeout = timeout = asyncio.timeout_at(None if self._deadline == inf else self._deadline)
        try:
            async with timeout:
                return await work()
        except TimeoutError:
            if not timeout.expired():
                raise
            return otherwise
        finally:
            self._timeout = None

    def cancel(self) -> None:
        self.set_deadline(self._loop.time())

    def set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(None if deadline == inf else deadline)


class AsyncioTasks:
    """Implements `ClientTasks`. Each task is in a scope, so that a cancelled task still runs its first step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None] | None) -> None:
        self._loop = loop
        self._failed = failed
        self._running: dict[asyncio.Task[None], AsyncioScope] = {}
        self._is_over = False

    def start(self, work: Work[None]) -> None:
        scope = AsyncioScope(self._loop, inf)
        if self._is_over:
            scope.cancel()
        task: asyncio.Task[None] = self._loop.create_task(scope.run(work, None))
        self._running[task] = scope
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if self._failed is not None and not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def end(self) -> None:
        """Cancel all tasks, and return when they have ended.

        A task that was already due may start others first, for example if nsqlookupd has answered in the same turn.
        """
        self._is_over = True
        for scope in self._running.values():
            scope.cancel()
        # From Python 3.12 on, gathering only finished tasks doesn't let `_ended` run, so we leave them out.
        while running := [task for task in self._running if not task.done()]:
            await asyncio.gather(*running, return_exceptions=True)


class SingleRequests:
    """Implements `Requests`: each has a connection of its own."""

    async def get(
        self, host: str, port: int, target: str, *, tls: ssl.SSLContext | None, headers: Headers, timeout: float
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout):
                return await exchange("GET", host, port, target, headers=headers, tls=tls)
        except (OSError, ValueError, BadResponse) as error:
            raise RequestFailed(str(error) or "timeout") from error

    async def close(self) -> None:
        """Do nothing: no connection stays open."""


# The socket of a connection


class AsyncioLink(asyncio.BufferedProtocol):
    """Implements `SocketLink` without a task for each read.

    `ended` is set when the connection is gone; then `error` says why, or is None if we closed it.
    """

    def __init__(self, config: Config) -> None:
        self.ended = asyncio.Event()
        self.error: NSQError | None = None
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._connection: NsqdConnection | None = None
        self._transport: asyncio.Transport | None = None
        # The allocator may map and unmap asyncio's own buffer of 256 KiB for each read, which takes half the time of
        # a publish.
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._is_due = False  # a flush is scheduled
        self._is_full = False  # the last write is still in our buffers
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None  # for read_timeout
        self._writing_watch: asyncio.TimerHandle | None = None  # for write_timeout, while `_is_full`

    def wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def hold(self) -> None:
        """Do nothing: everything sent in one turn of the loop is written together in the next."""

    def release(self) -> None:
        """Do nothing, like `hold`."""

    async def serve(self, connection: NsqdConnection) -> None:
        try:
            self.attach(connection)
            await self.ended.wait()
        finally:
            self.abort()
        if self.error is not None:
            raise self.error

    def attach(self, connection: NsqdConnection) -> None:
        """Serve this connection."""
        self._connection = connection
        assert self._transport is not None
        name = self._transport.get_extra_info("peername")
        connection.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._look()
        self.flush()

    def flush(self) -> None:
        """Write the pending bytes, and close the transport once the connection is finished."""
        self._is_due = False
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self._is_full or self.ended.is_set():
            return
        try:
            data = connection.bytes_to_send()
        except NSQError as error:
            self.fail(error)
            return
        if data:
            transport.write(data)
            if not self._is_full:
                connection.written(self._loop.time())
        if connection.finished and not self._is_full:
            if goodbye := connection.goodbye():
                transport.write(goodbye)
            transport.close()

    def fail(self, error: NSQError) -> None:
        """End the connection because of an error."""
        self.error = self.error or error
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio.Transport but don't inherit from it.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # so `resume_writing` means that the buffer is empty

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
        self._heard_at = self._loop.time()
        if connection is None:
            return
        try:
            connection.receive(bytes(self._buffer[:nbytes]), self._heard_at)
        except NSQError as error:
            self.fail(error)

    def pause_writing(self) -> None:
        self._is_full = True
        self._watch_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self._stop_watching_writing()
        if self._connection is not None:
            self._connection.written(self._loop.time())
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        if self._connection is not None and not self._connection.finished and self.error is None:
            self.error = Disconnected(str(error or "connection closed by nsqd"))
        if self._watch is not None:
            self._watch.cancel()
        self._stop_watching_writing()
        self.ended.set()

    def _look(self) -> None:
        """Fail if nsqd was silent too long; otherwise check again later."""
        left = self._heard_at + self._config.read_timeout - self._loop.time()
        if left <= 0:
            self.fail(Disconnected("IO error - read: i/o timeout"))
        else:
            self._watch = self._loop.call_later(left, self._look)

    # Whether nsqd still reads

    def _watch_writing(self) -> None:
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        self._writing_watch = self._loop.call_later(self._config.write_timeout, self._look_at_writing, unsent)

    def _look_at_writing(self, unsent: int) -> None:
        """Fail if none of the `unsent` bytes of the previous check have been sent.

        Nothing is added while the link is full, so fewer bytes mean progress.
        """
        assert self._transport is not None
        if self._transport.get_write_buffer_size() < unsent:
            self._watch_writing()
        else:
            self.fail(Disconnected("IO error - write: i/o timeout"))

    def _stop_watching_writing(self) -> None:
        if self._writing_watch is not None:
            self._writing_watch.cancel()
            self._writing_watch = None


async def dial(address: str, config: Config) -> AsyncioLink:
    """Connect and return the link. Raise ConnectError."""
    loop = asyncio.get_running_loop()
    make = partial(AsyncioLink, config)
    try:
        async with asyncio.timeout(config.dial_timeout):
            where = parse_address(address)
            if where.is_unix:
                _, link = await loop.create_unix_connection(make, where.path)
            else:
                local = local_host(config)
                _, link = await loop.create_connection(
                    make, where.host, where.port, local_addr=(local, 0) if local else None
                )
    except TimeoutError as error:
        raise ConnectError(f"dial {address}: i/o timeout") from error
    except (OSError, AddressError) as error:
        # asyncio's own texts contain the address once more.
        number = error.errno if isinstance(error, OSError) else None
        text = os.strerror(number) if number is not None and number > 0 else str(error)
        raise ConnectError(f"dial {address}: {text.lower()}") from error
    return link


async def exchange(
    method: str,
    host: str,
    port: int,
    target: str,
    *,
    name: str = "",
    headers: Headers = (),
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send a request on a new connection and return the answer. Raise OSError or BadResponse.

    `name` is the server's name if it isn't its host.
    """
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=(name or host) if tls is not None else None
    )
    try:
        request = request_bytes(method, join_host_port(name or host, port), target, [("Connection", "close"), *headers])
        writer.write(request)
        with ResponseReader(most=MOST_BYTES) as response:
            while not response.is_complete:
                response.receive(await reader.read(_READ_SIZE))
            return response.answer()
    finally:
        # `close` alone would leave TLS waiting for the peer's close_notify, perhaps until after the end of the loop.
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
