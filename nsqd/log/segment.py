"""A segment: one file of a topic's log, with its sparse index and a walk over its records that skips damage."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import lt
from pathlib import Path
from struct import Struct
from sys import byteorder
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqd.log.record import HEADER_SIZE, INDEX_INTERVAL, MAGIC, Header, Stop, decode_header, find_header, scan

if TYPE_CHECKING:
    from nsqd.log.files import Files

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
BLOCK_SIZE: Final = 1 << 20

_index_entry: Final = Struct(">QQ")

# Called with (offset, size) of a file. The result is only shorter at the end of the file.
ReadAt = Callable[[int, int], bytes]


def segment_name(base: int) -> str:
    return f"{base:020}{LOG_SUFFIX}"


def base_of_name(name: str) -> int | None:
    """Return the base sequence in a segment's file name, or None if it's the name of another file."""
    stem = name.removesuffix(LOG_SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isascii() and stem.isdigit() else None


class SegmentIndex:
    """A sparse index of a segment: (sequence, offset) of some records, both ascending.

    The first `saved` entries are in the index file already.
    """

    __slots__ = ("offsets", "saved", "sequences")

    def __init__(self) -> None:
        self.sequences = array("Q")
        self.offsets = array("Q")
        self.saved = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: int, offset: int) -> None:
        self.sequences.append(sequence)
        self.offsets.append(offset)

    def locate(self, sequence: int) -> tuple[int, int] | None:
        """Return the last entry at or before `sequence`, or None."""
        place = self.place_of(sequence)
        return (self.sequences[place], self.offsets[place]) if place >= 0 else None

    def place_of(self, sequence: int) -> int:
        """Return the number of the entry that `locate` returns, or -1."""
        return bisect_right(self.sequences, sequence) - 1

    def copy(self) -> SegmentIndex:
        copied = SegmentIndex()
        copied.sequences, copied.offsets, copied.saved = self.sequences[:], self.offsets[:], self.saved
        return copied

    def cut(self, offset: int) -> None:
        """Drop the entries at `offset` and later."""
        place = bisect_left(self.offsets, offset)
        del self.sequences[place:]
        del self.offsets[place:]
        self.saved = min(self.saved, place)

    def encode_unsaved(self) -> bytes:
        return b"".join(
            _index_entry.pack(sequence, offset)
            for sequence, offset in zip(self.sequences[self.saved :], self.offsets[self.saved :], strict=True)
        )

    @classmethod
    def decode(cls, data: bytes, *, base: int, end_offset: int) -> SegmentIndex:
        """Decode the entries up to the first invalid one.

        This doesn't check that the records are there; `verified_entry` does when an entry is used.
        """
        whole = len(data) - len(data) % _index_entry.size
        index = cls._decode_fast(data[:whole], base, end_offset)
        if index is not None:
            return index
        index = cls()
        last_sequence, last_offset = base, 0
        for sequence, offset in _index_entry.iter_unpack(data[:whole]):
            if sequence <= last_sequence or offset <= last_offset or offset >= end_offset:
                break
            index.add(sequence, offset)
            last_sequence, last_offset = sequence, offset
        index.saved = len(index)
        return index

    @classmethod
    def _decode_fast(cls, data: bytes, base: int, end_offset: int) -> SegmentIndex | None:
        """Return the index if every entry is valid, otherwise None. Ten times as fast as the loop in `decode`."""
        numbers = array("Q", data)
        if byteorder == "little":
            numbers.byteswap()
        index = cls()
        index.sequences, index.offsets = numbers[::2], numbers[1::2]
        makes_sense = (_ascends(index.sequences, above=base) and _ascends(index.offsets, above=0)) and (
            not index or index.offsets[-1] < end_offset
        )
        index.saved = len(index)
        return index if makes_sense else None


def _ascends(numbers: array[int], *, above: int) -> bool:
    return not numbers or (numbers[0] > above and all(map(lt, numbers, numbers[1:])))


class Segment:
    __slots__ = ("base", "index", "keyed", "newest", "path", "size")

    def __init__(self, path: Path, base: int, size: int, index: SegmentIndex | None = None) -> None:
        self.path = path
        self.base = base
        self.size = size  # whole records only
        self.index = index  # None: not loaded
        self.newest = 0  # publish time of the newest message, in nanoseconds
        self.keyed = 0  # the same for the newest message with a remembered key; 0: there is none

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """The readable part of a segment at a point in time. It never changes, so you can pass it to other threads."""

    path: Path
    base: int
    end: int  # the sequence at which its records end
    size: int
    index: SegmentIndex | None  # None: load it from its file


def load_index(files: Files, segment: Segment) -> SegmentIndex:
    try:
        data = files.read(segment.index_path)
    except OSError:  # missing or unreadable, which is fine: an empty index only makes reading slower
        data = b""
    return SegmentIndex.decode(data, base=segment.base, end_offset=segment.size)


def index_of(files: Files, view: SegmentView) -> SegmentIndex:
    if view.index is not None:
        return view.index
    return load_index(files, Segment(view.path, view.base, view.size))


def header_at(read: ReadAt, offset: int) -> Header | None:
    return decode_header(read(offset, HEADER_SIZE), 0)


def verified_entry(read: ReadAt, index: SegmentIndex, place: int) -> tuple[int, int] | None:
    """Return (offset, sequence) of an index entry if a record of that sequence really starts there, else None."""
    if place < 0:
        return None
    offset, sequence = index.offsets[place], index.sequences[place]
    header = header_at(read, offset)
    return (offset, sequence) if header is not None and header.base_sequence == sequence else None


def save_index(files: Files, path: Path, data: bytes, *, saved: int) -> None:
    """Write encoded entries after the first `saved` ones, and cut off the rest of the file."""
    descriptor = files.open_to_write(path)
    try:
        start = saved * _index_entry.size
        files.write_fully(descriptor, [data], start)
        files.truncate(descriptor, start + len(data))
    finally:
        files.close(descriptor)


def newest_in(files: Files, segment: Segment) -> int | None:
    """Return the publish time of the last message, or None if it isn't known. Reads from the last index entry on."""
    index = segment.index if segment.index is not None else load_index(files, segment)
    offset = index.offsets[-1] if index else 0
    newest = None
    try:
        descriptor = files.open_to_read(segment.path)
        try:
            while offset < segment.size:
                data = files.read_fully(descriptor, min(2 * INDEX_INTERVAL, segment.size - offset), offset)
                position = 0
                while (header := decode_header(data, position)) is not None:
                    newest = header.timestamp
                    position += header.size
                if not position:
                    return None
                offset += position
        finally:
            files.close(descriptor)
    except OSError:
        return None
    return newest


