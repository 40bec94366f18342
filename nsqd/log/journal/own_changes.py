"""What the store itself tells the journal, beside the broker's changes: how far its logs are synced, and the node's id.

The broker's changes are about sequences: a channel of `t` is at 100. They mean something only together with the log
that has these sequences, so the store adds which log that is, up to where it is on disk, and which logs are gone:

    ("checkpoint", "t", "a1", 0, 4096, 100)     the log a1 is synced up to offset 4096 of segment 0, and sequence 100
    ("drop", "t"), ("gone", "t", "a1")          the broker's word and ours, in one frame: the topic was deleted
    ("checkpoint", "t", "b2", 0, 0, 0)          it was made anew: positions told from here on are about b2

What a start makes of them:

- The folder of `t` says that it is a1. The machine stopped before the folder's new name was durable; a1 is gone, so the
  folder is moved away, and no message of the deleted topic comes back.
- The folder says that it is a1, which ends at 80 although 100 were synced: somebody has put an older copy there, or the
  disk has lost what it had promised. New messages will get the sequences 80 to 99 again, so from here on it is
  another log, with another id, and positions beyond 80 are cut. Otherwise they would count as finished.
- The folder says that it is c3, of which the journal knows nothing: one of the two is an older copy. The log gets a new
  id, and its channels read it from its beginning.

A checkpoint also saves reading: what it vouches for is not read again, only what was written after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nsqd.log.journal.packed_changes import PackedChanges
from nsqd.log.journal.reader import LOST
from nsqd.log.journal.rotation import ROTATION

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

RESERVED_AHEAD: Final = 1 << 24  # no id is further ahead of the last one than a reservation

_CHECKPOINT: Final = "checkpoint"
_NODE: Final = "node"  # its id, reserved ids: the second place for what node.json says
_GONE: Final = "gone"  # topic, log id: the log was deleted, whatever its folder's name is


class Checkpoint(NamedTuple):
    """Up to here a log was synced."""

    log_id: str
    base: int  # of the segment
    offset: int
    sequence: int


class SyncedLog(Protocol):
    """What the journal is told of a log."""

    @property
    def topic(self) -> str: ...

    @property
    def log_id(self) -> str: ...

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """Base of a segment, offset in it, sequence: everything before was synced."""


def checkpoint_change(topic: str, checkpoint: Checkpoint) -> Entry:
    return _CHECKPOINT, topic, *checkpoint


def checkpoint_of(log: SyncedLog) -> Entry:
    return checkpoint_change(log.topic, Checkpoint(log.log_id, *log.checkpoint))


def node_change(node: str, ids_reserved: int) -> Entry:
    return _NODE, node, ids_reserved


def gone_change(topic: str, log_id: str) -> Entry:
    return _GONE, topic, log_id


@dataclass(slots=True)
class RecoveredChanges:
    """What a journal says: the broker's changes, and our own."""

    changes: PackedChanges = field(default_factory=PackedChanges)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)  # by topic; not of logs that are gone
    gone: set[str] = field(default_factory=set)  # the ids of deleted logs
    node: str = ""
    ids_reserved: int = 0


def split_changes(found: Iterable[Entry]) -> RecoveredChanges:
    told = RecoveredChanges()
    told.changes.extend(_of_the_broker(found, told))
    # A folder that was made anew, and whose own name for it was lost, is not to be taken for the log that is gone.
    told.checkpoints = {topic: known for topic, known in told.checkpoints.items() if known.log_id not in told.gone}
    return told


def _of_the_broker(found: Iterable[Entry], told: RecoveredChanges) -> Iterator[Entry]:
    """Its changes; what is ours goes into `told`."""
    doubtful: set[str] = set()  # topics of which something may be lost that was told since their last checkpoint
    for change in found:
        match change:
            case [word, str(topic), str(log_id), int(base), int(offset), int(sequence)] if word == _CHECKPOINT:
                known = told.checkpoints.get(topic)
                if topic in doubtful and known is not None and known.log_id not in {log_id, *told.gone}:
                    yield "cut", topic, 0  # it is another log, and why so is lost
                doubtful.discard(topic)
                told.checkpoints[topic] = Checkpoint(log_id, base, offset, sequence)
            case [word, _, str(log_id)] if word == _GONE:
                told.gone.add(log_id)
            case [word, str(node), int(reserved)] if word == _NODE:
                told.node, told.ids_reserved = node, max(told.ids_reserved, reserved)
            case [word, _] if word == ROTATION:
                pass
            case [word, _] if word == LOST:
                # Perhaps that the end of a log had been cut off. Only what was synced before cannot have been.
                for topic, known in told.checkpoints.items():
                    yield "doubt", topic, known.sequence
                doubtful |= told.checkpoints.keys()
            case _:
                yield change
