"""The part of a producer that takes messages back and reschedules them: it asks all nsqds at the same time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nsqclient.core.errors import ConnectError, NSQError
from nsqclient.core.recall import (
    Counts,
    ResultT,
    cancel_target,
    check_support,
    place_of,
    read_counts,
    reschedule_target,
    summed,
)
from nsqclient.core.results import CancelResult, RescheduleResult
from nsqclient.shell.targets import Answering, host_of

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.publication import ProducerConnection
    from nsqclient.core.recall import Place
    from nsqclient.shell.targets import Target

T = TypeVar("T")
TIMEOUT: Final = 10.0  # seconds


class Node(Protocol):
    """The part of a producer's nsqd that is needed here."""

    @property
    def address(self) -> str: ...
    @property
    def target(self) -> Target: ...

    async def connected(self) -> ProducerConnection:
        """Return the open connection. Raise ConnectError or Stopped."""


class Recalling(ABC):
    """Mixed into producers."""

    config: Config

    async def cancel(
        self, topic: str, key: str, *, channel: str | None = None, timeout: float = TIMEOUT
    ) -> CancelResult:
        """Take back the message that was published with this key, from all channels or from one.

        Where it is deferred or waits for a consumer, it will never be delivered once this returns; where the result
        says `in_flight`, a consumer has it. All nsqds of the producer are asked, for `timeout` seconds.

        Raises Incomplete if not all of them have answered: its `result` names them, and has what the others said.
        Raises Unsupported if no nsqd can do this, such as NSQ's own; Stopped; ValueError for an invalid name or key.
        """
        return await self._recall(cancel_target(topic, key, channel), CancelResult, timeout)

    async def reschedule(
        self, topic: str, key: str, *, delay: float, channel: str | None = None, timeout: float = TIMEOUT
    ) -> RescheduleResult:
        """Have the message that was published with this key delivered `delay` seconds from now; 0: at once.

        This is for messages that are deferred or wait for a consumer. Raises as `cancel`.
        """
        return await self._recall(reschedule_target(topic, key, channel, delay), RescheduleResult, timeout)

    async def _recall(self, target: str, kind: type[ResultT], timeout: float) -> ResultT:
        self._check_running()
        await self._wait_for_nodes()
        nodes = self._all_nodes()
        silent: Counts | NSQError = ConnectError(f"no answer within {timeout:g} seconds")

        async def ask(node: Node) -> Counts | NSQError:
            return await self._within(timeout, partial(self._ask, node, target, kind), silent)

        answers = await self._together([partial(ask, node) for node in nodes])
        return summed(kind, zip([node.address for node in nodes], answers, strict=True))

    async def _ask(self, node: Node, target: str, kind: type[ResultT]) -> Counts | NSQError:
        try:
            connection = await node.connected()
            check_support(connection)
            if isinstance(node.target, Answering):
                status, body = await node.target.post(target)
            else:
                place = place_of(connection, self.config.server_hostname or host_of(node.target), self.config)
                status, body = await self._post(place, f"{target}&node={place.node}")
            return read_counts(status, body, kind)
        except NSQError as error:
            return error
        except OSError as error:  # of one that stands for an nsqd
            return ConnectError(str(error))

    # Implemented by producers

    @abstractmethod
    def _all_nodes(self) -> Sequence[Node]: ...

    @abstractmethod
    async def _wait_for_nodes(self) -> None:
        """Return when an nsqd is known. Raise ConnectError if that takes too long."""

    @abstractmethod
    def _check_running(self) -> None: ...

    @abstractmethod
    async def _within(self, seconds: float, work: Callable[[], Awaitable[T]], otherwise: T) -> T: ...

    @abstractmethod
    async def _together(self, works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Do all of them at the same time, and return their results."""

    @abstractmethod
    async def _post(self, place: Place, target: str) -> tuple[int, bytes]:
        """Send a POST and return status and body of the answer. Raise ConnectError."""
