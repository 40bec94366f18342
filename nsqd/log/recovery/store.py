"""A start: restores the store's logs and journal from the data path, and reports what is wrong there.

For the recovery of a single log, see topic_log.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nsqd.log.damage import Damage, report
from nsqd.log.data_path import NODE_JSON, TOPOLOGY_JSON, FileCondition, keep_small_file_aside
from nsqd.log.journal.own_changes import (
    KEYS,
    RESERVED_AHEAD,
    RecoveredChanges,
    checkpoint_of,
    node_change,
    split_changes,
)
from nsqd.log.journal.recovery import JournalContents
from nsqd.log.keys import keys_in
from nsqd.log.reading.refusals import patiently
from nsqd.log.recovery.topic_log import recover_log
from nsqd.log.segment import newest_in
from nsqd.log.topic_log import DiskLog, LogHost

if TYPE_CHECKING:
    from nsqd.broker.store import KeyedPublish
    from nsqd.log.data_path import DataPath
    from nsqd.log.journal.journal import Journal
    from nsqd.log.journal.packed_changes import PackedChanges
    from nsqd.log.log_state import LogState
    from nsqd.log.memory_log import MemoryLog
    from nsqd.log.sync.removals import Removals

T = TypeVar("T")

_COUNTER_MASK: Final = (1 << 54) - 1  # of an id: the rest is the node's number
_PLAUSIBLE_LEAD: Final = 365 * 86_400 * 1_000_000  # microseconds that the counter may be ahead of the clock


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found in the data path."""

    changes: PackedChanges
    logs: dict[str, DiskLog]
    ids_reserved: int
    node: str
    damage: list[Damage]
    topology: object | None
    journal_is_whole: bool


class RecoveringStore(LogHost, Protocol):
    """The store that a start fills, and the parts of it that the start uses."""

    data_path: DataPath
    journal: Journal
    logs: dict[str, DiskLog | MemoryLog]
    damage: list[Damage]
    removals: Removals

    def disk_logs(self) -> list[DiskLog]: ...


