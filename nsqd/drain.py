"""Drains a node: refuses new messages, delivers the waiting ones, then stops.

SIGUSR1 and POST /drain start a drain. SIGTERM stops the node without delivering anything first: see nsqd/daemon.py.

    drain requested ── register as draining with every nsqlookupd
        │
        └── refuse publishing: a second later, or right away if we have no nsqlookupd
                 │
                 └── deliver until no consumer has work left, or the deadline has passed
                          │
                          └── let readers of history read for another `stay` seconds ── unregister, stop

In that first second, publishers that follow nsqlookupd move to other nodes, so they never see an error. Consumers still
find the node, because its messages have to be delivered.

Once publishing is refused, nothing is appended to the logs, and their readers are notified that the logs are closed. We
don't know who reads history, or how far they've got, so `stay` gives them time to reach the end.

You can take a drain back while the process is running (POST /undrain): the node accepts messages again, registers as
usual, and reopens its logs. To the readers of the logs, that looks like a restart after a drain. Only a drain with
`retire` is final, because readers may have given up on the node already.

Messages that can't be delivered now stay in the log for the next start, such as deferred messages, or all messages of a
paused channel or one without consumers. So a drain loses nothing, even when it hits its deadline, unless the node is
retired and never starts again.
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


# Seconds between the announcement and the first refusal. Publishers learn of the drain in a tenth of that.
NOTICE: Final = 1.0


class Announce(Protocol):
    """Registers the node with each nsqlookupd as draining or not draining. Returns False if there is no nsqlookupd."""

    def __call__(self, *, is_draining: bool, for_good: bool = False) -> bool: ...


def _without_lookupd(*, is_draining: bool, for_good: bool = False) -> bool:
    return False


class Drain:
    def __init__(
        self,
        broker: Broker,
        *,
        deadline: float,
        announce: Announce = _without_lookupd,
        on_closed: Callable[[], None] = lambda: None,
        stay: float = 0.0,
    ) -> None:
        """`on_closed` is called once publishing is refused, because nothing is appended to the logs after that."""
        self._broker = broker
        self._deadline = deadline
        self._stay = self._usual_stay = stay
        self._announce = announce
        self._on_closed = on_closed
        self._has_ended = False
        self.is_for_good = False
        self._asked = trio.Event()

    @property
    def is_draining(self) -> bool:
        return self._asked.is_set()

    def start(self, *, stay: float | None = None, retire: bool = False) -> bool:
        """Start the drain. Calling this again only changes `stay`, the number of seconds for readers of history.

        Returns False if `retire` is too late: a drain in progress can't become final, because the nsqlookupds have
        already registered an ordinary one.
        """
        if stay is not None:
            self._stay = stay
        if not self.is_draining:
            self.is_for_good = retire
            if self._announce(is_draining=True, for_good=retire):
                log.info("NSQ: draining, refusing publishes in %g s", NOTICE)
            else:
                self._refuse()
            self._asked.set()
        return self.is_for_good or not retire

    def take_back(self) -> bool:
        """Accept messages again and register as usual. Idempotent. Returns False if the drain is over or final."""
        if self._has_ended or self.is_for_good:
            return False
        if self.is_draining:
            log.info("NSQ: drain taken back, accepting publishes again")
            self._asked = trio.Event()
            self._stay = self._usual_stay
            self._broker.refusal = None
            self._announce(is_draining=False)
        return True

    def end(self) -> bool:
        """Refuse publishing from now on if the node is draining. Return whether it is."""
        if self.is_draining and self._broker.refusal is None:
            self._refuse()
        return self.is_draining

    def _refuse(self) -> None:
        log.info("NSQ: draining, refusing publishes from now on")
        self._broker.refusal = REFUSAL
        self._on_closed()

    async def wait(self) -> None:
        """Wait until a drain has been requested and completed. A drain that is taken back doesn't count."""
        while not self._has_ended:
            asked = self._asked
            await asked.wait()
            await self._give_notice(asked)
            await self._deliver(asked)
            await self._wait_for_readers(asked)
            self._has_ended = asked is self._asked  # otherwise it was taken back while we waited

    async def _give_notice(self, asked: trio.Event) -> None:
        """Give publishers time to move to other nodes, then refuse publishing."""
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
                log.warning("NSQ: drain deadline reached, leaving %d messages for the next start", left)
                return
            await trio.sleep(_LOOK_INTERVAL)
        if asked is self._asked:
            log.info("NSQ: drained")

    async def _wait_for_readers(self, asked: trio.Event) -> None:
        since = trio.current_time()
        if asked is self._asked and self._stay > 0:
            log.info("NSQ: staying up another %g s for readers of history", self._stay)
        # Another request may change `stay` or take the drain back. This happens once in a process's life, so we poll.
        while asked is self._asked and trio.current_time() < since + self._stay:  # noqa: ASYNC110
            await trio.sleep(_LOOK_INTERVAL)


def undelivered(broker: Broker) -> int:
    """Count the messages that are in flight or that a connected consumer could still get."""
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
