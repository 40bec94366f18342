"""The keys of publishers that may try again, as the records of a segment have them (see nsqd/broker/keys.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.wire.log_record import decode_keys
from nsqd.log.reading.refusals import opened_to_read
from nsqd.log.segment import Segment, Walk

if TYPE_CHECKING:
    from nsqd.log.files import Files


def keys_in(files: Files, segment: Segment, since: int, first: int) -> list[tuple[bytes, int]]:
    """Return the keys of messages from `first` on written after `since`, with their times, also from behind damage."""
    found: list[tuple[bytes, int]] = []
    with opened_to_read(files, segment.path) as read:
        walk = Walk(read, offset=0, sequence=segment.base, end=segment.size, verify=False, next_base=None)
        for block in walk.blocks():
            for position, header in block.headers:
                if header.key_length and header.timestamp > since and header.base_sequence >= first:
                    found += [(key, header.timestamp) for key in decode_keys(header, block.data, position)]
    return found
