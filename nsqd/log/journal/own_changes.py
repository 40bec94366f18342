"""The store's own journal changes: how far each log is synced, which logs are deleted, and the node's id.

The broker's changes are about sequences, for example that a channel of `t` is at 100. That means nothing unless you
know which log has these sequences. So the store adds the log's id and how far the log is synced:

    ("checkpoint", "t", "a1", 0, 4096, 100)     log a1 is synced up to offset 4096 of segment 0, which is sequence 100
    ("drop", "t"), ("gone", "t", "a1")          the topic was deleted: the broker's change and ours, in one frame
    ("checkpoint", "t", "b2", 0, 0, 0)          the topic was created again: later positions are in b2

At startup, they determine what happens to the folder of `t`:

- Its log.json says a1, although a1 is gone: the machine stopped before the folder's new name was synced. We rename the
  folder again, so that no message of the deleted topic comes back.
- Its log.json says a1, but the log ends at 80 although 100 were synced: someone restored an older copy, or the disk has
  lost synced data. New messages will reuse the sequences 80 to 99. So we give the log a new id, and move positions
  beyond 80 back; otherwise the new messages would count as finished.
- Its log.json says c3, which isn't in the journal: one of the two is an older copy. The log gets a new id,
  and its channels start from the beginning.

Checkpoints also speed up startup, which reads only the data after them.
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

RESERVED_AHEAD: Final = 1 << 24  # ids are reserved at most this far ahead of the last id in use

KEYLESS: Final = "keyless"  # topic, sequences: the keys of the publishes that start there no longer count
# Topic, sequence: no remembered key is before this sequence. A negative one means that there are no keys yet. For
# example, ~500 means that no key before 500 counts, so startup searches from 500 on.
KEYS: Final = "keys"
_CHECKPOINT: Final = "checkpoint"
_NODE: Final = "node"  # node id, reserved message ids: a second copy of those in node.json
_GONE: Final = "gone"  # topic, log id: the log was deleted, whatever its folder is called now


class LogCheckpoint(NamedTuple):
    """The position up to which a log is synced."""

    log_id: str
    base: int  # of the segment
    offset: int
    sequence: int


class SyncedLog(Protocol):
    """A log, as the journal sees it."""

    @property
    def topic(self) -> str: ...

    @property
    def log_id(self) -> str: ...

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """(base of a segment, offset in it, sequence): everything before this position is synced."""


def checkpoint_change(topic: str, checkpoint: LogCheckpoint) -> Entry:
    return _CHECKPOINT, topic, *checkpoint


def checkpoint_of(log: SyncedLog) -> Entry:
    return checkpoint_change(log.topic, LogCheckpoint(log.log_id, *log.checkpoint))


def node_change(node: str, ids_reserved: int) -> Entry:
    return _NODE, node, ids_reserved


def gone_change(topic: str, log_id: str) -> Entry:
    return _GONE, topic, log_id


_RELEVANT: Final = frozenset({_CHECKPOINT, _GONE, _NODE, KEYS, KEYLESS, ROTATION, LOST, "drop", "cut", "part"})


@dataclass(slots=True)
class RecoveredChanges:
    """The content of a journal: the broker's changes as they are, and the result of applying the store's changes."""

    changes: PackedChanges = field(default_factory=PackedChanges)
    checkpoints: dict[str, LogCheckpoint] = field(default_factory=dict)  # by topic; without those of deleted logs
    gone: set[str] = field(default_factory=set)  # ids of deleted logs
    replaced: set[str] = field(default_factory=set)  # ids that logs had before, or that their topics' earlier logs had
    keys_from: dict[str, int] = field(default_factory=dict)  # by topic, from KEYS
    keyless: dict[str, set[int]] = field(default_factory=dict)  # by topic, from KEYLESS
    node: str = ""
    ids_reserved: int = 0


def split_changes(found: Iterable[Entry]) -> RecoveredChanges:
    recovered = RecoveredChanges()
    recovered.changes.extend(_broker_changes(found, recovered))
    # A topic may have been deleted and created again, and the new log's checkpoint lost. Then the old log's checkpoint
    # must not be taken for the new one's.
    recovered.checkpoints = {
        topic: known for topic, known in recovered.checkpoints.items() if known.log_id not in recovered.gone
    }
    return recovered


def _broker_changes(found: Iterable[Entry], recovered: RecoveredChanges) -> Iterator[Entry]:
    """Yield the broker's changes, and apply the store's changes to `recovered`."""
    doubtful: set[str] = set()  # topics that may have lost a change since their last checkpoint
    for change in found:
        if change[0] not in _RELEVANT:  # a shortcut for most changes: `match` is slower
            yield change
            continue
        match change:
            case [word, str(topic), str(log_id), int(base), int(offset), int(sequence)] if word == _CHECKPOINT:
                known = recovered.checkpoints.get(topic)
                if known is not None and known.log_id != log_id:
                    recovered.replaced.add(known.log_id)
                if topic in doubtful and known is not None and known.log_id not in {log_id, *recovered.gone}:
                    recovered.keyless.pop(topic, None)
                    yield "cut", topic, 0  # it's another log now, and we have lost the change that said so
                doubtful.discard(topic)
                recovered.checkpoints[topic] = LogCheckpoint(log_id, base, offset, sequence)
            case [word, _, str(log_id)] if word == _GONE:
                recovered.gone.add(log_id)
            case [word, str(node), int(reserved)] if word == _NODE:
                recovered.node, recovered.ids_reserved = node, max(recovered.ids_reserved, reserved)
            case [word, str(topic), int(sequence)] if word == KEYS:
                recovered.keys_from[topic] = sequence
            case [word, *_] if word == KEYLESS:
                _add_keyless(change, recovered)
            case [word, _] if word == ROTATION:
                pass
            case [word, _] if word == LOST:
                # The lost change may have been a "cut" at the end of any log, so positions after a log's last
                # checkpoint are in doubt. Those before it are safe, because a cut never reaches into synced messages.
                for topic, known in recovered.checkpoints.items():
                    yield "doubt", topic, known.sequence
                for topic in recovered.keyless:
                    synced = recovered.checkpoints.get(topic)
                    _cut_keyless(topic, synced.sequence if synced is not None else 0, recovered)
                doubtful |= recovered.checkpoints.keys()
                recovered.keys_from.clear()  # the lost change may have been a KEYS
            case ["drop", str(topic)]:
                recovered.keys_from.pop(topic, None)
                recovered.keyless.pop(topic, None)
                yield change
            case ["cut", str(topic), int(tail)]:
                _cut_keyless(topic, tail, recovered)
                yield change
            case ["part", _, list() | tuple() as part]:
                for it in part:
                    if it[0] == KEYLESS:
                        _add_keyless(it, recovered)
                yield change
            case _:
                yield change


def _add_keyless(change: Sequence[object], recovered: RecoveredChanges) -> None:
    match change:
        case [_, str(topic), list() | tuple() as starts]:
            recovered.keyless.setdefault(topic, set()).update(starts)


def _cut_keyless(topic: str, tail: int, recovered: RecoveredChanges) -> None:
    """Forget starts from `tail` on. The log has lost these messages, so new ones will get their sequences."""
    if topic in recovered.keyless:
        recovered.keyless[topic] = {start for start in recovered.keyless[topic] if start < tail}
