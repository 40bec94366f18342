"""A producer on asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

from nsqclient._aio_discovery import Discovery
from nsqclient._aio_link import Link, dial
from nsqclient._aio_posting import post
from nsqclient._aio_subscribers import Subscribers
from nsqclient.core.config import Config
from nsqclient.core.errors import NSQError
from nsqclient.core.publication import Headers, ProducerConnection, check_one_key, mpub_commands, pub_command
from nsqclient.shell.log import LOGGER
from nsqclient.shell.node import BaseNode, Shared
from nsqclient.shell.producer import BaseProducer, BaseReceipt, Retry, T, given_lookupds

if TYPE_CHECKING:
    from nsqclient.core.events import Event
    from nsqclient.core.hostpool import Strategy
    from nsqclient.core.recall import Place
    from nsqclient.shell.targets import Target


class Receipt(BaseReceipt):
    """The outcome of one submitted message: once `done` is true, `error` says why it failed, or is None."""

    __slots__ = ()

    async def wait(self) -> Self:
        """Return when nsqd has answered, or can no longer answer. Cancelling the wait does not cancel the publish."""
        if not self.done:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake() -> None:
                if not answered.done():
                    answered.set_result(None)

            self.when_done(wake)
            await answered
        return self


@asynccontextmanager
async def open_producer(
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
) -> AsyncIterator[Producer]:
    """Open a producer, as nsqclient.open_producer does, whose documentation says more."""
    producer = Producer(
        [addresses] if isinstance(addresses, str) else addresses,
        lookupd=given_lookupds(lookupd, nsqlookupd),
        strategy=strategy,
        config=config,
        retry=retry,
        retry_timeout=retry_timeout,
        max_pending=max_pending,
        logger=logger,
    )
    try:
        producer._start()
        if connect == "require":
            await producer._wait_for_one()
        yield producer
        try:
            async with asyncio.timeout(config.drain_timeout):
                await producer.flush()
        except TimeoutError:
            pass  # the receipts report the failures
    finally:
        await producer._shut_down()


class Producer(BaseProducer["_Node", Receipt]):
    """Made by `open_producer`. For the tasks of its event loop, not for other threads.

    A publish that is cancelled before it was queued is not sent. Cancelled later, it is sent, and its outcome becomes a
    LatePublish event.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        lookupd: Sequence[str] = (),
        strategy: Strategy = "hostpool",
        config: Config = Config(),
        retry: Retry = "safe",
        retry_timeout: float = 60.0,
        max_pending: int = 1000,
        logger: logging.Logger = LOGGER,
    ) -> None:
        super().__init__(
            addresses,
            lookupd=lookupd,
            strategy=strategy,
            config=config,
            retry=retry,
            retry_timeout=retry_timeout,
            max_pending=max_pending,
            logger=logger,
            clock=asyncio.get_running_loop().time,
            node=_Node,
            receipt=Receipt,
        )
        self._discovering: set[asyncio.Task[None]] = set()
        self._subscribers = Subscribers()

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish a message and return when nsqd has accepted it. Raise TimeoutError after `timeout` seconds.

        `delay`, `key`, `headers` and the other errors are those of nsqclient's producer.
        """
        command = pub_command(topic, body, delay, headers)
        async with asyncio.timeout(timeout):
            await self._send(topic, command, 1, key)

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        headers: Iterable[Headers] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish the messages together: nsqd accepts all or none of each 5 MiB. Raises as `publish`."""
        commands = list(mpub_commands(topic, bodies, headers))
        check_one_key(key, commands)
        async with asyncio.timeout(timeout):
            for command, count in commands:
                await self._send(topic, command, count, key)

    def events(self) -> AsyncIterator[Event]:
        """Yield events from now on. A subscriber that falls a thousand events behind misses the newest ones."""
        return self._subscribers.subscribe()

    def _emit(self, event: Event) -> None:
        super()._emit(event)
        self._subscribers.publish(event)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _within(self, seconds: float, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work()
        except TimeoutError:
            return otherwise

    async def _together(self, works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        tasks = [asyncio.create_task(_coroutine(work)) for work in works]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        self._roster.begin()
        if self._listing is not None:
            discovery = Discovery(
                self._listing, self._lookupds, self.config, random=self._random, emit=self._emit, apply=self._apply
            )
            discovery.start(self._discover)

    def _discover(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._discovering.add(task)

    async def _post(self, place: Place, target: str) -> tuple[int, bytes]:
        return await post(place, target, self.config)

    async def _shut_down(self) -> None:
        self._is_stopped = True
        for task in self._discovering:
            task.cancel()
        await asyncio.gather(*self._discovering, return_exceptions=True)
        for node in list(self._nodes):
            await node.stop()
        self._subscribers.close()


async def _coroutine(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


class _Node(BaseNode):
    def __init__(self, target: Target, shared: Shared, number: int) -> None:
        super().__init__(target, shared, number)
        self._heartbeat = asyncio.Event()  # set by the next heartbeat, then replaced
        self._room = asyncio.Event()
        self._demand = asyncio.Event()
        self._try = asyncio.Event()  # set when the attempt to connect has ended
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Do nothing: the first demand makes the task."""

    def hurry(self) -> None:
        if self.usable is None:
            if self._task is None:
                self._task = asyncio.create_task(self._keep_connected())
            self._demand.set()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._stopped()

    async def wait_for_heartbeat(self) -> None:
        await self._heartbeat.wait()

    async def wait_for_room(self) -> None:
        await self._room.wait()

    async def _wait_for_try(self) -> None:
        over = self._try
        self.hurry()
        await over.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stopped()  # a task that is cancelled before its first step does not run its `finally`

    async def _keep_connected(self) -> None:
        try:
            while True:
                self._demand.clear()
                await self._connect_once()
                try:
                    async with asyncio.timeout(self._pause()):
                        await self._demand.wait()
                except TimeoutError:
                    pass
        finally:
            self._stopped()

    async def _connect_once(self) -> None:
        error: NSQError | None = None  # None: this side ended the connection
        link: Link | None = None
        connection: ProducerConnection | None = None
        try:
            link = await dial(self.address, self._shared.config)
            connection = self._new_connection(wake=link.wake, on_room=self._make_room, on_heartbeat=self._heard)
            link.attach(connection)
            await link.ended.wait()
            error = link.error
        except NSQError as caught:
            error = caught
        finally:
            if link is not None:
                link.abort()
            self._closed(connection, error)
            self._heard()

    def _stopped(self) -> None:
        self._error = self._last_error
        self._try.set()  # and it stays set: no further attempt will come

    def _end_try(self) -> None:
        over, self._try = self._try, asyncio.Event()
        over.set()

    def _heard(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, asyncio.Event()
        heartbeat.set()

    def _make_room(self) -> None:
        room, self._room = self._room, asyncio.Event()
        room.set()
