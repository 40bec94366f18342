"""The initial state of a log, from recovery or for a new topic."""

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
    """The state that a `DiskLog` starts with."""

    log_id: str
    differs_from_journal: bool = False  # the journal's positions belong to another log
    segments: list[Segment] = field(default_factory=list)  # the last one is active
    tail: int = 0
    synced: tuple[int, int, int] = (0, 0, 0)  # (base of a segment, offset in it, sequence), synced before this start
    holes: list[Hole] = field(default_factory=list)
    keys: list[tuple[bytes, int]] = field(default_factory=list)  # with their publish times, oldest first
    forgotten_keys: list[KeyedPublish] = field(default_factory=list)  # keys that no longer count
    keys_from: int = -1  # no remembered key is before it; negative: none yet, see KEYS in journal/own_changes.py
    compacted: list[CompactedFile] = field(default_factory=list)
    unsynced_files: list[Path] = field(default_factory=list)
    unsynced_folders: list[Path] = field(default_factory=list)
    unsaved_identity: OSError | None = None  # why log.json could not be written
