"""The state of a journal rotation: a new file gets a snapshot of each topic, and then replaces the older files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

ROTATE_AT: Final = 16 * 1024 * 1024
ROTATE_AT_GROWTH: Final = 4  # times the size after the last rotation
PIECE_WEIGHT: Final = 6_000  # numbers in a piece of a snapshot, roughly: a few milliseconds of work

# The first change of a rotated file. It lists the topics whose snapshots follow; until all of them are there, the
# previous file is still needed.
ROTATION: Final = "rotation"


class JournalRotation:
    """The progress of a rotation, and whether one is due.

    It does no I/O: `Journal` opens the new file, writes the changes that this class returns, and removes the old files.
    """

    def __init__(self) -> None:
        self.replaced: list[Path] = []  # files to remove after this rotation
        self._topics: deque[str] | None = None  # topics that still need a snapshot; None: no rotation in progress
        self._is_due = False  # due at any size: changes were lost, and only snapshots can replace them
        self._is_due_again = False  # changes were lost during this rotation
        self._rotate_at = ROTATE_AT
        self._size_after = 0  # the file's size at the end of the last rotation
        self._rest: Iterator[Entry | None] | None = None  # the rest of the current snapshot
        self._rest_ends = False  # the last piece was the end of its snapshot
        self._parts = 0  # pieces of the current snapshot so far

    def recovered(self, size: int, replaced: list[Path], *, is_due: bool) -> None:
        """Set the state found at startup: the size of the last file, and in `replaced` the files before it."""
        self._size_after = size
        self.replaced = replaced
        self._is_due = is_due

    @property
    def is_due(self) -> bool:
        """Whether changes were lost that only snapshots can replace."""
        return self._is_due

    def need(self) -> None:
        """Request a rotation because changes were lost. During a rotation, request another one after it."""
        self._is_due = True
        self._is_due_again = self._topics is not None

    def is_wanted(self, size: int) -> bool:
        limit = max(self._rotate_at, ROTATE_AT_GROWTH * self._size_after)
        return self._topics is None and (self._is_due or size > limit)

    @property
    def lacks_snapshots(self) -> bool:
        return bool(self._topics)

    @property
    def is_complete(self) -> bool:
        """Whether all snapshots are written. After the next sync, the older files can be removed."""
        return self._topics is not None and not self._topics

    @property
    def size_after(self) -> int:
        return self._size_after

    def put_off(self, size: int) -> None:
        """Postpone the rotation until the file reaches this size, because the disk has no space for another one now."""
        self._rotate_at = size

    def begin(self, replaced: Path, topics: Iterable[str]) -> Entry:
        """Begin a rotation. Returns the new file's first change, which lists the topics."""
        self._rotate_at = ROTATE_AT
        self._rest = None
        self.replaced.append(replaced)
        self._topics = deque(topics)
        return ROTATION, list(self._topics)

    @property
    def next_topic(self) -> str:
        """The topic of the current snapshot, or of the next one."""
        assert self._topics
        return self._topics[0]

    def next_changes(self, snapshot: Callable[[str], Iterable[Entry | None]]) -> list[Entry]:
        """Return the next piece of a snapshot. Call `written` after writing it, or `start_anew` if that fails."""
        topic = self.next_topic
        begins = self._rest is None
        rest = iter(snapshot(topic)) if self._rest is None else self._rest
        piece, ends = _next_piece(rest)
        self._rest, self._rest_ends = rest, ends
        if begins and ends:
            return [("snapshot", topic), *piece]
        changes: list[Entry] = [("begin", topic)] if begins else []
        changes.append(("part", topic, piece))
        self._parts = 1 if begins else self._parts + 1
        if ends:  # with the number of parts, so that the next start notices a missing one
            changes.append(("end", topic, self._parts))
        return changes

    def start_anew(self) -> None:
        """Restart the current snapshot after a failed write, since a part of it or a later change is missing."""
        self._rest = None

    def written(self) -> None:
        if self._rest_ends:
            assert self._topics
            self._topics.popleft()
            self._rest = None

    def end(self, size: int) -> list[Path]:
        """End the rotation. Returns the files to remove after the next sync."""
        self._topics = None
        self._is_due, self._is_due_again = self._is_due_again, False
        self._size_after = size
        replaced, self.replaced = self.replaced, []
        return replaced


def missing_snapshots(changes: Iterable[Entry]) -> set[str]:
    """Return the topics whose snapshots a file's changes announce but don't contain."""
    missing: set[str] = set()
    note_rotation(changes, missing)
    return missing


def note_rotation(changes: Iterable[Entry], missing: set[str]) -> None:
    """Update `missing`, the topics whose announced snapshots haven't been seen yet."""
    for change in changes:
        match change:
            case [word, topics] if word == ROTATION:
                missing.update(cast("Iterable[str]", topics))
            case ["snapshot" | "end" | "drop", str(topic), *_]:
                missing.discard(topic)


def _next_piece(changes: Iterator[Entry | None]) -> tuple[list[Entry], bool]:
    """Return the changes for the next frame, up to a None if one comes first, and whether they are the last ones."""
    piece: list[Entry] = []
    weight = 0
    for change in changes:
        if change is None:
            return piece, False
        piece.append(change)
        last = change[-1]
        weight += len(last) if isinstance(last, list) else 1
        if weight >= PIECE_WEIGHT:
            return piece, False
    return piece, True
