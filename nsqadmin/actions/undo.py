"""Records for undoing: the state of each node's channel before an action that loses messages, and the undo's result.

    action ──► state of the channel on each node ──► action ──► record in Undos ──► undo, node by node

A record has the nodes that have carried out the action, and the nodes that may still do so: a node can stop after it
has reported its state, and handle the request when it resumes. A node that never got the request has lost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from secrets import token_hex
from typing import Final

from nsqadmin.actions.plan import Action, Kind
from nsqadmin.cluster.causes import is_number

_MOST: Final = 64 << 20  # bytes of all records
_LONGEST: Final = 1 << 20  # bytes of a state; nsqd doesn't accept a longer one
_LONGEST_ANSWER: Final = 64 << 10  # bytes of an answer with two numbers
_FOREVER: Final = 10_000_000_000.0  # seconds; a longer retention can't be a real one, and would overflow a date
_VERBS: Final = {Kind.EMPTY_CHANNEL: "emptied", Kind.DELETE_CHANNEL: "deleted", Kind.SEEK_CHANNEL: "moved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoState:
    """The state of the channel on one node before the action."""

    node: str
    document: bytes = b""  # as the node sent it; empty if we couldn't get it
    count: int = 0  # unfinished messages
    complete_until: float | None = None  # the node keeps all of these messages at least until then; None: unknown
    kept_until: float | None = None  # after that, retention may have removed all of these messages; None: unknown
    why_not: str = ""  # why nothing can be undone on this node


@dataclass(slots=True)
class UndoRecord:
    """An action that can be undone."""

    id: str
    action: Action
    states: tuple[UndoState, ...]
    done: set[str] = field(default_factory=set)  # nodes where it is undone, or is being undone

    @property
    def left(self) -> tuple[UndoState, ...]:
        """The nodes where it can still be undone."""
        return tuple(state for state in self.states if state.document and state.node not in self.done)

    @property
    def lacking(self) -> tuple[UndoState, ...]:
        return tuple(state for state in self.states if not state.document)

    @property
    def complete_until(self) -> float | None:
        """How long an undo can restore everything; None if unknown."""
        times = [state.complete_until for state in self.states if state.document]
        return None if None in times else min(time for time in times if time is not None)

    def is_offered(self, now: float) -> bool:
        return any(state.kept_until is None or now < state.kept_until for state in self.left)

    @property
    def size(self) -> int:
        return sum(len(state.document) for state in self.states)

    @property
    def words(self) -> str:
        return f"{_VERBS[self.action.kind]} {self.action.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """The result of an undo on one node."""

    node: str
    count: int = 0  # messages that waited there before the action
    restored: int = 0
    gone: int = 0
    error: str = ""  # why nothing was undone there; empty on success
    can_retry: bool = False

    @property
    def text(self) -> str:
        if self.error:
            return self.error
        words = f"{self.restored:,} of {self.count:,} {'is' if self.restored == 1 else 'are'} back"
        if self.gone:
            words += f"; {self.gone:,} {'is' if self.gone == 1 else 'are'} gone: history no longer has them"
        return words


class Undos:
    """The records, within a memory limit: the oldest go first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._records: dict[str, UndoRecord] = {}
        self._size = 0

    def add(self, action: Action, states: Sequence[UndoState]) -> str:
        """Keep the state and return the record's id; "" if the action can't be undone on any node."""
        record = UndoRecord(token_hex(8), action, tuple(states))
        if not record.left or record.size > self._most:
            return ""
        self._records[record.id] = record
        self._size += record.size
        while self._size > self._most:
            self._size -= self._records.pop(next(iter(self._records))).size
        return record.id

    def find(self, record_id: str) -> UndoRecord | None:
        return self._records.get(record_id)


def read_state(node: str, document: bytes, *, at: float, oldest_at: float | None) -> UndoState:
    """Read a node's answer to `/channel/state` at the time `at`. The answer isn't trusted.

    nsqd removes finished messages by age. It keeps all of them until the oldest, published at `oldest_at`, reaches the
    topic's retention, and may drop all of them once the newest does.
    """
    if len(document) > _LONGEST:
        return UndoState(node=node, why_not="its description of the channel cannot be used: it is too long")
    try:
        found = json.loads(document)
        count, retention = found["count"], found["retention"]
        seconds, size, is_kept = float(retention["time"]), retention["bytes"], retention["kept"] is True
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return UndoState(node=node, why_not="its description of the channel cannot be read")
    if not is_number(count) or not isfinite(seconds):
        return UndoState(node=node, why_not="its description of the channel cannot be used")
    by_time = is_kept and 0 < seconds < _FOREVER and size == 0
    return UndoState(
        node=node,
        document=document,
        count=count,
        complete_until=max(0.0, min(oldest_at, at)) + seconds if by_time and oldest_at is not None else None,
        kept_until=at + seconds if by_time else None,
    )


def read_undone(state: UndoState, answer: bytes) -> Undone:
    """Read a node's answer to `/channel/restore`."""
    try:
        found = json.loads(answer[:_LONGEST_ANSWER])
        restored, gone = found["restored"], found["gone"]
    except (ValueError, KeyError, TypeError, RecursionError):
        restored = gone = None
    if not is_number(restored) or not is_number(gone):
        return Undone(node=state.node, count=state.count, error="its answer cannot be read", can_retry=True)
    return Undone(node=state.node, count=state.count, restored=restored, gone=gone)


def result_of(rows: Sequence[Undone]) -> str:
    """Return ok, partly or failed."""
    if all(row.error for row in rows):
        return "failed"
    return "partly" if any(row.error or row.gone for row in rows) else "ok"


def words_undone(record: UndoRecord, rows: Sequence[Undone]) -> str:
    """Return one sentence for the Activity page."""
    restored, gone = sum(row.restored for row in rows), sum(row.gone for row in rows)
    words = f"undid: {record.words}, {restored:,} message{'' if restored == 1 else 's'} back"
    if gone:
        words += f", {gone:,} gone"
    failed = [row.node for row in rows if row.error]
    return words + (f"; failed on {', '.join(failed)}" if failed else "")
