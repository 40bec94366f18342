"""A producer: the choice of an nsqd for each publish, and its repeats. On trio and on asyncio."""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Literal, Self

from nsqclient.core.errors import (
    ConfigError,
    ConnectError,
    NSQError,
    OutcomeUnknown,
    PublishError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Stopped,
    Unsupported,
)
from nsqclient.core.errors import Disconnected as NotConnected
from nsqclient.core.events import ConnectFailed, Event, LatePublish
from nsqclient.core.hostpool import Quorum, Strategy
from nsqclient.core.listings import parse_lookupd
from nsqclient.core.membership import Membership
from nsqclient.core.node_list import NODES, NodeList
from nsqclient.core.publication import (
    Group,
    Headers,
    Names,
    Outcome,
    check_one_key,
    checked_key,
    group_in,
    has_headers,
    keyed,
    mpub_commands,
    only_group_in,
    pub_command,
    with_group,
    with_group_in_all,
)
from nsqclient.core.recall import cancel_target, reschedule_target
from nsqclient.core.reconnect import Reconnect
from nsqclient.core.results import CancelResult, RescheduleResult
from nsqclient.core.roster import Roster
from nsqclient.core.stats import ProducerStats
from nsqclient.shell.discovery import Discovery
from nsqclient.shell.log import logging_events
from nsqclient.shell.node import FIRST_PAUSE, LONGEST_PAUSE, ProducerNode, Shared
from nsqclient.shell.recalling import TIMEOUT, recall
from nsqclient.shell.runtime import within
from nsqclient.shell.subscribers import Subscribers
from nsqclient.shell.targets import Target, check_target

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from nsqclient.core.config import Config
    from nsqclient.shell.runtime import ClientTasks, Runtime

Retry = Literal["safe", "never", "unsent", "anywhere"]

_REPEATING: Final = ("safe", "anywhere")  # at the same nsqd, with a key
_PUB_FAILED: Final = "PUB_FAILED"  # E_, E_M and E_D
_LONGEST_PAUSE_TO_REPEAT: Final = 1.0  # seconds between repeats of a publish that may have succeeded
_ROUNDS: Final = 3  # tries per nsqd if a publish may be retried
_PATIENCE: Final = 3.0  # seconds that a publish waits for nsqlookupd to list the first nsqd


@asynccontextmanager
async def opened_producer(
    make_runtime: Callable[[], Runtime],
    addresses: Sequence[Target] | Target,
    *,
    lookupd: Sequence[str] | str,
    strategy: Strategy,
    config: Config,
    retry: Retry,
    retry_timeout: float,
    max_pending: int,
    connect: Literal["lazy", "require"],
    logger: logging.Logger,
    nsqlookupd: Sequence[str] | str | None,
) -> AsyncIterator[Producer]:
    """Open a producer. `nsqclient.open_producer` describes the arguments."""
    runtime = make_runtime()
    producer = Producer(
        runtime,
        [addresses] if isinstance(addresses, str) or not isinstance(addresses, Sequence) else addresses,
        lookupd=given_lookupds(lookupd, nsqlookupd),
        strategy=strategy,
        config=config,
        retry=retry,
        retry_timeout=retry_timeout,
        max_pending=max_pending,
        logger=logger,
    )
    async with producer._running(connect):
        yield producer


class Receipt(Outcome):
    """The outcome of one submitted message. Once `done` is true, `error` is None or says why it failed."""

    __slots__ = ("_runtime",)

    _runtime: Runtime  # the producer sets it, because our own constructor would cost each publish a call

    async def wait(self) -> Self:
        """Return when nsqd has answered or can't answer any more. Cancelling the wait doesn't cancel the publish."""
        if not self.done:
            await self._runtime.wait_for(self)
        return self


