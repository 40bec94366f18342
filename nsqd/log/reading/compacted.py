"""Reads compacted files: the messages that are still needed from segments that compaction has removed.

    carried.000001   records in the log's own format, with their sequences, ids and times; ascending, with gaps

A compacted file is written, synced and only then renamed to this name, so a file with the name is complete. In memory
we keep only the position of each record, in arrays. The journal records which messages are still needed, and when they
are due. Readers of history never get messages from here.

A message in a compacted file may also be in another one, or still in its segment if nsqd crashed before removing that.
This is harmless, because the copies are the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.reading.cold import NO_CACHED_READS, is_missing, keep_aside
from nsqd.log.reading.refusals import ReadRefusals, ReadRefused, is_refusal, opened_to_read, refused_to_read
from nsqd.log.record import Header, UnknownFlags, decode_batch, decode_header, find_header, walk_record
from nsqd.log.segment import BLOCK_SIZE, Hole, ReadAt

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.log.files import Files
    from nsqd.log.reading.reads import Reads

_PREFIX: Final = "carried."
_READ_SIZE: Final = 128 * 1024
_MOST_BLOCKS: Final = 8


def compacted_name(number: int) -> str:
    return f"{_PREFIX}{number:06}"


def number_of_name(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


class CompactedFile:
    __slots__ = ("_firsts", "_offsets", "_starts", "messages", "number", "path", "size")

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / compacted_name(number)
        self.number = number
        self.size = 0
        self.messages = 0
        self._firsts = array("Q")  # the first sequence of each record
        self._offsets = array("Q")
        self._starts = array("Q")  # for each record, the number of messages before it

    def __len__(self) -> int:
        """Return the number of records in the file."""
        return len(self._firsts)

    def add(self, first: int, count: int, offset: int, size: int) -> None:
        self._firsts.append(first)
        self._offsets.append(offset)
        self._starts.append(self.messages)
        self.messages += count
        self.size = offset + size

    def count(self, place: int) -> int:
        end = self._starts[place + 1] if place + 1 < len(self._starts) else self.messages
        return end - self._starts[place]

    def start(self, place: int) -> int:
        return self._starts[place]

    def first(self, place: int) -> int:
        return self._firsts[place]

    def extent(self, place: int) -> tuple[int, int]:
        """Return (offset, size) of a record, including any damaged bytes after it."""
        end = self._offsets[place + 1] if place + 1 < len(self._offsets) else self.size
        return self._offsets[place], end - self._offsets[place]

    def place_of(self, sequence: int) -> int:
        """Return the number of the record that holds the sequence, or -1."""
        place = bisect_right(self._firsts, sequence) - 1
        return place if place >= 0 and sequence < self._firsts[place] + self.count(place) else -1

    def next_after(self, sequence: int) -> int | None:
        """Return the first sequence of the next record after this sequence, or None."""
        place = bisect_right(self._firsts, sequence)
        return self._firsts[place] if place < len(self._firsts) else None

    def message_of(self, sequence: int) -> int:
        """Return the number of messages in the file before this one, or -1 if it isn't in the file."""
        place = self.place_of(sequence)
        return self._starts[place] + sequence - self._firsts[place] if place >= 0 else -1


def scan_compacted(files: Files, folder: Path, number: int) -> tuple[CompactedFile, list[Hole]]:
    """Read a compacted file and verify its checksums. Return it with its holes.

    A hole covers all sequences between its neighbours, although the file may not have had all of them. Raises
    ReadRefused if the disk refuses any part of the file, because then we don't know which messages are in it.
    """
    found = CompactedFile(folder, number)
    holes: list[Hole] = []
    with opened_to_read(files, found.path) as read:
        end = files.size_of(found.path)
        offset = following = 0
        size = BLOCK_SIZE
        while offset < end:
            data = read(offset, min(size, end - offset))
            position = 0
            while (record := walk_record(data, position, not_before=following)) is not None:
                first, count, length = record
                found.add(first, count, offset + position, length)
                position += length
                following = first + count
            offset += position
            size = BLOCK_SIZE
            if position:
                continue
            header = decode_header(data, 0)
            if header is not None and len(data) < header.size <= end - offset:
                size = header.size
                continue
            hole = _hole(read(offset, end - offset), offset, following)
            holes.append(hole)
            offset, following = hole.end_offset, hole.end
    return found, holes


