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

import errno
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nsqd.log.cold import ColdBlock, ColdBlocks, Damaged, Load, ReadDescriptors, Start, read_block, salvaging
from nsqd.log.data_path import write_log_json
from nsqd.log.files import MOST_BUFFERS, Files, error_text
from nsqd.log.record import HEADER_SIZE, INDEX_INTERVAL, Header, encode_header
from nsqd.log.segment import Hole, Index, Segment, Walk, save_index, segment_name
from nsqd.log.settings import Ack, LogSettings
from nsqd.log.tail_cache import TailCache, find_batch

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt

RETRY_AFTER: Final = 1.0  # seconds from a failure until the disk is tried again
BUFFER_BYTES: Final = 1 << 20  # what acknowledged messages may wait for in memory, for at most 100 ms

_segment_base: Final = attrgetter("base")


class LogHost(Protocol):
    """What a log asks of the store that it belongs to."""

    files: Files
    settings: LogSettings
    descriptors: ReadDescriptors
    dirty: list[DiskLog]  # to be written in this turn
    reads_cache: bool  # whether the file system tells what the page cache holds

    def now(self) -> float: ...

    def log_buffered(self, log: DiskLog) -> None: ...

    def log_written(self, log: DiskLog, messages: int) -> None: ...

    def log_opened(self, log: DiskLog) -> None: ...

    def log_reads_cold(self, log: DiskLog) -> None: ...

    def load(self, load: Load) -> None: ...

    def remove(self, segments: list[Segment]) -> None: ...

    def broken(self, source: object, text: str) -> None: ...

    def repaired(self, source: object) -> None: ...

    def damaged(self, log: DiskLog, load: Load) -> None: ...


