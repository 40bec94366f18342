"""Why a log takes no messages now, and when the disk is tried again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.faults import Fault, FaultKind
from nsqd.log.reading.refusals import READ_PATIENCE

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import DiskError
    from nsqd.log.writing.unsynced import Unsynced

RETRY_AFTER: Final = 1.0  # seconds from a failure until the disk is tried again


class LogFault(Fault):
    """The failure of one log, from the first error until a write succeeds. May touch nothing but the list of faults.

        OK ──begin──> broken ──a second later: is_due──> the log reads its end again ──proven──> broken, but written to
        OK <──end── the first write that goes well <────────────────────────────────────────────────────────┘

    Each failure on the way restarts the second, but not the time for which a refused read is waited for.
    """

    def __init__(self, topic: str, folder: Path, unsynced: Unsynced, faults: Faults, now: Callable[[], float]) -> None:
        super().__init__(faults, FaultKind.LOG)
        self.topic = topic  # and not the log, which the garbage collector would have to find when the topic is deleted
        self.folder = folder
        self._unsynced = unsynced
        self.identity_is_unsaved = False  # the disk did not take the log.json that says which log the folder is
        self._now = now
        self._began_at = 0.0
        self._retry_at = 0.0

    def begin(self, error: DiskError) -> None:
        now = self._now()
        if self.error is None:
            self._began_at = now
        self._retry_at = now + RETRY_AFTER
        super().begin(error)

    @property
    def names_may_be_lost(self) -> bool:
        """Whether a name in the folder may not be durable, and the sync that is beginning does not take the folder."""
        return bool(self._unsynced.folders)

    @property
    def needs_proof(self) -> bool:
        """Whether the end of the log has to be read again before anything is appended."""
        return self._retry_at != 0.0

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last failure to try the disk again."""
        return self._now() >= self._retry_at

    @property
    def is_lasting(self) -> bool:
        """Whether it is time to give up on bytes that the disk refuses to read, and to publish behind them."""
        return self._now() - self._began_at >= READ_PATIENCE

    def proven(self) -> None:
        self._retry_at = 0.0

    def end(self) -> None:
        self._retry_at = 0.0
        super().end()
