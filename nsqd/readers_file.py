"""Keeps the readers of a node's logs over a restart: read at the start, written some seconds after each change."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

import trio

from nsqd.log.data_path import READERS_JSON, DataPathError, FileCondition, keep_small_file_aside
from nsqd.readers import BadReport, LogConsumer, Readers, written

if TYPE_CHECKING:
    from nsqd.log.data_path import DataPath
    from nsqd.log.files import Files

log = logging.getLogger(__name__)

# Seconds between two writes. A kill loses the reports of that time, and the readers' next reports replace them.
INTERVAL: Final = 5.0
_LAST_WRITE: Final = 5.0  # seconds that the end of the process waits for the disk


class ReadersFile:
    def __init__(
        self,
        data_path: DataPath,
        files: Files,
        readers: Readers,
        topics: Container[str],
        *,
        interval: float = INTERVAL,
    ) -> None:
        """Set up a file for `readers`. `topics` has the names of the existing topics."""
        self._data_path = data_path
        self._files = files
        self._readers = readers
        self._topics = topics
        self._interval = interval
        self._writing = Lock()  # held by the thread that writes
        self._fails = False

    def load(self) -> None:
        """Read the file. An unusable file is logged, and the node starts all the same."""
        try:
            found = self._data_path.read_readers()
            if found.condition is FileCondition.MISSING:
                return
            if found.condition is FileCondition.DAMAGED:
                raise BadReport("it is damaged")
            self._readers.restore(found.content.get("readers"))
        except (OSError, DataPathError) as error:
            log.warning("the readers of topics are not known, until they report again: %s", error)
        except BadReport as error:
            kept = keep_small_file_aside(self._files, self._data_path.folder / READERS_JSON)
            log.warning(
                "%s cannot be read, so the readers of topics are not known until they report again: %s kept=%s",
                READERS_JSON,
                error,
                kept,
            )

    async def keep(self) -> None:
        """Write the file at each interval in which readers have changed. Never returns.

        Writes a last time when it is cancelled.
        """
        try:
            while True:
                await trio.sleep(self._interval)
                await self._save()
        finally:
            with trio.move_on_after(_LAST_WRITE, shield=True):
                await self._save()

    async def _save(self) -> None:
        readers = self._readers
        readers.forget_topics_but(self._topics)
        if readers.is_saved:
            return
        readers.is_saved, is_written = True, False  # changes from now on are for the next write
        now = list(readers)
        try:
            # A disk that hangs holds up a thread, but neither the loop nor the end of the process.
            await trio.to_thread.run_sync(self._write, now, abandon_on_cancel=True)
            is_written = True
        except OSError as error:
            if not self._fails:
                log.warning("%s cannot be written: %s", READERS_JSON, error)
        finally:
            self._fails = not is_written
            readers.is_saved = readers.is_saved and is_written

    def _write(self, readers: Sequence[tuple[str, LogConsumer]]) -> None:
        """Write the file. Runs in a thread, after a write abandoned when `keep` was cancelled. Raises OSError."""
        with self._writing:
            self._data_path.write_readers(written(readers))