@dataclass(slots=True)
class SyncJob:
    """What the committer has to do to make a log durable up to `sequence`."""

    log: DiskLog
    files: list[Path]
    folders: list[Path]
    indexes: list[tuple[Path, bytes, int]]  # path, entries to add, how many are there
    base: int  # of the active segment
    offset: int  # in it
    sequence: int
    error: str | None = None

    def perform(self, files: Files) -> None:
        for path, data, saved in self.indexes:
            try:
                save_index(files, path, data, saved=saved)
            except OSError:  # the index can always be made again
                pass
        for path in self.files:
            try:
                files.sync_path(path)
            except FileNotFoundError:  # the topic was deleted meanwhile
                pass
            except OSError as error:
                self.error = error_text("fsync", path, error)
                return
        for path in self.folders:
            try:
                files.sync_folder(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.error = error_text("fsync", path, error)
                return


@dataclass(slots=True)
class LogState:
    """A log as recovery found it, or a new one."""

    log_id: str
    segments: list[Segment] = field(default_factory=list)  # the last one is written on
    tail: int = 0
    synced: tuple[int, int, int] = (0, 0, 0)  # base of a segment, offset in it, sequence: on disk before the start
    holes: list[Hole] = field(default_factory=list)
    unsynced_files: list[Path] = field(default_factory=list)
    unsynced_folders: list[Path] = field(default_factory=list)


class DeferredBatch(NamedTuple):
    base_sequence: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    timestamp: int
    delay_ms: int


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
        self._files = host.files
        self._write_at = host.files.write_at
        self._ack = settings.ack_of(topic)
        self._max_bytes = settings.max_bytes_per_file

        # What was appended and not yet written: two buffers for each batch.
        self._buffers: list[bytes] = []
        self._buffered = 0
        self._unwritten: list[Batch] = []
        self._receipts: list[Receipt] = []
        self._is_dirty = False

        self._segments = state.segments
        self._active: Segment | None = state.segments[-1] if state.segments else None
        self._descriptor = -1
        self._indexed_at = self._last_index_offset()
        self._released = 0
        self._holes: list[tuple[int, int]] = sorted((hole.first, hole.end) for hole in state.holes)
        self._behind_holes: dict[int, tuple[int, int]] = {}  # sequence -> base of its segment, offset
        self._used = False  # written to since the last look at who is idle

        self._cache = TailCache(state.tail, most_messages=settings.mem_queue_size, most_bytes=settings.mem_queue_bytes)
        self._recent: list[Batch] = []  # of the last write, if the cache is too small for it
        self._cold: ColdBlocks | None = None
        self._loading: set[int] = set()

        self._synced = state.synced
        self._files_to_sync: list[Path] = list(state.unsynced_files)
        self._folders_to_sync: list[Path] = list(state.unsynced_folders)
        self._sealed_indexes: list[Segment] = []
        self._unsynced_receipts: deque[tuple[int, Receipt]] = deque()
        self._is_unsynced = False

        self._error: str | None = None
        self._retry_at = 0.0
        self._sync_failed = False

    def __repr__(self) -> str:
        return f"<DiskLog {self.topic} [{self.first}, {self.tail})>"

    @property
    def cached_from(self) -> int:
        return self._cache.start

    @property
    def _written_tail(self) -> int:
        return self._unwritten[0].base_sequence if self._unwritten else self.tail

    # Publishing

    def has_room(self, count: int, size: int) -> bool:
        """Always: what does not fit into memory is on disk."""
        return True

    def append(self, batch: Batch, receipt: Receipt) -> None:
        if self._error is not None and not self._may_try_again():
            receipt.settle(self._error)
            return
        payload = batch.payload
        buffers = self._buffers
        buffers.append(encode_header(batch, payload))
        buffers.append(payload)
        self._buffered += HEADER_SIZE + len(payload)
        self._unwritten.append(batch)
        self._cache.add(batch)
        self.tail = batch.base_sequence + batch.count
        if self._ack is Ack.MEMORY:
            self._append_acknowledged(receipt)
            return
        self._receipts.append(receipt)
        if not self._is_dirty:
            self._is_dirty = True
            self._host.dirty.append(self)

    def _append_acknowledged(self, receipt: Receipt) -> None:
        receipt.settle()
        if len(self._unwritten) == 1:
            self._host.log_buffered(self)
        if self._buffered > BUFFER_BYTES and not self._is_dirty:
            self._is_dirty = True
            self._host.dirty.append(self)

    def write(self) -> None:
        """Moves the buffer to the file, with one system call unless a segment ends in between."""
        self._is_dirty = False
        buffers = self._buffers
        size = self._buffered
        segment = self._active
        if not size or (self._error is not None and not self._may_try_again()):
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
            segment = self._active
            room = self._max_bytes - segment.size if segment is not None else 0
            count = size = 0
            for batch in self._unwritten:
                record = HEADER_SIZE + len(batch.payload)
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
            batches, self._unwritten = self._unwritten[:count], self._unwritten[count:]
            receipts, self._receipts = self._receipts[:count], self._receipts[count:]
            del self._buffers[: 2 * count]
            self._buffered -= size
            self._take_over(segment, size, batches, receipts)

    def _take_over(self, segment: Segment, size: int, batches: list[Batch], receipts: list[Receipt]) -> None:
        """The batches are in the file."""
        if segment.size + size - self._indexed_at > INDEX_INTERVAL:
            self._add_to_index(segment, batches)
        segment.size += size
        self._used = True
        if self._error is not None:
            self._repaired()
        if self._ack is Ack.WRITTEN:
            for receipt in receipts:
                receipt.settle()
        elif self._ack is Ack.SYNCED:
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
            position += HEADER_SIZE + len(batch.payload)

    def _last_index_offset(self) -> int:
        index = self._active.index if self._active is not None else None
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
        self._files.close(descriptor)
        return True

    def _roll(self, base: int) -> None:
        """Begins a new segment. The old one is synced before the new one, so a gap in between is real damage."""
        path = self.folder / segment_name(base)
        descriptor = self._files.open_to_write(path)
        if self._active is not None:
            self.close_descriptor()
            if self._active.path not in self._files_to_sync:
                self._files_to_sync.append(self._active.path)
            self._sealed_indexes.append(self._active)
        if not self._segments:
            self.first = base
        self._descriptor = descriptor
        self._host.log_opened(self)
        self._active = Segment(path, base, 0, Index())
        self._segments.append(self._active)
        self._indexed_at = 0
        if self.folder not in self._folders_to_sync:
            self._folders_to_sync.append(self.folder)

    def release(self, sequence: int) -> None:
        if sequence <= self._released:
            return
        self._released = sequence
        self._cache.forget_before(sequence)
        if self._recent and self._recent[-1].end_sequence <= sequence:
            self._recent = []
        active = self._active
        if sequence == self.tail and active is not None and active.size > self._max_bytes // 4 and not self._buffers:
            # Everything is finished. A new, empty segment keeps the tail, and the space of this one is free again.
            try:
                self._roll(self.tail)
                self._host.log_written(self, 0)
            except OSError:
                pass
        self._remove_segments_before(sequence)

    def _remove_segments_before(self, sequence: int) -> None:
        segments = self._segments
        if len(segments) < 2 or segments[1].base > sequence:
            return
        count = bisect_right(segments, sequence, key=_segment_base) - 1
        gone = segments[:count]
        del segments[:count]
        self.first = segments[0].base
        self._holes = [hole for hole in self._holes if hole[1] > self.first]
        self._behind_holes = {end: place for end, place in self._behind_holes.items() if end > self.first}
        self._sealed_indexes = [segment for segment in self._sealed_indexes if segment not in gone]
        for segment in gone:
            self._host.descriptors.forget(segment.path)
        self._host.remove(gone)

    # Reading

    def batch_at(self, sequence: int) -> Batch | None:
        return (
            self._cache.find(sequence)
            or find_batch(self._recent, sequence)
            or find_batch(self._unwritten, sequence)
            or self._cold_batch(sequence)
        )

    def next_readable(self, sequence: int) -> int:
        sequence = max(sequence, self.first)
        for first, end in self._holes:
            if first <= sequence < end:
                sequence = end
        return sequence

    def _cold_batch(self, sequence: int) -> Batch | None:
        cold = self._cold
        if cold is None:
            cold = self._cold = ColdBlocks()
            self._host.log_reads_cold(self)
        segment = self._segments[self._place_of(sequence)]
        start: Start | None = None
        try:
            block = cold.find(sequence)
            if block is None:
                start = self._start_of(sequence, segment)
                if start is None or not self._host.reads_cache:
                    self._load(sequence, segment, start)
                    return None
                block = self._read_cached(segment, start, sequence)
                cold.add(block)
            return block.batch_at(sequence)
        except Damaged as damage:
            start = Start(damage.sequence, damage.offset)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                self._host.reads_cache = False
        self._load(sequence, segment, start)
        return None

    def _start_of(self, sequence: int, segment: Segment) -> Start | None:
        if sequence == segment.base:
            return Start(sequence, 0)
        assert self._cold is not None
        base, offset = self._behind_holes.get(sequence, (-1, 0))
        if base == segment.base:
            return Start(sequence, offset)
        start = self._cold.start_of(sequence, segment)
        if start is None and segment.index is not None:
            start = Start(*(segment.index.locate(sequence) or (segment.base, 0)))
        return start

    def _read_cached(self, segment: Segment, start: Start, sequence: int) -> ColdBlock:
        descriptor = self._host.descriptors.get(segment.path)
        read_cached_at = self._files.read_cached_at

        def read(offset: int, size: int) -> bytes:
            return read_cached_at(descriptor, size, offset)

        return read_block(read, segment.base, start, segment.size, sequence)

    def _place_of(self, sequence: int) -> int:
        return max(bisect_right(self._segments, sequence, key=_segment_base) - 1, 0)

    def _written_end(self, segment: Segment) -> int:
        """The sequence at which the segment's records end."""
        if segment is not self._active:
            return self._segments[self._segments.index(segment) + 1].base
        return self._written_tail

    def _load(self, sequence: int, segment: Segment, start: Start | None) -> None:
        if sequence not in self._loading:
            self._loading.add(sequence)
            self._host.load(Load(self.topic, sequence, segment, end=self._written_end(segment), start=start))

    def loaded(self, load: Load) -> None:
        """Takes what a thread has read; the asker may come again."""
        self._loading.discard(load.sequence)
        segment = load.segment
        if self.dropped or segment not in self._segments:
            return
        if load.index is not None and segment.index is None:
            segment.index = load.index
        if load.index_is_bad_at is not None and segment.index is not None and segment is not self._active:
            segment.index.cut(load.index_is_bad_at)
        if load.block is not None:
            if self._cold is None:
                self._cold = ColdBlocks()
                self._host.log_reads_cold(self)
            self._cold.add(load.block)
        load.holes = [hole for hole in load.holes if (hole.first, hole.end) not in self._holes]
        for hole in load.holes:
            insort(self._holes, (hole.first, hole.end))
            self._behind_holes[hole.end] = (segment.base, hole.end_offset)
        if load.holes:
            self._host.damaged(self, load)

    def forget_cold(self) -> bool:
        """Drops what was read and is not being read any more; says whether nothing is left."""
        cold = self._cold
        if cold is None:
            return True
        if cold.used:
            cold.used = False
            return False
        self._cold = None
        for segment in self._segments:
            if segment is not self._active and segment not in self._sealed_indexes:
                segment.index = None
        return True

    def headers_from(self, sequence: int) -> Iterator[Header]:
        """The headers of the records on disk from the one on that holds `sequence`. Blocks on the disk."""
        for segment in self._segments[self._place_of(sequence) :]:
            index = segment.index
            start = Start(*((index.locate(sequence) if index else None) or (segment.base, 0)))
            descriptor = self._files.open_to_read(segment.path)
            try:
                walk = Walk(
                    salvaging(self._files, descriptor),
                    offset=start.offset,
                    sequence=start.sequence,
                    end=segment.size,
                    verify=False,
                    next_base=self._written_end(segment),
                )
                for block in walk.blocks():
                    for _, header in block.headers:
                        if header.end_sequence > sequence:
                            yield header
            finally:
                self._files.close(descriptor)

    def deferred_after(self, sequence: int) -> Iterator[DeferredBatch]:
        """The deferred batches at or after `sequence`."""
        for header in self.headers_from(sequence):
            if header.delay_ms:
                yield DeferredBatch(header.base_sequence, header.count, header.timestamp, header.delay_ms)

    # Syncing

    @property
    def synced_tail(self) -> int:
        """Everything before this sequence survives a power cut."""
        return self._synced[2]

    @property
    def waits_for_sync(self) -> bool:
        return bool(self._unsynced_receipts)

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced so that everything written so far is durable; None: nothing can be."""
        active = self._active
        if self._sync_failed or self.dropped:
            return None
        job = SyncJob(
            log=self,
            files=self._files_to_sync,
            folders=self._folders_to_sync,
            indexes=[],
            base=active.base if active is not None else 0,
            offset=active.size if active is not None else 0,
            sequence=self._written_tail,
        )
        if active is not None:
            if active.path not in job.files and (active.base, active.size) != self._synced[:2]:
                job.files.append(active.path)
            for segment in (*self._sealed_indexes, active):
                index = segment.index
                if index is not None and index.saved < len(index):
                    job.indexes.append((segment.index_path, index.encode_unsaved(), index.saved))
                    index.saved = len(index)
        self._files_to_sync = []
        self._folders_to_sync = []
        self._sealed_indexes = []
        return job

    def end_sync(self, job: SyncJob) -> bool:
        """Says whether publishers that waited have been answered."""
        if self.dropped:
            return False
        if job.error is not None:
            self._files_to_sync = [*job.files, *(path for path in self._files_to_sync if path not in job.files)]
            self._folders_to_sync = [*job.folders, *(f for f in self._folders_to_sync if f not in job.folders)]
            self._sync_has_failed(job.error)
            return True
        self._synced = (job.base, job.offset, job.sequence)
        return self._settle_synced(job.sequence)

    def _settle_synced(self, sequence: int) -> bool:
        waiting = self._unsynced_receipts
        answered = False
        while waiting and waiting[0][0] <= sequence:
            waiting.popleft()[1].settle()
            answered = True
        return answered

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """(base of a segment, offset in it, sequence): everything before was synced."""
        return self._synced

    # Failure and repair

    def _roll_back(self) -> list[Receipt]:
        """Takes back what could not be written."""
        receipts, self._receipts = self._receipts, []
        self.tail = self._unwritten[0].base_sequence
        self._unwritten = []
        self._buffers = []
        self._buffered = 0
        self._cache.forget_from(self.tail)
        return receipts

    @property
    def error(self) -> str | None:
        return self._error

    def creation_failed(self, error: OSError) -> None:
        self._break(error_text("mkdir", self.folder, error))

    def _write_failed(self, text: str) -> None:
        descriptor = self._descriptor
        if descriptor >= 0 and self._active is not None:
            try:
                self._files.truncate(descriptor, self._active.size)
            except OSError:  # then before the next append
                pass
        receipts: list[Receipt] = []
        if self._ack is not Ack.MEMORY:  # those were promised; they stay in the buffer
            receipts = self._roll_back()
        self._break(text)
        for receipt in receipts:
            receipt.settle(text)

    def _sync_has_failed(self, text: str) -> None:
        """What was written and not synced stays: it can be read, and may have been delivered. Who waits is told."""
        self._sync_failed = True
        self._break(text)
        waiting = self._unsynced_receipts
        while waiting:
            waiting.popleft()[1].settle(text)

    def _break(self, text: str) -> None:
        self._error = text
        self._retry_at = self._host.now() + RETRY_AFTER
        self._close_quietly()
        self._host.broken(self, text)

    def _close_quietly(self) -> None:
        try:
            self.close_descriptor()
        except OSError:
            pass

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
        return self._error is None

    def _repaired(self) -> None:
        self._error = None
        self._retry_at = 0.0
        self._host.repaired(self)
        self._host.log_written(self, 0)

    def _prove(self) -> None:
        """Reads the end of the log again: what is there must be what was written, and nothing behind it.

        After a failed sync the kernel takes pages for clean that never reached the disk, so what was not synced is
        written once more.
        """
        if self._active is None:
            write_log_json(self._files, self.folder, self.topic, self.log_id, durable=False)
            return
        base, synced_offset, _ = self._synced
        unsynced = [segment for segment in self._segments if segment.base >= base] if self._sync_failed else []
        for segment in unsynced or [self._active]:
            offset = synced_offset if segment.base == base and self._sync_failed else 0
            if not self._prove_segment(segment, offset):
                # It cannot be read. What was in it is lost, but not forgotten, and its sequences are not given again.
                self._roll(self._written_tail)
                break
        self._sync_failed = False

    def _prove_segment(self, segment: Segment, synced_offset: int) -> bool:
        files = self._files
        descriptor = files.open_to_write(segment.path)
        try:
            if files.size(descriptor) > segment.size:
                files.truncate(descriptor, segment.size)
            start = Start(segment.base, 0)
            if segment.index:
                start = Start(segment.index.sequences[-1], segment.index.offsets[-1])
                if self._sync_failed:
                    start = next(
                        (
                            Start(sequence, offset)
                            for sequence, offset in zip(
                                reversed(segment.index.sequences), reversed(segment.index.offsets), strict=True
                            )
                            if offset <= synced_offset
                        ),
                        Start(segment.base, 0),
                    )
            read = salvaging(files, descriptor)
            walk = Walk(read, offset=start.offset, sequence=start.sequence, end=segment.size, verify=True)
            walk.run()
            if walk.offset != segment.size or walk.sequence != self._written_end(segment) or walk.holes:
                return False
            if self._sync_failed:
                for offset in range(synced_offset, segment.size, BUFFER_BYTES):
                    data = read(offset, min(BUFFER_BYTES, segment.size - offset))
                    files.write_fully(descriptor, [data], offset)
                files.sync(descriptor)
            return True
        finally:
            files.close(descriptor)

    # The end

    def close(self) -> None:
        """Gives back descriptors; what was not written is gone."""
        self._close_quietly()
        for segment in self._segments:
            self._host.descriptors.forget(segment.path)

    def drop(self, reason: str) -> None:
        """The topic is deleted. Publishers that still wait are told."""
        self.dropped = True
        receipts = [*self._receipts, *(receipt for _, receipt in self._unsynced_receipts)]
        self._receipts = []
        self._unsynced_receipts.clear()
        self._unwritten = []
        self._buffers = []
        self._buffered = 0
        self.close()
        self._host.repaired(self)
        for receipt in receipts:
            receipt.settle(reason)
