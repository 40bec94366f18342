"""The store: holds a data path's topic logs and journal for the broker, and maintains both.

Calls from the broker fill buffers and never wait. A turn empties the buffers with `write_logs` and `write_journal`.
Everything that blocks runs outside the turns, in the tasks of `store_tasks.py`.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqcommon.options import seconds
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.store import DiskSnapshot
from nsqd.log.clock_mark import ClockMark, clock_mark
from nsqd.log.data_path import (
    LOG_JSON,
    NODE_JSON,
    DataPath,
    DataPathError,
    write_log_json,
)
from nsqd.log.disk_reserve import DiskReserve
from nsqd.log.faults import FaultKind, Faults, StorageFault
from nsqd.log.files import DiskError, Files, error_text
from nsqd.log.journal.journal import Journal
from nsqd.log.journal.keeper import JournalKeeper
from nsqd.log.journal.own_changes import checkpoint_of, gone_change, node_change
from nsqd.log.log_state import LogState
from nsqd.log.memory_log import MemoryLog
from nsqd.log.reading.reads import Reads
from nsqd.log.recovery.store import Recovered, StoreRecovery
from nsqd.log.retention import AgeClock
from nsqd.log.sync.removals import Removals
from nsqd.log.sync.syncer import Syncer
from nsqd.log.topic_log import DiskLog
from nsqd.log.upkeep.repairs import Repairs
from nsqd.log.upkeep.topology_file import TopologyFile
from nsqd.log.wakeups import Wakeups
from nsqd.log.writing.segment_writer import MOST_DESCRIPTORS, OpenWriters

if TYPE_CHECKING:
    from nsqd.broker.store import Entry, Names
    from nsqd.log.compaction.rewrite import CompactionJob
    from nsqd.log.compaction.schedule import Compaction
    from nsqd.log.damage import Damage
    from nsqd.log.reading.cold import AnyLoad
    from nsqd.log.remote import Remote
    from nsqd.log.settings import LogSettings

log = logging.getLogger(__name__)

_DROPPED_BEFORE_COLLECTION: Final = 1_000  # batches; collecting as many new ones takes a millisecond


def _new_id() -> str:
    return os.urandom(16).hex()


class DiskLook(NamedTuple):
    """The result of `DiskStore.look_at_disk`."""

    lost: str | None  # see `DataPath.lost_place`
    is_low: bool  # less space is free than the disk reserve


class DiskStore:
    """Implements `nsqd.broker.store.Store` on files.

    To get a store, call `open` and then `recover`. Run `StoreTasks` alongside the turns, and `close` the store when
    the tasks have ended.

    The store holds the logs and the journal, and passes calls between them and its parts. Each part touches only the
    things that its docstring names:

        Syncer         when and what to sync            Faults        the current faults
        JournalKeeper  when to write the journal        Repairs       retries of failed operations
        Reads          reads that need a thread         DiskReserve   the free space that publishing leaves alone
        OpenWriters    descriptors for writing          TopologyFile  the names of topics and channels
        Removals       files and folders to remove
    """

    def __init__(
        self,
        data_path: DataPath,
        settings: LogSettings,
        files: Files,
        clock: Callable[[], float],
        wall: Callable[[], int],
    ) -> None:
        self.data_path = data_path
        self.settings = settings
        self.files = files
        self.remote: Remote | None = None  # set before `recover`, if there is one
        self.now = clock
        self.age_clock: Callable[[], int] = AgeClock(wall, clock)
        self.is_recovered = False
        self.clock_jump = 0.0  # seconds that the wall clock jumped while nsqd was down
        self.damage: list[Damage] = []
        self.logs: dict[str, DiskLog | MemoryLog] = {}
        self.dirty: list[DiskLog] = []  # to write in this turn
        self._buffered: dict[DiskLog, None] = {}  # to write soon, because they hold acknowledged messages in memory
        self.compaction: dict[Compaction, None] = {}  # logs that may have something to compact
        self._dropped = 0  # batches that the caches have dropped since the last collection of young garbage

        self.wakeups = Wakeups()
        self.writers = OpenWriters(files, self.wakeups.idle)
        self.faults = Faults(self.wakeups)
        self._place = StorageFault(self.faults, FaultKind.PLACE)
        self._ids = StorageFault(self.faults, FaultKind.IDS)
        self.journal = Journal(
            data_path.folder, files, on_waiting=self.wakeups.flush.set, on_written=self.wakeups.sync.set
        )
        self.journal_keeper = JournalKeeper(self.journal, self.faults, self.wakeups, clock)
        self.reserve = DiskReserve(
            data_path.folder,
            files,
            self.faults,
            clock,
            reserve=settings.options.disk_reserve,
            unwritten=self._unwritten_bytes,
        )
        self.reads = Reads(files, self.faults, self.wakeups, clock, self.damage, most_descriptors=MOST_DESCRIPTORS)
        self.removals = Removals(data_path, files, self.faults, self.wakeups.sync.set)
        self.syncer = Syncer(
            self,
            self.journal_keeper,
            self.removals,
            self.faults,
            self.wakeups,
            sync_every=settings.options.sync_every,
            sync_timeout=seconds(settings.options.sync_timeout),
        )
        self.repairs = Repairs(
            self.faults,
            self.wakeups,
            keeper=self.journal_keeper,
            removals=self.removals,
            reserve=self.reserve,
            logs=self.logs,
            reserve_ids=lambda: self.reserve_ids(0),
        )
        self.topology = TopologyFile(data_path, self.logs, self.faults, self.wakeups.topology)

    def pause(self, seconds: float) -> None:
        self.data_path.pause(seconds)

    # From start to end

    @classmethod
    def open(
        cls,
        path: str | Path,
        settings: LogSettings,
        *,
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
        new_id: Callable[[], str] = _new_id,
        pause: Callable[[float], None] = time.sleep,
        clock_mark: Callable[[], ClockMark] = clock_mark,
    ) -> DiskStore:
        """Lock the folder and create missing files in it. Raises DataPathError."""
        files = files or Files()
        data_path = DataPath(Path(path or "."), files, new_id=new_id, pause=pause, clock=clock_mark)
        data_path.open()
        return cls(data_path, settings, files, clock, wall)

    def recover(self) -> Recovered:
        """Read the data path. Call this once, before anything else. Raises DataPathError."""
        try:
            recovered = StoreRecovery(self, _new_id).run()
        except OSError as error:
            path = error.filename or self.data_path.folder
            raise DataPathError(f"failed to open data-path: {error_text('read', path, error)}") from error
        jump = self.data_path.clock_jump()
        if jump is not None:
            log.warning("%s", jump)
            self.clock_jump = jump.milliseconds / 1000
        self.is_recovered = True
        self.syncer.wake()
        return recovered

    def close(self) -> None:
        """Write and sync everything, so that the next start needn't scan any log. Blocks on the disk."""
        for topic_log in self.disk_logs():
            topic_log.write()
        self.dirty.clear()
        if self.syncer.has_rest:
            self.syncer.sync_now(sys.maxsize)
        self.syncer.sync_now(sys.maxsize)
        self._record_checkpoints()
        self.journal_keeper.write_now()
        last = self.journal.begin_sync(also_quiet=True)
        if last is not None:
            last.perform(self.files)
            self.journal.end_sync(last)
            self.journal_keeper.check()
        self._note_journal_end()
        self.topology.write_all()
        for text in self.faults.texts():
            log.error("shut down with unsynced data error=%s", text)
        if self.remote is not None:
            self.remote.close()  # while we hold the lock: until then, no process here can want the name
        self.abandon()

    def _note_journal_end(self) -> None:
        try:
            self.data_path.note_journal_end(max(self.data_path.journal_end, self.journal.synced_end))
        except OSError as error:
            log.warning("failed to save where the journal ends error=%s", error)

    def abandon(self) -> None:
        """Release descriptors and the lock without writing anything, as if the process had been killed."""
        for topic_log in self.disk_logs():
            topic_log.close()
        self.reads.descriptors.close()
        self.journal.close()
        self.data_path.close()

    # Calls from the broker

    def create_log(self, topic: str) -> DiskLog | MemoryLog:
        found = self.logs.get(topic)
        if found is not None:
            return found
        if is_ephemeral(topic):
            memory_log = self.logs[topic] = MemoryLog(topic, self.settings)
            return memory_log
        return self._create_disk_log(topic)

    def _create_disk_log(self, topic: str) -> DiskLog:
        folder = self.data_path.topic_folder(topic)
        state = LogState(
            log_id=_new_id(), unsynced_files=[folder / LOG_JSON], unsynced_folders=[folder, self.data_path.topics]
        )
        topic_log = DiskLog(topic, folder, self, state)
        self.logs[topic] = topic_log
        # This goes into the same frame as the broker's entry for the topic, so all later positions in the journal
        # refer to this log, and not to an older topic of the same name.
        self.journal.record_quietly([checkpoint_of(topic_log)])
        try:
            self.make_folder(topic_log)
        except OSError as error:
            topic_log.creation_failed(error)
        self.syncer.log_written(topic_log, 0)
        return topic_log

    def make_folder(self, topic_log: DiskLog) -> None:
        """Create this log's folder. If a deleted topic of the same name still has its folder there, move that away."""
        folder = topic_log.folder
        self.data_path.refuse_if_moved()
        # A folder with this log's own id is left over from an attempt that failed halfway.
        if self.files.exists(folder) and self.data_path.read_log_id(folder) != topic_log.log_id:
            self.removals.move_away(folder)
        write_log_json(self.files, folder, topic_log.topic, topic_log.log_id, durable=False)

    def save_identity(self, topic_log: DiskLog) -> None:
        self.data_path.refuse_if_moved()
        write_log_json(self.files, topic_log.folder, topic_log.topic, topic_log.log_id, durable=True)

    def settings_changed(self, topics: Iterable[str]) -> None:
        """Apply the changed settings to these topics' logs, after a reload of the policy."""
        for topic in topics:
            if isinstance(topic_log := self.logs.get(topic), DiskLog):
                topic_log.settings_changed()

    def drop_log(self, topic: str) -> None:
        topic_log = self.logs.pop(topic, None)
        if not isinstance(topic_log, DiskLog):
            return
        self._buffered.pop(topic_log, None)
        self.writers.forget(topic_log.writer)
        self.compaction.pop(topic_log.compaction, None)
        self.removals.spare(topic_log.folder)
        topic_log.drop("exiting")
        self.syncer.log_dropped(topic_log)
        if self.remote is not None:
            self.remote.log_dropped(topic_log)
        # This goes into the same frame as the broker's `drop`. It has the log's id, because a new topic may get the
        # same name.
        self.journal.record_quietly([gone_change(topic, topic_log.log_id)])
        self.removals.remove_log(topic, topic_log.log_id)

    def record(self, change: Entry, *, urgent: bool) -> None:
        self.journal.record(change, urgent=urgent)

    def reserve_ids(self, until: int) -> None:
        data_path = self.data_path
        data_path.journal_end = max(data_path.journal_end, self.journal.synced_end)
        try:
            data_path.reserve_ids(until)
        except OSError as error:
            # The previous reservation isn't used up yet, but we refuse publishes until the next one succeeds.
            self._ids.begin(DiskError.of("write", data_path.folder / NODE_JSON, error))
        else:
            self.journal.record_quietly([node_change(data_path.node, data_path.ids_reserved)])

    def names_changed(self, names: Names) -> None:
        self.topology.names_changed(names)

    @property
    def health(self) -> str:
        return self.faults.health

    # The steps of a turn

    def write_logs(self) -> None:
        """Write each log that has new messages, once, and settle receipts according to --ack."""
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for topic_log in dirty:
                topic_log.write()

    def write_journal(self, *, force: bool = False) -> bool:
        """Write the waiting changes if one of them is urgent. Return False if that failed."""
        if not (self.journal.urgent or force):
            return True
        return self.journal_keeper.write()

    @property
    def journal_error(self) -> str | None:
        """Why the journal can't be relied on, or None. A failed write or sync sets it until `Journal` has recovered."""
        error = self.journal.error
        return error.text if error is not None else None

    @property
    def publishing_error(self) -> str | None:
        """Why we refuse publishes, or None.

        An id reservation that isn't on disk is a reason too: after a restart we'd hand out the same ids again, and then
        two messages in flight could have the same id.
        """
        error = self._place.error or self.journal.error or self._ids.error
        return error.text if error is not None else None

    # Durability

    async def sync(self, *topics: str) -> None:
        """Return once every journal change and every message of these topics so far is on disk. Raises NotSynced.

        Other topics' logs are synced too, but if that fails, this call doesn't raise.

        We sync twice, the second time for the logs' checkpoints. Suppose a channel was emptied, and then a power cut
        damages the journal. The next start reads everything after the last checkpoint again, so without the second sync
        the emptied messages could come back.
        """
        self.write_logs()
        await self.syncer.next_sync(topics)
        self.sync_checkpoints()
        await self.syncer.next_sync(topics)

    def _record_checkpoints(self) -> None:
        self.journal.record_quietly([checkpoint_of(topic_log) for topic_log in self.syncer.take_synced()])

    def sync_checkpoints(self) -> None:
        """Request a sync of all checkpoints. They're recorded quietly, so they don't cause a sync themselves."""
        self._record_checkpoints()
        if not self.journal.is_synced:
            self.journal.needs_sync()

    # Calls from the store's tasks and from the syncer

    def write_everything(self) -> bool:
        """Write all buffers of logs and journal. Return whether the journal now has all changes."""
        self._write_buffered()
        return self.write_journal(force=True)

    def flush(self) -> None:
        """Write everything that could wait until now: acknowledged messages, non-urgent changes, checkpoints."""
        self._write_buffered()
        self._record_checkpoints()
        self.write_journal(force=True)

    def _write_buffered(self) -> None:
        buffered, self._buffered = self._buffered, {}
        for topic_log in buffered:
            topic_log.write()

    def end_compaction(self, compaction: Compaction, job: CompactionJob) -> None:
        if job.error is not None:
            log.warning("compaction failed topic=%s error=%s", compaction.topic, job.error)
            if job.is_refused:
                self.reads.refused_reads += 1
        elif len(job.target):
            log.info(
                "compacted old segments topic=%s messages=%d file=%s bytes=%d",
                compaction.topic,
                job.target.messages,
                job.target.path.name,
                job.target.size,
            )
        compaction.end(job)

    def end_load(self, load: AnyLoad) -> None:
        topic_log = self.logs.get(load.topic)
        if isinstance(topic_log, DiskLog):
            topic_log.reader.loaded(load)

    def start_rotation(self) -> bool:
        if not self.is_in_place:
            return False
        names = [topic_log.topic for topic_log in self.disk_logs()]
        started = self.journal.start_rotation(names)
        if started:
            self.journal.record_quietly([node_change(self.data_path.node, self.data_path.ids_reserved)])
            # Snapshots don't mention deleted logs. Without these entries, a folder that couldn't be renamed yet would
            # come back as a topic at the next start.
            self.journal.record_quietly([gone_change(topic, log_id) for log_id, topic in self.removals.gone.items()])
        self.journal_keeper.check()
        return started

    def write_next_snapshot(self, snapshot: Callable[[str], Iterable[Entry | None]]) -> bool:
        topic_log = self.logs.get(self.journal.next_topic)
        if isinstance(topic_log, DiskLog):
            self.journal.record_quietly([checkpoint_of(topic_log)])
        written = self.journal.write_next_snapshot(snapshot)
        self.journal_keeper.check()
        return written

    def repair(self, *, has_space: bool = True) -> None:
        """Try to repair whatever is broken. Without space, try only repairs that need little space or free some.

        While the data path isn't in its place, we do nothing: the folder that's there now isn't ours.
        """
        if self.is_in_place:
            self.repairs.run(has_space=has_space)

    def give_back_what_is_idle(self) -> bool:
        """Close files and drop blocks that weren't used since the last call. Return whether none are left."""
        reads_are_idle = self.reads.give_back_what_is_idle()
        return self.writers.close_idle() and reads_are_idle

    # Reports from logs and journal (see LogHost)

    def log_buffered(self, topic_log: DiskLog) -> None:
        self._buffered[topic_log] = None
        self.wakeups.flush.set()

    def batches_dropped(self, count: int) -> None:
        """Collect young garbage after every thousand batches that the caches have dropped to make room.

        The interpreter counts new objects, subtracts freed ones, even old ones, and starts a collection at a threshold.
        With full caches each new batch frees an old one, so Python wouldn't collect until all of their 10,000 batches
        are young, and then it would take 20 ms.
        """
        self._dropped += count
        if self._dropped >= _DROPPED_BEFORE_COLLECTION:
            self._dropped = 0
            gc.collect(1)

    def wants_compaction(self, compaction: Compaction) -> None:
        if not self.compaction:
            self.wakeups.compaction.set()
        self.compaction[compaction] = None

    def _unwritten_bytes(self) -> int:
        size = 0
        for topic_log in {**dict.fromkeys(self.dirty), **self._buffered}:
            size += topic_log.unwritten_bytes
        return size

    def remove(self, paths: list[Path]) -> None:
        self.removals.remove(paths)

    def is_leaving(self, path: Path) -> bool:
        return self.is_in_place and self.journal.error is None and self.removals.is_leaving(path)

    def disk(self) -> DiskSnapshot:
        """Return the store's figures for the metrics."""
        return DiskSnapshot(
            reads_refused=self.reads.refused_reads,
            waiting=self._waiting_for_disk(),
            clock_jump=self.clock_jump,
            remote=self.remote.snapshot() if self.remote is not None else None,
            ack_of=self.settings.ack_of if self.remote is not None else None,
        )

    def _waiting_for_disk(self) -> Iterator[tuple[str, int]]:
        for topic_log in self.disk_logs():
            yield topic_log.topic, topic_log.waiting_for_disk

    @property
    def is_in_place(self) -> bool:
        return self.data_path.lost is None

    def look_at_disk(self) -> DiskLook:
        """Check for problems that we'd otherwise notice only at the next publish. Blocks; call it from a thread."""
        return DiskLook(self.data_path.lost_place(), self.reserve.is_low())

    def disk_looked_at(self, look: DiskLook) -> None:
        """Apply the result of `look_at_disk`, so that publishing stops before a publisher runs into a full disk."""
        self.place_looked_at(look.lost)
        if look.is_low:
            self.reserve.look()

    def place_looked_at(self, error: str | None) -> None:
        """Apply the result of `lost_place`: refuse publishes until the data path is back in its place.

        We still write to files that are open, so that nothing is missing when the data path comes back.
        """
        self.data_path.lost = error
        if error is not None:
            self._place.begin(DiskError(error))
        else:
            self._place.end()

    def disk_logs(self) -> list[DiskLog]:
        return [topic_log for topic_log in self.logs.values() if isinstance(topic_log, DiskLog)]
