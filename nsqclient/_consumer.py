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

from common.wakeup import Wakeup
from nsqclient._base_consumer import DEAD_LETTER_TIMEOUT, FAREWELL, BaseConsumer, check_sources
from nsqclient._batches import Batches
from nsqclient._config import Config
from nsqclient._dial import Target, dial
from nsqclient._discovery import Discovery
from nsqclient._errors import ConnectError, NSQError
from nsqclient._groups import unwrapped
from nsqclient._log import LOGGER
from nsqclient._message import Batch, Message
from nsqclient._producer import Producer
from nsqclient._pump import Pump, tls_maker
from nsqclient._reconnect import Reconnect
from nsqclient._subscribers import Subscribers
from nsqclient._threads import for_thread
from nsqclient.events import Connected, ConnectFailed, Disconnected, Event, Unreachable

if TYPE_CHECKING:
    from nsqclient._consumption import ConsumerConnection
    from nsqclient._listings import Listed, Listings

_DIALS: Final = 8  # at once
_LISTED_IN_VAIN: Final = 3  # failures, after which somebody should look


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
    """A consumer for as long as the block runs; at its end messages in flight have `drain_timeout` to be answered.

    Left by an exception or cancelled it waits for nobody: what has no answer is requeued at once.

    `resolve` says what to dial for an address that nsqlookupd lists, and `discovery_filter` which of them to use.
    `dead_letter` gets what was tried `max_attempts` times: a topic, or a function; None: it is logged and finished.
    `startup="require"`: raises ConnectError where one of `nsqd` cannot be reached, or no nsqlookupd; otherwise it is
    tried without end. An nsqd that no nsqlookupd lists any more is kept, unless for `drop_unlisted_after` seconds.

    Raises ConfigError, and within the block, when no nsqd will ever have us (a bad name, no authorization), ProtocolError or AuthError.
    """
    consumer = Consumer(
        topic,
        channel,
        nsqd=_targets(nsqd),
        lookupd=[lookupd] if isinstance(lookupd, str) else lookupd,
        config=config,
        resolve=resolve,
        discovery_filter=discovery_filter,
        dead_letter=dead_letter,
        must_connect=startup == "require",
        drop_unlisted_after=drop_unlisted_after,
        logger=logger,
    )
    with unwrapped():
        async with trio.open_nursery() as nursery:
            try:  # a cancellation may come between the start and its end
                await nursery.start(consumer._serve)
                yield consumer
                consumer.stop()
                with trio.move_on_after(config.drain_timeout):
                    await consumer._wait_until_drained()
            finally:
                await consumer._leave()


