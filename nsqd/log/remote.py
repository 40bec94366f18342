"""The copy of a data path in an object store, as the log sees it. `nsqd.remote` implements it; without `--remote`, the log has none.

Everything that the log does to its files is recorded, and numbered. A while later the copy certainly has all changes up
to some number: that one is *confirmed*. With `--ack=remote` a publisher waits for that, and history shows only messages
that are confirmed, so that a reader never sees a message that another machine would not have after a takeover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqcommon.turn import Turn
    from nsqd.broker.store import RemoteSnapshot


class ConfirmedLog(Protocol):
    """A log as the remote copy sees it."""

    topic: str

    @property
    def is_confirmed(self) -> bool:
        """Whether everything written to the log is confirmed."""

    @property
    def waiting_publishes(self) -> int:
        """How many publishers' batches wait for a confirmation."""

    def confirm(self, position: int) -> bool:
        """Note that all changes up to this number are confirmed. Return whether history shows more than before."""

    def fail_unconfirmed(self, reason: str) -> None:
        """Send the publishers that wait for a confirmation this error. Their messages stay, and may be stored."""


class Remote(Protocol):
    @property
    def position(self) -> int:
        """The number of the last change that was recorded."""

    def refusal(self) -> str | None:
        """Return why publishes that need a confirmation are refused, or None."""

    def refusal_of_all(self) -> str | None:
        """Return why publishes that need no confirmation are refused as well, or None."""

    def holds_back(self, size: int) -> bool:
        """Return whether publishes of this many bytes, which need a confirmation, have to wait, because much is unsent.

        If they are too many to be kept in memory, they needn't.
        """

    def log_written(self, log: ConfirmedLog, *, is_awaited: bool) -> None:
        """Call the log's `confirm` when all changes so far are confirmed. `is_awaited`: a publisher waits for that."""

    def log_dropped(self, log: ConfirmedLog) -> None: ...

    def follow(self, follower: Callable[[str], None]) -> None:
        """Call `follower` with the topic's name whenever a log has more confirmed messages or is deleted."""

    def snapshot(self) -> RemoteSnapshot: ...

    def begin(self) -> None:
        """Return when the copy has what recovery has found. Nothing may be served before. Raises StartupError."""

    def hurry(self) -> None:
        """Have this turn's changes sent if a publisher waits for them. Call this at the end of the turn."""

    async def run(self, turn: Turn) -> None:
        """Answer publishers as more is confirmed, until cancelled. Raises StartupError if another process is the owner now."""

    async def answer_publishers(self, turn: Turn) -> None:
        """Wait until no publisher waits for a confirmation, and refuse further ones, because nsqd is about to close them.

        Publishers get an error if that takes too long. `run` goes on meanwhile.
        """

    def close(self) -> None:
        """Send the rest, and leave the copy to the next owner. Blocks, but not for long. Call this when all is written."""

    @property
    def is_lost(self) -> bool:
        """Whether another process owns the copy now. Then this one must not write to the data path any more."""
