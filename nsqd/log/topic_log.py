"""A topic's log on disk: what is appended, written, cached, read back and let go.

    append ──> buffer ──write()──> segment file ──committer──> synced
                 │
                 └──> tail cache (newest messages)      cold blocks (see cold.py) <── segment files

The log itself never waits. Everything here runs on the loop, between two awaits; what blocks is handed to the store as
a job (`begin_sync`, `Load`, files to remove) and its result taken back.

A failed write leaves the log *broken*: the file is cut back to its last whole record, publishers are refused, and after
a second the end of the file is read again and proven before anything is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.ack import Ack
from nsqd.log.carried import Carried, CarriedLoad
from nsqd.log.carry import MOST_MARKED, CarryJob, CarryPlan, Ended
from nsqd.log.cold import Load
from nsqd.log.cold_reader import ColdReader, ReadingHost
from nsqd.log.files import error_text
from nsqd.log.log_fault import LogFault
from nsqd.log.proof import prove_segments
from nsqd.log.segment import Segment, Stretch, segment_name
from nsqd.log.segment_list import SegmentList
from nsqd.log.segment_writer import SegmentWriter, WriterHost
from nsqd.log.tail_cache import TailCache, find_batch
from nsqd.log.unsynced import Unsynced
from nsqd.log.write_buffer import WriteBuffer, record_size

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.log.cold import AnyLoad
    from nsqd.log.faults import Faults
    from nsqd.log.log_state import LogState
    from nsqd.log.reading import Refusals
    from nsqd.log.record import Header
    from nsqd.log.settings import LogSettings
    from nsqd.log.space import Space
    from nsqd.log.sync_job import SyncJob

CARRY_INTERVAL: Final = 1.0  # seconds between two looks for what can be carried forward, while there is something
LONGEST_CARRY_INTERVAL: Final = 60.0  # when there was nothing for a while
CARRY_SHARE: Final = 100  # one part of this many of the processor's time may go into looking
BUFFER_BYTES: Final = 1 << 20  # what acknowledged messages may wait for in memory, for at most 100 ms


class LogHost(ReadingHost, WriterHost, Protocol):
    """What a log asks of the store that it belongs to."""

    settings: LogSettings
    age_clock: Callable[[], int]
    pause: Callable[[float], None]  # of a thread that waits for the disk
    dirty: list[DiskLog]  # to be written in this turn
    faults: Faults
    space: Space

    def now(self) -> float: ...

    def log_buffered(self, log: DiskLog) -> None:
        """Acknowledged messages wait in memory, and are to be written soon."""

    def log_written(self, log: DiskLog, messages: int) -> None:
        """There is something to sync."""

    def remove(self, paths: list[Path]) -> None:
        """What is in them is finished, and they may go when the journal's sync has made that lasting."""

    def wants_carry(self, log: DiskLog) -> None:
        """Segments or side files might go if what little is needed of them were carried forward."""

    def make_folder(self, log: DiskLog) -> None:
        """Makes the folder of a new log, and what says whose it is. Raises OSError."""

    def save_identity(self, log: DiskLog) -> None:
        """Says in the folder, durably, which log it is. Raises OSError."""