class Producer:
    """Made by `open_producer`. Any number of tasks of its trio or asyncio loop may use it, but not other threads.

    If you cancel a publish before it is queued, it isn't sent. Afterwards it is sent, and its outcome becomes a
    LatePublish event.
    """

    def __init__(
        self,
        runtime: Runtime,
        addresses: Sequence[Target],
        *,
        lookupd: Sequence[str] = (),
        strategy: Strategy = "hostpool",
        config: Config,
        retry: Retry = "safe",
        retry_timeout: float = 60.0,
        max_pending: int = 1000,
        logger: logging.Logger,
    ) -> None:
        lookupds = [parse_lookupd(text, NODES) for text in lookupd]
        _check(addresses, has_lookupd=bool(lookupds), max_pending=max_pending, strategy=strategy)
        self.config = config
        self._runtime = runtime
        self._clock = runtime.clock
        self._wait_for: Callable[[Outcome], Awaitable[None]] = runtime.wait_for
        self._tasks: ClientTasks | None = None
        self._random = Random()
        self._retry = retry
        self._retry_timeout = retry_timeout
        self._names = Names()
        self._log = logging_events(logger, "")
        self._subscribers = Subscribers(runtime)
        shared = Shared(
            runtime,
            self._our_tasks,
            config,
            max_pending,
            self._emit,
            self._random,
            self._connection_changed,
            nodes_move=bool(lookupds),
        )
        self._lookupds = lookupds
        membership = Membership(map(str, addresses)) if lookupds else None
        self._roster = Roster(
            addresses,
            lambda target, number: ProducerNode(target, shared, number),
            membership,
            strategy=strategy,
            config=config,
            random=self._random,
            emit=self._emit,
        )
        self._listing = NodeList(membership, clock=self._clock, emit=self._emit) if membership is not None else None
        self._first_nodes = runtime.parking_lot()  # publishes waiting for the first known nsqd
        self._strategy = strategy
        is_for_several = strategy == "all" or isinstance(strategy, Quorum)
        self._send = self._publish_to_several if is_for_several else self._publish
        self._attempt = self._try if membership is None else self._try_counted
        self._is_stopped = False

    @asynccontextmanager
    async def _running(self, connect: Literal["lazy", "require"]) -> AsyncIterator[None]:
        """Publish until the block ends, and then until all is answered."""
        try:
            async with self._runtime.tasks() as tasks:
                try:
                    self._start(tasks)
                    if connect == "require":
                        await self._wait_for_one()
                    yield
                    await within(self._runtime, self.config.drain_timeout, self.flush, None)  # receipts report failures
                finally:
                    self._is_stopped = True
        finally:
            self._subscribers.close()

    def _start(self, tasks: ClientTasks) -> None:
        """Start the tasks that keep the connections open."""
        self._tasks = tasks
        self._roster.begin()
        if self._listing is not None:
            discovery = Discovery(
                self._runtime,
                self._listing,
                self._lookupds,
                self.config,
                random=self._random,
                emit=self._emit,
                apply=self._apply,
            )
            tasks.start(discovery.run)

    def _our_tasks(self) -> ClientTasks:
        assert self._tasks is not None
        return self._tasks

    @property
    def _nodes(self) -> Sequence[ProducerNode]:
        return self._roster.nodes

    # Publishing

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish a message and return when nsqd has accepted it. It is delivered after `delay` seconds.

        With a `key`, however often you repeat the publish, the same nsqd stores it once in this topic, as long as it
        remembers the key. Consumers that support `headers` get them with the message. A `group` has 1 to 128 bytes of
        UTF-8; it is the header `nsq-group`, by which a channel may keep order, and limits and shares for each group.

        Raises PublishRejected, PublishUnknown (it may have been published; OutcomeUnknown if it had a key),
        PublishUnsent, ConnectError or Stopped; after `timeout` seconds trio.TooSlowError on trio, TimeoutError on
        asyncio; ValueError for an invalid topic, an empty message, an invalid delay, key, header or group; Unsupported
        for a key, headers or a group at an nsqd that knows none.
        """
        headers = with_group(headers, group)
        command = pub_command(topic, body, delay, headers)
        place = self._place(topic, key, headers)
        if timeout is None:
            await self._send(topic, command, 1, key, place)
        else:
            await self._runtime.fail_after(timeout, partial(self._send, topic, command, 1, key, place))

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        headers: Iterable[Headers] | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish messages together: nsqd accepts all or none. They share a `key` and a `group`.

        Each has its own `headers`. More than 5 MiB go out in parts of up to 5 MiB, one after another, and nsqd accepts
        or refuses each part as a whole. A key is refused then. Raises the errors of `publish`, and with the strategy
        `by_group` ValueError for messages of several groups.
        """
        bodies = list(bodies)
        headers_of_all = with_group_in_all(headers, group, len(bodies))
        commands = list(mpub_commands(topic, bodies, headers_of_all))
        check_one_key(key, commands)
        place = self._place_of_all(topic, key, headers_of_all)
        if timeout is None:
            await self._send_all(topic, commands, key, place)
        else:
            await self._runtime.fail_after(timeout, partial(self._send_all, topic, commands, key, place))

    async def _send_all(
        self, topic: str, commands: Sequence[tuple[bytes, int]], key: str | None, place: bytes | None
    ) -> None:
        for command, count in commands:
            await self._send(topic, command, count, key, place)

    async def submit(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        group: Group | None = None,
    ) -> Receipt:
        """Queue a message and return its receipt. Waits only for a connection and for room.

        The message goes to a single nsqd, whatever the strategy, and is not retried. If you cancel this call, the
        message isn't queued.

        Raises ConnectError, Stopped, ValueError, Unsupported (like `publish`).
        """
        headers = with_group(headers, group)
        command = pub_command(topic, body, delay, headers)
        node = self._roster.only or await self._pick_node(place=self._place(topic, key, headers))
        receipt = await self._submit(node, topic, command, 1, self._key(key), is_given=key is not None)
        if self._roster.only is None:
            started = self._clock()
            receipt.when_done(lambda: self._report_to_pool(node, receipt.error, started))
        return receipt

    async def flush(self) -> None:
        """Wait until everything submitted so far is answered. Cancelling the wait cancels no publish."""
        for node in list(self._nodes):
            if node.connection is not None and node.connection.pending:
                last = node.connection.pending[-1]
                assert isinstance(last, Receipt)
                await last.wait()

    async def ping(self) -> None:
        """Wait for the next heartbeat of each nsqd. Raise ConnectError or Disconnected."""
        if self.config.heartbeat_interval is None:
            raise ConfigError("heartbeat_interval", None, "there are no heartbeats to wait for")
        await self._wait_for_nodes()
        await self._runtime.together([partial(self._hear_from, node) for node in self._roster.active])

    async def _hear_from(self, node: ProducerNode) -> None:
        self._check_running()
        await node.connected()
        await node.wait_for_heartbeat()
        if node.connection is None:
            raise NotConnected("not connected")

    async def probe_write(self) -> None:
        """Queue a NOP on each connection, which proves less than `ping`. Raise ConnectError."""
        await self._wait_for_nodes()
        for node in list(self._roster.active):
            self._check_running()
            (await node.connected()).probe()

    # Cancel and reschedule

    async def cancel(
        self, topic: str, key: str, *, channel: str | None = None, timeout: float = TIMEOUT
    ) -> CancelResult:
        """Cancel the message with this key, in all channels or in one.

        A deferred or waiting message will never be delivered once this returns. If the result says `in_flight`, a
        consumer already has it. All nsqds of the producer are asked, and have `timeout` seconds to answer.

        Raises Incomplete if some didn't answer: its `result` names them, and has the answers of the others. Raises
        Unsupported if no nsqd can do this (NSQ's own can't); Stopped; ValueError for an invalid name or key.
        """
        target = cancel_target(topic, key, channel)
        return await recall(self._runtime, await self._known_nodes(), target, CancelResult, self.config, timeout)

    async def reschedule(
        self, topic: str, key: str, *, delay: float, channel: str | None = None, timeout: float = TIMEOUT
    ) -> RescheduleResult:
        """Deliver the message with this key `delay` seconds from now; 0: at once.

        Only deferred and waiting messages can be rescheduled. Raises the errors of `cancel`.
        """
        target = reschedule_target(topic, key, channel, delay)
        return await recall(self._runtime, await self._known_nodes(), target, RescheduleResult, self.config, timeout)

    async def _known_nodes(self) -> Sequence[ProducerNode]:
        self._check_running()
        await self._wait_for_nodes()
        return list(self._nodes)

    # Figures and events

    @property
    def connected(self) -> bool:
        """True if at least one nsqd has an open connection."""
        return any(node.connection is not None for node in self._nodes)

    def stats(self) -> ProducerStats:
        """Return the current figures."""
        return ProducerStats(
            published=sum(node.published for node in self._nodes),
            failed=sum(node.failed for node in self._nodes),
            nodes=tuple(node.stats() for node in self._nodes),
        )

    def events(self) -> AsyncIterator[Event]:
        """Yield events from now on. If a thousand events are waiting for you, further ones are dropped."""
        return self._subscribers.subscribe()

    # One publish

    def _key(self, given: str | None) -> bytes:
        if given is not None:
            return checked_key(given)
        return self._names.next() if self._retry in _REPEATING else b""

    def _place(self, topic: str, key: str | None, headers: Headers | None) -> bytes | None:
        """Return what decides the nsqd of a publish; None if any will do."""
        match self._strategy:
            case "by_key":
                return key.encode() if key is not None else None
            case "by_group":
                return group_in(headers) or (key.encode() if key is not None else None)
            case "by_topic":
                return topic.encode()
        return None

    def _place_of_all(self, topic: str, key: str | None, headers: Sequence[Headers] | None) -> bytes | None:
        """Return what decides the nsqd of messages that are published together. Raise ValueError for several groups."""
        if self._strategy == "by_group" and (group := only_group_in(headers)) is not None:
            return group
        return self._place(topic, key, None)

    async def _publish(
        self, topic: str, command: bytes, count: int, key: str | None = None, place: bytes | None = None
    ) -> None:
        tries = 0
        refused: tuple[int, ...] = ()  # nsqds that have refused this message
        pauses: Reconnect | None = None
        only = self._roster.only
        while True:
            if only is not None:
                node = only
                error = await self._attempt(node, topic, command, count, key)
            else:
                node = await self._pick_node(refused, place)
                started = self._clock()
                error = await self._attempt(node, topic, command, count, key)
                self._report_to_pool(node, error, started)
            if error is None:
                return
            tries += 1
            if _is_refused(error) and self._retry != "never":
                refused = (*refused, node.number)
                if all(other.number in refused for other in self._roster.active):
                    raise error
                continue
            size = len(self._roster.active)
            if tries >= size * _ROUNDS or not self._may_be_retried(error):
                raise error
            if tries % size == 0:
                pauses = pauses or Reconnect(self.config, self._random, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
                await self._runtime.sleep(pauses.pause())

    async def _publish_to_several(
        self, topic: str, command: bytes, count: int, key: str | None = None, place: bytes | None = None
    ) -> None:
        await self._wait_for_nodes()
        nodes = self._roster.active
        needed = self._strategy.count if isinstance(self._strategy, Quorum) else len(nodes)
        if needed > len(nodes):
            nodes = list(self._roster.nodes)
        outcomes = await self._runtime.together(
            [partial(self._attempt, node, topic, command, count, key) for node in nodes]
        )
        accepted = outcomes.count(None)
        if accepted < needed:
            error = next(filter(None, outcomes), None)
            raise PublishError(f"{accepted} of {len(nodes)} nsqds have it, not {needed}: {error}") from error

    async def _try_counted(
        self, node: ProducerNode, topic: str, command: bytes, count: int, key: str | None
    ) -> Exception | None:
        """Publish like `_try`, and keep the nsqd until the end, even if nsqlookupd no longer lists it."""
        node.users += 1
        try:
            return await self._try(node, topic, command, count, key)
        finally:
            node.users -= 1
            self._roster.drop_unless_used(node)

    async def _try(
        self, node: ProducerNode, topic: str, command: bytes, count: int, key: str | None
    ) -> Exception | None:
        """Publish to this nsqd and return the error, or None.

        If we don't know whether it was stored and it had a key, repeat it here until there is an answer. If another
        machine has taken over this nsqd's log, it knows the key too, so repeat it there.
        """
        name = self._key(key)
        error = await self._try_once(node, topic, command, count, name, is_given=key is not None)
        if not isinstance(error, OutcomeUnknown) or self._retry not in _REPEATING:
            return error
        unknown: Exception | None = error
        until = self._clock() + self._retry_timeout
        pauses = Reconnect(self.config, self._random, first=FIRST_PAUSE, longest=_LONGEST_PAUSE_TO_REPEAT)
        while self._clock() < until:
            await self._runtime.sleep(min(pauses.pause(), max(until - self._clock(), 0.0)))
            left = max(until - self._clock(), 0.0)
            try:
                again = await within(
                    self._runtime, left, partial(self._repeat, node, topic, command, count, name), unknown
                )
            except Unsupported:
                return error  # another nsqd answers there
            if again is None:
                return None
            if isinstance(again, PublishRejected):
                # nsqd looks up the key before it tries to store, but after it has checked the client and the command.
                return again if _is_refused(again) else error
        return error

    async def _repeat(self, node: ProducerNode, topic: str, command: bytes, count: int, key: bytes) -> Exception | None:
        node = self._roster.successor(node)
        return await self._try_once(node, topic, command, count, key, is_given=True)

    async def _try_once(
        self, node: ProducerNode, topic: str, command: bytes, count: int, key: bytes, *, is_given: bool
    ) -> Exception | None:
        try:
            receipt = await self._submit(node, topic, command, count, key, is_given=is_given)
        except (ConnectError, PublishUnsent) as error:
            return error
        if not receipt.done:
            try:
                await self._wait_for(receipt)
            except BaseException:
                receipt.is_abandoned = True
                if receipt.done:  # on asyncio, a cancellation in the same turn as the answer wins
                    self._emit(LatePublish(topic, receipt.error))
                raise
        return receipt.error

    async def _submit(
        self, node: ProducerNode, topic: str, command: bytes, count: int, key: bytes, *, is_given: bool
    ) -> Receipt:
        """Queue a command. For an nsqd without keys, leave out a key that is ours (not `is_given`)."""
        self._check_running()
        connection = node.usable or await node.connected()
        while not connection.has_room:
            await node.wait_for_room()
            self._check_running()
            connection = node.usable or await node.connected()
        if has_headers(command) and not connection.takes_headers:
            raise Unsupported(f"nsqd {node.address} knows no headers: it does not grant the extension `headers`")
        if key and connection.takes_keys:
            command = keyed(command, key)
        elif key and is_given:
            raise Unsupported(f"nsqd {node.address} knows no keys: it does not grant the extension `keys`")
        else:
            key = b""
        receipt = Receipt(topic, count=count, size=len(command), key=key)
        receipt._runtime = self._runtime
        node.publish(connection, command, receipt)
        return receipt

    async def _pick_node(self, refused: Sequence[int] = (), place: bytes | None = None) -> ProducerNode:
        if not self._roster.active:
            await self._wait_for_nodes()
        return self._roster.pick(self._clock(), refused, place)

    def _report_to_pool(self, node: ProducerNode, error: Exception | None, started: float) -> None:
        """Report the result to the pool.

        An nsqd that refuses a message hasn't failed, unless it couldn't store the message. If nodes come and go, a lost
        connection isn't a failure, because we pick nodes with a connection as long as there are some. The strategies
        `by_key`, `by_group` and `by_topic` may pick one without a connection; then an unreachable node is a failure.
        """
        now = self._clock()
        if error is None or (isinstance(error, PublishRejected) and not _is_refused(error)):
            self._roster.succeeded(node, now - started, now)
        elif self._roster.membership is None or self._roster.goes_by_key or _is_refused(error):
            self._roster.failed(node, now)

    # Nodes that come and go

    def _connection_changed(self, node: ProducerNode, is_open: bool) -> None:
        self._roster.connection_changed(node, is_open=is_open, now=self._clock())

    def _apply(self) -> None:
        """Record that an nsqlookupd has answered."""
        self._roster.update()
        if self._roster.active:
            self._first_nodes.unpark_all()

    async def _wait_for_nodes(self) -> None:
        """Wait until an nsqd is known. Raise ConnectError if that takes too long."""
        if not self._roster.active:
            self._check_running()
            await within(self._runtime, _PATIENCE, self._first_nodes.park, None)
            self._check_running()
            if not self._roster.active:
                said = self._listing is not None and self._listing.has_begun
                raise ConnectError("nsqlookupd lists no nsqd" if said else "no nsqlookupd could be asked")

    def _may_be_retried(self, error: Exception) -> bool:
        if isinstance(error, ConnectError | PublishUnsent):
            return self._retry != "never"
        return isinstance(error, PublishUnknown) and self._retry == "anywhere"

    def _check_running(self) -> None:
        if self._is_stopped:
            raise Stopped("stopped")

    def _emit(self, event: Event) -> None:
        if not (isinstance(event, ConnectFailed) and self._is_repetition(event)):
            self._log(event)
        self._subscribers.publish(event)

    def _is_repetition(self, event: ConnectFailed) -> bool:
        """Return True to skip the line: for nodes from nsqlookupd we log the 1st, 2nd, 4th, 8th, ... failure."""
        return bool(self._lookupds) and event.failures & (event.failures - 1) != 0

    async def _wait_for_one(self) -> None:
        """Wait until one nsqd is connected. Raise the last error if none can be reached."""
        await self._wait_for_nodes()
        error: NSQError | None = None
        for node in list(self._roster.active):
            try:
                await node.connected()
            except NSQError as caught:
                error = caught
            else:
                return
        assert error is not None
        raise error


def given_lookupds(lookupd: Sequence[str] | str, nsqlookupd: Sequence[str] | str | None) -> Sequence[str]:
    """Return the nsqlookupds from the arguments of `open_producer`. `nsqlookupd` is the former name of `lookupd`.

    Raises ConfigError if both are given.
    """
    if nsqlookupd is not None:
        if lookupd:
            raise ConfigError(
                "nsqlookupd", nsqlookupd, "nsqlookupd= is the former name of lookupd=: give lookupd= alone"
            )
        # stacklevel: this function, opened_producer, __aenter__ of contextlib, and the caller.
        warnings.warn("nsqlookupd= is now called lookupd=, as for consumers", DeprecationWarning, stacklevel=4)
        lookupd = nsqlookupd
    return [lookupd] if isinstance(lookupd, str) else lookupd


def _check(addresses: Sequence[Target], *, has_lookupd: bool, max_pending: int, strategy: Strategy) -> None:
    """Raise ConfigError for arguments that can never work."""
    if not addresses and not has_lookupd:
        raise ConfigError("addresses", addresses, "no nsqd to publish to")
    for target in addresses:
        check_target(target)
    if max_pending < 1:
        raise ConfigError("max_pending", max_pending, f"invalid max_pending ! {max_pending} < 1")
    if isinstance(strategy, Quorum) and strategy.count > len(addresses) and not has_lookupd:
        raise ConfigError("strategy", strategy, f"a quorum of {strategy.count}, but only {len(addresses)} nsqds")


def _is_refused(error: Exception) -> bool:
    """Return True if nsqd couldn't store the message. It was certainly not published, and another nsqd may take it."""
    return isinstance(error, PublishRejected) and error.code.endswith(_PUB_FAILED)
