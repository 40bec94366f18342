"""Rotation of the journal: which snapshots are still to come, and which files they replace."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

ROTATE_AT: Final = 16 * 1024 * 1024
ROTATE_AT_GROWTH: Final = 4  # times what it was after the last rotation
PIECE_WEIGHT: Final = 6_000  # numbers in a piece of a snapshot, about: some milliseconds

# The journal's own word: topics of each of which a snapshot is to come. If one did not, the file before is still needed.
ROTATION: Final = "rotation"


class Rotation:
    """How far a rotation has got, and whether one is due.

    May touch nothing but itself: the journal opens the new file, writes the changes that this gives, and removes files.
    """

    def __init__(self) -> None:
        self.replaced: list[Path] = []  # files that may go when the rotation that is going on has ended
        self._topics: deque[str] | None = None  # without a snapshot in the new file; None: no rotation
        self._is_due = False  # whatever the size: something was lost, and snapshots tell it anew
        self._is_due_again = False  # something was lost while it was going on
        self._rotate_at = ROTATE_AT
        self._size_after = 0  # of the file, when the last rotation had ended
        self._rest: Iterator[Entry] | None = None  # of the snapshot that is being written
        self._rest_ends = False  # with the piece that was given last
        self._parts = 0  # of the snapshot that were given

    def recovered(self, size: int, replaced: list[Path], *, is_due: bool) -> None:
        """Continue where another process has ended: with a last file of this size, and files before it."""
        self._size_after = size
        self.replaced = replaced
        self._is_due = is_due

    @property
    def is_due(self) -> bool:
        """Whether there are changes that only snapshots can tell."""
        return self._is_due

    def need(self) -> None:
        """Have snapshots tell what was lost; those that are written already do not count."""
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
        """Whether all snapshots are written, so that the files before may go after the next sync."""
        return self._topics is not None and not self._topics

    @property
    def size_after(self) -> int:
        return self._size_after

    def put_off(self, size: int) -> None:
        """Let the file grow to this size before it is rotated, as the disk has no room for another one now."""
        self._rotate_at = size

    def begin(self, replaced: Path, topics: Iterable[str]) -> Entry:
        """Begin, and return the change with which the new file says whose snapshots it will have."""
        self._rotate_at = ROTATE_AT
        self._rest = None
        self.replaced.append(replaced)
        self._topics = deque(topics)
        return ROTATION, list(self._topics)

    @property
    def next_topic(self) -> str:
        """Whose snapshot is being written, or is the next."""
        assert self._topics
        return self._topics[0]

    def next_changes(self, snapshot: Callable[[str], Iterable[Entry]]) -> list[Entry]:
        """Return one topic's state, or a piece of it, as the journal tells it. Then call `written` or `start_anew`."""
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
        """Write the present snapshot from its beginning again: a piece of it, or a change, was not written."""
        self._rest = None

    def written(self) -> None:
        if self._rest_ends:
            assert self._topics
            self._topics.popleft()
            self._rest = None

    def end(self, size: int) -> list[Path]:
        """End, and return the files that may go after the next sync."""
        self._topics = None
        self._is_due, self._is_due_again = self._is_due_again, False
        self._size_after = size
        replaced, self.replaced = self.replaced, []
        return replaced


def lacking_snapshots(changes: Iterable[Entry]) -> set[str]:
    """Return the topics whose snapshots should be in the file that tells these changes, and are not."""
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


def _next_piece(changes: Iterator[Entry]) -> tuple[list[Entry], bool]:
    """Take as much as a frame should hold. Return it, and whether that was all."""
    piece: list[Entry] = []
    weight = 0
    for change in changes:
        piece.append(change)
        last = change[-1]
        weight += len(last) if isinstance(last, list) else 1
        if weight >= PIECE_WEIGHT:
            return piece, False
    return piece, True
