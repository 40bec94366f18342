"""Reads the idempotence keys in a log's records. nsqd/broker/keys.py remembers them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.log_record import HEADER_SIZE, Header, decode_header, decode_keyed, decode_keys
from nsqd.log.reading.refusals import opened_to_read
from nsqd.log.segment import Segment, SegmentWalk, load_index, verified_entry

if TYPE_CHECKING:
    from nsqd.broker.store import KeyedPublish
    from nsqd.log.files import Files
    from nsqd.log.reading.compacted import CompactedFile
    from nsqd.log.segment import ReadAt

_BLOCK_SIZE: Final = 256 * 1024  # bytes per read when we search for single records
_NO_STARTS: Final[list[int]] = []


def keys_in(
    files: Files, segment: Segment, since: int, first: int, forgotten: Sequence[int] = _NO_STARTS
) -> tuple[list[tuple[bytes, int]], list[KeyedPublish]]:
    """Return the keys of messages from `first` on that were written after `since`, with their times. Skips damage.

    `forgotten` has the first sequences of publishes whose keys no longer count, ascending. Their keys are returned in
    the second list.
    """
    found: list[tuple[bytes, int]] = []
    gone: list[KeyedPublish] = []
    with opened_to_read(files, segment.path) as read:
        walk = SegmentWalk(read, offset=0, sequence=segment.base, end=segment.size, verify=False, next_base=None)
        for block in walk.blocks():
            for position, header in block.headers:
                if not header.key_length or header.timestamp <= since or header.base_sequence < first:
                    continue
                if _contains_any(forgotten, header):
                    for key, start, count in decode_keyed(header, block.data, position):
                        place = bisect_left(forgotten, start)
                        if place < len(forgotten) and forgotten[place] == start:
                            gone.append((key, start, count, header.timestamp))
                        else:
                            found.append((key, header.timestamp))
                else:
                    found += [(key, header.timestamp) for key in decode_keys(header, block.data, position)]
    return found, gone


def deferred_keys(
    files: Files, segments: Sequence[Segment], compacted: Sequence[CompactedFile], wanted: Sequence[int]
) -> list[KeyedPublish]:
    """Return the keys of delayed publishes that contain any of the `wanted` sequences, which must ascend.

    Damaged messages are left out. Raises ReadRefused if the disk refuses a read.
    """
    found: list[KeyedPublish] = []
    if not segments:
        return found
    for file in compacted:
        with suppress(FileNotFoundError):
            found += _in_compacted(files, file, wanted[: bisect_left(wanted, segments[0].base)])
    bases = [segment.base for segment in segments]
    for segment, (base, end) in zip(segments, pairwise([*bases, 1 << 64]), strict=True):
        here = wanted[bisect_left(wanted, base) : bisect_left(wanted, end)]
        if here:
            with suppress(FileNotFoundError), opened_to_read(files, segment.path) as read:
                found += _in_segment(files, segment, read, here)
    return found


def _in_segment(files: Files, segment: Segment, read: ReadAt, wanted: Sequence[int]) -> Iterator[KeyedPublish]:
    """Yield the keys, reading only the parts of the segment that have wanted messages."""
    index = segment.index if segment.index is not None else load_index(files, segment)
    place = 0
    while place < len(wanted):
        offset, sequence = verified_entry(read, index, index.place_of(wanted[place])) or (0, segment.base)
        walk = SegmentWalk(
            read,
            offset=offset,
            sequence=sequence,
            end=segment.size,
            verify=False,
            next_base=None,
            block_size=_BLOCK_SIZE,
        )
        for block in walk.blocks():
            for position, header in block.headers:
                following = bisect_left(wanted, header.end_sequence, place)
                is_wanted = following > place and wanted[following - 1] >= header.base_sequence
                if is_wanted and header.delay_ms and header.key_length:
                    for key, start, count in decode_keyed(header, block.data, position):
                        yield key, start, count, header.timestamp
                place = following
                if place == len(wanted):
                    return
            known = index.locate(wanted[place])
            if known is not None and known[1] > walk.offset + _BLOCK_SIZE:
                break  # the next wanted message is far ahead: jump there with the index
        else:
            return  # the walk has reached the end, so the other wanted messages are damaged


def _in_compacted(files: Files, file: CompactedFile, wanted: Sequence[int]) -> Iterator[KeyedPublish]:
    if not wanted:
        return
    with opened_to_read(files, file.path) as read:
        for place in range(len(file)):
            first = file.first(place)
            at = bisect_left(wanted, first)
            if at == len(wanted):
                return
            if wanted[at] < first + file.count(place):
                data = read(*file.extent(place))
                header = decode_header(data, 0)
                if header is not None and header.delay_ms and header.key_length:
                    key = data[HEADER_SIZE : HEADER_SIZE + header.key_length]
                    yield key, header.base_sequence, header.count, header.timestamp


def _contains_any(starts: Sequence[int], header: Header) -> bool:
    """Return whether one of these sequences is in the record."""
    place = bisect_left(starts, header.base_sequence)
    return place < len(starts) and starts[place] < header.end_sequence
