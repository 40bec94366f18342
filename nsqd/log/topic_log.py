"""A topic's log on disk: appends messages, writes them, caches them, reads them back and removes them.

    append ──> buffer ──write()──> segment file ───syncer────> synced
                 │
                 └──> tail cache (newest messages)      cold blocks (see reading/cold.py) <── segment files

The log itself never waits. Everything here runs on the loop, between two awaits. Blocking work goes to the store as a
job (`begin_sync`, `Load`, files to remove), and the log gets the job back when it's done.

After a failed write the log is *broken*: we cut the file back to its last whole record and refuse publishes. A second
later we read the end of the file again and check it before we append anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.ack_option import Ack
from nsqd.broker.batch import Receipt
from nsqd.log.compaction.schedule import Compaction, CompactionHost
from nsqd.log.files import DiskError
from nsqd.log.keys import deferred_keys
from nsqd.log.log_fault import LogFault, verify_segments
from nsqd.log.reading.log_reader import LogReader
from nsqd.log.reading.refusals import patiently
from nsqd.log.reading.tail_cache import TailCache, find_batch
from nsqd.log.record import size_of
from nsqd.log.segment import Segment, SegmentView, segment_name
from nsqd.log.segment_list import SegmentList
from nsqd.log.segment_removal import Expiry, ExpiryHost
from nsqd.log.writing.segment_writer import SegmentWriter
from nsqd.log.writing.unconfirmed import Unconfirmed
from nsqd.log.writing.unsynced import LogSync, Unsynced
from nsqd.log.writing.write_buffer import WriteBuffer

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.store import KeyedPublish
    from nsqd.log.disk_reserve import DiskReserve
    from nsqd.log.faults import Faults
    from nsqd.log.files import Files
    from nsqd.log.log_state import LogState
    from nsqd.log.remote import Remote
    from nsqd.log.settings import LogSettings
    from nsqd.log.writing.segment_writer import OpenWriters

BUFFER_BYTES: Final = 1 << 20  # with --ack=memory, messages may wait in memory up to this size, for at most 100 ms


class LogSyncer(Protocol):
    """The syncer as a log sees it."""

    def log_written(self, log: DiskLog, messages: int, *, is_awaited: bool = False) -> None:
        """Sync this log soon. `messages` is how many were just written; `is_awaited` means that a publisher waits."""

    def request_sync(self) -> object:
        """Begin the next sync soon, because a client is waiting for it."""


class LogHost(ExpiryHost, CompactionHost, Protocol):
    """The store as a log and its parts see it."""

    settings: LogSettings
    dirty: list[DiskLog]  # to write in this turn
    faults: Faults
    files: Files
    reserve: DiskReserve
    remote: Remote | None

    @property
    def syncer(self) -> LogSyncer: ...

    @property
    def writers(self) -> OpenWriters: ...

    def now(self) -> float: ...

    def pause(self, seconds: float) -> None:
        """Block between two tries of a refused read. Call this only at startup or in a thread."""

    def log_buffered(self, log: DiskLog) -> None:
        """Write the log soon, because it has acknowledged messages in memory."""

    def batches_dropped(self, count: int) -> None:
        """Count batches that the log's cache has dropped to make room for new ones."""

    def make_folder(self, log: DiskLog) -> None:
        """Create the folder of a new log, with its id in log.json. Raises OSError."""

    def save_identity(self, log: DiskLog) -> None:
        """Write the log's id to log.json in its folder, and sync it. Raises OSError."""


