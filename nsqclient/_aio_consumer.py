"""A consumer on asyncio: the tasks around `Consumption`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from nsqclient._aio_discovery import Discovery
from nsqclient._aio_link import Link, dial
from nsqclient._aio_producer import Producer
from nsqclient._aio_subscribers import Subscribers
from nsqclient.core.batches import Batch, Batches
from nsqclient.core.config import Config
from nsqclient.core.delivery import Delivery, only_one
from nsqclient.core.errors import ConnectError, NSQError
from nsqclient.core.events import Connected, ConnectFailed, Disconnected, Event, Unreachable
from nsqclient.core.listings import Listings, parse_lookupd
from nsqclient.core.reconnect import Reconnect
from nsqclient.core.threads import for_thread
from nsqclient.shell.consumer import DEAD_LETTER_TIMEOUT, REQUEUE_TIMEOUT, UNREACHABLE_AFTER, BaseConsumer
from nsqclient.shell.log import LOGGER
from nsqclient.shell.sources import Sources
from nsqclient.shell.tls import tls_maker

if TYPE_CHECKING:
    from nsqclient.core.consumption import ConsumerConnection
    from nsqclient.core.listings import Listed

_SHORTEST_TOUCH: Final = 0.1


class Message(Delivery):
    """A message on asyncio."""

    __slots__ = ()

    @asynccontextmanager
    async def keep_alive(self, *, margin: float = 1.0) -> AsyncIterator[Self]:
        """Touch the message while the block runs.

        Raises TimeoutError, and ends the block, `margin` seconds before nsqd takes the message back however often it is
        touched.
        """
        touching = asyncio.create_task(self._touch_for_ever())
        try:
            async with asyncio.timeout_at(self.hard_deadline - margin):
                yield self
        finally:
            touching.cancel()

    async def _touch_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while self.answered == "no" and loop.time() < self.hard_deadline:
            self.touch()
            await asyncio.sleep(max(_SHORTEST_TOUCH, (self.deadline - loop.time()) / 2))


AsyncHandler = Callable[[Message], Awaitable[None]]
Handler = AsyncHandler | Callable[[Message], None]
DeadLetter = str | AsyncHandler


@asynccontextmanager
async def open_consumer(
    topic: str,
    channel: str,
    *,
    nsqd: Sequence[str] | str = (),
    lookupd: Sequence[str] | str = (),
    config: Config = Config(),
    resolve: Callable[[str], str] | None = None,
    discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None = None,
    dead_letter: DeadLetter | None = None,
    startup: Literal["background", "require"] = "background",
    drop_unlisted_after: float | None = None,
    logger: logging.Logger = LOGGER,
) -> AsyncIterator[Consumer]:
    """Open a consumer, as nsqclient.open_consumer does, whose documentation says more.

    The block is not cancelled if no nsqd will ever accept the consumer: iteration and `run` raise the error.
    """
    consumer = Consumer(
        topic,
        channel,
        Sources(
            [nsqd] if isinstance(nsqd, str) else nsqd,
            [lookupd] if isinstance(lookupd, str) else lookupd,
            resolve=resolve,
            discovery_filter=discovery_filter,
        ),
        config=config,
        dead_letter=dead_letter,
        drop_unlisted_after=drop_unlisted_after,
        logger=logger,
    )
    try:
        consumer._start()
        if startup == "require":
            await consumer._wait_for_start()
        yield consumer
        consumer.stop()
        try:
            async with asyncio.timeout(config.drain_timeout):
                await consumer._wait_until_drained()
        except TimeoutError:
            pass
    finally:
        await consumer._shut_down()


class Consumer(BaseConsumer[Message]):
    """Made by `open_consumer`. Any number of tasks may iterate over it; each message goes to one of them.

    Iteration ends after `stop`. It raises ProtocolError or AuthError if the consumer can never receive anything. Use it
    in the event loop in which it was opened, not from other threads.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        sources: Sources[str],
        *,
        config: Config,
        dead_letter: DeadLetter | None,
        drop_unlisted_after: float | None,
        logger: logging.Logger,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(
            topic,
            channel,
            config=config,
            delivery=Message,
            clock=self._loop.time,
            has_dead_letters=dead_letter is not None,
            logger=logger,
        )
        sources.check()
        self._sources = sources
        self._dead_letter = dead_letter
        self._drop_after = drop_unlisted_after
        self._subscribers = Subscribers()
        self._arrivals: deque[asyncio.Future[None]] = deque()
        self._ticks = asyncio.Event()
        self._dead_letters_arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._drained_by: float | None = None  # the time by which handlers have to end
        self._handling: set[asyncio.Timeout] = set()  # of each `run`
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes: dict[str, _Node] = {}
        self._dead_letter_producers: dict[str, Producer] = {}  # for dead letters, by nsqd
        self._listings = Listings(topic)
        lookupds = list(map(parse_lookupd, sources.lookupd))
        self._discovery = (
            Discovery(self._listings, lookupds, config, random=self._random, emit=self._emit, apply=self._apply)
            if lookupds
            else None
        )

    async def _checkpoint(self) -> None:
        await asyncio.sleep(0)

    async def _wait_for_arrival(self) -> None:
        arrival = self._loop.create_future()
        self._arrivals.append(arrival)
        try:
            await arrival
        except asyncio.CancelledError:
            if arrival.done() and not arrival.cancelled():
                self._notify()  # wake another task in place of this one
            raise

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call `handler` with each message, `concurrency` at a time, until `stop` and the end of the last call.

        A plain function runs in a thread. When the handler returns, the message is finished. Requeue, GiveUp or any
        other exception decides what happens to it otherwise. Handlers that have not ended `drain_timeout` after `stop`
        are cancelled, and their messages requeued. Cancelling `run` cancels the handlers; a thread cannot be cancelled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency of {concurrency}")
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        call = cast(AsyncHandler, handler if is_async else partial(_in_thread, handler))
        try:
            async with asyncio.timeout_at(self._drained_by) as limit:
                self._handling.add(limit)
                try:
                    async with asyncio.TaskGroup() as workers:
                        for _ in range(concurrency):
                            workers.create_task(self._work(call))
                finally:
                    self._handling.remove(limit)
        except* NSQError as group:
            raise only_one(group) or group from None
        except* TimeoutError:
            if not limit.expired():
                raise

    def batches(self, max_size: int, max_wait: float) -> AsyncIterator[Batch[Message]]:
        """Yield up to `max_size` messages at a time.

        A batch is smaller when `max_wait` seconds have passed since its first message, or when no more can come until
        some are answered.
        """
        return Batches(self, max_size, max_wait, within=_within)

    def events(self) -> AsyncIterator[Event]:
        """Yield events from now on. A subscriber that falls a thousand events behind misses the newest ones."""
        return self._subscribers.subscribe()

    def stop(self) -> None:
        """Begin to drain: iteration and `run` end once the messages being handled are done. Idempotent."""
        if not self._core.is_stopping:
            self._drained_by = self._loop.time() + self.config.drain_timeout
            for limit in self._handling:
                limit.reschedule(self._drained_by)
        self._core.stop()
        for node in self._nodes.values():
            node.stop()

    # --- from the core

    def _notify(self) -> None:
        core = self._core
        wake_all = core.is_stopping or core.failure is not None
        left = len(self._arrivals) if wake_all else min(len(core.queue), len(self._arrivals))
        while left and self._arrivals:
            arrival = self._arrivals.popleft()
            if not arrival.done():
                arrival.set_result(None)
                left -= 1
        if core.dead_letters:
            self._dead_letters_arrived.set()
        if core.backoff.until is not None or core.has_earlier_tick:
            self._ticks.set()

    def _emit(self, event: Event) -> None:
        if isinstance(event, Connected) and event.address in self._nodes:
            self._nodes[event.address].first_try.set()
        self._log(event)
        self._subscribers.publish(event)

    # --- services

    def _start(self) -> None:
        self._spawn(self._keep_time())
        if self._dead_letter is not None:
            self._spawn(self._serve_dead_letters(self._dead_letter))
        self._core.expect(set(self._sources.given))
        for address in self._sources.given:
            self._follow(address)
        if self._discovery is not None:
            self._discovery.start(self._spawn)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # The consumer must not continue without this task.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core.failure = error
            self._notify()

    async def _wait_for_start(self) -> None:
        for node in list(self._nodes.values()):
            await node.first_try.wait()
            if node.error is not None:
                raise node.error
        if self._discovery is not None:
            await self._discovery.first_round.wait()
            if not self._listings.has_begun:
                raise ConnectError("no nsqlookupd could be asked")

    async def _keep_time(self) -> None:
        while True:
            self._ticks.clear()
            try:
                async with asyncio.timeout_at(self._core.next_tick()):
                    await self._ticks.wait()
            except TimeoutError:
                pass
            self._core.tick(self._loop.time())

    async def _wait_until_drained(self) -> None:
        while self._nodes or self._core.connections:
            self._changed.clear()
            await self._changed.wait()

    async def _shut_down(self) -> None:
        """Shut down, whatever the reason: requeue all unanswered messages and end all tasks."""
        self.stop()
        self._core.abandon()
        try:
            async with asyncio.timeout(REQUEUE_TIMEOUT):
                await self._wait_until_drained()
        except TimeoutError:
            pass
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for producer in self._dead_letter_producers.values():
                await producer._shut_down()
            self._subscribers.close()

    async def _serve_dead_letters(self, dead_letter: DeadLetter) -> None:
        handle = dead_letter if callable(dead_letter) else partial(self._publish_dead, dead_letter)
        while True:
            await self._dead_letters_arrived.wait()
            self._dead_letters_arrived.clear()
            await self._handle_dead_letters(handle)

    async def _publish_dead(self, topic: str, message: Message) -> None:
        """Publish a dead letter to the nsqd from which the message came."""
        producer = self._dead_letter_producers.get(message.nsqd)
        if producer is None:
            producer = Producer([self._sources.target(message.nsqd)], config=self.config, logger=self._logger)
            self._dead_letter_producers[message.nsqd] = producer
        await producer.publish(topic, message.body, timeout=DEAD_LETTER_TIMEOUT)

    # --- nsqds

    def _apply(self) -> None:
        listed = self._listings.nsqds
        given, chosen = self._sources.given, self._sources.chosen(listed)
        for address in chosen:
            self._follow(address)
        for address, node in self._nodes.items():
            node.listed = listed.get(address)
            node.is_wanted = address in given or address in chosen
            self._watch_listing(node)
        self._core.expect({*given, *chosen})

    def _watch_listing(self, node: _Node) -> None:
        if node.is_wanted:
            if node.drop is not None:
                node.drop.cancel()
                node.drop = None
        elif self._drop_after is not None and node.drop is None:
            node.drop = self._loop.call_later(self._drop_after, self._drop_unlisted, node)

    def _drop_unlisted(self, node: _Node) -> None:
        node.stop()
        if node.connection is not None and node.connection.is_open:
            self._core.retire(node.connection)

    def _follow(self, address: str) -> None:
        if address not in self._nodes and not self._core.is_stopping:
            self._nodes[address] = node = _Node(address)
            self._spawn(self._keep_connected(node))

    async def _keep_connected(self, node: _Node) -> None:
        reconnect = Reconnect(self.config, self._random)
        try:
            while node.is_wanted and not self._core.is_stopping:
                node.error = await self._connect_once(node, reconnect)
                node.first_try.set()
                if self._discovery is not None:
                    self._discovery.hurry()
                if not self._core.is_stopping:
                    await node.interruptible(asyncio.sleep(reconnect.pause()))
        finally:
            if node.drop is not None:
                node.drop.cancel()
            del self._nodes[node.address]
            self._changed.set()

    async def _connect_once(self, node: _Node, reconnect: Reconnect) -> NSQError | None:
        """Dial, and serve the connection until it ends. Return the error, or None if this side ended it."""
        address = self._sources.target(node.address)
        error: NSQError | None = None
        link: Link | None = None
        connection: ConsumerConnection | None = None
        try:
            link = await node.interruptible(dial(address, self.config))
            if link is None:
                return None
            connection = self._core.connect(node.address, make_tls=tls_maker(address, self.config), wake=link.wake)
            node.connection = connection
            link.attach(connection)
            await link.ended.wait()
            error = link.error
        except NSQError as caught:
            error = caught
        finally:
            node.connection = None
            if link is not None:
                link.abort()
            if connection is not None:
                self._core.connection_closed(connection, error)
            self._changed.set()
        if connection is not None and connection.is_open:
            reconnect.worked(connection.opened_at, self._loop.time())
            node.failures = 0
            self._emit(Disconnected(node.address, str(error or ""), len(self._core.connections)))
        elif error is not None:
            node.failures += 1
            self._emit(ConnectFailed(node.address, str(error), node.failures))
            if node.listed is not None and node.failures == UNREACHABLE_AFTER:
                listed = node.listed
                self._emit(Unreachable(node.address, listed.hostname, listed.remote_address, node.failures))
        return error