def _hole(data: bytes, offset: int, sequence: int) -> Hole:
    """Return the hole from the bad bytes at the start of `data` to the next sound record, or to the end."""
    position = 1
    while (candidate := find_header(data, position, not_before=sequence)) is not None:
        position, header = candidate
        if walk_record(data, position, not_before=sequence) is not None:
            return Hole(sequence, header.base_sequence, offset, offset + position)
        position += 1
    return Hole(sequence, sequence, offset, offset + len(data))


class CompactedLoad:
    """A read of a compacted file in a thread. Only `perform` runs there; the loop creates it and applies its result."""

    def __init__(self, topic: str, file: CompactedFile, place: int, *, bypasses: bool) -> None:
        self.topic = topic
        self.segment = file
        self.place = place
        self.sequence = file.first(place)
        self.data = b""
        self.holes: list[Hole] = []
        self.aside: list[Path] = []
        self.error: OSError | None = None
        self.bypassed: tuple[int, int] | None = None
        self.end = self.sequence + file.count(place)
        self.offset, self._size = file.extent(place)
        self._end_offset = file.size
        self._bypasses = bypasses  # the disk has refused this record for a while

    @property
    def must_retry(self) -> bool:
        return self.error is not None and self.bypassed is None and not self.holes

    def perform(self, files: Files) -> None:
        try:
            with opened_to_read(files, self.segment.path) as read:
                self.data = self._read(read)
        except OSError as error:
            self.error = error
            if self._bypasses and is_refusal(error):
                self.bypassed = self.sequence, self.end
            elif is_missing(files, self.segment.path, error):
                self.holes.append(Hole(self.sequence, self.end, 0, 0))
            return
        try:
            batch = _decode(self.data, 0)
        except UnknownFlags as unknown:
            self.error = refused_to_read(unknown, self.segment.path)
            if self._bypasses:
                self.bypassed = self.sequence, self.end
            return
        if batch is None:
            self.holes.append(Hole(self.sequence, self.end, self.offset, self.offset + self._size))
            aside = keep_aside(files, self.segment.path, "damaged", self.offset, self.offset + self._size)
            if aside is not None:
                self.aside.append(aside)

    def _read(self, read: ReadAt) -> bytes:
        """Read the record and some of the next ones, which will probably be needed soon."""
        try:
            return read(self.offset, min(max(_READ_SIZE, self._size), self._end_offset - self.offset))
        except ReadRefused:
            return read(self.offset, self._size)


def _decode(data: bytes, position: int) -> Batch | None:
    header = decode_header(data, position)
    return decode_batch(header, data, position) if header is not None else None


def _decode_known(data: bytes, position: int) -> Batch | None:
    """Decode a record. Return None if it's bad or from a later version: a thread will read it again and report it."""
    try:
        return _decode(data, position)
    except UnknownFlags:
        return None


