"""Messages in threads: answers go to the loop of the consumer."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from nsqclient.core.delivery import Delivery, DeliverySource

DeliveryT = TypeVar("DeliveryT", bound="Delivery")


InLoop = Callable[[Callable[[], bool]], bool]  # calls a function in the loop, waits, and returns its result


def for_thread(message: DeliveryT, in_loop: InLoop) -> DeliveryT:
    """Return a copy of the message for use in a thread."""
    twin = copy(message)
    twin._source = _FromThread(message, in_loop)
    return twin


class _FromThread:
    """Implements `DeliverySource` by calling the original message in its loop."""

    def __init__(self, message: Delivery, in_loop: InLoop) -> None:
        self._message = message
        self._source: DeliverySource = message._source
        self._in_loop = in_loop

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
    def runtime(self) -> object:
        return self._source.runtime

    @property
    def msg_timeout(self) -> float:
        return self._source.msg_timeout

    @property
    def max_msg_timeout(self) -> float:
        return self._source.max_msg_timeout

    @property
    def can_bury(self) -> bool:
        return self._source.can_bury

    @property
    def can_requeue_uncounted(self) -> bool:
        return self._source.can_requeue_uncounted

    def finish(self, delivery: Delivery) -> bool:
        return self._ask(delivery, self._message.finish)

    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool, count: bool) -> bool:
        return self._ask(delivery, lambda: self._message.requeue(delay, backoff=backoff, count=count))

    def bury(self, delivery: Delivery, reason: str) -> bool:
        return self._ask(delivery, lambda: self._message.bury(reason))

    def bury_after_last(self, delivery: Delivery, error: BaseException | None, backoff: bool) -> bool:
        return self._ask(delivery, lambda: self._message._is_buried_after_last(error, backoff=backoff))

    def touch(self, delivery: Delivery) -> bool:
        return self._ask(delivery, self._message.touch)

    def _ask(self, delivery: Delivery, answer: Callable[[], bool]) -> bool:
        had_effect = self._in_loop(answer)
        delivery.answered = self._message.answered
        delivery._deadline = self._message._deadline
        return had_effect