class _Node:
    """One nsqd and the state of its connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.listed: Listed | None = None  # its entry in nsqlookupd
        self.is_wanted = True
        self.drop: asyncio.TimerHandle | None = None  # drops it unless it is listed again in time
        self.first_try = asyncio.Event()  # set once it has connected or failed
        self.error: NSQError | None = None  # of the last attempt to connect
        self.failures = 0  # of attempts to connect, in a row
        self.connection: ConsumerConnection | None = None
        self._wait: asyncio.Task[Any] | None = None  # a dial, or the pause before it
        self._is_stopped = False

    async def interruptible(self, work: Any) -> Any:
        """Return the result of `work`, or None if `stop` has interrupted it."""
        self._wait = asyncio.ensure_future(work)
        try:
            return await self._wait
        except asyncio.CancelledError:
            if not self._is_stopped or self._was_cancelled():
                self._wait.cancel()
                raise
            return None
        finally:
            self._wait = None

    def _was_cancelled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def stop(self) -> None:
        """End a dial, a pause or a handshake, which are of no use any more."""
        self._is_stopped = True
        if self._wait is not None:
            self._wait.cancel()
        if self.connection is not None and not self.connection.is_open:
            self.connection.close()


async def _within(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work()
    except TimeoutError:
        pass


async def _in_thread(handler: Callable[[Message], Any], message: Message) -> None:
    loop = asyncio.get_running_loop()

    def in_loop(answer: Callable[[], bool]) -> bool:
        done: Future[bool] = Future()

        def settle() -> None:
            try:
                done.set_result(answer())
            except BaseException as error:  # otherwise the thread would wait for ever
                done.set_exception(error)

        loop.call_soon_threadsafe(settle)
        return done.result()

    copy = for_thread(message, in_loop)
    await asyncio.to_thread(handler, copy)
    message.auto_response = copy.auto_response
