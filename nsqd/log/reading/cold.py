"""Reads batches that are no longer in the tail cache.

We try the page cache first, on the loop. If the disk is needed, or the bytes aren't as expected, a `Load` goes to a
thread and the reader has to ask again later. We keep the batches of a read for a while, decoded and with verified
checksums. A read decodes all of its batches, because a consumer that works through a backlog needs all of them, and
because that frees the bytes while they're still in the processor's cache.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nsqd.log.files import close_quietly, remove_file
from nsqd.log.reading.refusals import Salvage, is_refusal, opened_to_read, refused_to_read
from nsqd.log.record import HEADER_SIZE, Header, Stop, UnknownFlags, decode_batch, scan
from nsqd.log.segment import (
    BLOCK_SIZE,
    Hole,
    ReadAt,
    Segment,
    SegmentIndex,
    SegmentWalk,
    find_hole,
    load_index,
    save_index,
)

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.log.files import Files

# That's a few hundred small messages, and walking over their headers takes a fraction of a millisecond.
READ_SIZE: Final = 128 * 1024
# Large records need a larger read, because each read wastes the bytes of its last record, which is cut off.
LARGE_READ_SIZE: Final = 512 * 1024
_LARGE_RECORD: Final = 16 * 1024
_NEAR: Final = 4 * 1024  # decoded around a single message; a reader that continues there reads more
AHEAD_BYTES: Final = 2 * 1024 * 1024  # a few thousand messages, to spread the cost of waking a thread
MOST_STREAMS: Final = 8  # channels of a topic that work through their backlogs at the same time
COLD_BYTES: Final = 4 * 1024 * 1024  # the most we hold for each topic that is being read
NO_CACHED_READS: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # the file system doesn't support them


class Damaged(Exception):
    """There's no sound record at `offset`, where the record of `sequence` should be."""

    def __init__(self, offset: int, sequence: int) -> None:
        super().__init__(offset, sequence)
        self.offset = offset
        self.sequence = sequence


class Start(NamedTuple):
    """A position where a record is known to start."""

    sequence: int
    offset: int


class ColdBlock:
    """Consecutive batches of a segment, decoded and with verified checksums."""

    __slots__ = ("_bases", "_batches", "end", "end_offset", "first", "segment_base", "size")

    def __init__(self, segment_base: int, offset: int, data: bytes, headers: list[tuple[int, Header]]) -> None:
        """Decode the batches up to the first bad one. If that's the very first, raise Damaged or UnknownFlags."""
        self._batches: list[Batch] = []
        self.segment_base = segment_base
        self.size = 0
        for position, header in headers:
            try:
                batch = decode_batch(header, data, position)
            except UnknownFlags:
                if not self._batches:
                    raise
                break
            if batch is None:
                if not self._batches:
                    raise Damaged(offset + position, header.base_sequence)
                break
            self._batches.append(batch)
            self.size += header.size
            self.end_offset = offset + position + header.size
        self._bases = [batch.base_sequence for batch in self._batches]
        self.first = self._bases[0]
        self.end = self._batches[-1].end_sequence

    @property
    def has_large_records(self) -> bool:
        """Whether the records are large on average. If so, the next ones probably are too."""
        return self.size >= _LARGE_RECORD * len(self._batches)

    def batch_at(self, sequence: int) -> Batch:
        return self._batches[bisect_right(self._bases, sequence) - 1]


