"""Topic history for readers outside the broker: the synced records, exactly as they are in the segments.

With `--remote` it's the confirmed ones instead. Another machine has them after a takeover, at the same positions.

Create a `LogSnapshot` on the event loop: it describes the log at that time. Use a thread for everything that blocks on
the disk: `times`, `sequence_at`, `points`, `open` and all of a `LogRangeReader`. `open` opens all files of a range
before the first byte is sent, so you can read a segment to its end even if it is removed in the meantime.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.history import DAMAGED, MISSING, REFUSED, Gap, Records
from nsqcommon.wire.log_record import HEADER_SIZE, Header, KeyPlace, decode_header, decode_keyed, follow
from nsqd.log.files import close_quietly
from nsqd.log.reading.cold import keep_aside
from nsqd.log.reading.refusals import ReadRefused, Salvage, WaitsOnce, opened_to_read, patiently, strictly
from nsqd.log.reading.survey import Point, SegmentSurvey
from nsqd.log.record import INDEX_INTERVAL, find_id, scan
from nsqd.log.segment import (
    BLOCK_SIZE,
    ReadAt,
    SegmentIndex,
    SegmentView,
    SegmentWalk,
    find_hole,
    header_at,
    index_of,
    verified_entry,
)
from nsqd.log.topic_log import DiskLog

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.store import DiskStore

log = logging.getLogger(__name__)

_Reader = Callable[["ReadAt"], "ReadAt"]  # wraps a ReadAt to handle refused reads, for example in `Salvage`

_LATE: Final = 1 << 63  # stands for the time or id of an unreadable record: later than any other
MOST_FILES: Final = 16  # open files per reader; a range over more files is cut short


class LogHistory:
    """The history of a store's topics."""

    def __init__(self, store: DiskStore) -> None:
        self._store = store

    @property
    def node(self) -> str:
        return self._store.data_path.node

    def find(self, topic: str, *, synced: bool = True) -> LogSnapshot | None:
        """Return a topic's history, or None if it has no log on disk. `synced=False` includes unsynced messages."""
        topic_log = self._store.logs.get(topic)
        return (
            LogSnapshot(topic_log, self._store.files, self._store.data_path.pause, synced=synced)
            if isinstance(topic_log, DiskLog)
            else None
        )

    def follow(self, follower: Callable[[str], None]) -> None:
        """Call `follower` with a topic's name whenever more of it can be read, or when it is deleted."""
        (self._store.remote or self._store.syncer).follow(follower)