class Hole(NamedTuple):
    """A gap of damaged messages: the sequences [first, end), and the bytes where they should be.

    Sequences have no gaps, so we can see from the neighbouring records which messages are damaged. For example, a
    segment has the sequences 0 to 9 at offset 0, 10 to 19 at 500 and 20 to 29 at 1000, and a byte at 700 has flipped.
    Then the second record's checksum is wrong, and the next sound record is at 1000 and starts with 20. So the hole is
    (10, 20, 500, 1000). Channels skip these sequences, a copy of the bytes is kept aside, and the sequences are never
    reused.

    Bad bytes at the end of the active segment, with no sound record after them, aren't a hole. They are a write that
    never finished and was never acknowledged, so new messages reuse its sequences. Bytes that the disk refuses to read
    aren't a hole either, as they may be readable later (see reading/refusals.py).
    """

    first: int
    end: int
    offset: int
    end_offset: int


class Block(NamedTuple):
    """A part of a segment that starts with a record, and the headers of its whole records by position in `data`."""

    data: bytes
    offset: int
    headers: list[tuple[int, Header]]


class SegmentWalk:
    """Walks over a segment's records from a given one to the end, and skips damage.

    Bad bytes with a sound record after them become a hole. Bad bytes at the end are a torn tail: the walk stops there,
    with `offset` less than `end`. Give `next_base` if another segment follows. Then there is no torn tail: bad bytes at
    the end, or records missing there, become a hole up to `next_base`.
    """

    def __init__(
        self,
        read: ReadAt,
        *,
        offset: int,
        sequence: int,
        end: int,
        verify: bool,
        next_base: int | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.offset = offset
        self.sequence = sequence
        self.holes: list[Hole] = []
        self.index: list[tuple[int, int]] = []  # index entries for the records so far
        self._read = read
        self._end = end
        self._verify = verify
        self._next_base = next_base
        self._block_size = block_size  # bytes per read
        self._indexed_at = offset

    def run(self) -> None:
        for _ in self.blocks(with_headers=False):
            pass

    def blocks(self, *, with_headers: bool = True) -> Iterator[Block]:
        size = self._block_size
        while self.offset < self._end:
            start = self.offset
            asked = min(size, self._end - start)
            data = self._read(start, asked)
            if len(data) < asked:  # the file is shorter than it should be
                self._end = start + len(data)
            headers: list[tuple[int, Header]] = []
            index: list[tuple[int, int]] = []
            found = scan(
                data,
                0,
                self.sequence,
                verify=self._verify,
                headers=headers if with_headers else None,
                index=index,
                indexed_at=self._indexed_at - start,
            )
            self.index += [(sequence, start + position) for sequence, position in index]
            if index:
                self._indexed_at = self.index[-1][1]
            self.offset, self.sequence = start + found.position, found.sequence
            if found.position:
                yield Block(data, start, headers)
            size = max(self._block_size, found.needed)
            if found.stop is Stop.END or (found.stop is Stop.SHORT and self._can_continue(found.needed, start, data)):
                continue
            hole = find_hole(
                self._read, offset=self.offset, sequence=self.sequence, end=self._end, next_base=self._next_base
            )
            if hole is None:
                return
            self._skip(hole)
        if self._next_base is not None and self.sequence < self._next_base:
            self._skip(Hole(self.sequence, self._next_base, self.offset, self._end))

    def _can_continue(self, needed: int, start: int, data: bytes) -> bool:
        """Return whether a longer read could complete the record."""
        at_end = start + len(data) >= self._end
        return self.offset + needed <= self._end and (self.offset > start or not at_end)

    def _skip(self, hole: Hole) -> None:
        self.holes.append(hole)
        self.offset, self.sequence = hole.end_offset, hole.end


def find_hole(read: ReadAt, *, offset: int, sequence: int, end: int, next_base: int | None) -> Hole | None:
    """Return the hole that starts with `sequence`. None if no sound record follows, which means that it's a torn tail.

    With `next_base`, another segment follows, so it isn't a torn tail: the hole ends at `next_base` at the latest.
    """
    for place, header in _candidates(read, offset, end, sequence):
        if next_base is not None and header.end_sequence > next_base:
            continue
        if place + header.size <= end and _is_sound(read, place, header):
            return Hole(sequence, header.base_sequence, offset, place)
    return Hole(sequence, next_base, offset, end) if next_base is not None else None


def _candidates(read: ReadAt, offset: int, end: int, sequence: int) -> Iterator[tuple[int, Header]]:
    """Yield (offset, header) of everything from `offset` on that looks like the next sound record."""
    first = decode_header(read(offset, HEADER_SIZE), 0)
    if first is not None and first.base_sequence >= sequence:
        yield offset, first
        # If only its payload is bad, its length is right. Check right after it first, because a search from the next
        # byte would go through message bodies, where a client may have put bytes that look like a record.
        following = decode_header(read(offset + first.size, HEADER_SIZE), 0)
        if following is not None and following.base_sequence >= first.end_sequence:
            yield offset + first.size, following
    position = offset + 1
    while position + HEADER_SIZE <= end:
        data = read(position, min(BLOCK_SIZE, end - position))
        if len(data) < HEADER_SIZE:
            return
        start = 0
        while (found := find_header(data, start, not_before=sequence)) is not None:
            yield position + found[0], found[1]
            start = found[0] + len(MAGIC)
        position += len(data) - HEADER_SIZE + 1  # overlap the blocks: a header may span two of them


def _is_sound(read: ReadAt, offset: int, header: Header) -> bool:
    data = read(offset, header.size)
    found = scan(data, 0, header.base_sequence, verify=True)
    return found.stop is Stop.END and found.position == header.size
