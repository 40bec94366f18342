"""A producer on trio: the tasks around `ProducerConnection`, and the choice of an nsqd for each publish."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, Final, Literal, Self

import trio

from nsqclient._config import Config
from nsqclient._dial import Target, check_target, dial
from nsqclient._errors import (
    ConfigError,
    ConnectError,
    Disconnected,
    NSQError,
    PublishError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Stopped,
)
from nsqclient._groups import unwrapped
from nsqclient._hostpool import Quorum, Strategy, pool_of
from nsqclient._identity import our_identity
from nsqclient._log import LOGGER, logging_events
from nsqclient._publication import Outcome, ProducerConnection, mpub_commands, pub_command
from nsqclient._pump import Pump, tls_maker
from nsqclient._reconnect import Reconnect
from nsqclient._stats import NodeStats, ProducerStats
from nsqclient._subscribers import Subscribers
from nsqclient._wakeup import Wakeup
from nsqclient.events import ConnectFailed, Event
from nsqclient.events import Disconnected as HasDisconnected

Retry = Literal["never", "unsent", "always"]

_FIRST_PAUSE: Final = 0.1  # seconds, before a connection is tried again
_LONGEST_PAUSE: Final = 15.0
_ROUNDS: Final = 3  # over all nsqds, where a publish may be tried again
_LARGE: Final = 16 * 1024  # bytes of a command that nsqd had better begin with at once


class Receipt(Outcome):
    """What becomes of one message that was submitted: `done`, and `error` if it is not None then."""

    __slots__ = ()

    async def wait(self) -> Self:
        """Returns when nsqd has answered, or cannot any more. Cancelling it changes nothing."""
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


class Producer:
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
        if not addresses:
            raise ConfigError("addresses", addresses, "no nsqd to publish to")
        for target in addresses:
            check_target(target)
        if max_pending < 1:
            raise ConfigError("max_pending", max_pending, f"invalid max_pending ! {max_pending} < 1")
        if isinstance(strategy, Quorum) and strategy.count > len(addresses):
            raise ConfigError("strategy", strategy, f"a quorum of {strategy.count} of {len(addresses)} nsqds")
        self.config = config
        self._random = Random()
        self._needed = {"all": len(addresses)}.get(strategy, 0) if isinstance(strategy, str) else strategy.count
        self._pool = pool_of(strategy, len(addresses), self._random)
        self._retry = retry
        self._must_connect = must_connect
        self._log = logging_events(logger, "")
        self._subscribers = Subscribers()
        self._nodes = [_Node(target, config, max_pending, self._emit, self._random) for target in addresses]
        self._only = self._nodes[0] if len(addresses) == 1 else None
        self._scope = trio.CancelScope()
        self._is_stopped = False

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
            await self._publish(topic, command, 1)
        else:
            with trio.fail_after(timeout):
                await self._publish(topic, command, 1)

    async def publish_many(self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
        """All of them, as one: nsqd takes all or none. Beyond 5 MiB that holds for each 5 MiB, which are published one
        after the other. Raises as `publish`."""
        commands = list(mpub_commands(topic, bodies))
        with trio.fail_after(timeout if timeout is not None else float("inf")):
            for command, count in commands:
                await self._publish(topic, command, count)

    async def submit(self, topic: str, body: bytes, *, delay: float | None = None) -> Receipt:
        """Waits for a connection and for room only; the receipt tells the rest. To one nsqd, whatever the strategy.

        Raises ConnectError, Stopped, ValueError.
        """
        command = pub_command(topic, body, delay)
        number, node = self._pick()
        receipt = await self._submit(node, topic, command, 1)
        if self._only is None:
            started = trio.current_time()
            receipt.when_done(lambda: self._judge(number, receipt.error, started))
        return receipt

    async def flush(self) -> None:
        """Returns when everything submitted before has its answer."""
        for node in self._nodes:
            if node.connection is not None and node.connection.pending:
                last = node.connection.pending[-1]
                assert isinstance(last, Receipt)
                await last.wait()

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

    # What can be asked

    @property
    def connected(self) -> bool:
        """Whether some nsqd could be published to at once."""
        return any(node.connection is not None for node in self._nodes)

    def stats(self) -> ProducerStats:
        return ProducerStats(
            published=sum(node.published for node in self._nodes),
            failed=sum(node.failed for node in self._nodes),
            nodes=tuple(node.stats() for node in self._nodes),
        )

    def events(self) -> AsyncIterator[Event]:
        """What happens from now on. Who does not keep up misses the newest (a thousand are kept)."""
        return self._subscribers.subscribe()

    # --- one publish

    async def _publish(self, topic: str, command: bytes, count: int) -> None:
        if self._needed:
            await self._publish_to_all(topic, command, count)
            return
        tries = len(self._nodes) * _ROUNDS
        pauses: Reconnect | None = None
        while True:
            number, node = self._pick()
            started = trio.current_time() if self._only is None else 0.0
            error = await self._try(node, topic, command, count)
            if self._only is None:
                self._judge(number, error, started)
            if error is None:
                return
            tries -= 1
            if not tries or not self._may_be_retried(error):
                raise error
            if tries % len(self._nodes) == 0:
                pauses = pauses or Reconnect(self.config, self._random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
                await trio.sleep(pauses.pause())

    async def _try(self, node: _Node, topic: str, command: bytes, count: int) -> Exception | None:
        """On one nsqd."""
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
            await node.room.park()
            self._check_running()
            connection = node.usable or await node.connected()
        receipt = Receipt(topic, count=count, size=len(command))
        if connection.pending and len(command) < _LARGE:
            connection.publish(command, receipt)
        else:
            # Alone, or worth a packet of its own: it goes at once, which spares it the way through the writer's task.
            node.pump.hold()
            connection.publish(command, receipt)
            node.pump.release()
        return receipt

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

    def _pick(self) -> tuple[int, _Node]:
        if self._only is not None:
            return 0, self._only
        number = self._pool.pick(trio.current_time())
        return number, self._nodes[number]

    def _judge(self, number: int, error: Exception | None, started: float) -> None:
        now = trio.current_time()
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

    async def _hear_from(self, node: _Node) -> None:
        self._check_running()
        await node.connected()
        await node.heartbeat.wait()
        if node.connection is None:
            raise Disconnected("not connected")

    def _emit(self, event: Event) -> None:
        self._log(event)
        self._subscribers.publish(event)

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

    def _leave(self) -> None:
        self._is_stopped = True
        self._scope.cancel()
        self._subscribers.close()


class _Node:
    """One nsqd: connected to when somebody wants to publish, and from then on."""

    def __init__(
        self, target: Target, config: Config, max_pending: int, emit: Callable[[Event], None], random: Random
    ) -> None:
        self.address = str(target)
        self.connection: ProducerConnection | None = None  # when it is open
        self.room = trio.lowlevel.ParkingLot()
        self.heartbeat = trio.Event()  # the next one
        self._target = target
        self._config = config
        self._max_pending = max_pending
        self._emit = emit
        self._reconnect = Reconnect(config, random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        self._demand = Wakeup()
        self._try = trio.Event()  # over, with a connection or without
        self._error: NSQError = Stopped("stopped")  # of the last try
        self._published = 0  # on connections that have gone
        self._failed = 0
        self._failures = 0
        self.pump = Pump(config)

    async def connected(self) -> ProducerConnection:
        """As soon as there is a connection. Raises ConnectError if the next try fails."""
        if self.usable is None:
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

    async def keep_connected(self) -> None:
        try:
            await self._demand.wait()
            while True:
                await self._connect_once()
                with trio.move_on_after(self._reconnect.pause()):
                    await self._demand.wait()
        finally:
            self._error = Stopped("stopped")
            self._try.set()

    async def _connect_once(self) -> None:
        self.pump = pump = Pump(self._config)
        connection = ProducerConnection(
            self.address,
            self._config,
            our_identity(),
            max_pending=self._max_pending,
            make_tls=tls_maker(self._target, self._config),
            wake=pump.wake,
            emit=self._emit,
            on_open=lambda: self._opened(connection),
            on_room=self.room.unpark_all,
            on_heartbeat=self._heard,
        )
        error: NSQError | None = None  # it was we
        try:
            await pump.run(connection, await dial(self._target, self._config))
        except NSQError as caught:
            error = caught
        finally:
            self._closed(connection, error)

    def _opened(self, connection: ProducerConnection) -> None:
        self.connection = connection
        self._failures = 0
        self._end_try()

    def _closed(self, connection: ProducerConnection, error: NSQError | None) -> None:
        self.connection = None
        self._error = error if isinstance(error, ConnectError) else ConnectError(f"not connected: {error or 'closed'}")
        connection.lost(error)
        self._published += connection.published
        self._failed += connection.failed
        if connection.is_open:
            self._reconnect.worked(connection.opened_at, trio.current_time())
            self._emit(HasDisconnected(self.address, str(error or ""), 0))
        else:
            if error is not None:
                self._failures += 1
                self._emit(ConnectFailed(self.address, str(error), self._failures))
            self._end_try()
        self._heard()

    def _end_try(self) -> None:
        self._try.set()
        self._try = trio.Event()

    def _heard(self) -> None:
        self.heartbeat.set()
        self.heartbeat = trio.Event()

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
