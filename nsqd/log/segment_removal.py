"""Drops a log's segments once no channel and no retention needs them. A sync removes the files (sync/removals.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nsqd.log.reading.log_reader import LogReader
    from nsqd.log.reading.reads import Reads
    from nsqd.log.segment_list import SegmentList
    from nsqd.log.settings import LogSettings
    from nsqd.log.writing.unsynced import Unsynced


class ExpiryHost(Protocol):
    """The store as expiry sees it."""

    settings: LogSettings
    age_clock: Callable[[], int]

    @property
    def reads(self) -> Reads: ...

    def remove(self, paths: list[Path]) -> None:
        """Remove these files once the journal is synced: it must say on disk that their messages are finished."""

    def is_leaving(self, path: Path) -> bool:
        """Return whether this file will be removed soon. While a failure prevents that, return False."""


class Expiry:
    """Keeps the segments that retention or remembered keys need, and drops the others.

    Touches the list of segments, and the data that other parts keep about dropped segments: descriptors, holes and
    unsaved indexes.
    """

    def __init__(
        self, topic: str, host: ExpiryHost, segments: SegmentList, reader: LogReader, unsynced: Unsynced
    ) -> None:
        self._topic = topic
        self._key_window = host.settings.options.idempotence_window
        self._max_bytes = host.settings.options.max_bytes_per_file
        self._host = host
        self._segments = segments
        self._reader = reader
        self._unsynced = unsynced
        self._leaving: dict[Path, int] = {}  # sizes of dropped files that may still be on disk
        self.settings_changed()

    def settings_changed(self) -> None:
        settings = self._host.settings
        self.retention = settings.retention_of(self._topic)
        self._keeps_history = bool(self.retention)
        self._is_own = settings.is_own_retention(self._topic)

    def age_now(self) -> int:
        """Return the current time for computing ages, or 0 if nothing depends on ages."""
        return self._host.age_clock() if self.retention.time or self._key_window else 0

    def unwanted_before(self, timestamp: int) -> int:
        """Return the first sequence to keep even if everything is finished.

        A segment with keys stays as long as we remember the keys, because after a restart we read them from segments.
        """
        return self._segments.unwanted_before(self.retention, timestamp, keyed_since=timestamp - self._key_window)

    def is_active_unwanted(self, timestamp: int) -> bool:
        """Return whether to drop the active segment as soon as everything in it is finished."""
        active = self._segments.active
        if active is None or not active.size:
            return False
        if self._keeps_history:
            return not self.retention.wants(active.newest, 0, timestamp)
        return active.size > self._max_bytes // 4

    def outdated_before(self, *, is_all_written: bool) -> int:
        """Return where the topic's own retention ends. It drops earlier messages even if no channel received them."""
        if not (self._is_own and self._keeps_history):
            return 0
        timestamp = self._host.age_clock()
        unwanted = self.unwanted_before(timestamp)
        active = self._segments.active
        if active is not None and unwanted == active.base and is_all_written and self.is_active_unwanted(timestamp):
            return self._segments.tail
        return unwanted

    def remove_before(self, sequence: int) -> None:
        """Drop the sealed segments that end at or before the sequence, and have their files removed."""
        gone = self._segments.take_before(sequence)
        if not gone:
            return
        self._reader.forget_before(self._segments.first)
        self._unsynced.forget(gone)
        for segment in gone:
            self._host.reads.descriptors.forget(segment.path)
        self._forget_what_has_left()
        self._leaving |= {segment.path: segment.size for segment in gone}
        self._host.remove([path for segment in gone for path in (segment.path, segment.index_path)])

    def leaving_bytes(self) -> int:
        """Return the size of dropped files that are still on disk but will be removed soon."""
        self._forget_what_has_left()
        return sum(self._leaving.values())

    def _forget_what_has_left(self) -> None:
        if self._leaving:
            self._leaving = {path: size for path, size in self._leaving.items() if self._host.is_leaving(path)}