class ColdBlocks:
    """The blocks of one topic that were read most recently."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, ColdBlock] = OrderedDict()
        # Where groups share (groups.py), reads are of a few messages here and there, so there may be a thousand blocks.
        self._firsts: list[int] = []  # the first sequences of the blocks, ascending
        self._bytes = 0
        self._last: ColdBlock | None = None
        self._highest_end = 0  # no block has this sequence or a later one
        self.used = True  # since the last call of `forget_idle`

    def find(self, sequence: int) -> ColdBlock | None:
        self.used = True
        block = self._last
        if block is not None and block.first <= sequence < block.end:
            return block
        if sequence >= self._highest_end:  # the usual case: the reader continues after the last block
            return None
        place = bisect_right(self._firsts, sequence) - 1
        found = self._blocks[self._firsts[place]] if place >= 0 else None
        if found is None or sequence >= found.end:
            return None
        self._blocks.move_to_end(found.first)
        self._last = found
        return found

    def start_of(self, sequence: int, segment: Segment) -> Start | None:
        """Return the start of `sequence` in the segment, or None if no block ends just before it."""
        place = bisect_left(self._firsts, sequence) - 1
        if place >= 0:
            block = self._blocks[self._firsts[place]]
            if block.end == sequence and block.segment_base == segment.base:
                return Start(sequence, block.end_offset)
        return None

    def next_read_size(self, sequence: int) -> int:
        """Return how many bytes to read for this sequence."""
        block = self._last
        return LARGE_READ_SIZE if block is not None and block.end == sequence and block.has_large_records else READ_SIZE

    def add(self, block: ColdBlock) -> None:
        old = self._blocks.pop(block.first, None)
        if old is not None:
            self._bytes -= old.size
        else:
            insort(self._firsts, block.first)
        self._blocks[block.first] = self._last = block
        self._bytes += block.size
        self._highest_end = max(self._highest_end, block.end)
        while self._bytes > COLD_BYTES and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._bytes -= oldest.size
            del self._firsts[bisect_left(self._firsts, oldest.first)]


def read_block(
    read: ReadAt, segment_base: int, start: Start, end: int, sequence: int, size: int = READ_SIZE
) -> ColdBlock:
    """Walk from `start` to the record that holds `sequence`, and return a block that begins with it.

    `end` is the segment's size, and `size` is the size of the first read.

    Raises Damaged if the walk meets bad bytes, UnknownFlags if the record comes from a later version, and
    BlockingIOError if `read` returned fewer bytes than we asked for.
    """
    offset, at = start.offset, start.sequence
    while True:
        asked = min(size, end - offset)
        data = read(offset, asked) if asked > 0 else b""
        skipped = scan(data, 0, at, verify=False, until=sequence)
        headers: list[tuple[int, Header]] = []
        if skipped.position:  # we had to walk, so this may be a single message: decode only a few of its neighbours
            near = data[skipped.position : skipped.position + _NEAR]
            scan(near, 0, skipped.sequence, verify=False, headers=headers)
            if headers:
                return ColdBlock(segment_base, offset + skipped.position, near, headers)
        found = scan(data, skipped.position, skipped.sequence, verify=False, headers=headers)
        if headers:
            return ColdBlock(segment_base, offset, data, headers)
        offset, at = offset + skipped.position, skipped.sequence
        if len(data) < asked and found.stop is not Stop.BAD:
            raise BlockingIOError(errno.EAGAIN, "partly cached")
        needs_more = found.stop is Stop.SHORT or (found.stop is Stop.END and skipped.position > 0)
        if not needs_more or offset + max(found.needed, HEADER_SIZE) > end:
            raise Damaged(offset, at)
        size = max(READ_SIZE, found.needed)


class InFile(Protocol):
    @property
    def path(self) -> Path: ...


class AnyLoad(Protocol):
    """A read in a thread, of a segment or of a compacted file."""

    topic: str
    holes: list[Hole]
    aside: list[Path]  # copies of the bytes in the holes
    error: OSError | None  # why we couldn't read everything
    bypassed: tuple[int, int] | None  # sequences [first, end) that the disk keeps refusing, so readers skip them

    @property
    def segment(self) -> InFile: ...

    @property
    def must_retry(self) -> bool:
        """Whether to retry the read later."""

    def perform(self, files: Files) -> None: ...


class Load:
    """A read of a segment in a thread. Only `perform` runs there; the loop creates the load and applies its result.

    Bytes that the disk refuses never become a hole. With `salvages`, the load looks for the next record after them.
    """

    def __init__(
        self, topic: str, sequence: int, segment: Segment, *, end: int, start: Start | None, salvages: bool = False
    ) -> None:
        self.topic = topic
        self.sequence = sequence
        self.segment = segment
        self.block: ColdBlock | None = None
        self.holes: list[Hole] = []
        self.aside: list[Path] = []  # copies of the bytes in the holes
        self.index: SegmentIndex | None = None
        self.index_is_bad_at: int | None = None
        self.error: OSError | None = None
        self.bypassed: tuple[int, int] | None = None
        self._end_offset = segment.size
        self._end_sequence = end  # the sequence after the segment's last record
        self._start = start
        self._salvages = salvages

    @property
    def must_retry(self) -> bool:
        """Whether to retry: the disk refused, or the cause may go away, such as permissions or too many open files."""
        return self.error is not None and self.bypassed is None and not self.holes

    def perform(self, files: Files) -> None:
        try:
            with opened_to_read(files, self.segment.path) as read:
                self._read(files, read)
        except OSError as error:
            self._give_up(files, error)
        except UnknownFlags as unknown:
            self.error = refused_to_read(unknown, self.segment.path)
            if self._salvages:
                self.bypassed = (unknown.first, unknown.end)
        for hole in self.holes:  # including those found before an error
            if (aside := keep_aside(files, self.segment.path, "damaged", hole.offset, hole.end_offset)) is not None:
                self.aside.append(aside)

    def _give_up(self, files: Files, error: OSError) -> None:
        self.error = error
        rest = (self.sequence, self._end_sequence)
        if self._salvages and is_refusal(error):
            self.bypassed = rest
        elif is_missing(files, self.segment.path, error):
            self.holes.append(Hole(*rest, 0, 0))

    def _read(self, files: Files, strictly: ReadAt) -> None:
        salvage = Salvage(strictly) if self._salvages else None
        read = salvage or strictly
        first = Start(self.segment.base, 0)
        start = self._start or self._start_by_index(files, read) or first
        while True:
            try:
                block = read_block(read, self.segment.base, start, self._end_offset, self.sequence)
            except Damaged as damage:
                at_start = damage.offset == start.offset != 0 and self.index_is_bad_at is None and not self.holes
                if at_start and not (salvage and salvage.refused_in(damage.offset, damage.offset + HEADER_SIZE)):
                    # Perhaps the index or block that gave us this start is wrong. Start at the segment's beginning to
                    # find out whether the segment is really damaged.
                    self.index_is_bad_at = start.offset
                    start = first
                    continue
                hole = self._hole_at(read, damage)
                if salvage is None or not salvage.refused_in(hole.offset, hole.end_offset):
                    self.holes.append(hole)
                elif hole.end > self.sequence:
                    self.error, self.bypassed = salvage.error, (hole.first, hole.end)
                if hole.end > self.sequence:
                    return
                start = Start(hole.end, hole.end_offset)
            else:
                self.block = block
                return

    def _hole_at(self, read: ReadAt, damage: Damaged) -> Hole:
        hole = find_hole(
            read, offset=damage.offset, sequence=damage.sequence, end=self._end_offset, next_base=self._end_sequence
        )
        assert hole is not None
        return hole

    def _start_by_index(self, files: Files, read: ReadAt) -> Start | None:
        segment = self.segment
        if segment.index is not None:
            return None  # the loop has already searched it
        index = load_index(files, segment)
        last = Start(index.sequences[-1], index.offsets[-1]) if index else Start(segment.base, 0)
        if segment.size - last.offset > BLOCK_SIZE:  # the index is missing or incomplete
            walk = SegmentWalk(read, offset=last.offset, sequence=last.sequence, end=segment.size, verify=False)
            walk.run()
            for sequence, offset in walk.index:
                index.add(sequence, offset)
            try:
                save_index(files, segment.index_path, index.encode_unsaved(), saved=index.saved)
                index.saved = len(index)
            except OSError:
                pass  # the disk may be full, and we can work with the index in memory
        self.index = index
        entry = index.locate(self.sequence)
        return Start(*entry) if entry is not None else None


class ReadAhead:
    """Reads the next bytes of a segment in a thread, so that the loop finds them in the page cache later.

    We throw the bytes away, but copying them has a purpose. In a virtual machine, the first access to a page that was
    free for a long time can cost as much as everything else we do for a message. So the thread pays for it instead of
    the loop.
    """

    def __init__(self, topic: str, segment: Segment, offset: int, size: int) -> None:
        self.topic = topic
        self.segment = segment
        self.holes: list[Hole] = []
        self.aside: list[Path] = []
        self.error: OSError | None = None
        self.bypassed: tuple[int, int] | None = None
        self.must_retry = False
        self._offset = offset
        self._size = size

    def perform(self, files: Files) -> None:
        with suppress(OSError):  # a reader that needs these bytes will get the same error, and report it
            descriptor = files.open_to_read(self.segment.path)
            try:
                files.read_at(descriptor, self._size, self._offset)
            finally:
                close_quietly(files, descriptor)


class SequentialReaders:
    """The readers that work through a segment in order, and how far we have read ahead for each."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: list[tuple[int, int]] = []  # (segment's base, offset we have read to), last used at the end

    def __len__(self) -> int:
        return len(self._streams)

    def next_piece(self, segment: Segment, offset: int) -> tuple[int, int] | None:
        """Return (offset, size) to read ahead for a reader at `offset`, or None if we're far enough ahead.

        We don't read ahead near the end of a segment, because bytes that were just appended are in the page cache.
        """
        stream = self._stream_at(segment.base, offset)
        start = offset
        if stream is not None:
            if stream[1] > offset + AHEAD_BYTES:
                return None
            start = max(start, stream[1])
        if start + AHEAD_BYTES > segment.size:
            return None
        if stream is not None:
            self._streams.remove(stream)
        self._streams.append((segment.base, start + AHEAD_BYTES))
        del self._streams[:-MOST_STREAMS]
        return start, AHEAD_BYTES

    def _stream_at(self, base: int, offset: int) -> tuple[int, int] | None:
        for stream in self._streams:
            if stream[0] == base and offset - AHEAD_BYTES <= stream[1] <= offset + 2 * AHEAD_BYTES:
                return stream
        return None


