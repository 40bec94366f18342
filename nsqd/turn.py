"""One turn: what came in is decided, then written, then delivered, then sent.

Everything that enters the broker (ready sockets, an HTTP call, a deadline) stands between `begin` and `finish`. Nothing in
here waits, so turns never overlap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker


class TurnStore(Protocol):
    """What a turn asks of the disk."""

    def write_logs(self) -> None:
        """One write for each log that got something; settles receipts."""

    @property
    def journal_error(self) -> str | None:
        """Why the journal cannot be relied on; None: what `write_journal` has written is written."""

    @property
    def publishing_error(self) -> str | None:
        """Why nothing may be published; None: what the logs take may be acknowledged."""

    def write_journal(self, *, force: bool = False) -> bool:
        """Writes the journal's buffer if something urgent is in it. False: the disk does not take it now."""

    def sync(self) -> Awaitable[None]: ...


class Turn:
    def __init__(self, broker: Broker, store: TurnStore) -> None:
        self._broker = broker
        self._store = store
        self.flush: Callable[[], None] = lambda: None  # the poller's, once there is one
        self.announce: Callable[[], None] = lambda: None  # tells nsqlookupd of new topics and channels
        self.alarm_came_closer = trio.Event()
        self.progress_made = trio.Event()
        self.timers_sleep_until = 0.0

    def begin(self) -> float:
        return self.take_time()

    def take_time(self) -> float:
        broker = self._broker
        broker.now = monotonic()
        broker.timestamp = time_ns()
        return broker.now

    def finish(self) -> None:
        broker, store = self._broker, self._store
        while True:
            if broker.unsealed or broker.promised is not None:
                # What clients are told to be so must be in the journal first, and deferrals before their batches can
                # be seen. Where it cannot be written, publishing is refused.
                if broker.deferring:
                    broker.announce()
                store.write_journal()
                broker.keep_promise(store.journal_error)
                broker.seal(store.publishing_error)
                store.write_logs()
            broker.hand_over()
            # Before the frames that follow from it leave. If the disk does not take it they leave anyway: consuming goes
            # on, and after a crash a message may come earlier, or with fewer attempts, than a REQ has asked for.
            store.write_journal()
            # A client that hears of a message must be able to find its topic by nsqlookupd.
            if broker.reshaped:
                broker.reshaped = False
                self.announce()
            self.flush()
            # Sending makes room, and a client found dead may have been the last of an ephemeral channel.
            if not broker.restless and not broker.unsealed:
                break
        if broker.crowded:
            broker.drop_overflow()
        if broker.alarms.next < self.timers_sleep_until:
            self.alarm_came_closer.set()
        if broker.changed or broker.lighter or broker.shape_unsaved:
            self.progress_made.set()

    async def durable(self) -> None:
        """Waits until everything decided so far is on disk."""
        await self._store.sync()
