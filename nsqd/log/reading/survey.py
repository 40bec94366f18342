"""Maps times to sequences and bytes in a log, by reading only indexes and record headers.

A survey returns points, each with a sequence, a time and the bytes before it. It costs about the same for any range,
because in a long range it reads only some of the records:

    many segments       the first record of each
    a few segments      the records in the sparse index
    at most WALKED      every record

To find the exact position of a time, survey the whole range, then the part between the two points around that time, and
so on. That takes three or four surveys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from nsqcommon.wire.log_record import Header, decode_header
from nsqd.log.reading.refusals import opened_to_read
from nsqd.log.segment import ReadAt, SegmentIndex, SegmentView, header_at, index_of, verified_entry

if TYPE_CHECKING:
    from nsqd.log.files import Files

T = TypeVar("T")

WALKED: Final = 128 * 1024  # bytes; twice the index interval, so that any longer range has index entries in it
_MANY_SEGMENTS: Final = 4
_CHUNK: Final = 64 * 1024


class Point(NamedTuple):
    """Messages before `sequence` were published at `timestamp` or earlier, the others at `timestamp` or later.

    `bytes` is the size of the records from the start of the range to this point.
    """

    sequence: int
    timestamp: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    position: int  # in bytes, as if all segments were one file
    header: Header

    def position_of(self, sequence: int) -> int:
        """Return the position of a message, as if all messages of the record had the same size."""
        header = self.header
        passed = min(max(sequence - header.base_sequence, 0), header.count)
        return self.position + header.size * passed // header.count


class _Place(NamedTuple):
    """A position where a record should start."""

    view: int  # the segment's number in the survey
    offset: int
    sequence: int


class SegmentSurvey:
    """A survey of consecutive segments. Every method blocks on the disk and may raise ReadRefused."""

    def __init__(self, files: Files, views: Sequence[SegmentView]) -> None:
        self._files = files
        self._views = views
        self._starts = list(accumulate((view.size for view in views), initial=0))
        self._indexes: dict[int, SegmentIndex] = {}

    def points(self, start: int, end: int, most: int) -> list[Point]:
        """Return up to `most` points in [start, end), the first at its start and the last at its end.

        `most` must be at least 6. If you survey the part between two neighbouring points and get no new ones, there's
        only one record between them, or nothing readable. If either end is unreadable, there are no points at all.
        """
        first, last = self._holding(start), self._holding(end - 1)
        if first is None or last is None:
            return []
        inner = self._between(first, last, (most - 4) // 2)
        origin, latest = first.position_of(start), 0
        points: list[Point] = []
        for record in (first, *inner, last):
            latest = max(latest, record.header.timestamp)  # points have ascending times even if the clock was set back
            for sequence in (record.header.base_sequence, record.header.end_sequence):
                at = min(max(sequence, start), end)
                point = Point(at, latest, record.position_of(at) - origin)
                if not points or point > points[-1]:
                    points.append(point)
        return points

    def _between(self, first: _Record, last: _Record, most: int) -> Iterator[_Record]:
        """Yield up to `most` records between these two, evenly spread."""
        if first.position >= last.position:
            return
        named: list[_Place] = []
        if last.position - first.position > WALKED:
            named = [it for it in self._named() if first.position < self._starts[it.view] + it.offset < last.position]
        # If a long segment has lost its index, this walks over all of it, as any other reader would.
        found = self._read_headers(_thinned(named, most)) if named else _thinned(self._walked(first, last), most)
        yield from (record for record in found if first.position < record.position < last.position)

    def _holding(self, sequence: int) -> _Record | None:
        """Return the record of this message, or if it's damaged, the last sound one before it in the segment."""
        place = bisect_right(self._views, sequence, key=lambda view: view.base) - 1
        index = self._index(place)
        with self._opened(place) as read:
            if read is None:
                return None
            found = None
            offset, base = verified_entry(read, index, index.place_of(sequence)) or (0, self._views[place].base)
            for record in self._chain(read, place, offset, base):
                if record.header.base_sequence > sequence:
                    break
                found = record
                if record.header.end_sequence > sequence:
                    break
            return found

    def _walked(self, first: _Record, last: _Record) -> Iterator[_Record]:
        for place, start in enumerate(self._starts[:-1]):
            if self._starts[place + 1] <= first.position or start >= last.position:
                continue
            begins_here = first.position >= start
            offset = first.position - start if begins_here else 0
            base = first.header.base_sequence if begins_here else self._views[place].base
            with self._opened(place) as read:
                if read is not None:
                    for record in self._chain(read, place, offset, base):
                        if record.position >= last.position:
                            break
                        yield record

    def _named(self) -> Iterator[_Place]:
        """Yield positions of records: the start of each segment and, if there are few segments, their index entries."""
        for number, view in enumerate(self._views):
            yield _Place(number, 0, view.base)
            if len(self._views) <= _MANY_SEGMENTS:
                index = self._index(number)
                for sequence, offset in zip(index.sequences, index.offsets, strict=True):
                    yield _Place(number, offset, sequence)

    def _read_headers(self, places: Sequence[_Place]) -> Iterator[_Record]:
        for number, here in groupby(places, key=attrgetter("view")):
            with self._opened(number) as read:
                for place in here:
                    header = header_at(read, place.offset) if read is not None else None
                    if header is not None and header.base_sequence == place.sequence:
                        yield _Record(self._starts[number] + place.offset, header)

    def _chain(self, read: ReadAt, place: int, offset: int, sequence: int) -> Iterator[_Record]:
        """Yield consecutive records from here up to the first bad one."""
        view, data, start = self._views[place], b"", offset
        while offset < view.size:
            header = decode_header(data, offset - start)
            if header is None and (offset != start or not data):
                data, start = read(offset, min(_CHUNK, view.size - offset)), offset
                continue
            if header is None or header.base_sequence != sequence:
                return
            yield _Record(self._starts[place] + offset, header)
            offset += header.size
            sequence = header.end_sequence

    @contextmanager
    def _opened(self, place: int) -> Iterator[ReadAt | None]:
        """Open a segment and yield a reader of it. Yield None if its file is gone."""
        with ExitStack() as stack:
            try:
                read = stack.enter_context(opened_to_read(self._files, self._views[place].path))
            except FileNotFoundError:
                read = None
            yield read

    def _index(self, place: int) -> SegmentIndex:
        if place not in self._indexes:
            self._indexes[place] = index_of(self._files, self._views[place])
        return self._indexes[place]


def _thinned(items: Iterable[T], most: int) -> Sequence[T]:
    everything = list(items)
    count = min(most, len(everything))
    return [everything[(2 * number + 1) * len(everything) // (2 * count)] for number in range(count)]
