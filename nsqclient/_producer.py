"""A producer on trio: the tasks around `ProducerConnection`, and the choice of an nsqd for each publish."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import trio

from nsqclient._dial import dial
from nsqclient._discovery import Discovery
from nsqclient._groups import unwrapped
from nsqclient._posting import post
from nsqclient._pump import Pump
from nsqclient._subscribers import Subscribers
from nsqclient.core.config import Config
from nsqclient.core.errors import NSQError
from nsqclient.core.publication import Headers, Outcome, ProducerConnection, check_one_key, mpub_commands, pub_command
from nsqclient.shell.log import LOGGER
from nsqclient.shell.node import BaseNode, Shared
from nsqclient.shell.producer import BaseProducer, BaseReceipt, Retry, T, given_lookupds
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqclient.core.events import Event
    from nsqclient.core.hostpool import Strategy
    from nsqclient.core.recall import Place
    from nsqclient.shell.targets import Target

_LARGE: Final = 16 * 1024  # bytes of a command that is sent at once, so that nsqd can begin to read it


class Receipt(BaseReceipt):
    """The outcome of one submitted message: once `done` is true, `error` says why it failed, or is None."""

    __slots__ = ()

    async def wait(self) -> Self:
        """Return when nsqd has answered, or can no longer answer. Cancelling the wait does not cancel the publish."""
        if not self.done:
            wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
            self.when_done(wake)

            def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
                self.remove_waiter(wake)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        return self


@asynccontextmanager
async def open_producer(
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
) -> AsyncIterator[Producer]:
    """Open a producer for as long as the block runs.

    At the end of the block, submitted messages have `drain_timeout` to be answered.

    With `lookupd`, `host:port` or URLs, the producer also publishes to all nsqds that these list; they may come and go.
    An nsqlookupd that fails or lists no nsqd removes none. An nsqd that says that it drains, is full or is unhealthy gets
    nothing new as long as others do not say so.

    `strategy` chooses among several nsqds: "hostpool" takes each in turn, leaving out those that fail; "round_robin"
    takes each in turn; "epsilon_greedy" mostly the quickest; "first" the first that works; "fewest_in_flight" the one with
    the fewest unanswered publishes; "near" one in the zone or region of `config` that nsqlookupd tells; "by_key" the one
    to which the key of the publish belongs, so that whoever repeats it repeats it there, or the next one if that fails;
    "all" and `quorum(n)` send to all.

    `retry` is what may be retried automatically. "safe": everything, without publishing anything twice. Messages that
    were certainly not published, because there was no connection or it was lost before nsqd had received all of the
    message, may go to any nsqd, each of which is tried up to three times. Messages that may have been published are
    repeated at the same nsqd, with a key by which it recognizes them, until it answers or `retry_timeout` seconds are
    over; then OutcomeUnknown has the key. NSQ's own nsqd knows no keys, so there the caller gets PublishUnknown.
    "anywhere": as "safe", but what remains unknown is tried at any nsqd, which can publish it twice. "unsent": only
    messages that were certainly not published. "never": nothing; the caller gets each failure. A message that nsqd could
    not store goes to the other nsqds; one that nsqd refuses for what it is fails at once.

    Each connection has at most `max_pending` unanswered publishes, and 8 MiB of them; further publishes wait for room.
    `connect="require"` raises ConnectError if no nsqd can be reached.

    `nsqlookupd` is the former name of `lookupd`, deprecated.
    """
    producer = Producer(
        [addresses] if isinstance(addresses, str) or not isinstance(addresses, Sequence) else addresses,
        lookupd=given_lookupds(lookupd, nsqlookupd),
        strategy=strategy,
        config=config,
        retry=retry,
        retry_timeout=retry_timeout,
        max_pending=max_pending,
        must_connect=connect == "require",
        logger=logger,
    )
    with unwrapped():
        async with trio.open_nursery() as nursery:
            try:  # a cancellation may come after the start, before it has been reported
                await nursery.start(producer._serve)
                yield producer
                with trio.move_on_after(config.drain_timeout):
                    await producer.flush()
            finally:
                producer._shut_down()


class Producer(BaseProducer["_Node", Receipt]):
    """Made by `open_producer`. Any number of tasks of its trio loop may use it, but no other threads.

    A publish that is cancelled before it was queued is not sent. Cancelled later, it is sent, and its outcome becomes a
    LatePublish event.
    """

    def __init__(
        self,
        addresses: Sequence[Target],
        *,
        lookupd: Sequence[str] = (),
        strategy: Strategy = "hostpool",
        config: Config = Config(),
        retry: Retry = "safe",
        retry_timeout: float = 60.0,
        max_pending: int = 1000,
        must_connect: bool = False,
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
            clock=trio.current_time,
            node=self._make_node,
            receipt=Receipt,
        )
        self._subscribers = Subscribers()
        self._tasks: trio.Nursery | None = None
        self._must_connect = must_connect
        self._scope = trio.CancelScope()

    # Publishing

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
        """Publish a message and return when nsqd has accepted it. It is delivered after `delay` seconds.

        With a `key` it is published once to this topic of the same nsqd, however often it is tried, within the time
        for which that nsqd remembers keys. `headers` come with it to consumers that know them.

        Raises PublishRejected, PublishUnknown (it may have been published; OutcomeUnknown if it had a key),
        PublishUnsent, ConnectError or Stopped; trio.TooSlowError after `timeout` seconds; ValueError for an invalid
        topic, an empty message, an invalid delay, key or header; Unsupported for a key or headers at an nsqd that knows
        none.
        """
        command = pub_command(topic, body, delay, headers)
        if timeout is None:
            await self._send(topic, command, 1, key)
        else:
            with trio.fail_after(timeout):
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
        """Publish messages together: nsqd accepts all or none. A `key` stands for all of them; each has its `headers`.

        More than 5 MiB are published in parts of up to 5 MiB, one after another, and each part is accepted or not; a
        key is refused then. Raises as `publish`.
        """
        commands = list(mpub_commands(topic, bodies, headers))
        check_one_key(key, commands)
        with trio.fail_after(timeout if timeout is not None else float("inf")):
            for command, count in commands:
                await self._send(topic, command, count, key)

    def events(self) -> AsyncIterator[Event]:
        """Yield events from now on. A subscriber that falls a thousand events behind misses the newest ones."""
        return self._subscribers.subscribe()

    def _emit(self, event: Event) -> None:
        super()._emit(event)
        self._subscribers.publish(event)

    async def _sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def _within(self, seconds: float, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        with trio.move_on_after(seconds):
            return await work()
        return otherwise

    async def _together(self, works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        results: dict[int, T] = {}

        async def do(number: int, work: Callable[[], Awaitable[T]]) -> None:
            results[number] = await work()

        with unwrapped():
            async with trio.open_nursery() as nursery:
                for number, work in enumerate(works):
                    nursery.start_soon(do, number, work)
        return [results[number] for number in range(len(works))]

    def _make_node(self, target: Target, shared: Shared, number: int) -> _Node:
        return _Node(target, shared, number, self._spawn)

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(task)

    async def _post(self, place: Place, target: str) -> tuple[int, bytes]:
        return await post(place, target, self.config)

    # --- from start to end

    async def _serve(
        self, *, is_shielded: bool = True, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the connections up. Shielded, this goes on after a cancellation from outside, until `_shut_down`."""
        with self._scope:
            async with trio.open_nursery() as self._tasks:
                self._roster.begin()
                if self._listing is not None:
                    discovery = Discovery(
                        self._listing,
                        self._lookupds,
                        self.config,
                        random=self._random,
                        emit=self._emit,
                        apply=self._apply,
                    )
                    self._tasks.start_soon(discovery.run)
                if self._must_connect:
                    await self._wait_for_one()
                await trio.lowlevel.checkpoint()  # a caller that is cancelled by now will not call `_shut_down`
                self._scope.shield = is_shielded
                task_status.started()

    def _shut_down(self) -> None:
        self._is_stopped = True
        self._scope.cancel()
        self._subscribers.close()


