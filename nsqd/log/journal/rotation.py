"""JournalRotation of the journal: which snapshots are still to come, and which files they replace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

ROTATE_AT: Final = 16 * 1024 * 1024
ROTATE_AT_GROWTH: Final = 4  # times the size after the last rotation
PIECE_WEIGHT: Final = 6_000  # about how many numbers a piece of a snapshot holds: some milliseconds of work

# The journal's own word. It names the topics whose snapshots follow. Until all of them are there, the file before this
# one is still needed.
ROTATION: Final = "rotation"


class JournalRotation:
    """How far a rotation has got, and whether one is due.

    May touch nothing but itself: the journal opens the new file, writes the changes that it gets from here, and removes
    files.
    """

    def __init__(self) -> None:
        self.replaced: list[Path] = []  # files that may be removed when the present rotation has ended
        self._topics: deque[str] | None = None  # whose snapshots the new file still lacks; None: no rotation
        self._is_due = False  # at any size: changes were lost, and snapshots have to replace them
        self._is_due_again = False  # changes were lost during the present rotation
        self._rotate_at = ROTATE_AT
        self._size_after = 0  # size of the file when the last rotation had ended
        self._rest: Iterator[Entry | None] | None = None  # of the snapshot that is being written
        self._rest_ends = False  # whether the piece given last ends the snapshot
        self._parts = 0  # pieces given of the present snapshot

    def recovered(self, size: int, replaced: list[Path], *, is_due: bool) -> None:
        """Continue where another process ended: with a last file of this size, and the files before it."""
        self._size_after = size
        self.replaced = replaced
        self._is_due = is_due

    @property
    def is_due(self) -> bool:
        """Whether changes were lost that only snapshots can replace."""
        return self._is_due

    def need(self) -> None:
        """Have snapshots replace what was lost. Snapshots that are already written do not count."""
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
        """Whether all snapshots are written, so that the files before can be removed after the next sync."""
        return self._topics is not None and not self._topics

    @property
    def size_after(self) -> int:
        return self._size_after

    def put_off(self, size: int) -> None:
        """Let the file grow to this size before it is rotated, because the disk has no room for another file now."""
        self._rotate_at = size

    def begin(self, replaced: Path, topics: Iterable[str]) -> Entry:
        """Begin a rotation. Return the change with which the new file names the topics whose snapshots it will have."""
        self._rotate_at = ROTATE_AT
        self._rest = None
        self.replaced.append(replaced)
        self._topics = deque(topics)
        return ROTATION, list(self._topics)

    @property
    def next_topic(self) -> str:
        """The topic whose snapshot is being written, or comes next."""
        assert self._topics
        return self._topics[0]

    def next_changes(self, snapshot: Callable[[str], Iterable[Entry | None]]) -> list[Entry]:
        """Return one topic's state as changes, or a piece of it. Then call `written` or `start_anew`."""
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
        if ends:
            changes.append(("end", topic, self._parts))
        return changes

    def start_anew(self) -> None:
        """Write the present snapshot from its beginning again, as a piece of it or a change could not be written."""
        self._rest = None

    def written(self) -> None:
        if self._rest_ends:
            assert self._topics
            self._topics.popleft()
            self._rest = None

    def end(self, size: int) -> list[Path]:
        """End the rotation. Return the files that can be removed after the next sync."""
        self._topics = None
        self._is_due, self._is_due_again = self._is_due_again, False
        self._size_after = size
        replaced, self.replaced = self.replaced, []
        return replaced


def lacking_snapshots(changes: Iterable[Entry]) -> set[str]:
    """Return the topics whose snapshots should be in the file that has these changes, and are not."""
    lacking: set[str] = set()
    note_rotation(changes, lacking)
    return lacking


def note_rotation(changes: Iterable[Entry], lacking: set[str]) -> None:
    """Keep track in `lacking` of the topics whose snapshots are still to come."""
    for change in changes:
        match change:
            case [word, topics] if word == ROTATION:
                lacking.update(cast("Iterable[str]", topics))
            case ["snapshot" | "end" | "drop", str(topic), *_]:
                lacking.discard(topic)


def _next_piece(changes: Iterator[Entry | None]) -> tuple[list[Entry], bool]:
    """Take as many changes as a frame should hold, fewer before a None. Return them, and whether they were all."""
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
