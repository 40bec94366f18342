"""Recovery of a whole store: restores its logs and journal from the data path and reports damage.

topic_log.py recovers a single log.
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

_COUNTER_MASK: Final = (1 << 54) - 1  # the counter's bits of an id; the others are the node's number
_PLAUSIBLE_LEAD: Final = 365 * 86_400 * 1_000_000  # microseconds by which a counter may be ahead of the clock


@dataclass(frozen=True, slots=True)
class Recovered:
    """The recovered content of a data path."""

    changes: PackedChanges
    logs: dict[str, DiskLog]
    ids_reserved: int
    node: str
    damage: list[Damage]
    topology: object | None
    journal_is_whole: bool


class RecoveringStore(LogHost, Protocol):
    """The store as its recovery sees it."""

    data_path: DataPath
    journal: Journal
    logs: dict[str, DiskLog | MemoryLog]
    damage: list[Damage]
    removals: Removals

    def disk_logs(self) -> list[DiskLog]: ...


class StoreRecovery:
    """Recovers a store that was just opened."""

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
        recovered, contents = self._patiently(self._read_journal)
        topics = self._patiently(data_path.topic_names)
        has_segments = self._patiently(lambda: any(map(data_path.has_segments, topics)))
        self._check_journal_end(contents, expected=has_segments)
        self._journal_is_whole = contents.is_whole
        self._damage += contents.damage
        moved = self._patiently(self._dropped_logs)
        for topic in topics:
            self._recover_topic(topic, recovered, moved)
        self._report_missing_logs(recovered, moved)
        self._settle_node(recovered)
        self._store.removals.adopt(self._patiently(data_path.dropped_folders))
        topology = self._recover_topology(recovered.gone)
        for damage in self._damage:
            report(damage)
        return Recovered(
            changes=recovered.changes,
            logs={topic_log.topic: topic_log for topic_log in self._store.disk_logs()},
            ids_reserved=data_path.ids_reserved,
            node=data_path.node,
            damage=list(self._damage),
            topology=topology,
            journal_is_whole=contents.is_whole,
        )

    def _patiently(self, step: Callable[[], T]) -> T:
        """Retry an idempotent step until the disk stops refusing it. Raises OSError if that takes too long."""
        return patiently(step, self._store.data_path.pause)

    def _read_journal(self) -> tuple[RecoveredChanges, JournalContents]:
        contents = JournalContents()
        return split_changes(self._journal.recover(contents)), contents

    def _recover_topic(self, topic: str, recovered: RecoveredChanges, moved: set[str]) -> None:
        log_id = self._patiently(lambda: self._data_path.read_log_id(self._data_path.topic_folder(topic)))
        if log_id is not None and log_id in recovered.gone:  # renaming the folder failed, or the new name wasn't synced
            self._store.removals.remove_log(topic, log_id)
        else:
            self._recover_log(topic, recovered, moved)

    def _check_journal_end(self, contents: JournalContents, *, expected: bool) -> None:
        """Report a journal that is missing, or that is shorter than it was when node.json was last written."""
        known, end = self._data_path.journal_end, self._journal.end
        if end.number == 0 and expected:
            contents.report_missing(max(known.number, 1), "no journal file")
        elif contents.is_whole and end < known:
            contents.report_missing(known.number, f"{known.size} bytes were synced")

    def _dropped_logs(self) -> set[str]:
        """Return the ids of deleted logs that are still here, in renamed folders."""
        ids = (self._data_path.read_log_id(folder) for folder in self._data_path.dropped_folders())
        return {log_id for log_id in ids if log_id is not None}

    def _recover_log(self, topic: str, recovered: RecoveredChanges, moved: set[str]) -> None:
        checkpoint = recovered.checkpoints.get(topic)
        # The checkpoint's log was deleted and its folder renamed, but the journal lost the deletion.
        is_moved = checkpoint is not None and checkpoint.log_id in moved
        if is_moved:
            checkpoint = None
        # Retry each step by itself. `recover_log` gives a log that ends early a new id, which the journal doesn't know
        # yet. If a later step made us call it again, it would take the log for one that doesn't belong here.
        state = self._patiently(
            lambda: recover_log(self._files, self._data_path, topic, checkpoint, self._new_id, self._damage)
        )
        self._patiently(lambda: self._find_ages(topic, state))
        is_another = is_moved or state.differs_from_journal
        if is_another or not self._journal_is_whole:  # the journal can't be trusted on where the first key is
            recovered.keys_from.pop(topic, None)
            synced = checkpoint.sequence if checkpoint is not None and not is_another else 0
            recovered.keyless[topic] = {start for start in recovered.keyless.get(topic, ()) if start < synced}
            self._journal.record_quietly([(KEYS, topic, 0)])
        elif checkpoint is not None and (keys_from := recovered.keys_from.get(topic, 0)) < 0:
            # Logs are synced before the journal. So a power cut can leave the first record with a key in the log, but
            # not the journal's change about it: search everything after the checkpoint for keys.
            unknown_from = max(checkpoint.sequence, ~keys_from)
            if state.tail > unknown_from:
                recovered.keys_from[topic] = unknown_from
                self._journal.record_quietly([(KEYS, topic, unknown_from)])
        state.keys_from = recovered.keys_from.get(topic, 0)
        keyless = self._keyless_starts(topic, recovered, state.tail)
        self._patiently(lambda: self._find_keys(state, keyless))
        if is_another:
            # The journal's positions belong to another log. Record that now: the new checkpoint below hides it from
            # the next start.
            cut = ("cut", topic, 0)
            recovered.changes.append(cut)
            self._journal.record_quietly([cut])
        topic_log = self._logs[topic] = DiskLog(topic, self._data_path.topic_folder(topic), self._store, state)
        if checkpoint is None or checkpoint.log_id != topic_log.log_id:
            self._journal.record_quietly([checkpoint_of(topic_log)])
        if state.unsynced_files:
            self._store.syncer.log_written(topic_log, 0)

    def _report_missing_logs(self, recovered: RecoveredChanges, moved: set[str]) -> None:
        for topic, checkpoint in recovered.checkpoints.items():
            if topic not in self._logs and checkpoint.sequence and checkpoint.log_id not in moved:
                text = f"the log is missing: it had messages up to {checkpoint.sequence}"
                self._damage.append(Damage(topic, "", 0, 0, checkpoint.sequence, "", text))

    def _settle_node(self, recovered: RecoveredChanges) -> None:
        """Restore node.json from the journal, or the other way round. If they disagree, trust neither.

        Both files hold the node's id and how many message ids are reserved, so if one is lost, we use the other. If
        both are sound but name different nodes, one of them was copied here by mistake, and the node gets a new id.
        """
        data_path = self._data_path
        condition = data_path.node_condition
        if condition is not FileCondition.SOUND:
            highest = self._patiently(self._highest_id)
            node, reserved = recovered.node, max(recovered.ids_reserved, highest + RESERVED_AHEAD)
            text = f"{NODE_JSON} is {condition}; rewriting it" + ("" if node else " with a new node id")
        elif recovered.node not in ("", data_path.node):
            node, reserved = "", max(recovered.ids_reserved, data_path.ids_reserved)
            text = f"{NODE_JSON} has node id {data_path.node}, the journal {recovered.node}; assigning a new one"
        elif recovered.ids_reserved > data_path.ids_reserved:
            node, reserved = data_path.node, recovered.ids_reserved
            text = f"{NODE_JSON} is older than the journal; rewriting it"
        else:
            self._record_node(recovered)
            return
        kept = data_path.name_node(node, reserved)
        self._damage.append(Damage("", NODE_JSON, 0, 0, 0, str(kept) if kept else "", text))
        self._record_node(recovered)

    def _record_node(self, recovered: RecoveredChanges) -> None:
        data_path = self._data_path
        if (recovered.node, recovered.ids_reserved) != (data_path.node, data_path.ids_reserved):
            self._journal.record_quietly([node_change(data_path.node, data_path.ids_reserved)])

    def _highest_id(self) -> int:
        """Return roughly the highest id counter in use, from the last record of every log."""
        highest = 0
        for topic_log in self._store.disk_logs():
            for header in topic_log.reader.headers_from(topic_log.tail - 1):
                counter = (header.base_id & _COUNTER_MASK) + header.count
                if counter < header.timestamp // 1000 + _PLAUSIBLE_LEAD:  # otherwise it's an imported id
                    highest = max(highest, counter)
        return highest

    def _recover_topology(self, gone: set[str]) -> object | None:
        found = self._patiently(self._data_path.read_topology)
        if found.condition is not FileCondition.SOUND:
            kept = keep_small_file_aside(self._files, self._data_path.folder / TOPOLOGY_JSON)
            text = f"{TOPOLOGY_JSON} is {found.condition}; rewriting it"
            self._damage.append(Damage("", TOPOLOGY_JSON, 0, 0, 0, str(kept) if kept else "", text))
        match found.content:
            case {"topology": {**names}, "logs": {**logs}}:
                # If a topic was deleted and created again, topology.json may still list the old topic's channels.
                return {name: channels for name, channels in names.items() if logs.get(name) not in gone}
        return found.content.get("topology")

    def _find_ages(self, topic: str, state: LogState) -> None:
        if self._settings.needs_ages or self._settings.retention_of(topic).time:
            now = self._store.age_clock()
            for segment in state.segments:
                # A segment of unknown age is kept as if it had been written now.
                segment.newest = newest_in(self._files, segment) or now

    def _keyless_starts(self, topic: str, recovered: RecoveredChanges, tail: int) -> list[int]:
        """Return the first sequences of publishes whose keys no longer count, ascending."""
        starts = recovered.keyless.pop(topic, set())
        keyless = sorted([start for start in starts if start < tail])
        if len(keyless) < len(starts):
            # The log has lost these messages. New ones will get their sequences, and the keys of those do count.
            self._journal.record_quietly([("cut", topic, tail)])
        return keyless

    def _find_keys(self, state: LogState, keyless: Sequence[int]) -> None:
        """Collect the keys that are still remembered, reading segments from the newest back to the first key.

        Keys are stored only in segments, but the journal records the position of the first one. So we read nothing for
        a topic without keys.
        """
        window, most = self._settings.options.idempotence_window, self._settings.options.idempotence_keys
        if not window or state.keys_from < 0:
            return
        now = self._store.age_clock()
        found: list[list[tuple[bytes, int]]] = []
        forgotten: list[KeyedPublish] = []
        count, end = 0, state.tail
        for segment in reversed(state.segments):
            is_old = (newest_in(self._files, segment) or now) <= now - window  # earlier segments are even older
            if is_old or end <= state.keys_from or count >= most:
                break
            keys, gone = keys_in(self._files, segment, now - window, state.keys_from, keyless)
            forgotten = gone + forgotten
            if keys:
                segment.keyed = max(timestamp for _, timestamp in keys)
                found.append(keys)
                count += len(keys)
            end = segment.base
        # Assigned only at the end: a refused read makes us start over with all segments.
        state.keys = [it for keys in reversed(found) for it in keys][-most:]
        state.forgotten_keys = forgotten