class _Node(BaseNode):
    def __init__(
        self, target: Target, shared: Shared, number: int, spawn: Callable[[Callable[[], Awaitable[None]]], None]
    ) -> None:
        super().__init__(target, shared, number)
        self._spawn = spawn
        self._scope = trio.CancelScope()
        self._heartbeat = trio.Event()  # set by the next heartbeat, then replaced
        self._room = trio.lowlevel.ParkingLot()
        self._demand = Wakeup()
        self._try = trio.Event()  # set when the attempt to connect has ended
        self._pump = Pump(shared.config)

    def begin(self) -> None:
        self._spawn(self._keep_connected)

    def hurry(self) -> None:
        if self.usable is None:
            self._demand.set()

    def _end(self) -> None:
        self._scope.cancel()

    async def wait_for_heartbeat(self) -> None:
        await self._heartbeat.wait()

    async def wait_for_room(self) -> None:
        await self._room.park()

    async def _wait_for_try(self) -> None:
        over = self._try
        self._demand.set()
        await over.wait()

    def publish(self, connection: ProducerConnection, command: bytes, receipt: Outcome) -> None:
        if connection.pending and len(command) < _LARGE:
            connection.publish(command, receipt)
        else:
            # A command that is alone, or large, is written at once, which saves a switch to the writing task.
            self._pump.hold()
            connection.publish(command, receipt)
            self._pump.release()

    async def _keep_connected(self) -> None:
        try:
            with self._scope:
                await self._demand.wait()
                while True:
                    await self._connect_once()
                    with trio.move_on_after(self._pause()):
                        await self._demand.wait()
        finally:
            self._error = self._last_error
            self._try.set()  # and it stays set: no further attempt will come

    async def _connect_once(self) -> None:
        config = self._shared.config
        self._pump = pump = Pump(config)
        connection = self._new_connection(wake=pump.wake, on_room=self._room.unpark_all, on_heartbeat=self._heard)
        error: NSQError | None = None  # None: this side ended the connection
        try:
            await pump.run(connection, await dial(self.target, config))
        except NSQError as caught:
            error = caught
        finally:
            self._closed(connection, error)
            self._heard()

    def _end_try(self) -> None:
        self._try.set()
        self._try = trio.Event()

    def _heard(self) -> None:
        self._heartbeat.set()
        self._heartbeat = trio.Event()
