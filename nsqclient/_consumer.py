"""A consumer on trio: the tasks around `Consumption`.

services, shielded until the block of `open_consumer` has ended
    ticks            backoff and redistribution
    discovery        one task for each nsqlookupd
    dead letters
    an nsqd          dial, run, wait, again; one for each address
        read, write
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import trio

from nsqclient._dial import dial
from nsqclient._discovery import Discovery
from nsqclient._groups import unwrapped
from nsqclient._message import Message
from nsqclient._producer import Producer
from nsqclient._pump import Pump
from nsqclient._subscribers import Subscribers
from nsqclient.core.batches import Batch, Batches
from nsqclient.core.config import Config
from nsqclient.core.errors import ConnectError, NSQError
from nsqclient.core.events import Connected, ConnectFailed, Disconnected, Event, Unreachable
from nsqclient.core.listings import Listings, parse_lookupd
from nsqclient.core.reconnect import Reconnect
from nsqclient.core.threads import for_thread
from nsqclient.shell.consumer import DEAD_LETTER_TIMEOUT, REQUEUE_TIMEOUT, UNREACHABLE_AFTER, BaseConsumer
from nsqclient.shell.log import LOGGER
from nsqclient.shell.sources import Sources
from nsqclient.shell.tls import tls_maker
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqclient.core.consumption import ConsumerConnection
    from nsqclient.core.listings import Listed
    from nsqclient.shell.targets import Target

_DIALS: Final = 8  # at the same time


AsyncHandler = Callable[[Message], Awaitable[None]]
Handler = AsyncHandler | Callable[[Message], None]
DeadLetter = str | Callable[[Message], Awaitable[None]]


@asynccontextmanager
async def open_consumer(
    topic: str,
    channel: str,
    *,
    nsqd: Sequence[Target] | Target = (),
    lookupd: Sequence[str] | str = (),
    config: Config = Config(),
    resolve: Callable[[str], str] | None = None,
    discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None = None,
    dead_letter: DeadLetter | None = None,
    startup: Literal["background", "require"] = "background",
    drop_unlisted_after: float | None = None,
    logger: logging.Logger = LOGGER,
) -> AsyncIterator[Consumer]:
    """Open a consumer for as long as the block runs.

    At the end of the block, messages in flight have `drain_timeout` to be answered. If the block raises or is
    cancelled, unanswered messages are requeued at once.

    `resolve` returns what to dial for the address of an nsqd, and `discovery_filter` which of the listed addresses to
    use. `dead_letter` is a topic, or a function, for messages whose `max_attempts` are used up; with None nsqd
    buries them, or if it cannot, they are logged and finished. `startup="require"` raises ConnectError if one of `nsqd`
    cannot be reached or no nsqlookupd answers; otherwise the consumer keeps trying in the background. An nsqd that no
    nsqlookupd lists any more is kept, unless for `drop_unlisted_after` seconds.

    Raises ConfigError. If no nsqd will ever accept the consumer (an invalid name, no authorization), the block is
    cancelled and ProtocolError or AuthError raised.
    """
    consumer = Consumer(
        topic,
        channel,
        Sources(
            _targets(nsqd),
            [lookupd] if isinstance(lookupd, str) else lookupd,
            resolve=resolve,
            discovery_filter=discovery_filter,
        ),
        config=config,
        dead_letter=dead_letter,
        must_connect=startup == "require",
        drop_unlisted_after=drop_unlisted_after,
        logger=logger,
    )
    with unwrapped():
        async with trio.open_nursery() as nursery:
            try:  # a cancellation may come after the start, before it has been reported
                await nursery.start(consumer._serve)
                yield consumer
                consumer.stop()
                with trio.move_on_after(config.drain_timeout):
                    await consumer._wait_until_drained()
            finally:
                await consumer._shut_down()


async def serve_consumer(
    topic: str,
    channel: str,
    handler: Handler,
    options: dict[str, Any],
    *,
    concurrency: int = 1,
    task_status: trio.TaskStatus[Consumer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `open_consumer(topic, channel, **options)` and its `run` as a task.

    Start it with `await nursery.start(serve_consumer, ...)`, which returns the consumer.
    """
    async with open_consumer(topic, channel, **options) as consumer:
        task_status.started(consumer)
        await consumer.run(handler, concurrency=concurrency)