def keep_aside(files: Files, path: Path, word: str, offset: int, end_offset: int) -> Path | None:
    """Call `copy_aside`, but return None if that fails, because reading continues anyway."""
    try:
        return copy_aside(files, path, word, offset, end_offset)
    except OSError:
        return None


def copy_aside(files: Files, path: Path, word: str, offset: int, end_offset: int) -> Path | None:
    """Copy a piece of a file to a new file beside it. Returns the new file's path, or None if the piece is empty.

    An existing copy is kept, because a copy is always complete. Raises ReadRefused if we can't read the
    bytes, and OSError if we can't write them.
    """
    target = path.with_name(f"{path.name}.{word}.{offset}")
    if end_offset <= offset:
        return None
    if not files.exists(target):
        try:
            _copy(files, path, offset, end_offset, target)
        except OSError:
            with suppress(OSError):  # the next call would mistake half a copy for a complete one
                remove_file(files, target)
            raise
    return target


def _copy(files: Files, source: Path, offset: int, end_offset: int, target: Path) -> None:
    with opened_to_read(files, source) as read:
        writer = files.open_to_write(target)
        try:
            for start in range(offset, end_offset, BLOCK_SIZE):
                data = read(start, min(BLOCK_SIZE, end_offset - start))
                files.write_fully(writer, [data], start - offset)
            files.sync(writer)
        finally:
            files.close(writer)


def is_missing(files: Files, path: Path, error: OSError) -> bool:
    """Return whether the file is missing but its folder is there. If so, waiting won't bring its bytes back.

    If the folder is missing too, the data path has been moved or isn't mounted, and it may come back.
    """
    try:
        return isinstance(error, FileNotFoundError) and files.exists(path.parent)
    except OSError:
        return False


class ReadDescriptors:
    """The open files for reading, of all topics. Beyond `most` files, the least recently used one is closed."""

    def __init__(self, files: Files, most: int) -> None:
        self._files = files
        self._most = most
        self._open: OrderedDict[Path, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._files.open_to_read(path)
            self._open[path] = descriptor
            if len(self._open) > self._most:
                close_quietly(self._files, self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return descriptor

    def forget(self, path: Path) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            close_quietly(self._files, descriptor)

    def close(self) -> None:
        while self._open:
            close_quietly(self._files, self._open.popitem()[1])