async def serve_consumer(
    topic: str,
    channel: str,
    handler: Handler,
    options: dict[str, Any],
    *,
    concurrency: int = 1,
    task_status: trio.TaskStatus[Consumer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`open_consumer(topic, channel, **options)` and its `run`, as a task: `await nursery.start(serve_consumer, ...)`."""
    async with open_consumer(topic, channel, **options) as consumer:
        task_status.started(consumer)
        await consumer.run(handler, concurrency=concurrency)


class Consumer(BaseConsumer[Message]):
    """Made by `open_consumer`. Iterating it gives messages, whoever iterates; it ends after `stop`."""

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: Sequence[Target],
        lookupd: Sequence[str],
        config: Config,
        resolve: Callable[[str], str] | None,
        discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None,
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
        check_sources(nsqd, lookupd)
        self._nsqd = {str(target): target for target in nsqd}
        self._resolve = resolve
        self._filter = discovery_filter
        self._dead_letter = dead_letter
        self._must_connect = must_connect
        self._drop_after = drop_unlisted_after
        self._subscribers = Subscribers()
        self._arrivals = trio.lowlevel.ParkingLot()
        self._ticks = Wakeup()
        self._burials = Wakeup()
        self._changed = trio.lowlevel.ParkingLot()  # the number of tasks for nsqds
        self._drained_by = inf  # when handlers have to have ended
        self._handling: set[trio.CancelScope] = set()  # each `run`
        self._scope = trio.CancelScope()  # of all services
        self._tasks: trio.Nursery | None = None
        self._nodes: dict[str, _Node] = {}
        self._undertakers: dict[str, Producer] = {}  # of dead letters, by nsqd
        self._dialling = trio.CapacityLimiter(_DIALS)
        self._discovery = (
            Discovery(
                topic,
                lookupd,
                config,
                random=self._random,
                emit=self._emit,
                apply=self._apply,
            )
            if lookupd
            else None
        )

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _wait_for_arrival(self) -> None:
        await self._arrivals.park()

    # By a handler

    async def run(
        self, handler: Handler, *, concurrency: int = 1, thread_limiter: trio.CapacityLimiter | None = None
    ) -> None:
        """Calls `handler` with each message, `concurrency` at a time, until `stop` and the end of the last call.

        A plain function runs in a thread. When it returns the message is finished; Requeue, GiveUp or any other
        exception says what becomes of it otherwise. Cancelled, it cancels the handlers, and their messages are requeued;
        so it does with those that have not ended `drain_timeout` after `stop`. A thread cannot be cancelled.
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
        call = cast(AsyncHandler, handler if _is_async(handler) else partial(_in_thread, handler, thread_limiter))
        with unwrapped(), trio.CancelScope(deadline=self._drained_by) as scope:
            self._handling.add(scope)
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(concurrency):
                        nursery.start_soon(self._work, call)
            finally:
                self._handling.remove(scope)

    # Many at once

    def batches(self, max_size: int, max_wait: float) -> AsyncIterator[Batch]:
        """Up to `max_size` messages at a time; fewer when `max_wait` seconds are over since the first, or when
        nothing more can come before some are answered."""
        if max_size < 1:
            raise ValueError(f"max_size of {max_size}")
        return Batches(self, max_size, max_wait)

    # Faster, slower, stop

    def stop(self) -> None:
        """Begins to drain: iteration and `run` end when what is being handled is done. May be called anywhere, and again."""
        if not self._core.is_stopping:
            self._drained_by = trio.current_time() + self.config.drain_timeout
            for scope in self._handling:
                scope.deadline = self._drained_by
        self._core.stop()
        for node in self._nodes.values():
            node.stop()

    # What can be asked

    @property
    def has_waiting(self) -> bool:
        """Whether a message could be had at once."""
        return bool(self._queue)

    def events(self) -> AsyncIterator[Event]:
        """What happens from now on. Who does not keep up misses the newest (a thousand are kept)."""
        return self._subscribers.subscribe()

    # --- from the core

    def _notify(self) -> None:
        core = self._core
        if core.is_stopping or core.failure is not None:
            self._arrivals.unpark_all()
        elif core.queue:
            self._arrivals.unpark(count=len(core.queue))
        if core.dead:
            self._burials.set()
        if core.backoff.until is not None or core.failure is not None:
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
                    self._tasks.start_soon(self._bury, self._dead_letter)
                self._core.expect(set(self._nsqd))
                for address in self._nsqd:
                    self._follow(address)
                if self._discovery is not None:
                    self._tasks.start_soon(self._discovery.run)
                if self._must_connect:
                    await self._wait_for_start()
                # From here on our own end decides, which gives back what is in flight first. Whoever starts us
                # may be cancelled already: then there will be no such end.
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
            if not self._discovery.listings.has_begun:
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

    async def _leave(self) -> None:
        """The end, whatever led to it."""
        self.stop()
        self._core.abandon()
        with trio.move_on_after(FAREWELL, shield=True):
            await self._wait_until_drained()
        self._scope.cancel()
        self._subscribers.close()

    # --- dead letters

    async def _bury(self, dead_letter: DeadLetter) -> None:
        bury = dead_letter if callable(dead_letter) else partial(self._publish_dead, dead_letter)
        while True:
            await self._burials.wait()
            await self._bury_all(bury)

    async def _publish_dead(self, topic: str, message: Message) -> None:
        """To the nsqd that it has come from."""
        assert self._tasks is not None
        producer = self._undertakers.get(message.nsqd)
        if producer is None:
            producer = Producer([self._target(message.nsqd)], config=self.config, logger=self._logger)
            self._undertakers[message.nsqd] = producer
            await self._tasks.start(partial(producer._serve, is_shielded=False))
        await producer.publish(topic, message.body, timeout=DEAD_LETTER_TIMEOUT)

    # --- nsqds

    def _apply(self, listings: Listings) -> None:
        """What nsqlookupd says may have changed."""
        listed = listings.nsqds
        chosen = list(listed) if self._filter is None else list(self._filter(list(listed)))
        for address in chosen:
            self._follow(address)
        for address, node in self._nodes.items():
            node.listed = listed.get(address)
            node.is_wanted = address in self._nsqd or address in chosen
            self._heed_absence(node)
        self._core.expect({*self._nsqd, *chosen})

    def _follow(self, address: str) -> None:
        if address not in self._nodes and not self._core.is_stopping:
            self._nodes[address] = node = _Node(address)
            self._start(self._keep_connected, node)

    def _heed_absence(self, node: _Node) -> None:
        if node.is_wanted:
            node.absence.cancel()
        elif self._drop_after is not None and not node.is_dropping:
            node.is_dropping = True
            self._start(self._drop_after_a_while, node, self._drop_after)

    async def _drop_after_a_while(self, node: _Node, seconds: float) -> None:
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
        """From the dial to the end of the connection; what has ended it, unless it was we."""
        target = self._target(node.address)
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
            self._core.closed(connection, error)
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
        if node.listed is not None and node.failures == _LISTED_IN_VAIN:
            listed = node.listed
            self._emit(Unreachable(node.address, listed.hostname, listed.remote_address, node.failures))

    def _target(self, address: str) -> Target:
        target = self._nsqd.get(address, address)
        return self._resolve(target) if self._resolve is not None and isinstance(target, str) else target


class _Node:
    """One nsqd, and how it goes with it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.listed: Listed | None = None  # what nsqlookupd says of it
        self.is_wanted = True
        self.is_dropping = False
        self.absence = trio.CancelScope()
        self.first_try = trio.Event()  # connected, or failed
        self.error: NSQError | None = None  # of the last try
        self.failures = 0  # in a row
        self.connection: ConsumerConnection | None = None
        self.wait = trio.CancelScope()  # a dial, or the pause before it

    def stop(self) -> None:
        """Ends what may take long and serves nobody."""
        self.wait.cancel()
        if self.connection is not None and not self.connection.is_open:
            self.connection.close()


def _targets(nsqd: Sequence[Target] | Target) -> Sequence[Target]:
    return nsqd if isinstance(nsqd, Sequence) and not isinstance(nsqd, str) else [nsqd]


def _is_async(handler: Callable[..., Any]) -> bool:
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


async def _in_thread(handler: Callable[[Message], Any], limiter: trio.CapacityLimiter | None, message: Message) -> None:
    copy = for_thread(message, trio.from_thread.run_sync)
    await trio.to_thread.run_sync(handler, copy, limiter=limiter)
    message.auto_response = copy.auto_response
