"""The store: a data path's topic logs and journal, as the broker sees them, and what keeps them in order.

What the broker calls fills buffers and never waits. A turn empties them with `write_logs` and `write_journal`. What
blocks runs beside the turns, in the tasks of `committer.py`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.wire.names import is_ephemeral
from nsqd.broker.store import DiskSnapshot, NotSynced
from nsqd.log.clock_mark import ClockMark, clock_mark
from nsqd.log.cold import AnyLoad, ReadDescriptors
from nsqd.log.committer import Outcome, Round, Wakeups
from nsqd.log.data_path import (
    LOG_JSON,
    NODE_JSON,
    TOPOLOGY_JSON,
    DataPath,
    DataPathError,
    Topology,
    write_log_json,
)
from nsqd.log.faults import Fault, Faults
from nsqd.log.files import Files, error_text
from nsqd.log.journal import Journal
from nsqd.log.log_fault import RETRY_AFTER
from nsqd.log.log_state import LogState
from nsqd.log.memory_log import MemoryLog
from nsqd.log.own_changes import checkpoint_of, gone_change, node_change
from nsqd.log.reading import Refusals
from nsqd.log.recovery import Damage
from nsqd.log.removals import Removals
from nsqd.log.retention import AgeClock
from nsqd.log.segment import segment_name
from nsqd.log.space import Space
from nsqd.log.store_recovery import Recovered, StoreRecovery, report
from nsqd.log.topic_log import DiskLog

if TYPE_CHECKING:
    from nsqd.broker.store import Entry, Names
    from nsqd.log.carry import CarryJob
    from nsqd.log.carrying import Carrying
    from nsqd.log.cold_reader import HoldsBlocks
    from nsqd.log.segment_writer import SegmentWriter
    from nsqd.log.settings import LogSettings

log = logging.getLogger(__name__)

MOST_LOGS: Final = 1000  # in one round: the loop spends some microseconds on each when it begins, and when it ends
MOST_DESCRIPTORS: Final = 256  # for writing, and as many for reading


def _new_id() -> str:
    return os.urandom(16).hex()


class Store:
    """Implements `nsqd.broker.store.Store` on files.

    Made by `open`; then `recover`, then a `Committer` runs beside the turns, and when it has ended, `close`.
    """

    def __init__(
        self,
        data_path: DataPath,
        settings: LogSettings,
        files: Files,
        clock: Callable[[], float],
        wall: Callable[[], int],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.data_path = data_path
        self.settings = settings
        self.files = files
        self.now = clock
        self.pause = pause  # with which a start or a thread waits for the disk
        self.age_clock: Callable[[], int] = AgeClock(wall, clock)
        self.wakeups = Wakeups()
        self.faults = Faults(self.wakeups.repair)
        self.space = Space(
            data_path.folder, files, self.faults, clock, reserve=settings.disk_reserve, unwritten=self._unwritten_bytes
        )
        self.is_recovered = False
        self.damage: list[Damage] = []
        self.logs: dict[str, DiskLog | MemoryLog] = {}
        self.dirty: list[DiskLog] = []
        self.descriptors = ReadDescriptors(files, MOST_DESCRIPTORS)
        self.reads_cache = True
        self.reads_refused = 0
        self.clock_jump = 0.0  # seconds
        self.loads: deque[AnyLoad] = deque()
        self.journal = Journal(
            data_path.folder, files, on_waiting=self._changes_wait, on_written=self._something_is_unsynced
        )
        self._buffered: dict[DiskLog, None] = {}
        self._unsynced: dict[DiskLog, None] = {}
        self._unsynced_messages = 0
        self._rest: dict[DiskLog, None] = {}  # were unsynced when a round began that could not take all of them
        # Of the calls of `sync` that wait for the rest; None: none is left.
        self._outcome_of_rest: Outcome | None = None
        self._sync_every = settings.sync_every
        self._checkpoints: dict[DiskLog, None] = {}  # synced, and the journal does not know
        self._open: dict[SegmentWriter, None] = {}  # hold a descriptor to write
        self.carrying: dict[Carrying, None] = {}  # may have something to be carried forward
        self._cold: dict[HoldsBlocks, None] = {}  # hold blocks that were read
        self._removals = Removals(data_path, files)
        self._round: Round | None = None  # that is going on
        self._journal_rests_until = 0.0
        self._topology: Topology | None = None
        self._new_names: Names | None = None  # asks for all names, of which some are in no topology yet
        self._followers: list[Callable[[str], None]] = []
        self._outcome = Outcome()

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
    ) -> Store:
        """Locks the folder and makes what is missing in it. Raises DataPathError."""
        files = files or Files()
        data_path = DataPath(Path(path or "."), files, new_id=new_id, pause=pause, clock=clock_mark)
        data_path.open()
        return cls(data_path, settings, files, clock, wall, pause)

    def recover(self) -> Recovered:
        """Reads what is there. Call it once, before anything else. Raises DataPathError."""
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
        self._something_is_unsynced()
        return recovered

    def close(self) -> None:
        """Writes and syncs everything, so that the next start has nothing to scan. Blocks on the disk."""
        for topic_log in self.disk_logs():
            topic_log.write()
        self.dirty.clear()
        if self._outcome_of_rest is not None:
            self._perform_round()
        self._perform_round()
        self.journal.record_quietly(self._take_checkpoints())
        self._try_journal()
        last = self.journal.begin_sync(also_quiet=True)
        if last is not None:
            last.perform(self.files)
            self.journal.end_sync(last)
        self._note_journal_end()
        if (names := self.take_new_names()) is not None:
            self._topology = Topology()
            for part in names:
                self.add_names(self._topology, part)
        if (topology := self.take_topology()) is not None:
            try:
                self.data_path.write_topology(topology.json())
            except OSError as error:
                self.topology_failed(topology, error)
        for text in self.faults.texts():
            log.error("not everything is on disk error=%s", text)
        self.abandon()

    def _perform_round(self) -> None:
        round_ = self.begin_round(sys.maxsize)
        round_.perform(self.files)
        self.end_round(round_)

    def _note_journal_end(self) -> None:
        try:
            self.data_path.note_journal_end(max(self.data_path.journal_end, self.journal.synced_end))
        except OSError as error:
            log.warning("cannot note the journal's end error=%s", error)

    def abandon(self) -> None:
        """Gives back descriptors and the lock without writing anything, as the end of the process would."""
        for topic_log in self.disk_logs():
            topic_log.close()
        self.descriptors.close()
        self.journal.close()
        self.data_path.close()

    def follow(self, follower: Callable[[str], None]) -> None:
        """Have this called with the name of each topic of whose log more is synced, or which is gone."""
        self._followers.append(follower)

    def _moved(self, topic: str) -> None:
        for follower in self._followers:
            follower(topic)

    # What the broker calls

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
        # In the frame that tells of the topic: its positions are about this log.
        self.journal.record_quietly([checkpoint_of(topic_log)])
        try:
            self.make_folder(topic_log)
        except OSError as error:
            topic_log.creation_failed(error)
        self.log_written(topic_log, 0)
        return topic_log

    def make_folder(self, topic_log: DiskLog) -> None:
        """Create the folder of this log, first moving aside that of a deleted topic of the same name."""
        folder = topic_log.folder
        self.data_path.check_place()
        # Else it was half made before.
        if self.files.exists(folder) and self.data_path.read_log_id(folder) != topic_log.log_id:
            self._removals.move_away(folder)
            self._something_is_unsynced()
        write_log_json(self.files, folder, topic_log.topic, topic_log.log_id, durable=False)

    def save_identity(self, topic_log: DiskLog) -> None:
        self.data_path.check_place()
        write_log_json(self.files, topic_log.folder, topic_log.topic, topic_log.log_id, durable=True)

    def drop_log(self, topic: str) -> None:
        topic_log = self.logs.pop(topic, None)
        if not isinstance(topic_log, DiskLog):
            return
        for place in (self._buffered, self._unsynced, self._rest, self._checkpoints):
            place.pop(topic_log, None)
        self.carrying.pop(topic_log.carrying, None)
        self._open.pop(topic_log.writer, None)
        self._removals.spare(topic_log.folder)
        if self._round is not None:
            self._round.spare(topic_log.folder)
        topic_log.drop("exiting")
        self._moved(topic)
        # Beside the broker's own word, in the same frame. The topic may be made anew, so it is the log that is named.
        self.journal.record_quietly([gone_change(topic, topic_log.log_id)])
        self.let_go(topic, topic_log.log_id)

    def let_go(self, topic: str, log_id: str) -> None:
        """The log is deleted, as the journal was told."""
        self._removals.let_go(topic, log_id)
        self._check_removals()
        self._something_is_unsynced()

    def adopt_dropped_folders(self) -> None:
        self._removals.adopt(self.data_path.dropped_folders())

    def _check_removals(self) -> None:
        removals = self._removals
        for source, error in ((Fault.DROPPING, removals.rename_error), (Fault.REMOVAL, removals.error)):
            if error is None:
                self.faults.repaired(source)
            else:
                self.faults.broken(source, error)

    def record(self, change: Entry, *, urgent: bool) -> None:
        self.journal.record(change, urgent=urgent)

    def reserve_ids(self, until: int) -> None:
        data_path = self.data_path
        data_path.journal_end = max(data_path.journal_end, self.journal.synced_end)
        try:
            data_path.reserve_ids(until)
        except OSError as error:
            # There are some left of the reservation before; until there is a new one, publishing is refused.
            self.faults.broken(Fault.IDS, error_text("write", data_path.folder / NODE_JSON, error))
        else:
            self.journal.record_quietly([node_change(data_path.node, data_path.ids_reserved)])

    def names_changed(self, names: Names) -> None:
        """Have these names of everything collected and written in the background, as something in them has changed."""
        self._new_names = names
        self.wakeups.topology.set()

    def set_topology(self, names: Mapping[str, object]) -> None:
        """Write the names of everything, given as plain values, in the background."""
        topology = Topology()
        self.add_names(topology, names)
        self.save_topology(topology)

    def save_topology(self, topology: Topology) -> None:
        self._topology = topology
        self.wakeups.topology.set()

    def add_names(self, topology: Topology, names: Mapping[str, object]) -> None:
        """Add topics by name, with the ids of their present logs."""
        logs = self.logs
        ids = {name: log.log_id for name in names if isinstance(log := logs.get(name), DiskLog)}
        topology.add(names, ids)

    @property
    def health(self) -> str:
        return self.faults.health

    # The steps of a turn

    def write_logs(self) -> None:
        """One write for each log that something was appended to; receipts are settled as the ack policy says."""
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for topic_log in dirty:
                topic_log.write()

    def write_journal(self, *, force: bool = False) -> bool:
        """Writes the changes that wait if one of them is urgent; False: the disk does not take them now."""
        if not (self.journal.urgent or force):
            return True
        if self._journal_rests_until and self.now() < self._journal_rests_until:
            # A full disk stays full for a while, and everything that waits would be encoded again in every turn.
            self.journal.bound_waiting()
            return False
        return self._try_journal()

    def _try_journal(self) -> bool:
        written = self.journal.write()
        self._journal_rests_until = 0.0 if written else self.now() + RETRY_AFTER
        self._check_journal()
        return written

    @property
    def journal_error(self) -> str | None:
        """Why the journal cannot be relied on: a write or a sync has failed, and was not made up for yet."""
        return self.journal.error

    def _check_journal(self) -> None:
        if self.journal.error is not None:
            self.faults.broken(self.journal, self.journal.error)
        elif self.journal in self.faults:
            self.faults.repaired(self.journal)
            self._something_is_unsynced()  # what the journal now says is finished can go

    @property
    def publishing_error(self) -> str | None:
        """Why publishing is refused. The reservation of ids has to be durable, too: a reused id would merge two messages in flight."""
        return self.faults.text_of(Fault.PLACE) or self.journal.error or self.faults.text_of(Fault.IDS)

    def distrust_journal(self, error: str) -> None:
        """What recovery has told it is not on disk yet: nothing may be published, or it could count as finished."""
        self.journal.distrust(error)
        self._check_journal()

    # Durability

    async def sync(self, *topics: str) -> None:
        """Returns when everything recorded before the call, and appended to these topics, is on disk. Raises NotSynced.

        The logs of other topics are synced as well, but whether that succeeds is no business of the caller's.
        """
        self.write_logs()
        outcome = self._outcome
        outcome.is_wanted = True
        self.wakeups.hurry.set()
        self._something_is_unsynced()
        await outcome.ended.wait()
        errors = [outcome.error, *(outcome.log_errors.get(topic) for topic in topics)]
        for error in errors:
            if error is not None:
                raise NotSynced(error)

    @property
    def somebody_waits_for_sync(self) -> bool:
        if self._outcome.is_wanted or (self._outcome_of_rest is not None and self._outcome_of_rest.is_wanted):
            return True
        return any(topic_log.waits_for_sync for topic_log in chain(self._rest, self._unsynced))

    @property
    def has_to_hurry(self) -> bool:
        return self._unsynced_messages >= self.settings.sync_every or self.somebody_waits_for_sync

    def begin_round(self, most: int = MOST_LOGS) -> Round:
        """Takes what is unsynced now, of at most so many logs.

        Where there are more, the next rounds take the rest, and the last of them answers the calls of `sync` that wait.
        What becomes unsynced meanwhile comes after the rest: under a steady load on many topics, something is always
        unsynced, and a call that waited for none to be left would wait for ever.
        """
        self._write_buffered()
        journal_is_written = self.write_journal(force=True)
        unsynced, outcome = self._take_unsynced(most)
        round_ = self._round = Round(outcome)
        for topic_log in unsynced:
            if (job := topic_log.begin_sync()) is not None:
                round_.logs.append(topic_log)
                round_.jobs.append(job)
        round_.journal = self.journal.begin_sync()
        says_what_is_finished = journal_is_written and not self.journal.has_lost
        doubtful = [one.folder for one in self.faults if isinstance(one, DiskLog) and one.names_may_be_lost]
        if self.is_in_place:
            self._removals.begin_round(round_, files_may_go=says_what_is_finished, doubtful=doubtful)
        else:
            for job in round_.jobs:
                job.indexes = []  # they would be written by their names; readers can make them anew
        return round_

    def _take_unsynced(self, most: int) -> tuple[list[DiskLog], Outcome]:
        """Take logs, and the outcome of the round that syncs them: nobody waits for it if more are left."""
        if self._outcome_of_rest is None:
            self._rest, self._unsynced = self._unsynced, {}
            self._outcome_of_rest, self._outcome = self._outcome, Outcome()
            self._unsynced_messages = 0
        taken = list(islice(self._rest, most))
        for topic_log in taken:
            del self._rest[topic_log]
        if self._rest:
            return taken, Outcome()
        outcome, self._outcome_of_rest = self._outcome_of_rest, None
        return taken, outcome

    def end_round(self, round_: Round) -> bool:
        """Return whether publishers that waited have been answered."""
        answered = False
        self._round = None
        outcome = round_.outcome
        for topic_log, job in zip(round_.logs, round_.jobs, strict=True):
            answered |= topic_log.end_sync(job)
            if job.error is None and not topic_log.dropped:
                self._checkpoints[topic_log] = None
                self._moved(topic_log.topic)
        if self._checkpoints:
            self.wakeups.flush.set()
        if round_.journal is not None:
            self.journal.end_sync(round_.journal)
        self._check_journal()
        self._removals.end_round(round_)
        self._check_removals()
        if self.journal.wants_rotation and self.journal.error is None:  # else `repair` does, and not in every round
            self.wakeups.rotation.set()
        if self._unsynced or self._outcome_of_rest is not None or self._outcome.is_wanted:
            self._something_is_unsynced()
        outcome.error = self.journal.error
        outcome.log_errors = {
            source.topic: source.error for source in self.faults if isinstance(source, DiskLog) and source.error
        }
        outcome.ended.set()
        return answered

    def _take_checkpoints(self) -> list[Entry]:
        checkpoints, self._checkpoints = self._checkpoints, {}
        return [checkpoint_of(topic_log) for topic_log in checkpoints]

    # What the committer's tasks call

    def flush(self) -> None:
        """What was put off: acknowledged messages, unurgent changes, checkpoints."""
        self._write_buffered()
        self.journal.record_quietly(self._take_checkpoints())
        self.write_journal(force=True)

    def _write_buffered(self) -> None:
        buffered, self._buffered = self._buffered, {}
        for topic_log in buffered:
            topic_log.write()

    def end_carry(self, carrying: Carrying, job: CarryJob) -> None:
        if job.error is not None:
            log.warning("cannot carry messages forward topic=%s error=%s", carrying.topic, job.error)
            if job.is_refused:
                self.reads_refused += 1
        elif len(job.target):
            log.info(
                "messages were carried forward topic=%s messages=%d file=%s bytes=%d",
                carrying.topic,
                job.target.messages,
                job.target.path.name,
                job.target.size,
            )
        carrying.end(job)

    def end_load(self, load: AnyLoad) -> None:
        topic_log = self.logs.get(load.topic)
        if isinstance(topic_log, DiskLog):
            topic_log.reader.loaded(load)

    def take_new_names(self) -> Iterable[Mapping[str, object]] | None:
        """Return the names as they are now, in parts; None: they have not changed since they were taken last."""
        names, self._new_names = self._new_names, None
        return names() if names is not None else None

    def take_topology(self) -> Topology | None:
        """What has to be saved; None: nothing."""
        topology, self._topology = self._topology, None
        return topology

    def topology_saved(self) -> None:
        self.faults.repaired(Fault.TOPOLOGY)

    def topology_failed(self, topology: Topology, error: OSError) -> None:
        if self._topology is None:  # else there is a newer one
            self._topology = topology
        self.faults.broken(Fault.TOPOLOGY, error_text("write", self.data_path.folder / TOPOLOGY_JSON, error))

    def start_rotation(self) -> bool:
        if not self.is_in_place:
            return False
        names = [topic_log.topic for topic_log in self.disk_logs()]
        started = self.journal.start_rotation(names)
        if started:
            self.journal.record_quietly([node_change(self.data_path.node, self.data_path.ids_reserved)])
            # No snapshot tells of what is gone, and a folder that still has its old name would come back.
            self.journal.record_quietly([gone_change(topic, log_id) for log_id, topic in self._removals.gone.items()])
        self._check_journal()
        return started

    def write_next_snapshot(self, snapshot: Callable[[str], Iterable[Entry]]) -> bool:
        topic_log = self.logs.get(self.journal.next_topic)
        if isinstance(topic_log, DiskLog):
            self.journal.record_quietly([checkpoint_of(topic_log)])
        written = self.journal.write_next_snapshot(snapshot)
        self._check_journal()
        return written

    @property
    def needs_space(self) -> bool:
        """Whether something is broken that only a disk which takes data can mend."""
        if self.journal in self.faults and self.journal.wants_rotation:
            return True
        need_none = (self.journal, Fault.PLACE, Fault.DROPPING, Fault.REMOVAL, Fault.RESERVE)
        return any(source not in need_none and not isinstance(source, Refusals) for source in self.faults)

    def repair(self, *, has_space: bool = True) -> None:
        """Try again whatever is broken; without space only what needs little, or gives some back.

        Nothing is tried while the data path is not in its place: what is there now is not ours.
        """
        if not self.is_in_place:
            return
        for source in self.faults:
            if source is self.journal:
                self._repair_journal(has_space=has_space)
            elif source is Fault.DROPPING:
                self._removals.try_again()
                self._check_removals()
                self._something_is_unsynced()
            elif source is Fault.REMOVAL:
                self._something_is_unsynced()
            elif source is Fault.RESERVE:
                self.space.look()
            elif isinstance(source, Refusals):
                self._ask_again(source)
            elif has_space:
                self._repair_with_space(source)

    def _repair_with_space(self, source: object) -> None:
        if isinstance(source, DiskLog):
            source.try_to_repair()
        elif source is Fault.IDS:
            self.faults.repaired(source)
            self.reserve_ids(0)
        elif source is Fault.TOPOLOGY:
            self.wakeups.topology.set()

    def _ask_again(self, refusals: Refusals) -> None:
        for topic_log in self.disk_logs():
            topic_log.reader.ask_again(refusals)

    def _repair_journal(self, *, has_space: bool) -> None:
        if self.journal.wants_rotation and has_space:
            self.wakeups.rotation.set()
        elif not self.journal.is_rotating:
            self._try_journal()

    def give_back_what_is_idle(self) -> bool:
        """Closes what was not used since the last call; says whether nothing is left to close."""
        for writer in [candidate for candidate in self._open if not candidate.take_used()]:
            writer.close()
            del self._open[writer]
        for reader in [candidate for candidate in self._cold if candidate.forget_idle()]:
            del self._cold[reader]
        if not self._cold:
            self.descriptors.close()
        return not self._open and not self._cold

    # What logs and journal tell (see LogHost)

    def log_buffered(self, topic_log: DiskLog) -> None:
        self._buffered[topic_log] = None
        self.wakeups.flush.set()

    def log_written(self, topic_log: DiskLog, messages: int) -> None:
        if not self._unsynced:
            self.wakeups.sync.set()
        self._unsynced[topic_log] = None
        before = self._unsynced_messages
        self._unsynced_messages = before + messages
        if before < self._sync_every <= before + messages or topic_log.waits_for_sync:
            self.wakeups.hurry.set()

    def file_opened(self, writer: SegmentWriter) -> None:
        if not self._open:
            self.wakeups.idle.set()
        self._open[writer] = None
        if len(self._open) > MOST_DESCRIPTORS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()

    def reads_cold(self, reader: HoldsBlocks) -> None:
        self._cold[reader] = None
        self.wakeups.idle.set()

    def wants_carry(self, carrying: Carrying) -> None:
        if not self.carrying:
            self.wakeups.carry.set()
        self.carrying[carrying] = None

    def load(self, load: AnyLoad) -> None:
        self.loads.append(load)
        self.wakeups.load.set()

    def _unwritten_bytes(self) -> int:
        waiting = {**dict.fromkeys(self.dirty), **self._buffered}
        return sum([topic_log.unwritten_bytes for topic_log in waiting])

    def remove(self, paths: list[Path]) -> None:
        self._removals.remove(paths)
        self._something_is_unsynced()

    def damaged(self, topic: str, load: AnyLoad) -> None:
        kept = {path.name: str(path) for path in load.aside}
        for hole in load.holes:
            name = load.segment.path.name
            copy = kept.get(f"{name}.damaged.{hole.offset}", "")
            text = "damage is skipped" if load.error is None else str(load.error)
            damage = Damage(topic, name, hole.offset, hole.first, hole.end, copy, text)
            self.damage.append(damage)
            report(damage)

    def refused(self, topic: str, refusals: Refusals, load: AnyLoad) -> None:
        self.reads_refused += 1
        if load.bypassed is None:
            return
        first, end = load.bypassed
        text = error_text("read", load.segment.path, load.error) if load.error is not None else ""
        if refusals not in self.faults:
            log.warning(
                "the disk refuses to read messages, which are put off topic=%s first=%d end=%d", topic, first, end
            )
        self.faults.broken(refusals, text)

    def read_again(self, refusals: Refusals) -> None:
        if refusals.oldest_stretch is None:
            self.faults.repaired(refusals)

    def disk(self) -> DiskSnapshot:
        """Return the figures of the disk."""
        return DiskSnapshot(
            reads_refused=self.reads_refused,
            waiting={topic_log.topic: topic_log.waiting_for_disk for topic_log in self.disk_logs()},
            clock_jump=self.clock_jump,
        )

    @property
    def is_in_place(self) -> bool:
        return self.data_path.lost is None

    def place_looked_at(self, error: str | None) -> None:
        """Take what `lost_place` has found: publishing is refused until the data path is back in its place.

        Files that are open are written as before, so that nothing is missing when it comes back.
        """
        self.data_path.lost = error
        if error is not None:
            self.faults.broken(Fault.PLACE, error)
        else:
            self.faults.repaired(Fault.PLACE)

    def lacks_front(self, topic: str, start: int, end: int) -> None:
        """Messages before the first segment that were not finished, as far as the journal knows."""
        text = "segments are missing, or the journal is older than they are"
        self.damage.append(Damage(topic, segment_name(start), 0, start, end, "", text))
        report(self.damage[-1])

    def _changes_wait(self) -> None:
        self.wakeups.flush.set()

    def _something_is_unsynced(self) -> None:
        self.wakeups.sync.set()

    def disk_logs(self) -> list[DiskLog]:
        return [topic_log for topic_log in self.logs.values() if isinstance(topic_log, DiskLog)]
