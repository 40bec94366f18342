"""A consumer on trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from logging import Logger
from typing import TYPE_CHECKING, Literal, Self

from nsqclient._config import Config
from nsqclient._delivery import Delivery

if TYPE_CHECKING:
    import trio

    from nsqclient._stats import ConsumerStats


class Message(Delivery):
    """A message on trio."""

    __slots__ = ()

    def keep_alive(self, *, margin: float | None = None) -> AbstractAsyncContextManager[Self]:
        """Touches it as long as the block runs; cancels the block `margin` seconds before nsqd takes it back anyway."""
        raise NotImplementedError


Handler = Callable[[Message], Awaitable[None]] | Callable[[Message], None]
Resolve = Callable[[str], str]  # an nsqd's address as it is listed -> the one to dial
DeadLetter = str | Callable[[Message], Awaitable[None]]


class Batch(list[Message]):
    """Messages that are answered together, each of them unless it has its answer."""

    def finish(self) -> None:
        raise NotImplementedError

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        raise NotImplementedError

    def touch(self) -> None:
        raise NotImplementedError


class Consumer:
    """Made by `open_consumer`."""

    def __aiter__(self) -> AsyncIterator[Message]:
        raise NotImplementedError

    async def run(
        self, handler: Handler, *, concurrency: int = 1, thread_limiter: trio.CapacityLimiter | None = None
    ) -> None:
        raise NotImplementedError

    def batches(self, max_size: int, max_wait: float) -> AsyncIterator[Batch]:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def set_max_in_flight(self, count: int) -> None:
        raise NotImplementedError

    def is_starved(self) -> bool:
        """Whether nothing more comes until something is answered."""
        raise NotImplementedError

    def stats(self) -> ConsumerStats:
        raise NotImplementedError


def open_consumer(
    topic: str,
    channel: str,
    *,
    nsqd: Sequence[str] | str = (),
    lookupd: Sequence[str] | str = (),
    config: Config = Config(),
    resolve: Resolve | None = None,
    discovery_filter: Callable[[Sequence[str]], Sequence[str]] | None = None,
    dead_letter: DeadLetter | None = None,
    startup: Literal["background", "require"] = "background",
    drop_unlisted_after: float | None = None,
    logger: Logger | None = None,
) -> AbstractAsyncContextManager[Consumer]:
    """A consumer for as long as the block runs.

    `startup="require"`: entering fails with ConnectError when an nsqd of `nsqd` cannot be reached, or no nsqlookupd.
    """
    raise NotImplementedError