class DiskLog:
    """Implements `nsqd.broker.store.TopicLog` on files.

    The log answers the publishers and passes calls between its parts. Each part touches only the things that its
    docstring names:

            WriteBuffer ──> SegmentWriter ──> Unsynced ──> LogSync      publishing: messages on their way to the disk
                                          └─> Unconfirmed               and to its remote copy, with --remote
            TailCache, LogReader                                        reading
            Expiry, Compaction                                          removing
            LogFault                                                    failures
    """

    def __init__(self, topic: str, folder: Path, host: LogHost, state: LogState) -> None:
        settings = host.settings
        self.topic = topic
        self.folder = folder
        self.log_id = state.log_id
        self.tail = state.tail
        self.dropped = False
        self._keys = state.keys
        self._forgotten_keys = state.forgotten_keys
        self.keys_from = state.keys_from
        self._host = host
        self._syncer = host.syncer
        self._ack = settings.ack_of(topic)
        self._max_bytes = settings.options.max_bytes_per_file

        self._buffer = WriteBuffer()
        self._is_dirty = False  # it's in the store's list of dirty logs
        self._refusal: str | None = None  # the error for publishers; once set, it holds until the turn's write
        self._segments = SegmentList(state.segments, state.tail)
        self.writer = SegmentWriter(
            folder, host.writers, self._segments, remembers_keys=settings.options.idempotence_window > 0
        )
        self._unsynced = Unsynced(folder, state)
        self._remote = host.remote
        self._refusal_of_host = host.reserve.refusal if host.remote is None else self._refusal_of_reserve_and_remote
        # Nothing is served before the remote copy has what recovery has found, so that is confirmed.
        self._unconfirmed = Unconfirmed(self._written_end) if host.remote is not None else None
        self._fault = LogFault(topic, folder, self._unsynced, host.faults, host.now)
        self._cache = TailCache(
            state.tail, most_messages=settings.options.mem_queue_size, most_bytes=settings.options.mem_queue_bytes
        )
        self.reader = LogReader(topic, host.reads, self._segments, holes=state.holes, compacted=state.compacted)
        self.expiry = Expiry(topic, host, self._segments, self.reader, self._unsynced)
        self.compaction = Compaction(
            topic,
            folder,
            host,
            segments=self._segments,
            reader=self.reader,
            expiry=self.expiry,
            unsynced=self._unsynced,
            fault=self._fault,
        )
        if state.unsaved_identity is not None:
            self._fault.identity_is_unsaved = True
            self._break(DiskError.of("write", folder, state.unsaved_identity))

    def __repr__(self) -> str:
        return f"<DiskLog {self.topic} [{self.first}, {self.tail})>"

    @property
    def first(self) -> int:
        return self._segments.first

    @property
    def cached_from(self) -> int:
        return self._cache.start

    def settings_changed(self) -> None:
        """Apply a change of --ack or retention. Publishes that are already waiting are acknowledged as before."""
        self._ack = self._host.settings.ack_of(self.topic)
        if self._ack is Ack.REMOTE and self._buffer.size:
            self.write()  # because `answer_repeat` knows of unconfirmed messages only when they are written
        self.expiry.settings_changed()

    def take_keys(self) -> tuple[list[tuple[bytes, int]], list[KeyedPublish]]:
        taken = self._keys, self._forgotten_keys
        self._keys, self._forgotten_keys = [], []
        return taken

    def deferred_keys(self, wanted: Sequence[int]) -> list[KeyedPublish]:
        files, segments, compacted = self._host.files, list(self._segments), self.reader.compacted.files
        return patiently(lambda: deferred_keys(files, segments, compacted, wanted), self._host.pause)

    # Publishing

    def has_room(self, count: int, size: int) -> bool:
        """Return True, because messages that don't fit into memory are on disk."""
        return True

    def bytes_from(self, sequence: int) -> int:
        return self._segments.bytes_from(sequence) + self._buffer.size

    def file_of(self, sequence: int) -> int:
        return self._segments.holding(sequence).base if self._segments.active is not None else 0

    def waits_for_removal(self, passed: int) -> bool:
        leaving = self.expiry.leaving_bytes()
        if not leaving or self._segments.bytes_before(passed) + leaving <= self._max_bytes:
            return False
        self._syncer.request_sync()  # the next sync removes files, and publishers wait for that
        return True

    @property
    def waits_for_copy(self) -> bool:
        return self._ack is Ack.REMOTE and self._remote is not None

    def refusal(self) -> str | None:
        return self._refusal_of(0)

    def refusal_now(self) -> str | None:
        is_broken = self._fault.error is not None and not self._may_try_again()
        return self.error if is_broken else self._refusal_of_host(0)

    def _refusal_of(self, size: int) -> str | None:
        """Return why we refuse this batch and all later ones in this turn, or None if we accept it.

        Once a batch is refused, so are the ones after it. Accepting a later batch would give it sequences that the
        journal has already promised to a deferred one.
        """
        if self._refusal is None:
            is_broken = self._fault.error is not None and not self._may_try_again()
            self._refusal = self.error if is_broken else self._refusal_of_host(size)
            if self._refusal is not None:
                self._mark_dirty()
        return self._refusal

    def _refusal_of_reserve_and_remote(self, size: int) -> str | None:
        cause = self._host.reserve.refusal(size)
        if cause is not None or self._remote is None:
            return cause
        return self._remote.refusal() if self._ack is Ack.REMOTE else self._remote.refusal_of_all()

    def answer_repeat(self, earlier: Receipt) -> Receipt:
        if self._ack is not Ack.REMOTE or (earlier.settled and earlier.error is not None):
            return earlier
        if not earlier.settled and not self._unsynced.is_awaited:
            return earlier  # it isn't written yet, or waits for the remote copy
        # The topic may have had another --ack until now. Then the OK to the earlier publisher says nothing of the copy.
        answer = Receipt()
        earlier.when_settled(lambda: self._settle_repeat(answer, earlier))
        return answer

    def _settle_repeat(self, answer: Receipt, earlier: Receipt) -> None:
        """Settle the answer to a repeat when the remote copy has everything that this log has now."""
        remote, unconfirmed = self._remote, self._unconfirmed
        refusal = earlier.error or (self.error if self._buffer.size else None)
        if refusal is None and self.is_confirmed:
            answer.settle()
            return
        assert remote is not None
        assert unconfirmed is not None
        refusal = refusal or remote.refusal()
        if refusal is not None:
            answer.settle(refusal)
            return
        unconfirmed.expect(answer)
        remote.log_written(self, is_awaited=True)

    def append(self, batch: Batch, receipt: Receipt) -> None:
        refusal = self._refusal_of(size_of(batch))
        if refusal is not None:
            receipt.settle(refusal)
            return
        buffer = self._buffer
        buffer.add(batch)
        self._cache.add(batch)
        self.tail = batch.end_sequence
        # A broken log acknowledges a batch only after writing it. Otherwise it might acknowledge messages that a full
        # disk has no room for.
        if self._ack is Ack.MEMORY and self._fault.error is None:
            receipt.settle()
            self._host.log_buffered(self)
            if buffer.size > BUFFER_BYTES:
                self._mark_dirty()
            return
        buffer.receipts.append(receipt)
        self._mark_dirty()

    def _mark_dirty(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._host.dirty.append(self)

    @property
    def unwritten_bytes(self) -> int:
        return self._buffer.size

    def write(self) -> None:
        """Write the buffer to the file, with one system call unless a segment ends in between."""
        self._is_dirty = False
        self._refusal = None
        buffer = self._buffer
        size = buffer.size
        if not size:
            return
        if self._fault.error is not None and not self._may_try_again():
            self._host.log_buffered(self)  # try the acknowledged messages again later
            return
        segment = self._segments.active
        if segment is None or segment.size + size > self._max_bytes:
            self._write_over_segments()
        else:
            self._write_to(segment, buffer.batches, buffer.buffers, size)

    def _write_to(self, segment: Segment, batches: list[Batch], buffers: list[bytes], size: int) -> bool:
        """Write the buffer's first batches, and answer their publishers unless they're waiting for a sync.

        Return False if the write failed. By then all waiting publishers have received the error.
        """
        try:
            self.writer.write(segment, batches, buffers, size)
        except OSError as error:
            self._write_failed(DiskError.of("write", segment.path, error))
            return False
        written, receipts = self._buffer.take(len(batches), size)
        if self._fault.error is not None:
            self._repaired()
        if self._remote is not None:
            receipts = self._expect_confirmation(receipts)
        if self._ack is not Ack.SYNCED:
            for receipt in receipts:
                receipt.settle()
        else:
            self._unsynced.add_receipts(written, receipts)
        messages = self._segments.tail - written[0].base_sequence
        self._syncer.log_written(self, messages, is_awaited=self._unsynced.is_awaited)
        if dropped := self._cache.written(written):
            self._host.batches_dropped(dropped)
        return True

    def _expect_confirmation(self, receipts: list[Receipt]) -> list[Receipt]:
        """Note how far the log is written now, and return the receipts that don't wait until the remote copy has that."""
        remote, unconfirmed = self._remote, self._unconfirmed
        assert remote is not None
        assert unconfirmed is not None
        waiting, others = (receipts, []) if self._ack is Ack.REMOTE else ([], receipts)
        unconfirmed.written(remote.position, self._written_end, waiting)
        remote.log_written(self, is_awaited=bool(waiting))
        return others

    @property
    def _written_end(self) -> tuple[int, int, int]:
        """The end of the log in its files, in the form of a checkpoint."""
        active = self._segments.active
        return (active.base, active.size, self._segments.tail) if active is not None else (0, 0, self._segments.tail)

    def _write_over_segments(self) -> None:
        """Write the buffer. If a batch doesn't fit, begin a new segment. Only a single record may exceed the limit."""
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
                    self._write_failed(DiskError.of("open", self.folder / segment_name(base), error))
                    return
                continue
            if not self._write_to(segment, buffer.batches[:count], buffer.buffers[: 2 * count], size):
                return

    def _roll(self, base: int) -> None:
        """Begin a new segment. Raises OSError."""
        sealed = self._segments.active
        self.writer.roll(base)
        self._unsynced.rolled(sealed)
        # The new segment has to be synced even if it stays empty. Once the segments before it are removed, its name is
        # the only record of the log's tail.
        self._syncer.log_written(self, 0, is_awaited=self._unsynced.is_awaited)
        if self._remote is not None:
            self._expect_confirmation([])

    def release(self, sequence: int, passed: int | None = None) -> None:
        self._cache.forget_before(sequence)
        expiry = self.expiry
        timestamp = expiry.age_now()
        if sequence == self.tail and not self._buffer.size and expiry.is_active_unwanted(timestamp):
            # Everything is finished, so begin an empty segment to remember the tail, and free this one's space.
            try:
                self._roll(self.tail)
            except OSError:
                pass
        unwanted = expiry.unwanted_before(timestamp)
        expiry.remove_before(min(sequence, unwanted))
        self.compaction.release(sequence, sequence if passed is None else passed, unwanted)

    def older_than(self, timestamp: int) -> int:
        return self._segments.older_than(timestamp)

    def outdated(self) -> int:
        return self.expiry.outdated_before(is_all_written=not self._buffer.size)

    # Reading

    def batch_at(self, sequence: int) -> Batch | None:
        return (
            self._cache.find(sequence) or find_batch(self._buffer.batches, sequence) or self.reader.batch_at(sequence)
        )

    def next_readable(self, sequence: int) -> int:
        if sequence >= self._segments.first and not self.reader.holes:  # nearly always
            return sequence
        return self.reader.next_readable(sequence)

    def next_kept(self, sequence: int) -> int:
        return self.reader.next_kept(sequence)

    def end_of_refused(self, sequence: int) -> int:
        return self.reader.end_of_refused(sequence)

    @property
    def waiting_for_disk(self) -> int:
        """How many reads and compactions we're retrying because the disk refuses to read."""
        return self.reader.refused + self.compaction.is_refused

    def segment_views(self, *, synced: bool) -> list[SegmentView]:
        """Return views of the segments up to the readable tail, or up to the written tail with `synced=False`."""
        active = self._segments.active
        if active is None:
            return []
        base, size, end = self._readable if synced else self._written_end
        segments = [segment for segment in self._segments if segment.base <= base]
        found = [
            SegmentView(segment.path, segment.base, following.base, segment.size, None)
            for segment, following in pairwise(segments)
        ]
        if segments and segments[-1].base == base:  # otherwise the segment was removed
            last = segments[-1]
            index = last.index.copy() if last is active and last.index is not None else None
            found.append(SegmentView(last.path, base, end, size, index))
        return found

    def unwritten_times(self) -> list[tuple[int, int]]:
        """Return (sequence, timestamp) of each batch that isn't written yet."""
        return [(batch.base_sequence, batch.timestamp) for batch in self._buffer.batches]

    @property
    def readable_tail(self) -> int:
        """The sequence before which readers of history may see messages: the synced or, with --remote, the confirmed ones."""
        _, _, sequence = self._readable
        return sequence

    @property
    def _readable(self) -> tuple[int, int, int]:
        return self._unsynced.checkpoint if self._unconfirmed is None else self._unconfirmed.checkpoint

    # Confirming

    @property
    def is_confirmed(self) -> bool:
        return self._unconfirmed is None or self._unconfirmed.is_empty

    @property
    def waiting_publishes(self) -> int:
        return self._unconfirmed.waiting if self._unconfirmed is not None else 0

    def confirm(self, position: int) -> bool:
        return self._unconfirmed is not None and self._unconfirmed.confirmed(position)

    def fail_unconfirmed(self, reason: str) -> None:
        for receipt in self._unconfirmed.take_receipts() if self._unconfirmed is not None else []:
            receipt.settle(reason, stays=True)

    # Syncing

    @property
    def synced_tail(self) -> int:
        """Everything before this sequence survives a power cut."""
        return self._unsynced.synced_tail

    @property
    def waits_for_sync(self) -> bool:
        return self._unsynced.is_awaited

    def begin_sync(self) -> LogSync | None:
        """Return a job that makes everything written durable, or None if the log is deleted or its sync failed."""
        if self._unsynced.has_failed or self.dropped:
            return None
        return self._unsynced.begin_sync(self._segments)

    def end_sync(self, job: LogSync) -> bool:
        """Apply a finished job from `begin_sync`. Return whether waiting publishers have been answered."""
        if self.dropped:
            return False
        error = self._unsynced.error_of(job, self._segments)
        if error is not None:
            self._unsynced.failed(job)
            self._sync_has_failed(error)
            return True
        answered = self._unsynced.synced(job)
        self.compaction.synced()
        return answered

    @property
    def synced(self) -> int:
        """Implement `TopicLog.synced`."""
        return self._unsynced.checkpoint[2]

    @property
    def checkpoint(self) -> tuple[int, int, int]:
        """(base of a segment, offset in it, sequence). Everything before this position is synced."""
        return self._unsynced.checkpoint

    # Failure and repair

    @property
    def error(self) -> str | None:
        error = self._fault.error
        return error.text if error is not None else None

    def creation_failed(self, error: OSError) -> None:
        self._break(DiskError.of("mkdir", self.folder, error))

    def _write_failed(self, error: DiskError) -> None:
        """Undo the batches whose publishers are waiting, and send them the error. Acknowledged ones stay buffered."""
        self.writer.cut_back()
        receipts = self._buffer.roll_back()
        if receipts:
            batches = self._buffer.batches
            self.tail = batches[-1].end_sequence if batches else self._segments.tail
            self._cache.forget_from(self.tail)
        if self._buffer.size:
            self._host.log_buffered(self)
        self._break(error)
        for receipt in receipts:
            receipt.settle(error.text)

    def _sync_has_failed(self, error: DiskError) -> None:
        """Send the waiting publishers the error. Their messages stay, because they may have been delivered already."""
        self._break(error)
        for receipt in self._unsynced.take_receipts():
            receipt.settle(error.text, stays=True)

    def _break(self, error: DiskError) -> None:
        self._fault.begin(error)
        self.writer.close()

    def _may_try_again(self) -> bool:
        """Return whether we may write to the log. If it's broken, check its files first, at most once a second.

        After a successful check, the log stays broken until the first write succeeds.
        """
        if not self._fault.needs_check:
            return True
        if not self._fault.is_due:
            return False
        try:
            self._prove()
        except OSError as error:
            self._break(DiskError.of("open", error.filename or self.folder, error))
            return False
        self._fault.proven()
        return True

    def try_to_repair(self) -> bool:
        """Repair the log without waiting for the next publish. Call this when the disk has space again.

        Return whether the log works now.
        """
        if self._fault.error is None:
            return True
        if self._fault.is_due and self._may_try_again():
            if self._buffer.size:
                self.write()
            else:
                self._repaired()
        return self.error is None  # not `self._fault.error`, which mypy still considers set after the check above

    def _repaired(self) -> None:
        self._fault.end()
        self._syncer.log_written(self, 0, is_awaited=self._unsynced.is_awaited)

    def _prove(self) -> None:
        """Create missing files in the log's folder, and check the content of its segments. Raises OSError."""
        if self._fault.identity_is_unsaved:
            self._host.save_identity(self)
            self._fault.identity_is_unsaved = False
        elif self._segments.active is None:
            self._host.make_folder(self)
            self._unsynced.add_new_folder()
        if self._segments.active is None:
            return
        unsynced, fault, files = self._unsynced, self._fault, self._host.files
        doubts, synced = unsynced.has_failed, unsynced.checkpoint
        if not verify_segments(
            files, self._segments, synced, doubts_unsynced=doubts, gives_up=lambda: fault.is_lasting
        ):
            # Some messages at the end are lost. The new segment starts after them, so their sequences aren't reused.
            self._roll(self._segments.tail)
        unsynced.has_failed = False

    # The end

    def close(self) -> None:
        """Close all files. Messages that aren't written yet are lost."""
        self.writer.close()
        for path in [
            *(segment.path for segment in self._segments),
            *(file.path for file in self.reader.compacted.files),
        ]:
            self._host.reads.descriptors.forget(path)

    def drop(self, reason: str) -> None:
        """Release everything, because the topic is deleted. Waiting publishers receive `reason` as their error."""
        self.dropped = True
        self.compaction.dropped = True
        _, receipts = self._buffer.take_all()
        receipts += self._unsynced.take_receipts()
        if self._unconfirmed is not None:
            receipts += self._unconfirmed.take_receipts()
        # A broker alarm can keep a channel in memory, and with it this log, for as long as the longest delay. Don't
        # let it keep the cache as well.
        self._cache.forget_before(self.tail)
        self.close()
        self._fault.end()
        self.reader.drop()
        for receipt in receipts:
            receipt.settle(reason)