class DiskLog:
    """Implements `nsqd.broker.store.TopicLog` on files."""

    def __init__(self, topic: str, folder: Path, host: LogHost, state: LogState) -> None:
        settings = host.settings
        self.topic = topic
        self.folder = folder
        self.log_id = state.log_id
        self.tail = state.tail
        self.first = state.segments[0].base if state.segments else 0
        self.dropped = False

        self._host = host
        self.pause = host.pause
        self._ack = settings.ack_of(topic)
        self._max_bytes = settings.max_bytes_per_file
        self.retention = settings.retention_of(topic)
        self._is_retention_own = topic in settings.topic_retention
        self._key_window = settings.idempotence_window
        self.keys = state.keys

        self._buffer = WriteBuffer()
        self._is_dirty = False  # and known to the store as such

        self._segments = SegmentList(state.segments, state.tail)
        self.writer = SegmentWriter(folder, host, self._segments)

        self._cache = TailCache(state.tail, most_messages=settings.mem_queue_size, most_bytes=settings.mem_queue_bytes)
        self._recent: list[Batch] = []  # of the last write, if the cache is too small for it
        self._reader = ColdReader(topic, host, self._segments, holes=state.holes)

        self._carried = Carried(topic, host, state.carried)
        self._passed = 0  # every cursor is here or beyond
        self._epoch = 0  # how often that went back
        self._carry_awaits_sync = False
        self.carry_at = 0.0  # when to look next for what can be carried forward
        self._carry_pause = CARRY_INTERVAL
        self._carry_rest = CARRY_INTERVAL / 2  # doubled by each job that fails
        self._carry_is_refused = False

        self._unsynced = Unsynced(folder, state)
        self._refusal: str | None = None  # of this turn
        self._fault = LogFault(host.now)
        if state.unsaved_identity is not None:
            self._fault.identity_is_unsaved = True
            self._break(error_text("write", folder, state.unsaved_identity))

    def __repr__(self) -> str:
        return f"<DiskLog {self.topic} [{self.first}, {self.tail})>"

    @property
    def cached_from(self) -> int:
        return self._cache.start

    # Publishing

    def has_room(self, count: int, size: int) -> bool:
        """Always: what does not fit into memory is on disk."""
        return True

    def refusal(self) -> str | None:
        return self._refuses(0)

    def _refuses(self, size: int) -> str | None:
        """Why this batch, and all that follow it in this turn, cannot be taken.

        Accepting a later one would give it the sequences that, as the journal was told, belong to a deferred one.
        """
        if self._refusal is None:
            is_broken = self._fault.error is not None and not self._may_try_again()
            self._refusal = self._fault.error if is_broken else self._host.space.refusal(size)
            if self._refusal is not None:
                self._wants_write()
        return self._refusal

    def append(self, batch: Batch, receipt: Receipt) -> None:
        refusal = self._refuses(record_size(batch))
        if refusal is not None:
            receipt.settle(refusal)
            return
        buffer = self._buffer
        buffer.add(batch)
        self._cache.add(batch)
        self.tail = batch.base_sequence + batch.count
        # A log that is broken acknowledges nothing before it is written, or it would promise what a full disk cannot keep.
        if self._ack is Ack.MEMORY and self._fault.error is None:
            self._append_acknowledged(receipt)
            return
        buffer.receipts.append(receipt)
        self._wants_write()

    def _append_acknowledged(self, receipt: Receipt) -> None:
        receipt.settle()
        self._host.log_buffered(self)
        if self._buffer.size > BUFFER_BYTES:
            self._wants_write()

    def _wants_write(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._host.dirty.append(self)

    @property
    def unwritten_bytes(self) -> int:
        return self._buffer.size

    def write(self) -> None:
        """Moves the buffer to the file, with one system call unless a segment ends in between."""
        self._is_dirty = False
        self._refusal = None
        buffer = self._buffer
        size = buffer.size
        if not size:
            return
        if self._fault.error is not None and not self._may_try_again():
            self._host.log_buffered(self)  # what was acknowledged waits on
            return
        segment = self._segments.active
        if segment is None or segment.size + size > self._max_bytes:
            self._write_over_segments()
        elif self._write_to(segment, buffer.buffers, size):
            batches, receipts = buffer.take_all()
            self._take_over(segment, size, batches, receipts)

    def _write_to(self, segment: Segment, buffers: list[bytes], size: int) -> bool:
        try:
            self.writer.write(segment, buffers, size)
        except OSError as error:
            self._write_failed(error_text("write", segment.path, error))
            return False
        return True

    def _write_over_segments(self) -> None:
        """Put each batch where it still fits: a segment exceeds its bound only if a single record does."""
        buffer = self._buffer
        while buffer.batches:
            segment = self._segments.active
            room = self._max_bytes - segment.size if segment is not None else 0
            count, size = buffer.fitting(room, takes_any=segment is not None and not segment.size)
            if not count or segment is None:
                base = buffer.batches[0].base_sequence
                try:
                    self._roll(base)
                except OSError as error:
                    self._write_failed(error_text("open", self.folder / segment_name(base), error))
                    return
                continue
            if not self._write_to(segment, buffer.buffers[: 2 * count], size):
                return
            batches, receipts = buffer.take(count, size)
            self._take_over(segment, size, batches, receipts)

    def _take_over(self, segment: Segment, size: int, batches: list[Batch], receipts: list[Receipt]) -> None:
        """Count these batches as written: they are in the file."""
        self.writer.written(segment, size, batches)
        segment.newest = max(segment.newest, batches[-1].timestamp)
        if self._key_window and any(batch.key for batch in batches):
            segment.keyed = max(segment.keyed, batches[-1].timestamp)
        if self._fault.error is not None:
            self._repaired()
        if self._ack is not Ack.SYNCED:
            for receipt in receipts:
                receipt.settle()
        else:
            self._unsynced.add_receipts(batches, receipts)
        self._host.log_written(self, batches[-1].end_sequence - batches[0].base_sequence)
        if self._cache.is_too_big:
            self._cache.shrink()
        # What was written just now is about to be handed over, also if there is no cache to speak of.
        self._recent = batches if self._cache.start > batches[0].base_sequence else []

    def _roll(self, base: int) -> None:
        """Begin a new segment. Raises OSError."""
        sealed = self._segments.active
        self.writer.roll(base)
        self.first = self._segments.first
        self._unsynced.rolled(sealed)
        # Also if nothing gets into it: what lies before it may be unlinked, and then its name is all that keeps the place.
        self._host.log_written(self, 0)

    def release(self, sequence: int, passed: int | None = None) -> None:
        self._cache.forget_before(sequence)
        if self._recent and self._recent[-1].end_sequence <= sequence:
            self._recent = []
        timestamp = self._age_now()
        if sequence == self.tail and self._is_active_unwanted(timestamp):
            # Everything is finished. A new, empty segment keeps the tail, and the space of this one is free again.
            try:
                self._roll(self.tail)
            except OSError:
                pass
        unwanted = self._unwanted_before(timestamp)
        self._remove_segments_before(min(sequence, unwanted))
        self._pass(sequence if passed is None else passed)
        if self._carried and sequence >= self.first:
            self._host.remove(self._carried.take_out(self._carried.files))
        if self._carried or self._segments.ends_before(min(self._passed, unwanted)):
            self._host.wants_carry(self)

    def _pass(self, passed: int) -> None:
        if passed < self._passed:
            self._epoch += 1
        self._passed = passed

    def _is_active_unwanted(self, timestamp: int) -> bool:
        """Whether to drop the active segment once everything in it is finished."""
        active = self._segments.active
        if active is None or not active.size or self._buffer.size:
            return False
        if self.retention:
            return not self.retention.wants(active.newest, 0, timestamp)
        return active.size > self._max_bytes // 4

    def outdated(self) -> int:
        if not (self._is_retention_own and self.retention):
            return 0
        timestamp = self._host.age_clock()
        unwanted = self._unwanted_before(timestamp)
        active = self._segments.active
        if active is not None and unwanted == active.base and self._is_active_unwanted(timestamp):
            return self.tail
        return unwanted

    def _age_now(self) -> int:
        return self._host.age_clock() if self.retention.time or self._key_window else 0

    def _unwanted_before(self, timestamp: int) -> int:
        """A segment with keys stays until these may be forgotten: after a start they are known from it alone."""
        return self._segments.unwanted_before(self.retention, timestamp, keyed_since=timestamp - self._key_window)

    def _remove_segments_before(self, sequence: int) -> None:
        gone = self._segments.take_before(sequence)
        if not gone:
            return
        self.first = self._segments.first
        self._reader.forget_before(self.first)
        self._unsynced.forget(gone)
        for segment in gone:
            self._host.descriptors.forget(segment.path)
        self._host.remove([path for segment in gone for path in (segment.path, segment.index_path)])

    # Carrying forward

    def begin_carry(self) -> CarryPlan | None:
        """What is to be looked at; the plan is to be told of every message that waits. None: there is nothing.

        Only of what is synced: a segment that is there again after a power cut, as its removal was not lasting yet, is
        read before the side file. So it has to be as good.
        """
        if self.dropped or self._fault.error is not None:
            return None
        unwanted = self._unwanted_before(self._age_now())
        ended = self._segments.ended_before(min(self._passed, unwanted, self.first + MOST_MARKED))
        unsynced = self._unsynced.files  # after a start without a checkpoint also what lies before the synced tail
        front = list(takewhile(lambda one: one[1] <= self.synced_tail and one[0].path not in unsynced, ended))
        self._carry_awaits_sync = len(front) < len(ended)
        if not front and not self._carried:
            self._carry_is_refused = False
            return None
        segments = [Ended(*ended) for ended in front]
        return CarryPlan(self, segments, self._carried.files, self.first, self._epoch)

    def decide_carry(self, plan: CarryPlan, took: float) -> CarryJob | None:
        """What a thread is to do, as `end_carry` takes it back. `took`: seconds of work to make the plan."""
        if self.dropped:  # a new topic of the same name has the same folder
            return None
        job = plan.decide(self._carried.next_number, self.folder)
        self._carry_is_refused &= job is not None  # what was refused need not be carried any more
        self._carry_pause = CARRY_INTERVAL if job is not None else min(2 * self._carry_pause, LONGEST_CARRY_INTERVAL)
        self.carry_at = self._host.now() + max(self._carry_pause, took * CARRY_SHARE)
        return job

    def end_carry(self, job: CarryJob) -> None:
        """What is needed is in the side file, which is durable. So what it was taken from may go."""
        if self.dropped:
            return
        for load in job.loads:
            self._reader.learn(load)
        self._carry_is_refused = job.is_refused
        if job.error is not None:
            self._carry_rest = min(2 * self._carry_rest, LONGEST_CARRY_INTERVAL)
            self.carry_at = self._host.now() + self._carry_rest
            return
        self._carry_rest = CARRY_INTERVAL / 2
        if not job.frees:  # there is damage: trying again every second would write the same again and again
            self.carry_at = self._host.now() + LONGEST_CARRY_INTERVAL
        if len(job.target):
            self._carried.add(job.target)
        if job.done:
            self._host.remove(self._carried.take_out(job.done))
        if job.epoch == self._epoch:  # else a cursor went back meanwhile, and more may be needed than was known
            self._remove_segments_before(min(job.end, self._passed))

    def carried_messages(self) -> Iterator[tuple[int, int, int]]:
        """(sequence, count, due) of what is in side files; due in milliseconds of the wall clock. Blocks on the disk."""
        for header in self._carried.headers():
            if header.base_sequence < self.first:
                due = header.timestamp // 1_000_000 + header.delay_ms + 1 if header.delay_ms else 0
                yield header.base_sequence, header.count, due

    # Reading

    def batch_at(self, sequence: int) -> Batch | None:
        return (
            self._cache.find(sequence)
            or find_batch(self._recent, sequence)
            or find_batch(self._buffer.batches, sequence)
            or self._cold_batch_at(sequence)
        )

    def _cold_batch_at(self, sequence: int) -> Batch | None:
        if sequence < self.first:
            return self._carried.batch_at(sequence)
        return self._reader.batch_at(sequence)

    def next_readable(self, sequence: int) -> int:
        if sequence < self.first:
            if self._carried and self._carried.holds(sequence):
                return sequence
            sequence = self.first
        return self._reader.next_readable(sequence)

    def end_of_refused(self, sequence: int) -> int:
        return (self._reader if sequence >= self.first else self._carried).refusals.end_of(sequence)

    def ask_again(self, refusals: Refusals) -> None:
        """Reads what the disk has refused for long, if this log was refused it."""
        if self._reader.refusals is refusals:
            self._reader.ask_again()
        elif self._carried.refusals is refusals:
            self._carried.ask_again()

    @property
    def waiting_for_disk(self) -> int:
        """How many reads and jobs of carrying forward are being tried again because the disk refuses to read."""
        return len(self._reader.refusals) + len(self._carried.refusals) + self._carry_is_refused

    def loaded(self, load: AnyLoad) -> None:
        """Takes what a thread has read."""
        if self.dropped:
            return
        if isinstance(load, CarriedLoad):
            self._carried.loaded(load)
        elif isinstance(load, Load):
            self._reader.loaded(load)

    def stretches(self, *, synced: bool) -> list[Stretch]:
        """The segments, as far as they are synced or written."""
        active = self._segments.active
        if active is None:
            return []
        base, size, end = self._unsynced.checkpoint if synced else (active.base, active.size, self._segments.tail)
        segments = [segment for segment in self._segments if segment.base <= base]
        found = [
            Stretch(segment.path, segment.base, following.base, segment.size, None)
            for segment, following in pairwise(segments)
        ]
        if segments and segments[-1].base == base:  # else it is gone
            last = segments[-1]
            index = last.index.copy() if last is active and last.index is not None else None
            found.append(Stretch(last.path, base, end, size, index))
        return found

    def unwritten_times(self) -> list[tuple[int, int]]:
        """(sequence, timestamp) of the batches that still wait in memory."""
        return [(batch.base_sequence, batch.timestamp) for batch in self._buffer.batches]

    def headers_from(self, sequence: int) -> Iterator[Header]:
        """The headers of the records on disk from the one on that holds the sequence. Blocks on the disk."""
        return self._reader.headers_from(sequence)

    # Syncing

    @property
    def synced_tail(self) -> int:
        """Everything before this sequence survives a power cut."""
        return self._unsynced.checkpoint[2]

    @property
    def names_may_be_lost(self) -> bool:
        """Whether the folder is to be synced, and the round that begins does not do it."""
        return bool(self._unsynced.folders)

    @property
    def waits_for_sync(self) -> bool:
        return self._unsynced.is_awaited

    def begin_sync(self) -> SyncJob | None:
        """Take what is to be synced so that everything written so far is durable; None: nothing can be."""
        if self._unsynced.has_failed or self.dropped:
            return None
        return self._unsynced.begin_sync(self._segments)

    def end_sync(self, job: SyncJob) -> bool:
        """Return whether publishers that waited have been answered."""
        if self.dropped:
            return False
        error = self._unsynced.error_of(job, self._segments)
        if error is not None:
            self._unsynced.failed(job)
            self._sync_has_failed(error)
            return True
        answered = self._unsynced.synced(job)
        if self._carry_awaits_sync:
            self._carry_awaits_sync = False
            self._host.wants_carry(self)
        return answered

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """(base of a segment, offset in it, sequence): everything before was synced."""
        return self._unsynced.checkpoint

    # Failure and repair

    @property
    def error(self) -> str | None:
        return self._fault.error

    def creation_failed(self, error: OSError) -> None:
        self._break(error_text("mkdir", self.folder, error))

    def _write_failed(self, text: str) -> None:
        """Take back what could not be written; what was acknowledged stays in the buffer."""
        self.writer.cut_back()
        receipts = self._buffer.roll_back()
        if receipts:
            batches = self._buffer.batches
            self.tail = batches[-1].end_sequence if batches else self._segments.tail
            self._cache.forget_from(self.tail)
        if self._buffer.size:
            self._host.log_buffered(self)
        self._break(text)
        for receipt in receipts:
            receipt.settle(text)

    def _sync_has_failed(self, text: str) -> None:
        """Tell the publishers that wait. What was written stays: it can be read, and may have been delivered."""
        self._break(text)
        for receipt in self._unsynced.take_receipts():
            receipt.settle(text, stays=True)

    def _break(self, text: str) -> None:
        self._fault.begin(text)
        self.writer.close()
        self._host.faults.broken(self, text)

    def _may_try_again(self) -> bool:
        """Whether the log may be written to: once a second a broken one is proven anew.

        It counts as healthy when the first write has gone well.
        """
        if not self._fault.needs_proof:
            return True
        if not self._fault.is_due:
            return False
        try:
            self._prove()
        except OSError as error:
            self._break(error_text("open", error.filename or self.folder, error))
            return False
        self._fault.proven()
        return True

    def try_to_repair(self) -> bool:
        """Prove the log when nobody publishes; the caller knows that there is space again."""
        if self._fault.error is None:
            return True
        if self._fault.is_due and self._may_try_again():
            if self._buffer.size:
                self.write()
            else:
                self._repaired()
        return self.error is None  # the property: a type checker still believes what the field was above

    def _repaired(self) -> None:
        self._fault.end()
        self._host.faults.repaired(self)
        self._host.log_written(self, 0)

    def _prove(self) -> None:
        """Make what is missing of the log's folder, and find out what its segments hold. Raises OSError."""
        if self._fault.identity_is_unsaved:
            self._host.save_identity(self)
            self._fault.identity_is_unsaved = False
        elif self._segments.active is None:
            self._host.make_folder(self)
            self._unsynced.add_new_folder()
        if self._segments.active is None:
            return
        unsynced, fault = self._unsynced, self._fault
        if not prove_segments(
            self._host.files,
            self._segments,
            unsynced.checkpoint,
            doubts_unsynced=unsynced.has_failed,
            gives_up=lambda: fault.is_lasting,
        ):
            # Something cannot be read. It is lost, but not forgotten: its sequences are not given again.
            self._roll(self._segments.tail)
        unsynced.has_failed = False

    # The end

    def close(self) -> None:
        """Gives back descriptors; what was not written is gone."""
        self.writer.close()
        for path in [*(segment.path for segment in self._segments), *(file.path for file in self._carried.files)]:
            self._host.descriptors.forget(path)

    def drop(self, reason: str) -> None:
        """The topic is deleted. Publishers that still wait are told."""
        self.dropped = True
        _, receipts = self._buffer.take_all()
        receipts += self._unsynced.take_receipts()
        # The broker's alarms may remember a channel, and through it this log, for as long as the longest delay.
        self._cache.forget_before(self.tail)
        self._recent = []
        self.close()
        self._host.faults.repaired(self)
        for receipt in receipts:
            receipt.settle(reason)