class StoreRecovery:
    """Fills a store that was just opened."""

    def __init__(self, store: RecoveringStore, new_id: Callable[[], str]) -> None:
        self._store = store
        self._new_id = new_id
        self._data_path = store.data_path
        self._files = store.files
        self._settings = store.settings
        self._journal = store.journal
        self._logs = store.logs
        self._damage = store.damage
        self._journal_is_whole = True

    def run(self) -> Recovered:
        data_path = self._data_path
        told, contents = self._patiently(self._read_journal)
        topics = self._patiently(data_path.topic_names)
        has_segments = self._patiently(lambda: any(map(data_path.has_segments, topics)))
        self._look_for_older_journal(contents, expected=has_segments)
        self._journal_is_whole = contents.is_whole
        self._damage += contents.damage
        moved = self._patiently(self._dropped_logs)
        for topic in topics:
            self._recover_topic(topic, told, moved)
        self._look_for_lost_folders(told, moved)
        self._settle_node(told)
        self._store.removals.adopt(self._patiently(data_path.dropped_folders))
        topology = self._recover_topology(told.gone)
        for damage in self._damage:
            report(damage)
        return Recovered(
            changes=told.changes,
            logs={topic_log.topic: topic_log for topic_log in self._store.disk_logs()},
            ids_reserved=data_path.ids_reserved,
            node=data_path.node,
            damage=list(self._damage),
            topology=topology,
            journal_is_whole=contents.is_whole,
        )

    def _patiently(self, step: Callable[[], T]) -> T:
        """Repeat an idempotent step until the disk does not refuse to read. Raises OSError if the refusal lasts."""
        return patiently(step, self._store.data_path.pause)

    def _read_journal(self) -> tuple[RecoveredChanges, JournalContents]:
        contents = JournalContents()
        return split_changes(self._journal.recover(contents)), contents

    def _recover_topic(self, topic: str, told: RecoveredChanges, moved: set[str]) -> None:
        log_id = self._patiently(lambda: self._data_path.read_log_id(self._data_path.topic_folder(topic)))
        if log_id is not None and log_id in told.gone:  # it could not be renamed, or the new name was not durable
            self._store.removals.let_go(topic, log_id)
        else:
            self._recover_log(topic, told, moved)

    def _look_for_older_journal(self, contents: JournalContents, *, expected: bool) -> None:
        """Report a journal that ends before the place up to which it was once synced."""
        known, end = self._data_path.journal_end, self._journal.end
        if end.number == 0 and expected:
            contents.lacks(max(known.number, 1), "there is none")
        elif contents.is_whole and end < known:
            contents.lacks(known.number, f"{known.size} bytes were on disk")

    def _dropped_logs(self) -> set[str]:
        """Return the ids of the logs whose folders are being removed."""
        ids = (self._data_path.read_log_id(folder) for folder in self._data_path.dropped_folders())
        return {log_id for log_id in ids if log_id is not None}

    def _recover_log(self, topic: str, told: RecoveredChanges, moved: set[str]) -> None:
        checkpoint = told.checkpoints.get(topic)
        # The folder was renamed for its deletion, but the journal lost the deletion.
        is_moved = checkpoint is not None and checkpoint.log_id in moved
        if is_moved:
            checkpoint = None
        # Each step is repeated by itself: a log that was found to end early already has its new id then.
        state = self._patiently(
            lambda: recover_log(self._files, self._data_path, topic, checkpoint, self._new_id, self._damage)
        )
        self._patiently(lambda: self._find_ages(topic, state))
        is_another = is_moved or state.is_stranger
        if is_another or not self._journal_is_whole:  # it may not tell of the first key, now nor at the next start
            told.keys_from.pop(topic, None)
            synced = checkpoint.sequence if checkpoint is not None and not is_another else 0
            told.keyless[topic] = {start for start in told.keyless.get(topic, ()) if start < synced}
            self._journal.record_quietly([(KEYS, topic, 0)])
        elif checkpoint is not None and (keys_from := told.keys_from.get(topic, 0)) < 0:
            # A power cut may have left the first record with a key, but not the word of it: logs are synced first.
            unknown_from = max(checkpoint.sequence, ~keys_from)
            if state.tail > unknown_from:
                told.keys_from[topic] = unknown_from
                self._journal.record_quietly([(KEYS, topic, unknown_from)])
        state.keys_from = told.keys_from.get(topic, 0)
        keyless = self._keyless(topic, told, state.tail)
        self._patiently(lambda: self._find_keys(state, keyless))
        if is_another:
            # The journal's positions are not about the log that now has the name. The next start could not tell that
            # any more.
            cut = ("cut", topic, 0)
            told.changes.append(cut)
            self._journal.record_quietly([cut])
        topic_log = self._logs[topic] = DiskLog(topic, self._data_path.topic_folder(topic), self._store, state)
        if checkpoint is None or checkpoint.log_id != topic_log.log_id:
            self._journal.record_quietly([checkpoint_of(topic_log)])
        if state.unsynced_files:
            self._store.syncer.log_written(topic_log, 0)

    def _look_for_lost_folders(self, told: RecoveredChanges, moved: set[str]) -> None:
        for topic, checkpoint in told.checkpoints.items():
            if topic not in self._logs and checkpoint.sequence and checkpoint.log_id not in moved:
                text = f"the log is missing: it had messages up to {checkpoint.sequence}"
                self._damage.append(Damage(topic, "", 0, 0, checkpoint.sequence, "", text))

    def _settle_node(self, told: RecoveredChanges) -> None:
        """Restore node.json from the journal, or the other way round; if they disagree, believe neither.

        Each of the two files holds the node's id and how many message ids are reserved. If one is lost, the other still
        tells. If both are sound and name different nodes, one of them does not belong here: the node gets a new id.
        """
        data_path = self._data_path
        condition = data_path.node_condition
        if condition is not FileCondition.SOUND:
            highest = self._patiently(self._highest_id)
            node, reserved = told.node, max(told.ids_reserved, highest + RESERVED_AHEAD)
            text = f"{NODE_JSON} is {condition}, and is written anew" + ("" if node else " with a new node id")
        elif told.node not in ("", data_path.node):
            node, reserved = "", max(told.ids_reserved, data_path.ids_reserved)
            text = f"the node is {data_path.node}, but the journal tells of {told.node}: it gets a new id"
        elif told.ids_reserved > data_path.ids_reserved:
            node, reserved = data_path.node, told.ids_reserved
            text = f"{NODE_JSON} is older than the journal, and is written anew"
        else:
            self._tell_node(told)
            return
        kept = data_path.name_node(node, reserved)
        self._damage.append(Damage("", NODE_JSON, 0, 0, 0, str(kept) if kept else "", text))
        self._tell_node(told)

    def _tell_node(self, told: RecoveredChanges) -> None:
        data_path = self._data_path
        if (told.node, told.ids_reserved) != (data_path.node, data_path.ids_reserved):
            self._journal.record_quietly([node_change(data_path.node, data_path.ids_reserved)])

    def _highest_id(self) -> int:
        """Return about the highest counter that was given out. Reads every log, as only a lost node.json requires."""
        highest = 0
        for topic_log in self._store.disk_logs():
            for header in topic_log.reader.headers_from(topic_log.tail - 1):
                counter = (header.base_id & _COUNTER_MASK) + header.count
                if counter < header.timestamp // 1000 + _PLAUSIBLE_LEAD:  # otherwise the message was imported
                    highest = max(highest, counter)
        return highest

    def _recover_topology(self, gone: set[str]) -> object | None:
        found = self._patiently(self._data_path.read_topology)
        if found.condition is not FileCondition.SOUND:
            kept = keep_small_file_aside(self._files, self._data_path.folder / TOPOLOGY_JSON)
            text = f"{TOPOLOGY_JSON} is {found.condition}, and is written anew"
            self._damage.append(Damage("", TOPOLOGY_JSON, 0, 0, 0, str(kept) if kept else "", text))
        match found.content:
            case {"topology": {**names}, "logs": {**logs}}:
                # For a topic that was deleted and made again, topology.json may still have the old topic's channels.
                return {name: told for name, told in names.items() if logs.get(name) not in gone}
        return found.content.get("topology")

    def _find_ages(self, topic: str, state: LogState) -> None:
        if self._settings.needs_ages or self._settings.retention_of(topic).time:
            now = self._store.age_clock()
            for segment in state.segments:
                # If a segment's age cannot be told, it is kept as if it were written now.
                segment.newest = newest_in(self._files, segment) or now

    def _keyless(self, topic: str, told: RecoveredChanges, tail: int) -> list[int]:
        """Return where publishes of this log begin that have lost their keys, ascending."""
        told_of = told.keyless.pop(topic, set())
        keyless = sorted([start for start in told_of if start < tail])
        if len(keyless) < len(
            told_of
        ):  # what the log has lost: other messages get these sequences, and have their keys
            self._journal.record_quietly([("cut", topic, tail)])
        return keyless

    def _find_keys(self, state: LogState, keyless: Sequence[int]) -> None:
        """Read the segments that may hold remembered keys: the young ones from the first key on, newest first.

        Only segments tell of keys. The journal tells from where on there are any, so that nothing is read for topics
        whose publishers give none.
        """
        window, most = self._settings.options.idempotence_window, self._settings.options.idempotence_keys
        if not window or state.keys_from < 0:
            return
        now = self._store.age_clock()
        found: list[list[tuple[bytes, int]]] = []
        forgotten: list[KeyedPublish] = []
        count, end = 0, state.tail
        for segment in reversed(state.segments):
            is_old = (newest_in(self._files, segment) or now) <= now - window  # those before it are older still
            if is_old or end <= state.keys_from or count >= most:
                break
            keys, gone = keys_in(self._files, segment, now - window, state.keys_from, keyless)
            forgotten = gone + forgotten
            if keys:
                segment.keyed = max(timestamp for _, timestamp in keys)
                found.append(keys)
                count += len(keys)
            end = segment.base
        # Only now: if the disk refuses a segment, all of them are read again.
        state.keys = [it for keys in reversed(found) for it in keys][-most:]
        state.forgotten_keys = forgotten
