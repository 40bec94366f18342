"""Who waits for the store: publishers, and readers of history. Runs on the event loop, in turns.

    a log is written ── log_written ──> wait ── the sender's doorbell ──> end: OK, and history shows more
                                         │
                                         └── no slot was confirmed for --remote-timeout: refuse

        OK <──────────────── all that has stayed is confirmed ──────────────── refusing
        OK ── the store takes no slot for --remote-timeout ──> waiting publishers get an error; refusing

While we refuse, the messages of publishers that got the error are in the log, and probably in the store. Until that is
certain, a repeat with the same key has to fail as well: an OK for it would be an OK for a message that may be lost. So
we refuse until everything is confirmed that was recorded before a publisher got the last of these errors. Other changes,
as by consumers that go on, don't prolong it.

A clean stop answers publishers before it closes their connections, because messages that are under way will be stored. A
publisher that lost its connection instead would publish them again, and without keys they would be stored twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

import trio

from nsqcommon.turn import in_turn
from nsqd.log.files import DiskError

if TYPE_CHECKING:
    from nsqcommon.turn import Turn
    from nsqd.broker.store import RemoteSnapshot
    from nsqd.log.faults import StorageFault
    from nsqd.log.remote import ConfirmedLog
    from nsqd.remote.owner import Owner
    from nsqd.remote.sender import Sender

CHECK_INTERVAL: Final = 1.0  # seconds between two looks whether the store has stopped answering
CHECKS_PER_TIMEOUT: Final = 10  # so that a short --remote-timeout ends in time, too
LOOK_INTERVAL: Final = 0.01  # seconds between two looks whether all publishers are answered, when nsqd stops
_LEAST_TO_LEAVE: Final = (
    1.0  # seconds that a stop has for the last root, although publishers have waited for all of them
)
_MAY_BE_STORED: Final = "it may be stored"
_STOPPING: Final = "remote: nsqd is stopping"


class ServedNode(Protocol):
    """The node as its confirmations see it."""

    owner: Owner
    sender: Sender

    def begin(self) -> None: ...

    def close(self, within: float) -> None:
        """Leave the name to the next owner, in about this many seconds."""

    def snapshot(self, *, refusal: str | None, waiting_publishes: int) -> RemoteSnapshot: ...

    def raise_if_lost(self) -> None:
        """Raise StartupError if another process owns the name now."""

    def raise_bug(self) -> None:
        """Raise the exception with which a thread has ended, if one has."""


class Confirmations:
    """Implements `nsqd.log.remote.Remote`."""

    def __init__(
        self,
        node: ServedNode,
        fault: StorageFault,
        *,
        timeout: float,
        is_strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self._is_strict = is_strict
        self._node = node
        self._owner = node.owner
        self._sender = node.sender
        self._fault = fault
        self._clock = clock
        self._logs: dict[ConfirmedLog, None] = {}  # that have something unconfirmed
        self._seen = 0  # the last position that logs know to be confirmed
        self._refusal: str | None = None
        self._refuses_until = inf  # the position that ends the refusal
        self._is_stopping = False
        self._ends_at = inf  # when all of a stop should have ended
        self._followers: list[Callable[[str], None]] = []

    # Calls from the log

    @property
    def position(self) -> int:
        return self._owner.position

    def refusal(self) -> str | None:
        return self._refusal or (_STOPPING if self._is_stopping else None)

    def refusal_of_all(self) -> str | None:
        return self._refusal if self._is_strict else None

    def holds_back(self, size: int) -> bool:
        return self._owner.holds_back(size)

    def log_written(self, log: ConfirmedLog, *, is_awaited: bool) -> None:
        self._logs[log] = None
        if is_awaited:
            self._owner.expect_confirmation()

    def log_dropped(self, log: ConfirmedLog) -> None:
        self._logs.pop(log, None)
        self._tell(log.topic)

    def follow(self, follower: Callable[[str], None]) -> None:
        self._followers.append(follower)

    def snapshot(self) -> RemoteSnapshot:
        return self._node.snapshot(refusal=self._refusal, waiting_publishes=self._waiting_publishes)

    @property
    def _waiting_publishes(self) -> int:
        return sum(log.waiting_publishes for log in self._logs)

    def begin(self) -> None:
        self._node.begin()

    async def answer_publishers(self, turn: Turn) -> None:
        self._is_stopping = True
        self._ends_at = self._clock() + self.timeout
        with in_turn(turn):
            pass  # which refuses publishes that were held back, as no other turn might
        with trio.move_on_after(self.timeout):
            while self._waiting_publishes:  # noqa: ASYNC110  # happens once in a process's life, so we poll
                await trio.sleep(LOOK_INTERVAL)
            return
        with in_turn(turn):
            self._fail_waiting(f"{_STOPPING}, and {self._cause}; {_MAY_BE_STORED}")

    def close(self) -> None:
        left = max(self._ends_at - self._clock(), _LEAST_TO_LEAVE)
        self._node.close(min(left, self.timeout))

    @property
    def is_lost(self) -> bool:
        return self._owner.fenced is not None

    # Calls from turns and tasks

    def hurry(self) -> None:
        self._owner.hurry()

    def end(self) -> None:
        """Answer publishers, and let history show the messages that are confirmed."""
        if self._owner.fenced is not None:
            self._lose(self._owner.fenced)
            return
        position = self._owner.confirmed
        if position == self._seen:
            return
        self._seen = position
        for log in list(self._logs):
            if log.confirm(position):
                self._tell(log.topic)
            if log.is_confirmed:
                del self._logs[log]
        if self._refusal is not None and position >= self._refuses_until:
            self._refusal = None
            self._fault.end()

    def check(self) -> None:
        """Refuse publishes if the store has stopped answering."""
        if self._owner.fenced is None and self._clock() - self._owner.stalled_since >= self.timeout:
            self._refuse(f"remote: {self._cause}")

    @property
    def _cause(self) -> str:
        return self._sender.fault.text if self._sender.fault is not None else "the store doesn't answer"

    def _refuse(self, refusal: str) -> None:
        is_awaited = self._waiting_publishes > 0  # one may have been on its way at the first error
        self._fail_waiting(f"{refusal}; {_MAY_BE_STORED}")
        if self._refusal is None or is_awaited:
            self._refuses_until = self._owner.position
        self._refusal = refusal
        self._fault.begin(DiskError(refusal))

    def _lose(self, why: str) -> None:
        refusal = f"fenced: {why}"
        self._refusal, self._refuses_until = refusal, inf
        self._fail_waiting(f"{refusal}; {_MAY_BE_STORED}")
        self._fault.begin(DiskError(refusal))

    def _fail_waiting(self, reason: str) -> None:
        for log in self._logs:
            log.fail_unconfirmed(reason)

    def _tell(self, topic: str) -> None:
        for follower in self._followers:
            follower(topic)

    # The task

    async def run(self, turn: Turn) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_checking, turn)
            doorbell = self._sender.doorbell
            while True:
                await trio.lowlevel.wait_readable(doorbell.descriptor)
                doorbell.answer()
                self._node.raise_bug()
                with in_turn(turn):
                    self.end()
                self._node.raise_if_lost()  # after the turn has sent the publishers their error

    async def _keep_checking(self, turn: Turn) -> None:
        while True:
            await trio.sleep(min(CHECK_INTERVAL, self.timeout / CHECKS_PER_TIMEOUT))
            self._node.raise_bug()
            if self._clock() - self._owner.stalled_since >= self.timeout:
                with in_turn(turn):
                    self.check()
