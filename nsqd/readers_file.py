"""Keeps the readers of readers.py in a file: reads it at startup, and writes it a few seconds after a change.

It stands alone so that `Readers` needs no disk and no event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

import trio

from nsqd.log.data_path import READERS_JSON, DataPathError, FileCondition, keep_small_file_aside
from nsqd.readers import BadReport, LogConsumer, Readers, readers_json

if TYPE_CHECKING:
    from nsqd.log.data_path import DataPath
    from nsqd.log.files import Files

log = logging.getLogger(__name__)

# Seconds between two writes. If the process is killed in between, the readers' next reports replace the lost ones.
INTERVAL: Final = 5.0
_LAST_WRITE: Final = 5.0  # seconds to wait for the disk on shutdown


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
        """Keep `readers` in a file. `topics` contains the names of all existing topics."""
        self._data_path = data_path
        self._files = files
        self._readers = readers
        self._topics = topics
        self._interval = interval
        self._writing = Lock()  # held by the thread that writes
        self._fails = False

    def load(self) -> None:
        """Read the file. If that fails, log the error and start with no readers: they will report again."""
        try:
            found = self._data_path.read_readers()
            if found.condition is FileCondition.MISSING:
                return
            if found.condition is FileCondition.DAMAGED:
                raise BadReport("it is damaged")
            self._readers.restore(found.content.get("readers"))
        except (OSError, DataPathError) as error:
            log.warning("failed to load the topics' readers; each is unknown until its next report: %s", error)
        except BadReport as error:
            kept = keep_small_file_aside(self._files, self._data_path.folder / READERS_JSON)
            log.warning(
                "failed to parse %s; the topics' readers are unknown until their next reports: %s kept=%s",
                READERS_JSON,
                error,
                kept,
            )

    async def keep(self) -> None:
        """Write the file once per interval, and a last time when cancelled, if anything has changed."""
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
        readers.is_saved, is_written = True, False  # a change during this write clears it again
        now = list(readers)
        try:
            # If the disk hangs, only the thread hangs with it: the event loop goes on, and the process can stop.
            await trio.to_thread.run_sync(self._write, now, abandon_on_cancel=True)
            is_written = True
        except OSError as error:
            if not self._fails:
                log.warning("failed to write %s: %s", READERS_JSON, error)
        finally:
            self._fails = not is_written
            readers.is_saved = readers.is_saved and is_written

    def _write(self, readers: Sequence[tuple[str, LogConsumer]]) -> None:
        """Write the file. Runs in a thread; the lock makes it wait for an earlier write abandoned by a cancellation.

        Raises OSError.
        """
        with self._writing:
            self._data_path.write_readers(readers_json(readers))