class Consumer(BaseConsumer[Message]):
    """Made by `open_consumer`. Any number of tasks may iterate over it; each message goes to one of them.

    Iteration ends after `stop`. Use it in the trio loop in which it was opened; only messages may be answered in other
    threads, and only by the handler of `run`.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        sources: Sources[Target],
        *,
        config: Config,
        dead_letter: DeadLetter | None,
        must_connect: bool,
        drop_unlisted_after: float | None,
        logger: logging.Logger,
    ) -> None:
        super().__init__(
            topic,
            channel,
            config=config,
            delivery=Message,
            clock=trio.current_time,
            has_dead_letters=dead_letter is not None,
            logger=logger,
        )
        sources.check()
        self._sources = sources
        self._dead_letter = dead_letter
        self._must_connect = must_connect
        self._drop_after = drop_unlisted_after
        self._subscribers = Subscribers()
        self._arrivals = trio.lowlevel.ParkingLot()
        self._ticks = Wakeup()
        self._dead_letters_arrived = Wakeup()
        self._changed = trio.lowlevel.ParkingLot()  # woken when the task of an nsqd, or its connection, has ended
        self._drained_by = inf  # the time by which handlers have to end
        self._handling: set[trio.CancelScope] = set()  # of each `run`
        self._scope = trio.CancelScope()  # of all services
        self._tasks: trio.Nursery | None = None
        self._nodes: dict[str, _Node] = {}
        self._dead_letter_producers: dict[str, Producer] = {}  # for dead letters, by nsqd
        self._dialling = trio.CapacityLimiter(_DIALS)
        self._listings = Listings(topic)
        lookupds = list(map(parse_lookupd, sources.lookupd))
        self._discovery = (
            Discovery(self._listings, lookupds, config, random=self._random, emit=self._emit, apply=self._apply)
            if lookupds
            else None
        )

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _wait_for_arrival(self) -> None:
        await self._arrivals.park()

    # Handlers

    async def run(
        self, handler: Handler, *, concurrency: int = 1, thread_limiter: trio.CapacityLimiter | None = None
    ) -> None:
        """Call `handler` with each message, `concurrency` at a time, until `stop` and the end of the last call.

        A plain function runs in a thread. When the handler returns, the message is finished. Requeue, GiveUp or any
        other exception decides what happens to it otherwise. Cancelling `run` cancels the handlers and requeues their
        messages, and so does the end of `drain_timeout` after `stop`. A thread cannot be cancelled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency of {concurrency}")
        if self._core.max_in_flight > 4 * concurrency and concurrency > 1:
            self._logger.info(
                "[%s/%s] %d messages may wait here for %d handlers, while their timeout runs",
                self.topic,
                self.channel,
                self._core.max_in_flight,
                concurrency,
            )
        call = cast(AsyncHandler, handler if is_async(handler) else partial(_in_thread, handler, thread_limiter))
        with unwrapped(), trio.CancelScope(deadline=self._drained_by) as scope:
            self._handling.add(scope)
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(concurrency):
                        nursery.start_soon(self._work, call)
            finally:
                self._handling.remove(scope)

    # Batches

    def batches(self, max_size: int, max_wait: float) -> AsyncIterator[Batch[Message]]:
        """Yield up to `max_size` messages at a time.

        A batch is smaller when `max_wait` seconds have passed since its first message, or when no more can come until
        some are answered.
        """
        return Batches(self, max_size, max_wait, within=_within)

    # Stop

    def stop(self) -> None:
        """Begin to drain: iteration and `run` end once the messages being handled are done. Idempotent."""
        if not self._core.is_stopping:
            self._drained_by = trio.current_time() + self.config.drain_timeout
            for scope in self._handling:
                scope.deadline = self._drained_by
        self._core.stop()
        for node in self._nodes.values():
            node.stop()

    # State and events

    def events(self) -> AsyncIterator[Event]:
        """Yield events from now on. A subscriber that falls a thousand events behind misses the newest ones."""
        return self._subscribers.subscribe()

    # --- from the core

    def _notify(self) -> None:
        core = self._core
        if core.is_stopping or core.failure is not None:
            self._arrivals.unpark_all()
        elif core.queue:
            self._arrivals.unpark(count=len(core.queue))
        if core.dead_letters:
            self._dead_letters_arrived.set()
        if core.backoff.until is not None or core.failure is not None or core.has_earlier_tick:
            self._ticks.set()

    def _emit(self, event: Event) -> None:
        if isinstance(event, Connected) and event.address in self._nodes:
            self._nodes[event.address].first_try.set()
        self._log(event)
        self._subscribers.publish(event)

    # --- services

    async def _serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._scope:
            async with trio.open_nursery() as self._tasks:
                self._tasks.start_soon(self._keep_time)
                if self._dead_letter is not None:
                    self._tasks.start_soon(self._serve_dead_letters, self._dead_letter)
                self._core.expect(set(self._sources.given))
                for address in self._sources.given:
                    self._follow(address)
                if self._discovery is not None:
                    self._tasks.start_soon(self._discovery.run)
                if self._must_connect:
                    await self._wait_for_start()
                # From here on only `_shut_down` ends the services, after it has requeued what is in flight. A caller
                # that is already cancelled will not call it.
                await trio.lowlevel.checkpoint()
                self._scope.shield = True
                task_status.started()

    async def _wait_for_start(self) -> None:
        for node in list(self._nodes.values()):
            await node.first_try.wait()
            if node.error is not None:
                raise node.error
        if self._discovery is not None:
            await self._discovery.wait_for_first_round()
            if not self._listings.has_begun:
                raise ConnectError("no nsqlookupd could be asked")

    async def _keep_time(self) -> None:
        while True:
            if self._core.failure is not None:
                raise self._core.failure
            with trio.move_on_at(self._core.next_tick()):
                await self._ticks.wait()
            self._core.tick(trio.current_time())

    async def _wait_until_drained(self) -> None:
        while self._nodes or self._core.connections:
            await self._changed.park()

    async def _shut_down(self) -> None:
        """Shut down, whatever the reason: requeue all unanswered messages and end all services."""
        self.stop()
        self._core.abandon()
        with trio.move_on_after(REQUEUE_TIMEOUT, shield=True):
            await self._wait_until_drained()
        self._scope.cancel()
        self._subscribers.close()

    # --- dead letters

    async def _serve_dead_letters(self, dead_letter: DeadLetter) -> None:
        handle = dead_letter if callable(dead_letter) else partial(self._publish_dead, dead_letter)
        while True:
            await self._dead_letters_arrived.wait()
            await self._handle_dead_letters(handle)

    async def _publish_dead(self, topic: str, message: Message) -> None:
        """Publish a dead letter to the nsqd from which the message came."""
        assert self._tasks is not None
        producer = self._dead_letter_producers.get(message.nsqd)
        if producer is None:
            producer = Producer([self._sources.target(message.nsqd)], config=self.config, logger=self._logger)
            self._dead_letter_producers[message.nsqd] = producer
            await self._tasks.start(partial(producer._serve, is_shielded=False))
        await producer.publish(topic, message.body, timeout=DEAD_LETTER_TIMEOUT)

    # --- nsqds

    def _apply(self) -> None:
        """Follow the nsqds that are listed now."""
        listed = self._listings.nsqds
        given, chosen = self._sources.given, self._sources.chosen(listed)
        for address in chosen:
            self._follow(address)
        for address, node in self._nodes.items():
            node.listed = listed.get(address)
            node.is_wanted = address in given or address in chosen
            self._watch_listing(node)
        self._core.expect({*given, *chosen})

    def _follow(self, address: str) -> None:
        if address not in self._nodes and not self._core.is_stopping:
            self._nodes[address] = node = _Node(address)
            self._start(self._keep_connected, node)

    def _watch_listing(self, node: _Node) -> None:
        if node.is_wanted:
            node.absence.cancel()
        elif self._drop_after is not None and not node.is_dropping:
            node.is_dropping = True
            self._start(self._drop_unless_listed, node, self._drop_after)

    async def _drop_unless_listed(self, node: _Node, seconds: float) -> None:
        with trio.CancelScope() as node.absence:
            await trio.sleep(seconds)
            node.stop()
            if node.connection is not None and node.connection.is_open:
                self._core.retire(node.connection)
        node.is_dropping = False

    def _start(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(task, *arguments)

    async def _keep_connected(self, node: _Node) -> None:
        reconnect = Reconnect(self.config, self._random)
        try:
            while node.is_wanted and not self._core.is_stopping:
                node.error = await self._connect_once(node, reconnect)
                node.first_try.set()
                if self._discovery is not None:
                    self._discovery.hurry()
                if not self._core.is_stopping:
                    with trio.CancelScope() as node.wait:
                        await trio.sleep(reconnect.pause())
        finally:
            del self._nodes[node.address]
            self._changed.unpark_all()

    async def _connect_once(self, node: _Node, reconnect: Reconnect) -> NSQError | None:
        """Dial, and serve the connection until it ends. Return the error, or None if this side ended it."""
        target = self._sources.target(node.address)
        pump = Pump(self.config)
        connection = self._core.connect(node.address, make_tls=tls_maker(target, self.config), wake=pump.wake)
        error: NSQError | None = None
        try:
            with trio.CancelScope() as node.wait:
                async with self._dialling:
                    transport = await dial(target, self.config)
            if not node.wait.cancelled_caught:
                node.connection = connection
                await pump.run(connection, transport)
        except NSQError as caught:
            error = caught
        finally:
            node.connection = None
            self._core.connection_closed(connection, error)
            self._changed.unpark_all()
        if connection.is_open:
            reconnect.worked(connection.opened_at, trio.current_time())
            node.failures = 0
            self._emit(Disconnected(node.address, str(error or ""), len(self._core.connections)))
        elif error is not None:
            self._failed_to_connect(node, error)
        return error

    def _failed_to_connect(self, node: _Node, error: NSQError) -> None:
        node.failures += 1
        self._emit(ConnectFailed(node.address, str(error), node.failures))
        if node.listed is not None and node.failures == UNREACHABLE_AFTER:
            listed = node.listed
            self._emit(Unreachable(node.address, listed.hostname, listed.remote_address, node.failures))


class _Node:
    """One nsqd and the state of its connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.listed: Listed | None = None  # its entry in nsqlookupd
        self.is_wanted = True
        self.is_dropping = False  # it will be dropped unless it is listed again in time
        self.absence = trio.CancelScope()  # around the wait for that
        self.first_try = trio.Event()  # set once it has connected or failed
        self.error: NSQError | None = None  # of the last attempt to connect
        self.failures = 0  # of attempts to connect, in a row
        self.connection: ConsumerConnection | None = None
        self.wait = trio.CancelScope()  # a dial, or the pause before it

    def stop(self) -> None:
        """End a dial, a pause or a handshake, which are of no use any more."""
        self.wait.cancel()
        if self.connection is not None and not self.connection.is_open:
            self.connection.close()


async def _within(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    with trio.move_on_after(seconds):
        await work()


def _targets(nsqd: Sequence[Target] | Target) -> Sequence[Target]:
    return nsqd if isinstance(nsqd, Sequence) and not isinstance(nsqd, str) else [nsqd]


def is_async(handler: Callable[..., Any]) -> bool:
    """Return whether a handler has to be awaited."""
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


async def _in_thread(handler: Callable[[Message], Any], limiter: trio.CapacityLimiter | None, message: Message) -> None:
    copy = for_thread(message, trio.from_thread.run_sync)
    await trio.to_thread.run_sync(handler, copy, limiter=limiter)
    message.auto_response = copy.auto_response
