"""What the store itself tells the journal: how far its logs are synced, which of them are gone, and the node's id.

The broker's changes are about sequences: a channel of `t` is at 100. They mean something only together with the log
that has these sequences. So the store adds which log that is and up to where it is on disk, and which logs are gone:

    ("checkpoint", "t", "a1", 0, 4096, 100)     the log a1 is synced up to offset 4096 of segment 0, and sequence 100
    ("drop", "t"), ("gone", "t", "a1")          the broker's word and ours, in one frame: the topic was deleted
    ("checkpoint", "t", "b2", 0, 0, 0)          it was made anew: positions told from here on are about b2

What a start makes of them:

- The folder of `t` says that it is a1. The machine stopped before the folder's new name was durable. As a1 is gone, the
  folder is moved away, and no message of the deleted topic comes back.
- The folder says that it is a1, which ends at 80 although 100 were synced: somebody has put an older copy there, or the
  disk has lost what it had promised. New messages will get the sequences 80 to 99 again, so from here on it is
  another log, with another id, and positions beyond 80 are cut. Otherwise the new messages would count as finished.
- The folder says that it is c3, of which the journal knows nothing: one of the two is an older copy. The log gets a new
  id, and its channels read it from its beginning.

A checkpoint also saves reading: a start reads only what was written after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nsqd.log.journal.packed_changes import PackedChanges
from nsqd.log.journal.reader import LOST
from nsqd.log.journal.rotation import ROTATION

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

RESERVED_AHEAD: Final = 1 << 24  # no reservation of ids goes further ahead of the last id than this

KEYLESS: Final = "keyless"  # topic, sequences: the publishes that begin there have lost their keys
KEYS: Final = "keys"  # topic, sequence: no remembered key lies before; ~sequence: there was none up to it
_CHECKPOINT: Final = "checkpoint"
_NODE: Final = "node"  # its id, reserved message ids: the second place, besides node.json, that knows them
_GONE: Final = "gone"  # topic, log id: the log was deleted, whatever its folder is called


class LogCheckpoint(NamedTuple):
    """The place up to which a log was synced."""

    log_id: str
    base: int  # of the segment
    offset: int
    sequence: int


class SyncedLog(Protocol):
    """What the journal is told about a log."""

    @property
    def topic(self) -> str: ...

    @property
    def log_id(self) -> str: ...

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """(base of a segment, offset in it, sequence): everything before this place was synced."""


def checkpoint_change(topic: str, checkpoint: LogCheckpoint) -> Entry:
    return _CHECKPOINT, topic, *checkpoint


def checkpoint_of(log: SyncedLog) -> Entry:
    return checkpoint_change(log.topic, LogCheckpoint(log.log_id, *log.checkpoint))


def node_change(node: str, ids_reserved: int) -> Entry:
    return _NODE, node, ids_reserved


def gone_change(topic: str, log_id: str) -> Entry:
    return _GONE, topic, log_id


_LOOKED_INTO: Final = frozenset({_CHECKPOINT, _GONE, _NODE, KEYS, KEYLESS, ROTATION, LOST, "drop", "cut", "part"})


@dataclass(slots=True)
class RecoveredChanges:
    """The content of a journal: the broker's changes, and the store's own."""

    changes: PackedChanges = field(default_factory=PackedChanges)
    checkpoints: dict[str, LogCheckpoint] = field(default_factory=dict)  # by topic; not of logs that are gone
    gone: set[str] = field(default_factory=set)  # the ids of deleted logs
    keys_from: dict[str, int] = field(default_factory=dict)  # by topic; the broker tells the journal
    keyless: dict[str, set[int]] = field(default_factory=dict)  # by topic; likewise
    node: str = ""
    ids_reserved: int = 0


def split_changes(found: Iterable[Entry]) -> RecoveredChanges:
    told = RecoveredChanges()
    told.changes.extend(_of_the_broker(found, told))
    # A topic may have been made anew, and the checkpoint of its new log lost. Then the old log's checkpoint must not be
    # taken for the new one's.
    told.checkpoints = {topic: known for topic, known in told.checkpoints.items() if known.log_id not in told.gone}
    return told


def _of_the_broker(found: Iterable[Entry], told: RecoveredChanges) -> Iterator[Entry]:
    """Yield the broker's changes, and put the store's own into `told`."""
    doubtful: set[str] = set()  # topics about which a change may be lost since their last checkpoint
    for change in found:
        if change[0] not in _LOOKED_INTO:  # most of them, and a match takes longer
            yield change
            continue
        match change:
            case [word, str(topic), str(log_id), int(base), int(offset), int(sequence)] if word == _CHECKPOINT:
                known = told.checkpoints.get(topic)
                if topic in doubtful and known is not None and known.log_id not in {log_id, *told.gone}:
                    told.keyless.pop(topic, None)
                    yield "cut", topic, 0  # it is another log, and the change that told why is lost
                doubtful.discard(topic)
                told.checkpoints[topic] = LogCheckpoint(log_id, base, offset, sequence)
            case [word, _, str(log_id)] if word == _GONE:
                told.gone.add(log_id)
            case [word, str(node), int(reserved)] if word == _NODE:
                told.node, told.ids_reserved = node, max(told.ids_reserved, reserved)
            case [word, str(topic), int(sequence)] if word == KEYS:
                told.keys_from[topic] = sequence
            case [word, *_] if word == KEYLESS:
                _note_keyless(change, told)
            case [word, _] if word == ROTATION:
                pass
            case [word, _] if word == LOST:
                # The lost change may have told that the end of a log was cut off. What was synced before cannot have
                # been.
                for topic, known in told.checkpoints.items():
                    yield "doubt", topic, known.sequence
                for topic in told.keyless:
                    synced = told.checkpoints.get(topic)
                    _cut_keyless(topic, synced.sequence if synced is not None else 0, told)
                doubtful |= told.checkpoints.keys()
                told.keys_from.clear()  # it may have told of the first key
            case ["drop", str(topic)]:
                told.keys_from.pop(topic, None)
                told.keyless.pop(topic, None)
                yield change
            case ["cut", str(topic), int(tail)]:
                _cut_keyless(topic, tail, told)
                yield change
            case ["part", _, list() | tuple() as part]:
                for it in part:
                    if it[0] == KEYLESS:
                        _note_keyless(it, told)
                yield change
            case _:
                yield change


def _note_keyless(change: Sequence[object], told: RecoveredChanges) -> None:
    match change:
        case [_, str(topic), list() | tuple() as starts]:
            told.keyless.setdefault(topic, set()).update(starts)


def _cut_keyless(topic: str, tail: int, told: RecoveredChanges) -> None:
    """Take note that nothing from this sequence on was ever written: other messages get these sequences."""
    if topic in told.keyless:
        told.keyless[topic] = {start for start in told.keyless[topic] if start < tail}