class Compacted:
    """Reads from all compacted files of a log."""

    __slots__ = (
        "_blocks",
        "_loading",
        "_lost",
        "_next_number",
        "_reads",
        "_topic",
        "_used",
        "files",
        "refusals",
    )

    def __init__(self, topic: str, reads: Reads, files: list[CompactedFile]) -> None:
        self._topic = topic
        self._reads = reads
        self.files = files  # in the order of their numbers
        self.refusals = ReadRefusals(reads.now)
        self._lost: list[tuple[int, int]] = []
        self._blocks: dict[tuple[int, int], bytes] = {}  # (file's number, offset) -> bytes that were read; oldest first
        # This is a dict because an empty set takes 150 bytes more, and most topics never read a compacted file.
        self._loading: dict[tuple[int, int], None] = {}
        self._used = False
        self._next_number = files[-1].number + 1 if files else 1

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def next_number(self) -> int:
        return self._next_number

    def holds(self, sequence: int) -> bool:
        return any(file.place_of(sequence) >= 0 for file in self.files) and not any(
            first <= sequence < end for first, end in self._lost
        )

    def next_held(self, sequence: int) -> int | None:
        """Return this sequence if it is here, otherwise the next one that is, or None."""
        while not self.holds(sequence):
            ends = [end for first, end in self._lost if first <= sequence < end]
            if ends and any(file.place_of(ends[0]) >= 0 for file in self.files):
                sequence = ends[0]
                continue
            following = [it for file in self.files if (it := file.next_after(sequence)) is not None]
            if not following:
                return None
            sequence = min(following)
        return sequence

    def add(self, file: CompactedFile) -> None:
        self.files.append(file)
        self._next_number = file.number + 1

    def take_out(self, files: list[CompactedFile]) -> list[Path]:
        """Forget these files and return their paths, so that the caller can remove them."""
        self.files = [file for file in self.files if file not in files]
        for file in files:
            self._reads.descriptors.forget(file.path)
            for key in [key for key in self._blocks if key[0] == file.number]:
                del self._blocks[key]
        if self.refusals:
            self.refusals.forget(lambda sequence: not self.holds(sequence))
            self._reads.read_again(self)
        return [file.path for file in files]

    # Reading

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch if it's in memory or in the page cache. Otherwise have a thread read it, and return None."""
        file, place = self._find(sequence)
        offset, size = file.extent(place)
        batch = self._in_blocks(file, offset)
        if batch is None:
            batch = self._in_page_cache(file, offset, size)
        if batch is None and self.refusals.end_of(sequence) == sequence:
            self._load(file, place)
        return batch

    def ask_again(self) -> None:
        """Retry the oldest read that the disk keeps refusing, even if no channel is waiting for it now."""
        if (sequence := self.refusals.oldest_stretch) is not None:
            self._load(*self._find(sequence))

    def _load(self, file: CompactedFile, place: int) -> None:
        if (file.number, place) not in self._loading:
            self._loading[file.number, place] = None
            bypasses = self.refusals.has_lasted(file.first(place))
            self._reads.load(CompactedLoad(self._topic, file, place, bypasses=bypasses))

    def _find(self, sequence: int) -> tuple[CompactedFile, int]:
        for file in reversed(self.files):
            place = file.place_of(sequence)
            if place >= 0:
                return file, place
        raise LookupError(sequence)

    def _in_blocks(self, file: CompactedFile, offset: int) -> Batch | None:
        for (number, start), data in self._blocks.items():
            if number == file.number and start <= offset < start + len(data):
                self._used = True
                batch = _decode_known(data, offset - start)
                if batch is not None:
                    return batch
        return None

    def _in_page_cache(self, file: CompactedFile, offset: int, size: int) -> Batch | None:
        reads = self._reads
        if not reads.reads_cache:
            return None
        try:
            data = reads.files.read_cached_at(reads.descriptors.get(file.path), size, offset)
        except BlockingIOError:
            return None
        except OSError as error:  # a thread will get the same error, and report it
            if error.errno in NO_CACHED_READS:
                reads.reads_cache = False
            return None
        self._hold()
        return _decode_known(data, 0)

    def _hold(self) -> None:
        """Arrange for calls of `forget_idle`, because we now hold blocks or descriptors."""
        self._used = True
        self._reads.reads_cold(self)

    def loaded(self, load: CompactedLoad) -> None:
        self._loading.pop((load.segment.number, load.place), None)
        if load.segment not in self.files:  # a compaction has replaced it in the meantime
            return
        self._note_refusal(load)
        if load.holes:
            self._lost += [(hole.first, hole.end) for hole in load.holes]
            self._reads.damaged(self._topic, load)
        elif load.data:
            self._blocks[load.segment.number, load.offset] = load.data
            while len(self._blocks) > _MOST_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._hold()

    def _note_refusal(self, load: CompactedLoad) -> None:
        refusals = self.refusals
        if load.bypassed is not None:
            refusals.bypass(*load.bypassed)
        elif load.must_retry:
            refusals.refused(load.sequence)
        elif refusals:
            refusals.was_read(load.sequence, load.end)
            self._reads.read_again(self)
        if load.error is not None and not load.holes:
            self._reads.refused(self, load)

    def forget_idle(self) -> bool:
        """Drop the blocks if nothing was read since the last call. Return whether they are gone."""
        if self._used:
            self._used = False
            return False
        self._blocks.clear()
        return True

    def headers(self) -> Iterator[Header]:
        """Yield the headers of all records. Blocks on the disk."""
        for file in self.files:
            with opened_to_read(self._reads.files, file.path) as read:
                for place in range(len(file)):
                    header = decode_header(read(*file.extent(place)), 0)
                    if header is not None:
                        yield header
