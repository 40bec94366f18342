"""The keys of publishers that may try again, as the records of a segment have them (see nsqd/broker/keys.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.reading.refusals import opened_to_read
from nsqd.log.record import HEADER_SIZE
from nsqd.log.segment import Segment, Walk

if TYPE_CHECKING:
    from nsqd.log.files import Files


def keys_in(files: Files, segment: Segment, since: int) -> list[tuple[bytes, int]]:
    """Return the keys of records written after `since`, with their times, also from behind damage."""
    found: list[tuple[bytes, int]] = []
    with opened_to_read(files, segment.path) as read:
        walk = Walk(read, offset=0, sequence=segment.base, end=segment.size, verify=False, next_base=None)
        for block in walk.blocks():
            for position, header in block.headers:
                if header.key_length and header.timestamp > since:
                    start = position + HEADER_SIZE
                    found.append((block.data[start : start + header.key_length], header.timestamp))
    return found
