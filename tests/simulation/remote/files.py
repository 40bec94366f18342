"""A node's files, as small as they can be and still have an order that matters.

    journal        m + id: a message of this id will be in the log     f + segment: the segment may be removed
    log/N          ids of five messages
    compacted/N    the same, copied from log/N
    copy           a file of `compacted` that isn't complete

As in nsqd, the journal is written before the log, and says that a segment is finished before that is removed. So in each
state that `kill -9` can leave, a message of the log is in the journal, and a segment that is missing is finished there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

JOURNAL = "journal"
COPY = "copy"
PER_SEGMENT = 5
_RECORD = 9
_ID = 8


def journal_record(kind: bytes, number: int) -> bytes:
    return kind + number.to_bytes(_RECORD - 1, "big")


def log_record(message: int) -> bytes:
    return message.to_bytes(_ID, "big")


def segment_path(segment: int) -> str:
    return f"log/{segment:06}"


def compacted_path(segment: int) -> str:
    return f"compacted/{segment:06}"


def segment_of(path: str) -> int:
    """Return the segment that a file is of, -1 for another file."""
    folder, _, number = path.rpartition("/")
    return int(number) if folder else -1


def paths_of(segment: int) -> tuple[str, str]:
    return segment_path(segment), compacted_path(segment)


@dataclass(slots=True)
class State:
    """What the files say: messages by sequence, and what the journal knows."""

    messages: dict[int, int] = field(default_factory=dict)
    declared: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)  # segments

    @property
    def segments(self) -> list[int]:
        return sorted({it // PER_SEGMENT for it in self.messages})

    @property
    def last_segment(self) -> int:
        return max((it // PER_SEGMENT for it in self.messages), default=max(self.finished, default=-1) + 1)

    def has(self, sequence: int, message: int) -> bool:
        return sequence // PER_SEGMENT in self.finished or self.messages.get(sequence) == message

    def unfinished_gaps(self) -> list[int]:
        """Return the segments that are missing, and not finished."""
        there = self.segments
        return [it for it in range(max(there, default=0)) if it not in there and it not in self.finished]


def torn_tails(files: Mapping[str, bytes | bytearray]) -> dict[str, int]:
    """Return how long the files are that end in a record that isn't whole, without it."""
    found = {}
    for path, data in files.items():
        size = _RECORD if path == JOURNAL else _ID
        whole = next((at for at in range(0, len(data), size) if not _is_record(path, data[at : at + size])), len(data))
        if whole != len(data):
            found[path] = whole
    return found


def _is_record(path: str, record: bytes | bytearray) -> bool:
    if path == JOURNAL:
        return len(record) == _RECORD and record[:1] in b"mf"
    return len(record) == _ID and any(record)


def read_state(files: Mapping[str, bytes | bytearray]) -> State:
    """Return what these files say, which have no torn tails."""
    state = State()
    journal = files.get(JOURNAL, b"")
    for at in range(0, len(journal), _RECORD):
        number = int.from_bytes(journal[at + 1 : at + _RECORD], "big")
        (state.declared if journal[at : at + 1] == b"m" else state.finished).add(number)
    for path, data in files.items():
        if path not in (JOURNAL, COPY):
            first = int(path.rpartition("/")[2]) * PER_SEGMENT
            ids = [int.from_bytes(data[at : at + _ID], "big") for at in range(0, len(data), _ID)]
            state.messages |= dict(enumerate(ids, first))
    return state
