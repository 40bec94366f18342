"""A consumer's messages in batches."""

from __future__ import annotations

from typing import Protocol, Self

import trio

from nsqclient._message import Batch, Message


class Messages(Protocol):
    """The part of a consumer that batches are made with."""

    @property
    def has_waiting(self) -> bool:
        """Whether the next message is there already."""

    def is_starved(self) -> bool:
        """Return whether nothing more can come before some messages are answered."""

    async def __anext__(self) -> Message: ...

    def __aiter__(self) -> Self: ...


class Batches:
    """Iterates over batches.

    If the iteration is cancelled, it requeues the messages of the batch that is not yet complete.
    """

    def __init__(self, consumer: Messages, max_size: int, max_wait: float) -> None:
        self._consumer = consumer
        self._max_size = max_size
        self._max_wait = max_wait

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        batch = Batch([await anext(self._consumer)])
        try:
            with trio.move_on_after(self._max_wait):
                while len(batch) < self._max_size and (self._consumer.has_waiting or not self._consumer.is_starved()):
                    batch.append(await anext(self._consumer))
        except StopAsyncIteration:
            pass
        except BaseException:
            for message in batch:
                message.requeue(0, backoff=False)
            raise
        return batch