class LogSnapshot:
    """A log's content at a point in time."""

    def __init__(self, topic_log: DiskLog, files: Files, pause: Callable[[float], None], *, synced: bool) -> None:
        self.log_id = topic_log.log_id
        self.next = topic_log.readable_tail if synced else topic_log.tail
        self.first = min(topic_log.first, self.next)
        self.retention_time = topic_log.expiry.retention.time
        self.retention_bytes = topic_log.expiry.retention.bytes
        self._log = topic_log
        self._files = files
        self._pause = pause
        self._views = topic_log.segment_views(synced=synced)
        self._compacted = tuple(topic_log.reader.compacted.files)
        self._unwritten = [] if synced else topic_log.unwritten_times()

    @property
    def segments(self) -> int:
        return len(self._views)

    @property
    def bytes(self) -> int:
        return sum(view.size for view in self._views)

    def still_has(self, sequence: int) -> bool:
        """Return whether everything from this sequence on still exists."""
        return not self._log.dropped and self._log.first <= max(sequence, self.first)

    # In a thread

    def times(self) -> tuple[int, int] | None:
        """Return the publish times of the first and the last readable message, or None if there is none."""
        places = range(len(self._views))
        first = next(filter(None, map(self._first_salvaged, places)), None)
        if first is None:
            return None
        last = next(filter(None, map(self._last_salvaged, reversed(places))), first)
        return first.timestamp, last.timestamp

    def _first_salvaged(self, place: int) -> Header | None:
        """Return the first readable header of this segment, or None."""
        with suppress(ReadRefused):
            return self._first_in(place, Salvage)
        return None

    def _last_salvaged(self, place: int) -> Header | None:
        last: deque[Header] = deque(maxlen=1)
        with suppress(ReadRefused):
            last.extend(self._headers_of(place, Salvage, near_end=True))
        return last[0] if last else None

    def sequence_at(self, timestamp: int) -> int:
        """Return the sequence of the first message published at this time or later, or `next` if there is none.

        Raises ReadRefused, because an unreadable message could be the right one.
        """
        return patiently(lambda: self._sequence_at(timestamp), self._pause)

    def _sequence_at(self, timestamp: int) -> int:
        places = range(len(self._views))
        start = max(0, bisect_left(places, timestamp, key=lambda it: _time_of(self._first_header(it))) - 1)
        for place in places[start:]:
            for header in self._headers_of(place, _as_is, is_before=lambda it: _time_of(it) < timestamp):
                if header.timestamp >= timestamp:
                    return header.base_sequence
        for sequence, published in self._unwritten:
            if published >= timestamp:
                return sequence
        return self.next

    def sequence_of(self, message_id: int) -> int | None:
        """Return the sequence of the message with this id, or None. Raises ReadRefused."""
        return patiently(lambda: self._sequence_of(message_id), self._pause)

    def _sequence_of(self, message_id: int) -> int | None:
        places = range(len(self._views))
        # Ids ascend, unless the node was given another --node-id. So search near the id's expected position first.
        start = max(0, bisect_right(places, message_id, key=lambda it: _id_of(self._first_header(it))) - 1)
        if places and (found := self._find_by_index(start, message_id)) is not None:
            return found
        near = (
            self._headers_of(it, _as_is, is_before=lambda header: _id_of(header) <= message_id)
            for it in places[start : start + 1]
        )
        compacted = (header for header, _ in self._compacted_keys())
        everything = (self._headers_of(it, _as_is) for it in places)
        for header in chain(chain.from_iterable(near), compacted, chain.from_iterable(everything)):
            if header.base_id <= message_id < header.base_id + header.count:
                return header.base_sequence + message_id - header.base_id
        return None

    def sequence_in_order(self, message_id: int) -> int | None:
        """Return the sequence of the message with this id if it is where its id puts it. Raises ReadRefused.

        Some small reads, so that you can ask thousands of logs. Unlike `sequence_of`, it misses a message from before
        the node was given another --node-id, and one that follows a damaged record closely.
        """
        return patiently(lambda: self._sequence_in_order(message_id), self._pause)

    def _sequence_in_order(self, message_id: int) -> int | None:
        places = range(len(self._views))
        after = bisect_right(places, message_id, key=lambda it: _id_of(self._first_header(it)))
        return self._find_by_index(after - 1, message_id) if after else None

    def _find_by_index(self, place: int, message_id: int) -> int | None:
        """Return the sequence of a message if this segment's index leads straight to it, otherwise None.

        Even then the message may exist, because a damaged record ends this search, as it does in `find_id`.
        """
        view = self._views[place]
        with self._opened(place, _as_is) as read:
            if read is None:
                return None
            index = index_of(self._files, view)
            after = bisect_right(index.offsets, message_id, key=lambda offset: _id_of(header_at(read, offset)))
            entry = verified_entry(read, index, after - 1)
            if entry is None and after:
                return None  # the index is wrong, and without it we might have to load the whole segment
            offset, sequence = entry or (0, view.base)
            end = index.offsets[after] if after < len(index) else min(offset + 2 * INDEX_INTERVAL, view.size)
            return find_id(read(offset, end - offset), sequence, message_id)

    def keys(self, *, since: int = 0, deferred: bool = False) -> Iterator[KeyPlace]:
        """Yield each key with the first sequence and the number of its messages, newest segment first.

        `since` (nanoseconds) skips older publishes, and `deferred` skips publishes without a delay. Raises ReadRefused.
        """
        for view in reversed(self._views):
            found: list[KeyPlace] = []
            with self._opened(self._views.index(view), _as_is) as read:
                if read is None:
                    continue
                walk = SegmentWalk(read, offset=0, sequence=view.base, end=view.size, verify=False, next_base=view.end)
                for block in walk.blocks():
                    for position, header in block.headers:
                        if header.key_length and header.timestamp >= since and (header.delay_ms or not deferred):
                            found += decode_keyed(header, block.data, position)
            yield from reversed(found)
        yield from (place for _, place in self._compacted_keys() if place[0])

    def _compacted_keys(self) -> Iterator[tuple[Header, KeyPlace]]:
        """Yield the headers and keys in compacted files, where only deferred messages have keys."""
        for file in self._compacted:
            with suppress(FileNotFoundError), opened_to_read(self._files, file.path) as read:
                for place in range(len(file)):
                    data = read(*file.extent(place))
                    if (header := decode_header(data, 0)) is not None:
                        key = data[HEADER_SIZE : HEADER_SIZE + header.key_length]
                        yield header, (key, header.base_sequence, header.count)

    def points(self, start: int, end: int, most: int) -> list[Point]:
        """Return at most `most` points of [start, end), which must not be empty. Raises ReadRefused."""
        wanted = [view for view in self._views if view.end > start and view.base < end]
        return patiently(lambda: SegmentSurvey(self._files, wanted).points(start, end, most), self._pause)

    def _first_header(self, place: int) -> Header | None:
        """Return the first sound header in this segment or a later one. Raises ReadRefused."""
        for at in range(place, len(self._views)):
            if (header := self._first_in(at, _as_is)) is not None:
                return header
        return None

    def _first_in(self, place: int, reader: _Reader) -> Header | None:
        return self._header_at_start(place, reader) or next(self._headers_of(place, reader), None)

    def _header_at_start(self, place: int, reader: _Reader) -> Header | None:
        """Return the first record's header, with one small read."""
        with self._opened(place, reader) as read:
            return header_at(read, 0) if read is not None else None

    @contextmanager
    def _opened(self, place: int, reader: _Reader) -> Iterator[ReadAt | None]:
        """Open a segment's file. Yields its reader, or None if the file is gone."""
        with ExitStack() as stack:
            try:
                read = reader(stack.enter_context(opened_to_read(self._files, self._views[place].path)))
            except FileNotFoundError:
                read = None
            yield read

    def _headers_of(
        self,
        place: int,
        reader: _Reader,
        *,
        is_before: Callable[[Header | None], bool] | None = None,
        near_end: bool = False,
    ) -> Iterator[Header]:
        """Yield the headers of one segment.

        With `near_end`, start at the last index entry. With `is_before`, start at the last index entry for which it's
        true. We find that by bisection, so it must be true of all earlier records too.
        """
        view = self._views[place]
        with self._opened(place, reader) as read:
            if read is None:
                return
            index = index_of(self._files, view) if is_before is not None or near_end else SegmentIndex()
            entries = len(index)
            if is_before is not None:
                places = range(entries)
                entries = bisect_left(places, True, key=lambda it: not is_before(header_at(read, index.offsets[it])))
            offset, sequence = verified_entry(read, index, entries - 1) or (0, view.base)
            walk = SegmentWalk(
                read,
                offset=offset,
                sequence=sequence,
                end=view.size,
                verify=False,
                next_base=view.end,
                # A search rarely goes past the next index entry, and decoding headers is the slow part.
                block_size=BLOCK_SIZE if is_before is None else INDEX_INTERVAL,
            )
            for block in walk.blocks():
                for _, header in block.headers:
                    yield header

    def open(self, start: int, end: int, chunk: int) -> LogRangeReader:
        """Open the files of [start, end), or the first MOST_FILES of them. Check `still_has` afterwards."""
        wanted = [view for view in self._views if view.end > start and view.base < end]
        reader = LogRangeReader(self._log.topic, self._files, start, end, chunk, self._pause)
        try:
            for view in wanted[:MOST_FILES]:
                reader.add(view)
        except BaseException:
            reader.close()
            raise
        if len(wanted) > MOST_FILES:
            reader.end = wanted[MOST_FILES - 1].end
        return reader


