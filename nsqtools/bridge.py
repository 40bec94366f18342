"""Shared by nsq_to_http and nsq_to_nsq: a consumer, the choice of a target, and request times."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, Literal

import trio

from nsqclient import Config, Consumer, Message, NSQError, open_consumer
from nsqclient.core.hostpool import ByKey, Pool, Strategy, pool_of
from nsqcommon.option_kinds import one_of
from nsqtools.command import LAST_ANSWERS, ToolFailed
from nsqtools.status import StatusLines

log = logging.getLogger(__name__)

STATUS_EVERY: Final = "log request times after this many messages; 0: never"
MODE: Final = "choice of the target: round-robin, hostpool (skips failing ones), or epsilon-greedy (prefers fast ones)"
STRATEGIES: Final[dict[str, Strategy]] = {
    "round-robin": "round_robin",
    "hostpool": "hostpool",
    "epsilon-greedy": "epsilon_greedy",
}
MODES: Final = one_of(*STRATEGIES)
ALL: Final = "all"
MODES_AND_ALL: Final = one_of(*STRATEGIES, ALL)


def pool_for(mode: str, count: int) -> Pool | None:
    """Return the strategy for choosing a target; None if each gets everything."""
    return None if mode == ALL else pool_of(STRATEGIES[mode], count, Random())


class Targets:
    """Several targets. A pool chooses one for each message; without a pool all get it."""

    def __init__(self, names: Sequence[str], pool: Pool | None, status_every: int) -> None:
        self._count = len(names)
        self._pool = pool
        self._status = StatusLines(status_every, list(names))
        for line in self._status.warnings:
            log.warning("%s", line)

    async def send(self, send: Callable[[int], Awaitable[None]], key: str = "") -> None:
        """Call `send(number)` with the number of a target. Its exceptions pass through.

        Some pools choose by `key`.
        """
        if self._pool is None:
            for number in range(self._count):
                await self._send(number, send)
        elif isinstance(self._pool, ByKey):
            await self._send(self._pool.pick_for(key.encode(), trio.current_time()), send)
        else:
            await self._send(self._pool.pick(trio.current_time()), send)

    async def _send(self, number: int, send: Callable[[int], Awaitable[None]]) -> None:
        started = trio.current_time()
        try:
            await send(number)
        except Exception:
            self._status.failed(number)
            if self._pool is not None:
                self._pool.failed(number, trio.current_time())
            raise
        now = trio.current_time()
        if self._pool is not None:
            self._pool.succeeded(number, now - started, now)
        for line in self._status.add(number, now - started):
            log.info("%s", line)


async def consume(
    topic: str,
    channel: str,
    handle: Callable[[Message], Awaitable[None]],
    *,
    nsqd: Sequence[str],
    lookupd: Sequence[str],
    config: Config,
    concurrency: int,
    stop: trio.Event,
) -> None:
    """Consume until `stop` is set, and then wait for running handlers.

    Handlers that take longer than LAST_ANSWERS are cancelled, and nsqd delivers their messages again. Raises
    ToolFailed.
    """
    startup: Literal["require", "background"] = "require" if nsqd else "background"

    opened: list[Consumer] = []

    async def stop_it() -> None:
        await stop.wait()
        if opened:
            opened[0].stop()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_ANSWERS
        else:  # connecting to a hung nsqd may take long to fail
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_it)
        try:
            async with open_consumer(
                topic, channel, nsqd=nsqd, lookupd=lookupd, config=config, startup=startup
            ) as consumer:
                opened.append(consumer)
                if stop.is_set():
                    consumer.stop()
                await consumer.run(handle, concurrency=concurrency)
        except NSQError as error:
            raise ToolFailed(str(error)) from error
        nursery.cancel_scope.cancel()
