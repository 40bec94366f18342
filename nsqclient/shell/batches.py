"""A consumer's messages in batches, on any loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, Self, TypeVar

from nsqclient.core.delivery import Delivery

DeliveryT = TypeVar("DeliveryT", bound=Delivery)
MessageT_co = TypeVar("MessageT_co", bound=Delivery, covariant=True)


class Batch(list[DeliveryT]):
    """Messages that you answer together. Already answered ones keep their answer."""

    def finish(self) -> None:
        """Finish all messages."""
        for message in self:
            message.finish()

    def requeue(self, delay: float | None = None, *, backoff: bool = True, count: bool = True) -> None:
        """Requeue all messages; see `Message.requeue`."""
        for message in self:
            message.requeue(delay, backoff=backoff, count=count)

    def bury(self, reason: str = "") -> None:
        """Bury all messages; see `Message.bury`."""
        for message in self:
            message.bury(reason)

    def touch(self) -> None:
        """Touch all messages."""
        for message in self:
            message.touch()


class ConsumedMessages(Protocol[MessageT_co]):
    """The part of a consumer that batches need."""

    @property
    def has_waiting(self) -> bool:
        """True if the next message is already there."""

    def is_starved(self) -> bool:
        """Return True if no more can come before you answer some messages."""

    async def __anext__(self) -> MessageT_co: ...

    def __aiter__(self) -> Self: ...


class Batches(Generic[DeliveryT]):
    """Iterates over batches.

    If the iteration is cancelled, it requeues the messages of the incomplete batch. `within` runs a function with a
    timeout.
    """

    def __init__(
        self,
        consumer: ConsumedMessages[DeliveryT],
        max_size: int,
        max_wait: float,
        *,
        within: Callable[[float, Callable[[], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        if max_size < 1:
            raise ValueError(f"max_size of {max_size}")
        self._consumer = consumer
        self._max_size = max_size
        self._max_wait = max_wait
        self._within = within

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch[DeliveryT]:
        batch = Batch([await anext(self._consumer)])

        async def fill() -> None:
            while len(batch) < self._max_size and (self._consumer.has_waiting or not self._consumer.is_starved()):
                batch.append(await anext(self._consumer))

        try:
            await self._within(self._max_wait, fill)
        except StopAsyncIteration:
            pass
        except BaseException:
            for message in batch:
                message.requeue(0, backoff=False)
            raise
        return batch
