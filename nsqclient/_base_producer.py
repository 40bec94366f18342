"""The part of a producer that trio and asyncio share: everything but waiting."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Generic, Literal, Self, TypeVar

from nsqclient._dial import Target, check_target
from nsqclient._errors import (
    ConfigError,
    ConnectError,
    NSQError,
    OutcomeUnknown,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Stopped,
    Unsupported,
)
from nsqclient._hostpool import Quorum, Strategy, pool_of
from nsqclient._identity import our_identity
from nsqclient._log import logging_events
from nsqclient._publication import (
    Headers,
    Names,
    Outcome,
    ProducerConnection,
    checked_key,
    has_headers,
    keyed,
    pub_command,
)
from nsqclient._pump import tls_maker
from nsqclient._recalling import Recalling
from nsqclient._reconnect import Reconnect
from nsqclient._stats import NodeStats, ProducerStats
from nsqclient.events import ConnectFailed, Disconnected, Event

if TYPE_CHECKING:
    from nsqclient._config import Config

Retry = Literal["safe", "never", "unsent", "anywhere"]

_REPEATING: Final = ("safe", "anywhere")  # at the same nsqd, with a key
_PUB_FAILED: Final = "PUB_FAILED"  # E_, E_M and E_D
_FIRST_PAUSE: Final = 0.1  # seconds until a failed connection is tried again
_LONGEST_PAUSE: Final = 15.0
_LONGEST_PAUSE_TO_REPEAT: Final = 1.0  # where an earlier try may have succeeded: no other nsqd can help
_ROUNDS: Final = 3  # tries of each nsqd if a publish may be retried


class BaseReceipt(Outcome, ABC):
    """The outcome of one submitted message: once `done` is true, `error` says why it failed, or is None."""

    __slots__ = ()

    @abstractmethod
    async def wait(self) -> Self:
        """Return when nsqd has answered, or can no longer answer. Cancelling the wait does not cancel the publish."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The things that a producer shares with each of its nodes."""

    config: Config
    max_pending: int
    emit: Callable[[Event], None]
    random: Random
    clock: Callable[[], float]


