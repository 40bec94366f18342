"""A message as a consumer holds it, and the one answer that it gets.

Answering never waits and cannot be cancelled: it leaves a few bytes with the connection. So it may be done in a
`finally`, in plain functions, and from any task of the loop that the consumer lives in.

    no -> finished | requeued      by whoever has the message, once
    no -> lost                     the connection has gone: nsqd gives the message to somebody again
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from nsqclient._errors import Requeue

if TYPE_CHECKING:
    from types import TracebackType

Answered = Literal["no", "finished", "requeued", "lost"]

_NANOSECONDS: Final = 1_000_000_000


class Source(Protocol):
    """Where a message came from, and where its answer goes."""

    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def msg_timeout(self) -> float: ...
    @property
    def max_msg_timeout(self) -> float: ...
    def finish(self, delivery: Delivery) -> bool: ...
    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool) -> bool: ...
    def touch(self, delivery: Delivery) -> bool: ...


class Delivery:
    """One message, delivered once. As `async with message:` it is answered by how the block ends."""

    __slots__ = (
        "_deadline",
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
        self, source: Source, timestamp_ns: int, attempts: int, id: bytes, body: bytes, received_at: float
    ) -> None:
        self._source = source
        self._id = id
        self._deadline = 0.0  # 0: never touched
        self.timestamp_ns = timestamp_ns  # when it was published, since 1970
        self.attempts = attempts  # 1 on the first delivery
        self.body = body
        self.received_at = received_at  # on the loop's clock
        self.answered: Answered = "no"
        self.auto_response = True  # False: the end of a handler is no answer; somebody will give one

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.topic}/{self.channel}, {self.answered} answered>"

    # What it is

    @property
    def id(self) -> str:
        return self._id.decode("ascii", "backslashreplace")

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
        """The address of the nsqd that has sent it."""
        return self._source.address

    @property
    def deadline(self) -> float:
        """When nsqd takes it back, on the loop's clock, unless it is touched before."""
        return self._deadline or self.received_at + self._source.msg_timeout

    @property
    def hard_deadline(self) -> float:
        """When nsqd takes it back, however often it is touched."""
        return self.received_at + self._source.max_msg_timeout

    def json(self) -> Any:
        """The body, read as JSON. Raises ValueError."""
        return json.loads(self.body)

    # Answers. Each says whether it had an effect: only the first answer has one.

    def finish(self) -> bool:
        """It is done with: nsqd forgets it."""
        return self.answered == "no" and self._source.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> bool:
        """nsqd delivers it again after `delay` seconds; by default the longer the more often it was tried.

        With `backoff` it counts as a sign that everything should go slower.
        """
        if delay is not None and not 0 <= delay < float("inf"):
            raise ValueError(f"a delay of {delay} seconds")
        return self.answered == "no" and self._source.requeue(self, delay, backoff)

    def touch(self) -> bool:
        """It needs more time: its deadline begins anew, up to `hard_deadline`."""
        return self.answered == "no" and self._source.touch(self)

    def disable_auto_response(self) -> None:
        """The handler's end does not answer it, unless by an error: somebody will, from anywhere, at any time."""
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
        """Answers as the end of a block says, if nobody has yet; returns what of `error` was not only said to us.

        No error: finished. Requeue: as it says. Any other Exception: requeued, with backoff. What is none
        (a cancellation): requeued for at once, without backoff.
        """
        requeue, rest = _split(error)
        if error is None:
            if self.auto_response:
                self.finish()
        elif requeue is not None:
            self.requeue(requeue.delay, backoff=requeue.backoff)
        elif isinstance(error, Exception):
            self.requeue()
        else:
            self.requeue(0, backoff=False)
        return rest


def _split(error: BaseException | None) -> tuple[Requeue | None, BaseException | None]:
    """A Requeue, also one that a nursery has wrapped, and what there is besides."""
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
    """What a nursery has wrapped, where it is alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
