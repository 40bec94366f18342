"""What a running broker, and the disk below it, hold of each message."""

from __future__ import annotations

from collections.abc import Iterator

from nsqd.broker.channel import Channel
from nsqd.log.record import decode_batch, decode_header
from nsqd.log.segment import SegmentWalk
from nsqd.log.topic_log import DiskLog
from tests.simulation.disk import SimulatedDisk
from tests.simulation.promise import Violation


def ahead_in(channel: Channel) -> list[int]:
    """Return what was never delivered: what is held, and what the cursor is going to meet."""
    skipped = {sequence for start, end in channel.ledger.skips for sequence in range(start, end)}
    ahead = [s for s in range(channel.ledger.cursor, channel.feed.high_watermark) if s not in skipped]
    return [*channel.ledger.held.all(), *ahead]


def places_in(topic: str, channel: Channel) -> Iterator[tuple[int, int]]:
    """Return where each message of the channel is, and its attempts. Raise Violation if one is in two places."""
    found: dict[int, int] = {}
    ahead = [(sequence, 0) for sequence in ahead_in(channel)]
    deferred = [(sequence, attempts) for _, sequence, attempts in channel.ledger.deferred]
    for sequence, attempts in [*channel.in_flight.positions(), *channel.ledger.retries, *deferred, *ahead]:
        if sequence in found or sequence in channel.buried_queue.buried:
            raise Violation(f"{topic}/{channel.name}: message {sequence} is in two places")
        found[sequence] = attempts
    return iter(found.items())


def contents_of(disk: SimulatedDisk, log: DiskLog) -> dict[int, bytes]:
    """Return every message that can be read, by sequence."""
    found: dict[int, bytes] = {}
    for file in log.reader.compacted.files:
        data = disk.peek(file.path)
        for place in range(len(file)):
            position, _ = file.extent(place)
            header = decode_header(data, position)
            batch = decode_batch(header, data, position) if header is not None else None
            if batch is not None:
                found.update((s, batch.body(s)) for s in range(batch.base_sequence, batch.end_sequence))
    for segment in log._segments:
        data = disk.peek(segment.path)[: segment.size]

        def read(offset: int, size: int, data: bytes = data) -> bytes:
            return data[offset : offset + size]

        walk = SegmentWalk(
            read,
            offset=0,
            sequence=segment.base,
            end=segment.size,
            verify=True,
            next_base=None if segment is log._segments.active else log._segments.end_of(segment),
        )
        for block in walk.blocks():
            for position, header in block.headers:
                batch = decode_batch(header, block.data, position)
                if batch is not None:
                    found.update((s, batch.body(s)) for s in range(batch.base_sequence, batch.end_sequence))
    return found