class BaseNode(ABC):
    """One nsqd of a producer. The first publish connects to it; from then on the connection is kept up."""

    def __init__(self, target: Target, shared: Shared) -> None:
        self.address = str(target)
        self.connection: ProducerConnection | None = None  # None unless it is open
        self.target = target
        self._shared = shared
        self._reconnect = Reconnect(shared.config, shared.random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        self._error: NSQError = Stopped("stopped")  # of the last attempt to connect
        self._published = 0  # messages on earlier connections
        self._failed = 0  # messages on earlier connections
        self._failures = 0  # of attempts to connect, in a row

    @abstractmethod
    async def wait_for_room(self) -> None:
        """Return when the connection may have room for another publish, or is closed."""

    @abstractmethod
    async def _wait_for_try(self) -> None:
        """Ask for a connection, and return when the next attempt has ended, successfully or not."""

    @abstractmethod
    def _end_try(self) -> None:
        """Wake the tasks in `_wait_for_try`."""

    def publish(self, connection: ProducerConnection, command: bytes, receipt: Outcome) -> None:
        """Queue a command on the connection; `receipt` will hold its outcome."""
        connection.publish(command, receipt)

    async def connected(self) -> ProducerConnection:
        """Return the connection as soon as it is open. Raise ConnectError if the next attempt fails."""
        if self.usable is None:
            await self._wait_for_try()
        connection = self.usable
        if connection is None:
            raise self._error
        return connection

    @property
    def usable(self) -> ProducerConnection | None:
        """The connection, unless it is closing."""
        connection = self.connection
        return None if connection is None or connection.is_closed else connection

    def _new_connection(
        self, *, wake: Callable[[], None], on_room: Callable[[], object], on_heartbeat: Callable[[], None]
    ) -> ProducerConnection:
        shared = self._shared
        connection = ProducerConnection(
            self.address,
            shared.config,
            our_identity(),
            max_pending=shared.max_pending,
            make_tls=tls_maker(self.target, shared.config),
            wake=wake,
            emit=shared.emit,
            on_open=lambda: self._opened(connection),
            on_room=on_room,
            on_heartbeat=on_heartbeat,
        )
        return connection

    def _opened(self, connection: ProducerConnection) -> None:
        self.connection = connection
        self._failures = 0
        self._end_try()

    def _closed(self, connection: ProducerConnection | None, error: NSQError | None) -> None:
        """Settle everything that is pending on the connection.

        `connection` is None if not even a socket was opened, and `error` is None if this side closed the connection.
        """
        self.connection = None
        self._error = error if isinstance(error, ConnectError) else ConnectError(f"not connected: {error or 'closed'}")
        if connection is not None:
            connection.lost(error)
            self._published += connection.published
            self._failed += connection.failed
        if connection is not None and connection.is_open:
            self._reconnect.worked(connection.opened_at, self._shared.clock())
            self._shared.emit(Disconnected(self.address, str(error or ""), 0))
        else:
            if error is not None:
                self._failures += 1
                self._shared.emit(ConnectFailed(self.address, str(error), self._failures))
            self._end_try()

    @property
    def published(self) -> int:
        """The number of messages that this nsqd has accepted."""
        return self._published + (self.connection.published if self.connection is not None else 0)

    @property
    def failed(self) -> int:
        """The number of messages that were not published, as far as is known."""
        return self._failed + (self.connection.failed if self.connection is not None else 0)

    def stats(self) -> NodeStats:
        """Return the figures of this moment."""
        connection = self.connection
        return NodeStats(
            address=self.address,
            connected=connection is not None,
            pending=len(connection.pending) if connection is not None else 0,
            pending_bytes=connection.pending_bytes if connection is not None else 0,
            server_version=connection.terms.version if connection is not None else "",
        )


T = TypeVar("T")
NodeT = TypeVar("NodeT", bound=BaseNode)
ReceiptT = TypeVar("ReceiptT", bound=BaseReceipt)


class BaseProducer(Recalling, ABC, Generic[NodeT, ReceiptT]):
    """Chooses an nsqd for each publish, and retries if that is allowed."""

    def __init__(
        self,
        addresses: Sequence[Target],
        *,
        strategy: Strategy,
        config: Config,
        retry: Retry,
        retry_timeout: float,
        max_pending: int,
        logger: logging.Logger,
        clock: Callable[[], float],
        node: type[NodeT],
        receipt: type[ReceiptT],
    ) -> None:
        if not addresses:
            raise ConfigError("addresses", addresses, "no nsqd to publish to")
        for target in addresses:
            check_target(target)
        if max_pending < 1:
            raise ConfigError("max_pending", max_pending, f"invalid max_pending ! {max_pending} < 1")
        if isinstance(strategy, Quorum) and strategy.count > len(addresses):
            raise ConfigError("strategy", strategy, f"a quorum of {strategy.count}, but only {len(addresses)} nsqds")
        self.config = config
        self._clock = clock
        self._random = Random()
        self._pool = pool_of(strategy, len(addresses), self._random)
        self._retry = retry
        self._retry_timeout = retry_timeout
        self._names = Names()
        self._log = logging_events(logger, "")
        shared = Shared(config, max_pending, self._emit, self._random, clock)
        self._nodes = [node(target, shared) for target in addresses]
        self._only = self._nodes[0] if len(addresses) == 1 else None  # the only nsqd, which spares the choice
        self._receipt = receipt
        self._is_stopped = False

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def _within(self, seconds: float, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Return the result of `work`, or `otherwise` after so many seconds."""

    async def submit(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
    ) -> ReceiptT:
        """Queue a message and return its receipt. Wait only for a connection and for room.

        The message goes to a single nsqd, whatever the strategy, and is not retried. If this call is cancelled, the
        message was not queued.

        Raises ConnectError, Stopped, ValueError, Unsupported (as `publish`).
        """
        command = pub_command(topic, body, delay, headers)
        number, node = self._pick_node()
        receipt = await self._submit(node, topic, command, 1, self._key(key), is_given=key is not None)
        if self._only is None:
            started = self._clock()
            receipt.when_done(lambda: self._report_to_pool(number, receipt.error, started))
        return receipt

    async def flush(self) -> None:
        """Return when everything that was submitted before has been answered. Cancelling it cancels no publish."""
        for node in self._nodes:
            if node.connection is not None and node.connection.pending:
                last = node.connection.pending[-1]
                assert isinstance(last, BaseReceipt)
                await last.wait()

    # Figures

    @property
    def connected(self) -> bool:
        """Whether at least one nsqd has an open connection."""
        return any(node.connection is not None for node in self._nodes)

    def stats(self) -> ProducerStats:
        """Return the figures of this moment."""
        return ProducerStats(
            published=sum(node.published for node in self._nodes),
            failed=sum(node.failed for node in self._nodes),
            nodes=tuple(node.stats() for node in self._nodes),
        )

    # One publish

    def _key(self, given: str | None) -> bytes:
        if given is not None:
            return checked_key(given)
        return self._names.next() if self._retry in _REPEATING else b""

    async def _publish(self, topic: str, command: bytes, count: int, key: str | None = None) -> None:
        tries = len(self._nodes) * _ROUNDS
        pauses: Reconnect | None = None
        while True:
            number, node = self._pick_node()
            started = self._clock() if self._only is None else 0.0
            error = await self._try(node, topic, command, count, key)
            if self._only is None:
                self._report_to_pool(number, error, started)
            if error is None:
                return
            tries -= 1
            if not tries or not self._may_be_retried(error):
                raise error
            if tries % len(self._nodes) == 0:
                pauses = pauses or Reconnect(self.config, self._random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
                await self._sleep(pauses.pause())

    async def _try(self, node: NodeT, topic: str, command: bytes, count: int, key: str | None) -> Exception | None:
        """Publish to this nsqd and return the error, or None.

        If nobody can tell whether it was stored, and it had a key, repeat it here until there is an answer.
        """
        name = self._key(key)
        error = await self._try_once(node, topic, command, count, name, is_given=key is not None)
        if not isinstance(error, OutcomeUnknown) or self._retry not in _REPEATING:
            return error
        unknown: Exception | None = error
        until = self._clock() + self._retry_timeout
        pauses = Reconnect(self.config, self._random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE_TO_REPEAT)
        while self._clock() < until:
            await self._sleep(min(pauses.pause(), max(until - self._clock(), 0.0)))
            left = max(until - self._clock(), 0.0)
            try:
                again = await self._within(
                    left, lambda: self._try_once(node, topic, command, count, name, is_given=True), unknown
                )
            except Unsupported:
                return error  # another nsqd answers there
            if again is None:
                return None
            if isinstance(again, PublishRejected):
                # nsqd has looked for the key before it fails to store, but not before it refuses the client or the command.
                return again if again.code.endswith(_PUB_FAILED) else error
        return error

    async def _try_once(
        self, node: NodeT, topic: str, command: bytes, count: int, key: bytes, *, is_given: bool
    ) -> Exception | None:
        try:
            receipt = await self._submit(node, topic, command, count, key, is_given=is_given)
        except (ConnectError, PublishUnsent) as error:
            return error
        try:
            await receipt.wait()
        except BaseException:
            receipt.is_abandoned = True
            raise
        return receipt.error

    async def _submit(
        self, node: NodeT, topic: str, command: bytes, count: int, key: bytes, *, is_given: bool
    ) -> ReceiptT:
        """Queue a command. A key that was not `is_given` is left out where the nsqd knows none."""
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
        receipt = self._receipt(topic, count=count, size=len(command), key=key)
        node.publish(connection, command, receipt)
        return receipt

    def _pick_node(self) -> tuple[int, NodeT]:
        if self._only is not None:
            return 0, self._only
        number = self._pool.pick(self._clock())
        return number, self._nodes[number]

    def _report_to_pool(self, number: int, error: Exception | None, started: float) -> None:
        """Report the result to the pool.

        An nsqd that refuses a message has not failed, unless it failed to store the message.
        """
        now = self._clock()
        if error is None or (isinstance(error, PublishRejected) and not error.code.endswith(_PUB_FAILED)):
            self._pool.succeeded(number, now - started, now)
        else:
            self._pool.failed(number, now)

    def _may_be_retried(self, error: Exception) -> bool:
        if isinstance(error, ConnectError | PublishUnsent):
            return self._retry != "never"
        return isinstance(error, PublishUnknown) and self._retry == "anywhere"

    def _all_nodes(self) -> Sequence[NodeT]:
        return self._nodes

    def _check_running(self) -> None:
        if self._is_stopped:
            raise Stopped("stopped")

    def _emit(self, event: Event) -> None:
        self._log(event)

    async def _wait_for_one(self) -> None:
        """Return when one nsqd is connected. Raise the last error if none can be reached."""
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
