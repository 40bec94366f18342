"""A message in the hands of a consumer, and its one answer.

Answering never waits and can't be cancelled: it only queues a few bytes on the connection. So you can answer in a
`finally`, in plain functions, and from any task of the consumer's loop.

    no -> finished | requeued | buried      by you, once
    no -> lost                              the connection is gone, and nsqd will deliver the message again
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from nsqclient.core.errors import Requeue
from nsqcommon.wire.groups import GROUP, valid_group
from nsqcommon.wire.headers import decode_headers

if TYPE_CHECKING:
    from types import TracebackType

Answered = Literal["no", "finished", "requeued", "buried", "lost"]

_NANOSECONDS: Final = 1_000_000_000
_NO_HEADERS: Final[Mapping[str, bytes]] = MappingProxyType({})


class DeliverySource(Protocol):
    """The origin of a message, which gets its answer."""

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
    """One delivery of a message. `async with message:` answers it when the block ends, depending on the error.

    Answer it in the loop of its consumer. A handler in a thread gets a copy, which it answers in that thread.
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
        self.auto_response = True  # False: no answer when the handler returns; see `disable_auto_response`

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.topic}/{self.channel}, {self.answered} answered>"

    # Properties

    @property
    def id(self) -> str:
        return self._id.decode("ascii", "backslashreplace")

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers by name, in lower case. Raise ValueError if they can't be decoded."""
        return MappingProxyType(decode_headers(self._headers)) if self._headers else _NO_HEADERS

    @property
    def group(self) -> str | None:
        """The group that the publisher gave it, or None. An invalid one is None, too, because nsqd ignores it."""
        return valid_group(self.headers.get(GROUP))

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
        """When nsqd redelivers the message unless you touch it before, on the loop's clock."""
        return self._deadline or self.received_at + self._source.msg_timeout

    @property
    def hard_deadline(self) -> float:
        """When nsqd redelivers the message even if you touch it, on the loop's clock."""
        return self.received_at + self._source.max_msg_timeout

    @property
    def can_bury(self) -> bool:
        """True if nsqd can bury the message. NSQ's own can't, and ephemeral channels have no buried messages."""
        return self._source.can_bury

    def json(self) -> Any:
        """Return the body parsed as JSON. Raise ValueError."""
        return json.loads(self.body)

    # Answers. Only the first one has an effect, and returns True.

    def finish(self) -> bool:
        """Tell nsqd that the message is done. Return True if this was the first answer."""
        return self.answered == "no" and self._source.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True, count: bool = True) -> bool:
        """Have nsqd deliver the message again after `delay` seconds. Return True if this was the first answer.

        By default the delay grows with the number of attempts. With `backoff` the answer counts as a failure, which
        slows the consumer down. Without `count` the next delivery has the same number of attempts as this one. Raises
        ValueError for a negative or infinite delay, and Unsupported if nsqd counts every attempt.
        """
        if delay is not None and not 0 <= delay < float("inf"):
            raise ValueError(f"a delay of {delay} seconds")
        return self.answered == "no" and self._source.requeue(self, delay, backoff, count)

    def bury(self, reason: str = "") -> bool:
        """Have nsqd keep the message without delivering it, until an operator kicks it back into the channel.

        Return True if this was the first answer. nsqd keeps 256 bytes of the reason, as one line. For backoff this is
        neither success nor failure. Raises Unsupported if nsqd can't bury; see `can_bury`.
        """
        return self.answered == "no" and self._source.bury(self, reason)

    def touch(self) -> bool:
        """Ask nsqd for more time: extend `deadline`, up to `hard_deadline`. Return False if already answered."""
        return self.answered == "no" and self._source.touch(self)

    def disable_auto_response(self) -> None:
        """Keep the message unanswered when its handler returns, to answer it later.

        An exception in the handler still answers it.
        """
        self.auto_response = False

    # `async with message:` works in any loop, because answering doesn't wait.

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
        """Answer the message at the end of a block, unless it is already answered.

        Without an error it is finished. A Requeue says how it is requeued, except that the attempt counts if nsqd
        counts every attempt; any other Exception requeues it with backoff. If the attempt counts and was the last of
        `max_attempts`, the message is buried instead, if nsqd can bury and there is no handler for dead letters. Any
        other BaseException (a cancellation) requeues it without delay and backoff. Returns the part of `error` that the
        caller has to raise.
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
    """Format the error as the reason of a BURY: `ValueError: no such order`."""
    alone = only_one(error)
    name = type(alone).__name__
    try:
        return f"{name}: {alone}".removesuffix(": ")
    except Exception:  # the user's __str__ may fail
        return name


def _split(error: BaseException | None) -> tuple[Requeue | None, BaseException | None]:
    """Split the error into a Requeue, even one that a nursery has wrapped, and the rest."""
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
    """Return the only exception in nested groups; if there are several, `error` itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
