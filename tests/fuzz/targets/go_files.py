"""The files of a Go nsqd: its queues, their metadata, and nsqd.dat."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.nsq_json import JsonError
from nsqd.go_import.metadata import parse_metadata
from nsqd.go_import.queue_files import parse_position, plan_reading
from nsqd.go_import.records import GoMessage, number_of, split_records


def run(data: bytes, random: Random) -> None:
    messages: list[GoMessage] = []
    found = split_records(data, largest=1 << 20, messages=messages)
    assert 0 <= found.position <= len(data)
    for _, _, message_id, _ in messages:
        number_of(message_id)
    position = parse_position(data)
    sizes = {number: random.randrange(1 << 20) for number in range(random.randrange(5))}
    reading = plan_reading(position, sizes)
    assert all(0 <= part.start < part.end for part in reading.parts)
    with suppress(JsonError):
        parse_metadata(data)
