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

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from errno import ENOENT
from itertools import pairwise, takewhile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.ack import Ack
from nsqd.log.carried import Carried, CarriedLoad
from nsqd.log.carry import MOST_MARKED, CarryJob, CarryPlan, Ended
from nsqd.log.cold import Load
from nsqd.log.cold_reader import ColdReader, ReadingHost
from nsqd.log.data_path import LOG_JSON
from nsqd.log.files import MOST_BUFFERS, close_quietly, error_text
from nsqd.log.proof import NOTHING, prove_segment
from nsqd.log.reading import READ_PATIENCE, ReadRefused
from nsqd.log.record import HEADER_SIZE, INDEX_INTERVAL, Header, encode_header
from nsqd.log.segment import LOG_SUFFIX, Index, Segment, Stretch, segment_name
from nsqd.log.segment_list import SegmentList
from nsqd.log.sync_job import SyncJob
from nsqd.log.tail_cache import TailCache, find_batch

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.log.cold import AnyLoad
    from nsqd.log.faults import Faults
    from nsqd.log.log_state import LogState
    from nsqd.log.reading import Refusals
    from nsqd.log.settings import LogSettings
    from nsqd.log.space import Space

RETRY_AFTER: Final = 1.0  # seconds from a failure until the disk is tried again
CARRY_INTERVAL: Final = 1.0  # seconds between two looks for what can be carried forward, while there is something
LONGEST_CARRY_INTERVAL: Final = 60.0  # when there was nothing for a while
CARRY_SHARE: Final = 100  # one part of this many of the processor's time may go into looking
BUFFER_BYTES: Final = 1 << 20  # what acknowledged messages may wait for in memory, for at most 100 ms


