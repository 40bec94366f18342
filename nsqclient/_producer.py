"""A producer on trio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from logging import Logger
from typing import TYPE_CHECKING, Literal, Self

from nsqclient._config import Config

if TYPE_CHECKING:
    from nsqclient._stats import ProducerStats


class Receipt:
    """What becomes of one publish."""

    error: Exception | None

    @property
    def done(self) -> bool:
        raise NotImplementedError

    async def wait(self) -> Self:
        """Returns when nsqd has answered, or can no longer; see `error`."""
        raise NotImplementedError


class Producer:
    """Made by `open_producer`."""

    async def publish(
        self, topic: str, body: bytes, *, delay: float | None = None, timeout: float | None = None
    ) -> None:
        raise NotImplementedError

    async def publish_many(self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
        raise NotImplementedError

    async def submit(self, topic: str, body: bytes, *, delay: float | None = None) -> Receipt:
        """Waits for room only; the receipt tells the rest."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Returns when everything submitted before has its answer."""
        raise NotImplementedError

    async def ping(self) -> None:
        raise NotImplementedError

    def stats(self) -> ProducerStats:
        raise NotImplementedError


def open_producer(
    addresses: Sequence[str] | str,
    *,
    strategy: str = "hostpool",
    config: Config = Config(),
    retry: Literal["never", "unsent", "always"] = "never",
    max_pending: int = 1000,
    connect: Literal["lazy", "require"] = "lazy",
    logger: Logger | None = None,
) -> AbstractAsyncContextManager[Producer]:
    """A producer for as long as the block runs. `connect="require"`: entering fails when no nsqd can be reached."""
    raise NotImplementedError
