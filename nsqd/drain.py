"""An orderly end: nothing new is accepted, waiting messages are delivered, then the daemon stops.

This is what SIGUSR1 and POST /drain ask for. SIGTERM stops at once, without delivering what waits: see nsqd/daemon.py.

    drain requested ── nsqlookupds are told that we drain
        │
        └── a second later publishing is refused, or at once if nobody could be told
                 │
                 └── until no consumer has anything left to do, or the deadline has passed
                          │
                          └── until readers of history have had `stay` to read on ── goodbye to nsqlookupds, stop

In the second before the refusal, publishers that follow nsqlookupd go to other nodes, so they need not see an error.
Consumers still find the node, as what waits has to be delivered.

From the refusal on, nothing can be appended to a log, and those who follow one are told that it is closed. nsqd does
not know who reads history, nor how far they are, so `stay` gives them time to read to the end.

A drain can be taken back as long as the process lives (POST /undrain): publishing is accepted again, nsqlookupds are
told, and its logs are no longer closed. To those who follow them this is what a restart after a drain looks like. Only
a drain for good cannot be taken back, as readers may have stopped to expect the node.

Messages that no consumer takes (of a channel without consumers, of a paused channel, or deferred) stay in the log for
the next start. So nothing is lost, whether the drain finishes or meets its deadline, unless the node is retired: then
there is no next start.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqd.broker.broker import Broker

log = logging.getLogger(__name__)

REFUSAL: Final = "draining"
_LOOK_INTERVAL: Final = 0.05  # seconds


NOTICE: Final = 1.0  # seconds between telling nsqlookupds and refusing; publishers hear of it in a tenth of that


class Tell(Protocol):
    """Tells nsqlookupds that this node drains, or no longer does. Returns whether there was one to be told."""

    def __call__(self, *, is_draining: bool, for_good: bool = False) -> bool: ...


def _tell_nobody(*, is_draining: bool, for_good: bool = False) -> bool:
    return False


class Drain:
    def __init__(
        self,
        broker: Broker,
        *,
        deadline: float,
        tell: Tell = _tell_nobody,
        closed: Callable[[], None] = lambda: None,
        stay: float = 0.0,
    ) -> None:
        """`closed` is called when publishing is refused: from then on nothing is appended to the logs."""
        self._broker = broker
        self._deadline = deadline
        self._stay = self._usual_stay = stay
        self._tell = tell
        self._closed = closed
        self._has_ended = False
        self.is_for_good = False
        self._asked = trio.Event()

    @property
    def going_on(self) -> bool:
        return self._asked.is_set()

    def start(self, *, stay: float | None = None, retire: bool = False) -> bool:
        """Start the drain. Idempotent, except that the last `stay` counts: the seconds for reading a drained node.

        Returns whether the drain is as requested. A drain under way cannot become one for good, because goodbye has
        been said already.
        """
        if stay is not None:
            self._stay = stay
        if not self.going_on:
            self.is_for_good = retire
            if self._tell(is_draining=True, for_good=retire):
                log.info("NSQ: draining, publishing is refused in %g s", NOTICE)
            else:
                self._refuse()
            self._asked.set()
        return self.is_for_good or not retire

    def take_back(self) -> bool:
        """Accept messages again, and register again. Idempotent. Returns False if it is too late, or was for good."""
        if self._has_ended or self.is_for_good:
            return False
        if self.going_on:
            log.info("NSQ: the drain was taken back, publishing is accepted again")
            self._asked = trio.Event()
            self._stay = self._usual_stay
            self._broker.refusal = None
            self._tell(is_draining=False)
        return True

    def end(self) -> bool:
        """Refuse publishing, if this node drains and still accepts messages. Return whether it drains."""
        if self.going_on and self._broker.refusal is None:
            self._refuse()
        return self.going_on

    def _refuse(self) -> None:
        log.info("NSQ: draining, publishing is refused from now on")
        self._broker.refusal = REFUSAL
        self._closed()

    async def wait(self) -> None:
        """Wait until a drain was requested and has ended."""
        while not self._has_ended:
            asked = self._asked
            await asked.wait()
            await self._give_notice(asked)
            await self._deliver(asked)
            await self._wait_for_readers(asked)
            self._has_ended = asked is self._asked  # otherwise it was taken back meanwhile

    async def _give_notice(self, asked: trio.Event) -> None:
        """Refuse publishing when publishers have had time to go to other nodes."""
        until = trio.current_time() + NOTICE
        while asked is self._asked and self._broker.refusal is None:
            if trio.current_time() >= until:
                self._refuse()
                return
            await trio.sleep(_LOOK_INTERVAL)

    async def _deliver(self, asked: trio.Event) -> None:
        until = trio.current_time() + self._deadline
        while asked is self._asked and (left := undelivered(self._broker)):
            if trio.current_time() >= until:
                log.warning("NSQ: the drain's deadline has come, %d messages stay for the next start", left)
                return
            await trio.sleep(_LOOK_INTERVAL)
        if asked is self._asked:
            log.info("NSQ: drained")

    async def _wait_for_readers(self, asked: trio.Event) -> None:
        since = trio.current_time()
        if asked is self._asked and self._stay > 0:
            log.info("NSQ: history can be read for another %g s", self._stay)
        # Another request may change `stay` or take the drain back: polling will do for one end in a process' life.
        while asked is self._asked and trio.current_time() < since + self._stay:  # noqa: ASYNC110
            await trio.sleep(_LOOK_INTERVAL)


def undelivered(broker: Broker) -> int:
    """Return how many messages are in flight, or could still be delivered to the consumers that are connected."""
    return sum(
        len(channel.in_flight) + (0 if channel.paused else channel.depth)
        for topic in broker.topics.values()
        for channel in topic.channels.values()
        if channel.consumers
    )


async def drain_on_signal(drain: Drain, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGUSR1) as arrivals:
        task_status.started()
        async for _ in arrivals:
            drain.start()
