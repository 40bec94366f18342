"""A message as a consumer holds it, and the one answer that it gets.

Answering never waits and cannot be cancelled: it only queues a few bytes on the connection. So a message may be
answered in a `finally`, in plain functions, and from any task of the consumer's loop.

    no -> finished | requeued | buried      by whoever has the message, once
    no -> lost                              the connection has gone, and nsqd will deliver the message again
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from nsqclient.core.errors import Requeue
from nsqcommon.wire.headers import decode_headers

if TYPE_CHECKING:
    from types import TracebackType

Answered = Literal["no", "finished", "requeued", "buried", "lost"]

_NANOSECONDS: Final = 1_000_000_000
_NO_HEADERS: Final[Mapping[str, bytes]] = MappingProxyType({})


class DeliverySource(Protocol):
    """Where a message came from and where its answer goes."""

    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def runtime(self) -> object: ...
    @property
    def msg_timeout(self) -> float: ...
    @property
    def max_msg_timeout(self) -> float: ...
    @property
    def can_bury(self) -> bool: ...
    @property
    def can_requeue_uncounted(self) -> bool: ...
    def finish(self, delivery: Delivery) -> bool: ...
    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool, count: bool) -> bool: ...
    def bury(self, delivery: Delivery, reason: str) -> bool: ...
    def bury_after_last(self, delivery: Delivery, error: BaseException | None, backoff: bool) -> bool: ...
    def touch(self, delivery: Delivery) -> bool: ...


class Delivery:
    """One message, delivered once. `async with message:` answers it according to how the block ends.

    Answer it in the loop of its consumer. A handler that runs in a thread gets a copy that may be answered in that
    thread.
    """

    __slots__ = (
        "_deadline",
        "_headers",
        "_id",
        "_source",
        "answered",
        "attempts",
        "auto_response",
        "body",
        "received_at",
        "timestamp_ns",
    )

    def __init__(
        self,
        source: DeliverySource,
        timestamp_ns: int,
        attempts: int,
        id: bytes,
        body: bytes,
        received_at: float,
        headers: bytes = b"",
    ) -> None:
        self._source = source
        self._headers = headers  # encoded; empty: there are none
        self._id = id
        self._deadline = 0.0  # 0: never touched
        self.timestamp_ns = timestamp_ns  # when it was published; nanoseconds since 1970
        self.attempts = attempts  # 1 on the first delivery
        self.body = body
        self.received_at = received_at  # on the clock of the loop
        self.answered: Answered = "no"
        self.auto_response = True  # False: a handler that returns does not answer; see `disable_auto_response`

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.topic}/{self.channel}, {self.answered} answered>"

    # Properties

    @property
    def id(self) -> str:
        return self._id.decode("ascii", "backslashreplace")

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers of the message, by their names in lower case. Raise ValueError if nsqd has sent nonsense."""
        return MappingProxyType(decode_headers(self._headers)) if self._headers else _NO_HEADERS

    @property
    def published_at(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ns / _NANOSECONDS, UTC)

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def channel(self) -> str:
        return self._source.channel

    @property
    def nsqd(self) -> str:
        """The address of the nsqd that sent the message."""
        return self._source.address

    @property
    def deadline(self) -> float:
        """When nsqd takes the message back unless it is touched before, on the clock of the loop."""
        return self._deadline or self.received_at + self._source.msg_timeout

    @property
    def hard_deadline(self) -> float:
        """When nsqd takes the message back even if it is touched, on the clock of the loop."""
        return self.received_at + self._source.max_msg_timeout

    @property
    def can_bury(self) -> bool:
        """Whether nsqd can bury the message: NSQ's own cannot, and what is ephemeral is not on disk."""
        return self._source.can_bury

    def json(self) -> Any:
        """Return the body, read as JSON. Raise ValueError."""
        return json.loads(self.body)

    # Answers. Each returns whether it had an effect, which only the first answer has.

    def finish(self) -> bool:
        """Tell nsqd that the message is done and may be forgotten. Return whether this was its first answer."""
        return self.answered == "no" and self._source.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True, count: bool = True) -> bool:
        """Let nsqd deliver the message again after `delay` seconds. Return whether this was its first answer.

        By default the delay grows with the number of attempts. With `backoff` the answer counts as a failure, on which
        the consumer slows down. Without `count` the next delivery has the same number of attempts as this one. Raises
        ValueError for a negative or infinite delay, and Unsupported if nsqd counts every attempt.
        """
        if delay is not None and not 0 <= delay < float("inf"):
            raise ValueError(f"a delay of {delay} seconds")
        return self.answered == "no" and self._source.requeue(self, delay, backoff, count)

    def bury(self, reason: str = "") -> bool:
        """Have nsqd keep the message, and deliver it to nobody until somebody kicks it back into the channel.

        Return whether this was its first answer. nsqd keeps 256 bytes of the reason, as one line. Backoff counts the
        answer neither as a success nor as a failure. Raises Unsupported if nsqd does not bury; see `can_bury`.
        """
        return self.answered == "no" and self._source.bury(self, reason)

    def touch(self) -> bool:
        """Ask nsqd for more time: `deadline` is extended, up to `hard_deadline`. Return False if already answered."""
        return self.answered == "no" and self._source.touch(self)

    def disable_auto_response(self) -> None:
        """Let the message be answered later, and not when its handler returns.

        An exception of the handler still answers it.
        """
        self.auto_response = False

    # `async with message:` needs no loop of any kind, as answering does not wait.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        rest = self.answer_for(error)
        if rest is not None and rest is not error:
            raise rest
        return rest is None

    def answer_for(self, error: BaseException | None) -> BaseException | None:
        """Answer the message according to how a block has ended, unless it is answered already.

        Without an error it is finished. A Requeue says how it is requeued, except that the attempt counts if nsqd
        counts every attempt; any other Exception requeues it with backoff. If the attempt counts and was the last of
        `max_attempts`, the message is buried instead, provided that nsqd can bury and nobody handles dead letters. Any
        other BaseException (a cancellation) requeues it without delay and backoff. Returns the part of
        `error` that the caller has to raise.
        """
        requeue, rest = _split(error)
        if error is None:
            if self.auto_response:
                self.finish()
        elif requeue is not None:
            count = requeue.count or not self._source.can_requeue_uncounted
            if not (count and self._is_buried_after_last(requeue.__cause__, backoff=requeue.backoff)):
                self.requeue(requeue.delay, backoff=requeue.backoff, count=count)
        elif isinstance(error, Exception):
            if not self._is_buried_after_last(error, backoff=True):
                self.requeue()
        else:
            self.requeue(0, backoff=False)
        return rest

    def _is_buried_after_last(self, error: BaseException | None, *, backoff: bool) -> bool:
        return self.answered == "no" and self._source.bury_after_last(self, error, backoff)


def reason_of(error: BaseException) -> str:
    """Return the error as the reason of a BURY: `ValueError: no such order`."""
    alone = only_one(error)
    name = type(alone).__name__
    try:
        return f"{name}: {alone}".removesuffix(": ")
    except Exception:  # its __str__ is the user's, and may fail
        return name


def _split(error: BaseException | None) -> tuple[Requeue | None, BaseException | None]:
    """Return a Requeue, also one that a nursery has wrapped, and the rest of the error."""
    if isinstance(error, Requeue):
        return error, None
    if isinstance(error, BaseExceptionGroup):
        said, rest = error.split(Requeue)
        if said is not None:
            return _first_in(said), rest
    return None, error


def _first_in(group: BaseExceptionGroup[Requeue]) -> Requeue:
    first = group.exceptions[0]
    return _first_in(first) if isinstance(first, BaseExceptionGroup) else first


def only_one(error: BaseException | None) -> BaseException | None:
    """Return the exception that nurseries have wrapped, if it is the only one; otherwise `error` itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
