"""A remote copy of a data path that has what a test says."""

from __future__ import annotations

from collections.abc import Callable

from nsqcommon.turn import Turn
from nsqd.broker.store import RemoteSnapshot
from nsqd.log.remote import ConfirmedLog


class FakeRemote:
    """Counts writes of logs as changes. The test confirms them."""

    def __init__(self) -> None:
        self.position = 0
        self.why_refused: str | None = None
        self.is_strict = False
        self.awaited = 0  # the last change that a publisher waits for
        self.logs: dict[ConfirmedLog, None] = {}
        self.dropped: list[str] = []
        self.is_closed = False
        self._followers: list[Callable[[str], None]] = []

    def refusal(self) -> str | None:
        return self.why_refused

    def refusal_of_all(self) -> str | None:
        return self.why_refused if self.is_strict else None

    def holds_back(self, size: int) -> bool:
        return False

    def log_written(self, log: ConfirmedLog, *, is_awaited: bool) -> None:
        self.logs[log] = None
        if is_awaited:
            self.awaited = self.position

    def log_dropped(self, log: ConfirmedLog) -> None:
        self.dropped.append(log.topic)

    def follow(self, follower: Callable[[str], None]) -> None:
        self._followers.append(follower)

    def snapshot(self) -> RemoteSnapshot:
        raise NotImplementedError

    def begin(self) -> None: ...

    def hurry(self) -> None: ...

    async def run(self, turn: Turn) -> None: ...

    async def answer_publishers(self, turn: Turn) -> None: ...

    @property
    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True

    def confirm(self, position: int) -> list[str]:
        """Confirm all changes up to this one. Return the topics of which history shows more."""
        moved = [log.topic for log in self.logs if log.confirm(position)]
        for topic in moved:
            for follower in self._followers:
                follower(topic)
        return moved