class LogHost(ReadingHost, Protocol):
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

    def log_opened(self, log: DiskLog) -> None:
        """The log holds a descriptor."""

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
        self._files = host.files
        self._write_at = host.files.write_at
        self._ack = settings.ack_of(topic)
        self._max_bytes = settings.max_bytes_per_file
        self.retention = settings.retention_of(topic)
        self._is_retention_own = topic in settings.topic_retention
        self._key_window = settings.idempotence_window
        self.keys = state.keys

        # What was appended and not yet written: two buffers for each batch.
        self._buffers: list[bytes] = []
        self._buffered = 0
        self._unwritten: list[Batch] = []
        self._receipts: list[Receipt] = []
        self._is_dirty = False

        self._segments = SegmentList(state.segments, state.tail)
        self._descriptor = -1  # of the active segment, if it is open
        self._indexed_at = self._last_index_offset()
        self._used = False  # written to since the last look at who is idle

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

        self._synced = state.synced
        self._files_to_sync: list[Path] = list(state.unsynced_files)
        self._folders_to_sync: list[Path] = list(state.unsynced_folders)
        self._sealed_indexes: list[Segment] = []
        # Ascending. A list, as an empty deque takes 600 bytes, and most topics have nobody who waits.
        self._unsynced_receipts: list[tuple[int, Receipt]] = []

        self._refusal: str | None = None  # of this turn
        self._error: str | None = None
        self._broken_at = 0.0
        self._retry_at = 0.0
        self._sync_failed = False
        self._identity_is_unsaved = False
        if state.unsaved_identity is not None:
            self._identity_is_unsaved = True
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
            broken = self._error is not None and not self._may_try_again()
            self._refusal = self._error if broken else self._host.space.refusal(size)
            if self._refusal is not None:
                self._wants_write()
        return self._refusal

    def append(self, batch: Batch, receipt: Receipt) -> None:
        payload = batch.payload
        refusal = self._refuses(HEADER_SIZE + len(payload) + len(batch.key))
        if refusal is not None:
            receipt.settle(refusal)
            return
        key = batch.key
        if key:
            payload = key + payload
        buffers = self._buffers
        buffers.append(encode_header(batch, payload, len(key)))
        buffers.append(payload)
        self._buffered += HEADER_SIZE + len(payload)
        self._unwritten.append(batch)
        self._cache.add(batch)
        self.tail = batch.base_sequence + batch.count
        # A log that is broken acknowledges nothing before it is written, or it would promise what a full disk cannot keep.
        if self._ack is Ack.MEMORY and self._error is None:
            self._append_acknowledged(receipt)
            return
        self._receipts.append(receipt)
        self._wants_write()

    def _append_acknowledged(self, receipt: Receipt) -> None:
        receipt.settle()
        self._host.log_buffered(self)
        if self._buffered > BUFFER_BYTES:
            self._wants_write()

    def _wants_write(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._host.dirty.append(self)

    @property
    def unwritten_bytes(self) -> int:
        return self._buffered

    def write(self) -> None:
        """Moves the buffer to the file, with one system call unless a segment ends in between."""
        self._is_dirty = False
        self._refusal = None
        buffers = self._buffers
        size = self._buffered
        segment = self._segments.active
        if not size:
            return
        if self._error is not None and not self._may_try_again():
            self._host.log_buffered(self)  # what was acknowledged waits on
            return
        if segment is None or segment.size + size > self._max_bytes:
            self._write_over_segments()
            return
        if self._write_to(segment, buffers, size):
            batches, self._unwritten = self._unwritten, []
            receipts, self._receipts = self._receipts, []
            self._buffers = []
            self._buffered = 0
            self._take_over(segment, size, batches, receipts)

    def _write_to(self, segment: Segment, buffers: list[bytes], size: int) -> bool:
        try:
            descriptor = self._descriptor
            if descriptor < 0:
                descriptor = self._open(segment)
            offset = segment.size
            if len(buffers) > MOST_BUFFERS or self._write_at(descriptor, buffers, offset) != size:
                self._files.write_fully(descriptor, buffers, offset)  # what was written is written again
        except OSError as error:
            self._write_failed(error_text("write", segment.path, error))
            return False
        return True

    def _write_over_segments(self) -> None:
        """Puts each batch where it still fits: a segment exceeds its bound only if a single record does."""
        while self._unwritten:
            segment = self._segments.active
            room = self._max_bytes - segment.size if segment is not None else 0
            count = size = 0
            for batch in self._unwritten:
                record = _record_size(batch)
                if size + record > room and (size or segment is None or segment.size):
                    break
                size += record
                count += 1
            if not count or segment is None:
                try:
                    self._roll(self._unwritten[0].base_sequence)
                except OSError as error:
                    name = self.folder / segment_name(self._unwritten[0].base_sequence)
                    self._write_failed(error_text("open", name, error))
                    return
                continue
            if not self._write_to(segment, self._buffers[: 2 * count], size):
                return
            acknowledged = len(self._unwritten) - len(self._receipts)  # they come first
            batches, self._unwritten = self._unwritten[:count], self._unwritten[count:]
            settled = max(0, count - acknowledged)
            receipts, self._receipts = self._receipts[:settled], self._receipts[settled:]
            del self._buffers[: 2 * count]
            self._buffered -= size
            self._take_over(segment, size, batches, receipts)

    def _take_over(self, segment: Segment, size: int, batches: list[Batch], receipts: list[Receipt]) -> None:
        """The batches are in the file."""
        if segment.size + size - self._indexed_at > INDEX_INTERVAL:
            self._add_to_index(segment, batches)
        segment.size += size
        self._segments.tail = batches[-1].end_sequence
        segment.newest = max(segment.newest, batches[-1].timestamp)
        if self._key_window and any(batch.key for batch in batches):
            segment.keyed = max(segment.keyed, batches[-1].timestamp)
        self._used = True
        if self._error is not None:
            self._repaired()
        if self._ack is not Ack.SYNCED:
            for receipt in receipts:
                receipt.settle()
        else:
            self._unsynced_receipts.extend(
                (batch.base_sequence + batch.count, receipt) for batch, receipt in zip(batches, receipts, strict=True)
            )
        self._host.log_written(self, batches[-1].end_sequence - batches[0].base_sequence)
        if self._cache.is_too_big:
            self._cache.shrink()
        # What was written just now is about to be handed over, also if there is no cache to speak of.
        self._recent = batches if self._cache.start > batches[0].base_sequence else []

    def _add_to_index(self, segment: Segment, batches: list[Batch]) -> None:
        index = segment.index
        if index is None:
            index = segment.index = Index()
        position = segment.size
        for batch in batches:
            if position - self._indexed_at >= INDEX_INTERVAL:
                index.add(batch.base_sequence, position)
                self._indexed_at = position
            position += _record_size(batch)

    def _last_index_offset(self) -> int:
        index = self._segments.active.index if self._segments.active is not None else None
        return index.offsets[-1] if index else 0

    # Files

    def _open(self, segment: Segment) -> int:
        self._descriptor = self._files.open_to_write(segment.path)
        self._host.log_opened(self)
        return self._descriptor

    def take_used(self) -> bool:
        """Whether it was written to since the last call."""
        used, self._used = self._used, False
        return used

    def close_descriptor(self) -> bool:
        """Closes the file until the next write; says whether it was open."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return False
        close_quietly(self._files, descriptor)
        return True

    def _roll(self, base: int) -> None:
        """Begins a new segment. The old one is synced before the new one, so a gap in between is real damage."""
        path = self.folder / segment_name(base)
        descriptor = self._files.open_to_write(path)
        active = self._segments.active
        if active is not None:
            self.close_descriptor()
            if active.path not in self._files_to_sync:
                self._files_to_sync.append(active.path)
            self._sealed_indexes.append(active)
        self._segments.add(Segment(path, base, 0, Index()))
        self.first = self._segments.first
        self._descriptor = descriptor
        self._host.log_opened(self)
        self._indexed_at = 0
        if self.folder not in self._folders_to_sync:
            self._folders_to_sync.append(self.folder)
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
        if active is None or not active.size or self._buffers:
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
        self._sealed_indexes = [segment for segment in self._sealed_indexes if segment not in gone]
        for segment in gone:
            self._host.descriptors.forget(segment.path)
        self._host.remove([path for segment in gone for path in (segment.path, segment.index_path)])

    # Carrying forward

    def begin_carry(self) -> CarryPlan | None:
        """What is to be looked at; the plan is to be told of every message that waits. None: there is nothing.

        Only of what is synced: a segment that is there again after a power cut, as its removal was not lasting yet, is
        read before the side file. So it has to be as good.
        """
        if self.dropped or self._error is not None:
            return None
        unwanted = self._unwanted_before(self._age_now())
        ended = self._segments.ended_before(min(self._passed, unwanted, self.first + MOST_MARKED))
        unsynced = self._files_to_sync  # after a start without a checkpoint also what lies before the synced tail
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
            or find_batch(self._unwritten, sequence)
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
        base, size, end = self._synced if synced else (active.base, active.size, self._segments.tail)
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
        return [(batch.base_sequence, batch.timestamp) for batch in self._unwritten]

    def headers_from(self, sequence: int) -> Iterator[Header]:
        """The headers of the records on disk from the one on that holds the sequence. Blocks on the disk."""
        return self._reader.headers_from(sequence)

    # Syncing

    @property
    def synced_tail(self) -> int:
        """Everything before this sequence survives a power cut."""
        return self._synced[2]

    @property
    def names_may_be_lost(self) -> bool:
        """The folder is to be synced, and the round that begins does not do it."""
        return bool(self._folders_to_sync)

    @property
    def waits_for_sync(self) -> bool:
        return bool(self._unsynced_receipts)

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced so that everything written so far is durable; None: nothing can be."""
        active = self._segments.active
        if self._sync_failed or self.dropped:
            return None
        job = SyncJob(
            log=self,
            files=self._files_to_sync,
            folders=self._folders_to_sync,
            indexes=[],
            base=active.base if active is not None else 0,
            offset=active.size if active is not None else 0,
            sequence=self._segments.tail,
        )
        if active is not None:
            if active.path not in job.files and (active.base, active.size) != self._synced[:2]:
                job.files.append(active.path)
            job.indexes = [entries for segment in (*self._sealed_indexes, active) if (entries := _unsaved(segment))]
        self._files_to_sync = []
        self._folders_to_sync = []
        self._sealed_indexes = []
        return job

    def end_sync(self, job: SyncJob) -> bool:
        """Says whether publishers that waited have been answered."""
        if self.dropped:
            return False
        error = job.error or self._error_of_missing(job)
        if error is not None:
            self._files_to_sync = [*job.files, *(path for path in self._files_to_sync if path not in job.files)]
            self._folders_to_sync = [*job.folders, *(f for f in self._folders_to_sync if f not in job.folders)]
            self._sync_has_failed(error)
            return True
        self._synced = (job.base, job.offset, job.sequence)
        if self._carry_awaits_sync:
            self._carry_awaits_sync = False
            self._host.wants_carry(self)
        return self._settle_synced(job.sequence)

    def _error_of_missing(self, job: SyncJob) -> str | None:
        """Nobody but us may remove what was to be synced: then it is not where it was written, and nothing is durable.

        Without a segment nothing was written: the log's folder could not be made yet.
        """
        if self._segments.active is None:
            return None
        segments = {segment.path for segment in self._segments}
        for path in job.missing:
            was_released = path.suffix == LOG_SUFFIX and path not in segments
            if not was_released:
                return error_text("fsync", path, FileNotFoundError(ENOENT, os.strerror(ENOENT)))
        return None

    def _settle_synced(self, sequence: int) -> bool:
        waiting = self._unsynced_receipts
        count = bisect_right(waiting, sequence, key=itemgetter(0))
        settled, self._unsynced_receipts = waiting[:count], waiting[count:]
        for _, receipt in settled:
            receipt.settle()
        return bool(settled)

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """(base of a segment, offset in it, sequence): everything before was synced."""
        return self._synced

    # Failure and repair

    def _roll_back(self) -> list[Receipt]:
        """Takes back what could not be written. What was acknowledged before it stays in the buffer."""
        receipts, self._receipts = self._receipts, []
        if receipts:
            kept = len(self._unwritten) - len(receipts)
            self.tail = self._unwritten[kept].base_sequence
            del self._unwritten[kept:]
            del self._buffers[2 * kept :]
            self._buffered = sum(map(len, self._buffers))
            self._cache.forget_from(self.tail)
        if self._unwritten:
            self._host.log_buffered(self)
        return receipts

    @property
    def error(self) -> str | None:
        return self._error

    def creation_failed(self, error: OSError) -> None:
        self._break(error_text("mkdir", self.folder, error))

    def _write_failed(self, text: str) -> None:
        descriptor = self._descriptor
        if descriptor >= 0 and self._segments.active is not None:
            try:
                self._files.truncate(descriptor, self._segments.active.size)
            except OSError:  # then before the next append
                pass
        receipts = self._roll_back()
        self._break(text)
        for receipt in receipts:
            receipt.settle(text)

    def _sync_has_failed(self, text: str) -> None:
        """What was written and not synced stays: it can be read, and may have been delivered. Publishers that wait receive the error."""
        self._sync_failed = True
        self._break(text)
        waiting, self._unsynced_receipts = self._unsynced_receipts, []
        for _, receipt in waiting:
            receipt.settle(text, stays=True)

    def _break(self, text: str) -> None:
        if self._error is None:
            self._broken_at = self._host.now()
        self._error = text
        self._retry_at = self._host.now() + RETRY_AFTER
        self.close_descriptor()
        self._host.faults.broken(self, text)

    def _may_try_again(self) -> bool:
        """Whether the log may be written to: once a second a broken one is proven anew.

        It counts as healthy when the first write has gone well.
        """
        if self._retry_at == 0.0:
            return True
        if self._host.now() < self._retry_at:
            return False
        try:
            self._prove()
        except OSError as error:
            self._break(error_text("open", error.filename or self.folder, error))
            return False
        self._retry_at = 0.0
        return True

    def try_to_repair(self) -> bool:
        """Proves the log when nobody publishes; the caller knows that there is space again."""
        if self._error is None:
            return True
        if self._host.now() >= self._retry_at and self._may_try_again():
            if self._unwritten:
                self.write()
            else:
                self._repaired()
        return self.error is None  # the property: a type checker still believes what the field was above

    def _repaired(self) -> None:
        self._error = None
        self._retry_at = 0.0
        self._host.faults.repaired(self)
        self._host.log_written(self, 0)

    def _prove(self) -> None:
        """Reads again what is in doubt: the active segment's end, and after a failed sync all that was not synced."""
        if self._identity_is_unsaved:
            self._host.save_identity(self)
            self._identity_is_unsaved = False
        elif self._segments.active is None:
            self._host.make_folder(self)
            # A round may have come by when there was nothing to sync yet.
            self._files_to_sync = [self.folder / LOG_JSON]
            self._folders_to_sync = [self.folder, self.folder.parent]
        if self._segments.active is None:
            return
        base, synced_offset, _ = self._synced
        proven = True
        for segment in self._segments:
            end = self._segments.end_of(segment)
            if self._sync_failed and segment.base >= base:
                proven &= self._prove_segment(segment, end, synced_offset if segment.base == base else 0)
            elif segment is self._segments.active:
                proven &= self._prove_segment(segment, end, NOTHING)
        if not proven:
            # Something cannot be read. It is lost, but not forgotten: its sequences are not given again.
            self._roll(self._segments.tail)
        self._sync_failed = False

    def _prove_segment(self, segment: Segment, end: int, rewrite_from: int) -> bool:
        try:
            return prove_segment(self._files, segment, end=end, rewrite_from=rewrite_from)
        except ReadRefused:
            if self._host.now() - self._broken_at < READ_PATIENCE:
                raise
        return False  # it stays as it is, and publishing goes on behind it

    # The end

    def close(self) -> None:
        """Gives back descriptors; what was not written is gone."""
        self.close_descriptor()
        for path in [*(segment.path for segment in self._segments), *(file.path for file in self._carried.files)]:
            self._host.descriptors.forget(path)

    def drop(self, reason: str) -> None:
        """The topic is deleted. Publishers that still wait are told."""
        self.dropped = True
        receipts = [*self._receipts, *(receipt for _, receipt in self._unsynced_receipts)]
        self._receipts = []
        self._unsynced_receipts = []
        self._unwritten = []
        self._buffers = []
        self._buffered = 0
        # The broker's alarms may remember a channel, and through it this log, for as long as the longest delay.
        self._cache.forget_before(self.tail)
        self._recent = []
        self.close()
        self._host.faults.repaired(self)
        for receipt in receipts:
            receipt.settle(reason)


def _record_size(batch: Batch) -> int:
    return HEADER_SIZE + len(batch.key) + len(batch.payload)


def _unsaved(segment: Segment) -> tuple[Path, bytes, int] | None:
    """The index entries that are not in the index's file, for a SyncJob."""
    index = segment.index
    if index is None or index.saved == len(index):
        return None
    entries = (segment.index_path, index.encode_unsaved(), index.saved)
    index.saved = len(index)
    return entries
