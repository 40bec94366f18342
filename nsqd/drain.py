"""Leaving in an orderly manner: nothing new is taken, what waits is delivered, then the daemon stops.

    asked for ── nsqlookupds are told that we leave, publishing is refused
        │
        └── until no consumer has anything left to do, or the deadline has come
                 │
                 └── until whoever reads history has had `stay` for it ── stop

From the first moment on nothing can be appended to a log: those who follow one are told that it is closed. `stay` gives them
time to read it to its end, as nsqd does not know who reads history, nor how far.

What nobody consumes (a channel without consumers, a paused one, a message whose time has not come) stays in the log for the
next start. So nothing is lost, whichever way it ends; unless the node is retired, which is to say that there is none.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker

log = logging.getLogger(__name__)

REFUSAL: Final = "draining"
_LOOK_INTERVAL: Final = 0.05  # seconds


class SayGoodbye(Protocol):
    def __call__(self, *, for_good: bool) -> None: ...


class Drain:
    def __init__(self, broker: Broker, *, deadline: float, say_goodbye: SayGoodbye, stay: float = 0.0) -> None:
        self._broker = broker
        self._deadline = deadline
        self._stay = stay
        self._say_goodbye = say_goodbye
        self._is_for_good = False
        self._asked = trio.Event()

    @property
    def going_on(self) -> bool:
        return self._asked.is_set()

    def start(self, *, stay: float | None = None, retire: bool = False) -> bool:
        """Idempotent, except that the last `stay` counts: the seconds that the node can be read when it has drained.

        Return whether it is as asked for: a drain that goes on cannot become one for good, as goodbye has been said.
        """
        if stay is not None:
            self._stay = stay
        if not self.going_on:
            log.info("NSQ: draining, publishing is refused from now on")
            self._broker.refusal = REFUSAL
            self._is_for_good = retire
            self._say_goodbye(for_good=retire)
            self._asked.set()
        return self._is_for_good or not retire

    async def wait(self) -> None:
        """Returns when somebody has asked for it and it has ended."""
        await self._asked.wait()
        with trio.move_on_after(self._deadline) as limit:
            while left := undelivered(self._broker):  # noqa: ASYNC110  # nobody has to tell us, for one end in a process' life
                await trio.sleep(_LOOK_INTERVAL)
        if limit.cancelled_caught:
            log.warning("NSQ: the drain's deadline has come, %d messages stay for the next start", left)
        else:
            log.info("NSQ: drained")
        await self._wait_for_readers()

    async def _wait_for_readers(self) -> None:
        since = trio.current_time()
        if self._stay > 0:
            log.info("NSQ: history can be read for another %g s", self._stay)
        while trio.current_time() < since + self._stay:  # noqa: ASYNC110  # which another request may change
            await trio.sleep(_LOOK_INTERVAL)


def undelivered(broker: Broker) -> int:
    """Messages that somebody who is there could still get, or still works on."""
    return sum(
        len(channel.in_flight) + (0 if channel.paused else channel.depth)
        for topic in broker.topics.values()
        for channel in topic.channels.values()
        if channel.consumers
    )


async def drain_on_signal(drain: Drain) -> None:
    with trio.open_signal_receiver(signal.SIGUSR1) as arrivals:
        async for _ in arrivals:
            drain.start()
