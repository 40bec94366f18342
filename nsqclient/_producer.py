"""A producer on trio: the tasks around `ProducerConnection`, and the choice of an nsqd for each publish."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import trio

from common.wakeup import Wakeup
from nsqclient._base_producer import BaseNode, BaseProducer, BaseReceipt, Retry, Shared
from nsqclient._config import Config
from nsqclient._dial import Target, dial
from nsqclient._errors import ConfigError, Disconnected, NSQError, PublishError, Stopped
from nsqclient._groups import unwrapped
from nsqclient._log import LOGGER
from nsqclient._publication import Outcome, ProducerConnection, mpub_commands, pub_command
from nsqclient._pump import Pump
from nsqclient._subscribers import Subscribers

if TYPE_CHECKING:
    from nsqclient._hostpool import Strategy
    from nsqclient.events import Event

_LARGE: Final = 16 * 1024  # bytes of a command that nsqd had better begin with at once


class Receipt(BaseReceipt):
    """What becomes of one submitted message: once `done` is true, `error` says why it failed, or is None."""

    __slots__ = ()

    async def wait(self) -> Self:
        """Return when nsqd has answered, or no longer can. Cancelling the wait does not cancel the publish."""
        if not self.done:
            wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())
            self.when_done(wake)

            def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
                self.never_mind(wake)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        return self


@asynccontextmanager
async def open_producer(
    addresses: Sequence[Target] | Target,
    *,
    strategy: Strategy = "hostpool",
    config: Config = Config(),
    retry: Retry = "never",
    max_pending: int = 1000,
    connect: Literal["lazy", "require"] = "lazy",
    logger: logging.Logger = LOGGER,
) -> AsyncIterator[Producer]:
    """A producer for as long as the block runs; at its end what was submitted has `drain_timeout` to be answered.

    `strategy` chooses among several nsqds: "hostpool" in turn, leaving alone who fails; "round_robin" in turn;
    "epsilon_greedy" mostly the quickest; "first" the first that works; "all" and `quorum(n)` send to all.

    `retry` is what may be tried again by itself. "never": nothing, the caller hears of each failure. "unsent": what
    certainly was not published, because there was no connection, or it was lost before nsqd had all of it. "always":
    also what may have been, which can publish it twice. Each nsqd is tried up to three times; what nsqd refuses is
    never tried again.

    At most `max_pending` publishes are without an answer on each connection, and 8 MiB; who comes then waits.
    `connect="require"`: raises ConnectError when no nsqd can be reached.
    """
    producer = Producer(
        [addresses] if isinstance(addresses, str) or not isinstance(addresses, Sequence) else addresses,
        strategy=strategy,
        config=config,
        retry=retry,
        max_pending=max_pending,
        must_connect=connect == "require",
        logger=logger,
    )
    with unwrapped():
        async with trio.open_nursery() as nursery:
            try:  # a cancellation may come between the start and its end
                await nursery.start(producer._serve)
                yield producer
                with trio.move_on_after(config.drain_timeout):
                    await producer.flush()
            finally:
                producer._leave()


class Producer(BaseProducer["_Node", Receipt]):
    """Made by `open_producer`. May be used from many tasks at once.

    A publish that is cancelled before it was queued is not sent. After that it is: its outcome is reported as a LatePublish event.
    """

    def __init__(
        self,
        addresses: Sequence[Target],
        *,
        strategy: Strategy = "hostpool",
        config: Config = Config(),
        retry: Retry = "never",
        max_pending: int = 1000,
        must_connect: bool = False,
        logger: logging.Logger = LOGGER,
    ) -> None:
        super().__init__(
            addresses,
            strategy=strategy,
            config=config,
            retry=retry,
            max_pending=max_pending,
            logger=logger,
            clock=trio.current_time,
            node=_Node,
            receipt=Receipt,
        )
        self._subscribers = Subscribers()
        self._needed = {"all": len(addresses)}.get(strategy, 0) if isinstance(strategy, str) else strategy.count
        self._send = self._publish_to_all if self._needed else self._publish
        self._must_connect = must_connect
        self._scope = trio.CancelScope()

    # Publishing

    async def publish(
        self, topic: str, body: bytes, *, delay: float | None = None, timeout: float | None = None
    ) -> None:
        """Returns when nsqd has it. `delay` seconds pass before it is delivered.

        Raises PublishRejected, PublishUnknown (it may be published, or not), PublishUnsent, ConnectError, Stopped;
        trio.TooSlowError after `timeout` seconds; ValueError for what no nsqd takes.
        """
        command = pub_command(topic, body, delay)
        if timeout is None:
            await self._send(topic, command, 1)
        else:
            with trio.fail_after(timeout):
                await self._send(topic, command, 1)

    async def publish_many(self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
        """All of them, as one: nsqd takes all or none. Beyond 5 MiB that holds for each 5 MiB, which are published one
        after the other. Raises as `publish`."""
        commands = list(mpub_commands(topic, bodies))
        with trio.fail_after(timeout if timeout is not None else float("inf")):
            for command, count in commands:
                await self._send(topic, command, count)

    async def ping(self) -> None:
        """Returns when each nsqd has shown that it is there: with its next heartbeat. Raises ConnectError, Disconnected."""
        if self.config.heartbeat_interval is None:
            raise ConfigError("heartbeat_interval", None, "there are no heartbeats to wait for")
        with unwrapped():
            async with trio.open_nursery() as nursery:
                for node in self._nodes:
                    nursery.start_soon(self._hear_from, node)

    async def probe_write(self) -> None:
        """Returns when each connection has taken a few bytes, which proves less than `ping`. Raises ConnectError."""
        for node in self._nodes:
            self._check_running()
            (await node.connected()).probe()

    def events(self) -> AsyncIterator[Event]:
        """What happens from now on. Who does not keep up misses the newest (a thousand are kept)."""
        return self._subscribers.subscribe()

    async def _publish_to_all(self, topic: str, command: bytes, count: int) -> None:
        errors: list[Exception] = []
        accepted = 0

        async def publish(node: _Node) -> None:
            nonlocal accepted
            if error := await self._try(node, topic, command, count):
                errors.append(error)
            else:
                accepted += 1

        with unwrapped():
            async with trio.open_nursery() as nursery:
                for node in self._nodes:
                    nursery.start_soon(publish, node)
        if accepted < self._needed:
            raise PublishError(
                f"{accepted} of {len(self._nodes)} nsqds have it, not {self._needed}: {errors[0]}"
            ) from errors[0]

    async def _hear_from(self, node: _Node) -> None:
        self._check_running()
        await node.connected()
        await node.heartbeat.wait()
        if node.connection is None:
            raise Disconnected("not connected")

    def _emit(self, event: Event) -> None:
        super()._emit(event)
        self._subscribers.publish(event)

    async def _sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    # --- from start to end

    async def _serve(
        self, *, is_shielded: bool = True, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Shielded it goes on when everything around it is cancelled, until `_leave`."""
        with self._scope:
            async with trio.open_nursery() as tasks:
                for node in self._nodes:
                    tasks.start_soon(node.keep_connected)
                if self._must_connect:
                    await self._wait_for_one()
                await trio.lowlevel.checkpoint()  # who is cancelled by now will not say `_leave`
                self._scope.shield = is_shielded
                task_status.started()

    def _leave(self) -> None:
        self._is_stopped = True
        self._scope.cancel()
        self._subscribers.close()


