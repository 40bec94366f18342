"""The state in which recovery found a log, or in which a new one begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.broker.store import KeyedPublish
    from nsqd.log.reading.compacted import CompactedFile
    from nsqd.log.segment import Hole, Segment


@dataclass(slots=True)
class LogState:
    """What a `DiskLog` is built from."""

    log_id: str
    is_stranger: bool = False  # not the log to which the journal's positions refer
    segments: list[Segment] = field(default_factory=list)  # the last one is active
    tail: int = 0
    synced: tuple[int, int, int] = (0, 0, 0)  # base of a segment, offset in it, sequence: on disk before this start
    holes: list[Hole] = field(default_factory=list)
    keys: list[tuple[bytes, int]] = field(default_factory=list)  # with their times of publication, the oldest first
    forgotten_keys: list[KeyedPublish] = field(default_factory=list)  # of these, which the journal calls forgotten
    keys_from: int = -1  # no remembered key lies before it; ~sequence: there was none up to it
    compacted: list[CompactedFile] = field(default_factory=list)
    unsynced_files: list[Path] = field(default_factory=list)
    unsynced_folders: list[Path] = field(default_factory=list)
    unsaved_identity: OSError | None = None  # why log.json could not be written
