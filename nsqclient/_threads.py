"""Messages in threads: their answers go back to the loop that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from nsqclient._delivery import Delivery, Source

T = TypeVar("T")
DeliveryT = TypeVar("DeliveryT", bound="Delivery")


def for_thread(message: DeliveryT, token: trio.lowlevel.TrioToken | None = None) -> DeliveryT:
    """The same message for use in a thread: one of trio's, or any with a `token`."""
    return type(message)(
        _FromThread(message, token),
        message.timestamp_ns,
        message.attempts,
        message._id,
        message.body,
        message.received_at,
    )


class _FromThread:
    """Implements `Source` by asking the real one, in its loop."""

    def __init__(self, message: Delivery, token: trio.lowlevel.TrioToken | None) -> None:
        self._message = message
        self._source: Source = message._source
        self._token = token

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def channel(self) -> str:
        return self._source.channel

    @property
    def address(self) -> str:
        return self._source.address

    @property
    def msg_timeout(self) -> float:
        return self._source.msg_timeout

    @property
    def max_msg_timeout(self) -> float:
        return self._source.max_msg_timeout

    def finish(self, delivery: Delivery) -> bool:
        return self._ask(delivery, self._message.finish)

    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool) -> bool:
        return self._ask(delivery, lambda: self._message.requeue(delay, backoff=backoff))

    def touch(self, delivery: Delivery) -> bool:
        return self._ask(delivery, self._message.touch)

    def _ask(self, delivery: Delivery, answer: Callable[[], bool]) -> bool:
        had_effect = trio.from_thread.run_sync(answer, trio_token=self._token)
        delivery.answered = self._message.answered
        delivery._deadline = self._message._deadline
        return had_effect