class _Node(BaseNode):
    def __init__(self, target: Target, shared: Shared) -> None:
        super().__init__(target, shared)
        self.heartbeat = trio.Event()  # the next one
        self._room = trio.lowlevel.ParkingLot()
        self._demand = Wakeup()
        self._try = trio.Event()  # over, with a connection or without
        self._pump = Pump(shared.config)

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
            # A command that is alone, or worth a packet of its own, goes at once: it is spared the writer's task.
            self._pump.hold()
            connection.publish(command, receipt)
            self._pump.release()

    async def keep_connected(self) -> None:
        try:
            await self._demand.wait()
            while True:
                await self._connect_once()
                with trio.move_on_after(self._reconnect.pause()):
                    await self._demand.wait()
        finally:
            self._error = Stopped("stopped")
            self._try.set()  # and it stays set: nobody waits for a try that will not come

    async def _connect_once(self) -> None:
        config = self._shared.config
        self._pump = pump = Pump(config)
        connection = self._new_connection(wake=pump.wake, on_room=self._room.unpark_all, on_heartbeat=self._heard)
        error: NSQError | None = None  # we ended it ourselves
        try:
            await pump.run(connection, await dial(self._target, config))
        except NSQError as caught:
            error = caught
        finally:
            self._closed(connection, error)
            self._heard()

    def _end_try(self) -> None:
        self._try.set()
        self._try = trio.Event()

    def _heard(self) -> None:
        self.heartbeat.set()
        self.heartbeat = trio.Event()
