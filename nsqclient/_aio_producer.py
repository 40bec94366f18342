"""A producer on asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final, Literal, Self

from nsqclient._aio_link import Link, dial
from nsqclient._config import Config
from nsqclient._dial import check_target
from nsqclient._errors import (
    ConfigError,
    ConnectError,
    NSQError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Stopped,
)
from nsqclient._hostpool import Quorum, Strategy, pool_of
from nsqclient._identity import our_identity
from nsqclient._log import LOGGER, logging_events
from nsqclient._publication import Outcome, ProducerConnection, mpub_commands, pub_command
from nsqclient._pump import tls_maker
from nsqclient._reconnect import Reconnect
from nsqclient._stats import NodeStats, ProducerStats
from nsqclient.events import ConnectFailed, Disconnected, Event

Retry = Literal["never", "unsent", "always"]

_FIRST_PAUSE: Final = 0.1  # seconds, before a connection is tried again
_LONGEST_PAUSE: Final = 15.0
_ROUNDS: Final = 3  # over all nsqds, where a publish may be tried again


class Receipt(Outcome):
    """What becomes of one message that was submitted: `done`, and `error` if it is not None then."""

    __slots__ = ()

    async def wait(self) -> Self:
        """Returns when nsqd has answered, or cannot any more. Cancelling it changes nothing."""
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
    addresses: Sequence[str] | str,
    *,
    strategy: Strategy = "hostpool",
    config: Config = Config(),
    retry: Retry = "never",
    max_pending: int = 1000,
    connect: Literal["lazy", "require"] = "lazy",
    logger: logging.Logger = LOGGER,
) -> AsyncIterator[Producer]:
    """As nsqclient.open_producer, whose page says more, without the strategies that publish to several nsqds."""
    producer = Producer(
        [addresses] if isinstance(addresses, str) else addresses,
        strategy=strategy,
        config=config,
        retry=retry,
        max_pending=max_pending,
        logger=logger,
    )
    try:
        if connect == "require":
            await producer._wait_for_one()
        yield producer
        try:
            async with asyncio.timeout(config.drain_timeout):
                await producer.flush()
        except TimeoutError:
            pass  # who has a receipt hears of it
    finally:
        await producer._leave()


class Producer:
    """Made by `open_producer`. For the loop and its tasks, not for other threads."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        strategy: Strategy = "hostpool",
        config: Config = Config(),
        retry: Retry = "never",
        max_pending: int = 1000,
        logger: logging.Logger = LOGGER,
    ) -> None:
        if not addresses:
            raise ConfigError("addresses", addresses, "no nsqd to publish to")
        if strategy == "all" or isinstance(strategy, Quorum):
            raise ConfigError("strategy", strategy, "nsqclient.aio publishes to one nsqd at a time")
        for address in addresses:
            check_target(address)
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._random = Random()
        self._pool = pool_of(strategy, len(addresses), self._random)
        self._retry = retry
        self._log = logging_events(logger, "")
        self._nodes = [_Node(address, config, max_pending, self._emit, self._random) for address in addresses]
        self._is_stopped = False

    async def publish(
        self, topic: str, body: bytes, *, delay: float | None = None, timeout: float | None = None
    ) -> None:
        """Returns when nsqd has it; TimeoutError after `timeout` seconds. Otherwise as nsqclient's."""
        command = pub_command(topic, body, delay)
        async with asyncio.timeout(timeout):
            await self._publish(topic, command, 1)

    async def publish_many(self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
        """All of them, as one, as far as 5 MiB hold them."""
        commands = list(mpub_commands(topic, bodies))
        async with asyncio.timeout(timeout):
            for command, count in commands:
                await self._publish(topic, command, count)

    async def submit(self, topic: str, body: bytes, *, delay: float | None = None) -> Receipt:
        """Waits for a connection and for room only; the receipt tells the rest."""
        command = pub_command(topic, body, delay)
        number, node = self._pick()
        receipt = await self._submit(node, topic, command, 1)
        started = self._loop.time()
        receipt.when_done(lambda: self._judge(number, receipt.error, started))
        return receipt

    async def flush(self) -> None:
        """Returns when everything submitted before has its answer."""
        for node in self._nodes:
            if node.connection is not None and node.connection.pending:
                last = node.connection.pending[-1]
                assert isinstance(last, Receipt)
                await last.wait()

    @property
    def connected(self) -> bool:
        return any(node.connection is not None for node in self._nodes)

    def stats(self) -> ProducerStats:
        return ProducerStats(
            published=sum(node.published for node in self._nodes),
            failed=sum(node.failed for node in self._nodes),
            nodes=tuple(node.stats() for node in self._nodes),
        )

    # One publish

    async def _publish(self, topic: str, command: bytes, count: int) -> None:
        tries = len(self._nodes) * _ROUNDS
        pauses: Reconnect | None = None
        while True:
            number, node = self._pick()
            started = self._loop.time()
            error = await self._try(node, topic, command, count)
            self._judge(number, error, started)
            if error is None:
                return
            tries -= 1
            if not tries or not self._may_be_retried(error):
                raise error
            if tries % len(self._nodes) == 0:
                pauses = pauses or Reconnect(self.config, self._random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
                await asyncio.sleep(pauses.pause())

    async def _try(self, node: _Node, topic: str, command: bytes, count: int) -> Exception | None:
        try:
            receipt = await self._submit(node, topic, command, count)
        except (ConnectError, PublishUnsent) as error:
            return error
        try:
            await receipt.wait()
        except BaseException:
            receipt.is_abandoned = True
            raise
        return receipt.error

    async def _submit(self, node: _Node, topic: str, command: bytes, count: int) -> Receipt:
        self._check_running()
        connection = node.usable or await node.connected()
        while not connection.has_room:
            await node.room.wait()
            self._check_running()
            connection = node.usable or await node.connected()
        receipt = Receipt(topic, count=count, size=len(command))
        connection.publish(command, receipt)
        return receipt

    def _pick(self) -> tuple[int, _Node]:
        number = self._pool.pick(self._loop.time()) if len(self._nodes) > 1 else 0
        return number, self._nodes[number]

    def _judge(self, number: int, error: Exception | None, started: float) -> None:
        now = self._loop.time()
        if error is None or (isinstance(error, PublishRejected) and not error.code.endswith("PUB_FAILED")):
            self._pool.succeeded(number, now - started, now)
        else:
            self._pool.failed(number, now)

    def _may_be_retried(self, error: Exception) -> bool:
        if isinstance(error, ConnectError | PublishUnsent):
            return self._retry != "never"
        return isinstance(error, PublishUnknown) and self._retry == "always"

    def _check_running(self) -> None:
        if self._is_stopped:
            raise Stopped("stopped")

    def _emit(self, event: Event) -> None:
        self._log(event)

    # From start to end

    async def _wait_for_one(self) -> None:
        error: NSQError | None = None
        for node in self._nodes:
            try:
                await node.connected()
            except NSQError as caught:
                error = caught
            else:
                return
        assert error is not None
        raise error

    async def _leave(self) -> None:
        self._is_stopped = True
        for node in self._nodes:
            await node.stop()


class _Node:
    """One nsqd: connected to when somebody wants to publish, and from then on."""

    def __init__(
        self, address: str, config: Config, max_pending: int, emit: Callable[[Event], None], random: Random
    ) -> None:
        self.address = address
        self.connection: ProducerConnection | None = None  # when it is open
        self.room = asyncio.Event()
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._max_pending = max_pending
        self._emit = emit
        self._reconnect = Reconnect(config, random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        self._demand = asyncio.Event()
        self._try = asyncio.Event()  # over, with a connection or without
        self._task: asyncio.Task[None] | None = None
        self._error: NSQError = Stopped("stopped")
        self._published = 0  # on connections that have gone
        self._failed = 0
        self._failures = 0

    async def connected(self) -> ProducerConnection:
        """As soon as there is a connection. Raises ConnectError if the next try fails."""
        if self.usable is None:
            if self._task is None:
                self._task = asyncio.create_task(self._keep_connected())
            over = self._try
            self._demand.set()
            await over.wait()
        connection = self.usable
        if connection is None:
            raise self._error
        return connection

    @property
    def usable(self) -> ProducerConnection | None:
        """The connection, unless its end has come."""
        connection = self.connection
        return None if connection is None or connection.is_closed else connection

    async def stop(self) -> None:
        self._error = Stopped("stopped")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_connected(self) -> None:
        try:
            while True:
                self._demand.clear()
                await self._connect_once()
                try:
                    async with asyncio.timeout(self._reconnect.pause()):
                        await self._demand.wait()
                except TimeoutError:
                    pass
        finally:
            self._error = Stopped("stopped")
            self._try.set()

    async def _connect_once(self) -> None:
        error: NSQError | None = None
        link: Link | None = None
        connection: ProducerConnection | None = None
        try:
            link = await dial(self.address, self._config)
            connection = ProducerConnection(
                self.address,
                self._config,
                our_identity(),
                max_pending=self._max_pending,
                make_tls=tls_maker(self.address, self._config),
                wake=link.wake,
                emit=self._emit,
                on_open=lambda: self._opened(connection),
                on_room=self._made_room,
                on_heartbeat=lambda: None,
            )
            link.begin(connection)
            await link.ended.wait()
            error = link.error
        except NSQError as caught:
            error = caught
        finally:
            if link is not None:
                link.abort()
            self._closed(connection, error)

    def _opened(self, connection: ProducerConnection | None) -> None:
        self.connection = connection
        self._failures = 0
        self._end_try()

    def _closed(self, connection: ProducerConnection | None, error: NSQError | None) -> None:
        self.connection = None
        self._error = error if isinstance(error, ConnectError) else ConnectError(f"not connected: {error or 'closed'}")
        if connection is not None:
            connection.lost(error)
            self._published += connection.published
            self._failed += connection.failed
        if connection is not None and connection.is_open:
            self._reconnect.worked(connection.opened_at, self._loop.time())
            self._emit(Disconnected(self.address, str(error or ""), 0))
        else:
            if error is not None:
                self._failures += 1
                self._emit(ConnectFailed(self.address, str(error), self._failures))
            self._end_try()

    def _end_try(self) -> None:
        over, self._try = self._try, asyncio.Event()
        over.set()

    def _made_room(self) -> None:
        room, self.room = self.room, asyncio.Event()
        room.set()

    @property
    def published(self) -> int:
        return self._published + (self.connection.published if self.connection is not None else 0)

    @property
    def failed(self) -> int:
        return self._failed + (self.connection.failed if self.connection is not None else 0)

    def stats(self) -> NodeStats:
        connection = self.connection
        return NodeStats(
            address=self.address,
            connected=connection is not None,
            pending=len(connection.pending) if connection is not None else 0,
            pending_bytes=connection.pending_bytes if connection is not None else 0,
            server_version=connection.terms.version if connection is not None else "",
        )