class LogRangeReader:
    """Reads the records of [next, end) in pieces of about `chunk` bytes.

    It waits for at most one lasting refusal. After that, each refused read becomes a gap right away.
    """

    def __init__(
        self, topic: str, files: Files, start: int, end: int, chunk: int, pause: Callable[[float], None]
    ) -> None:
        self.next = start
        self.end = end
        self._topic = topic
        self._files = files
        self._chunk = chunk
        self._opened: list[tuple[SegmentView, int | None]] = []
        self._place = 0
        self._waiting = WaitsOnce(pause)  # shared by all files of the range
        self._read: Salvage | None = None  # reads the current file
        self._offset = 0
        self._sequence = 0  # of the record at this offset

    def add(self, view: SegmentView) -> None:
        try:
            self._opened.append((view, self._waiting(lambda: self._files.open_to_read(view.path))))
        except FileNotFoundError:
            self._opened.append((view, None))

    def close(self) -> None:
        opened, self._opened = self._opened, []
        for _, descriptor in opened:
            if descriptor is not None:
                close_quietly(self._files, descriptor)

    def read(self) -> Records | Gap | None:
        """Return the next piece, or None at the end. Damaged, missing and refused records become gaps."""
        while self.next < self.end and self._place < len(self._opened):
            view, descriptor = self._opened[self._place]
            if self.next >= view.end:
                self._place += 1
                self._read = None
            elif descriptor is None:
                return self._gap(view.end, MISSING)
            elif self.next < view.base:
                return self._gap(view.base, MISSING)
            else:
                try:
                    return self._piece_of(view, descriptor)
                except ReadRefused:  # the disk refuses too much of the segment: skip it
                    return self._gap(view.end, REFUSED)
        return self._gap(self.end, MISSING) if self.next < self.end else None

    def _gap(self, end: int, reason: str) -> Gap:
        gap = Gap(self.next, min(end, self.end), reason)
        self.next = gap.end
        log.warning("history has a gap topic=%s first=%d end=%d reason=%s", self._topic, gap.first, gap.end, gap.reason)
        return gap

    def _piece_of(self, view: SegmentView, descriptor: int) -> Records | Gap:
        read = self._read
        if read is None:
            strict = strictly(self._files, descriptor, view.path)
            read = self._read = Salvage(self._waiting.reader(strict))
            self._offset, self._sequence = self._start_in(view, read)
            if self._sequence > self.next:
                return self._gap(self._sequence, REFUSED if read.refused_in(0, self._offset) else DAMAGED)
        size = self._chunk
        while True:
            data = read(self._offset, min(size, view.size - self._offset))
            taken, sequence, needed = _walk(data, self._sequence, min(self.end, view.end))
            if taken:
                self._offset += taken
                self._sequence = self.next = sequence
                return Records(memoryview(data)[:taken], sequence)
            if needed <= len(data) or self._offset + needed > view.size:
                return self._skip_damage(view, read)
            size = needed

    def _skip_damage(self, view: SegmentView, read: Salvage) -> Gap:
        hole = find_hole(read, offset=self._offset, sequence=self._sequence, end=view.size, next_base=view.end)
        assert hole is not None, "there is always a hole, as the segment's end sequence is known"
        self._offset, self._sequence = hole.end_offset, hole.end
        if read.refused_in(hole.offset, hole.end_offset):
            return self._gap(hole.end, REFUSED)
        # Copy the bad bytes now: the segment may be removed before anyone else reads it.
        keep_aside(self._files, view.path, "damaged", hole.offset, hole.end_offset)
        return self._gap(hole.end, DAMAGED)

    def _start_in(self, view: SegmentView, read: ReadAt) -> tuple[int, int]:
        """Return the offset and sequence of the record with message `next`, or of the first sound record after it."""
        if self.next == view.base:
            return 0, view.base
        index = index_of(self._files, view)
        offset, sequence = verified_entry(read, index, index.place_of(self.next)) or (0, view.base)
        walk = SegmentWalk(read, offset=offset, sequence=sequence, end=view.size, verify=False, next_base=view.end)
        for block in walk.blocks():
            for position, header in block.headers:
                if header.end_sequence > self.next:
                    return block.offset + position, header.base_sequence
        return walk.offset, walk.sequence


def _as_is(read: ReadAt) -> ReadAt:
    return read


def _walk(data: bytes, sequence: int, until: int) -> tuple[int, int, int]:
    """Find the whole records at the start of `data`, up to sequence `until`.

    Returns their size in bytes, the sequence after them, and, if not even one record fits, the bytes needed for it.
    """
    links = follow(data, 0, sequence, until)
    if links.last < 0 or decode_header(data, links.last) is not None:
        return links.position, links.sequence, links.needed
    found = scan(data, 0, sequence, verify=False)
    return found.position, found.sequence, found.needed


def _id_of(header: Header | None) -> int:
    return header.base_id if header is not None else _LATE


def _time_of(header: Header | None) -> int:
    """Return the record's time. An unreadable record counts as late, so that a search starts before it."""
    return header.timestamp if header is not None else _LATE
