"""A segment, a compacted file and a journal, as recovery and history read them."""

from __future__ import annotations

from random import Random

from nsqcommon.wire.history import RecordCutter
from nsqcommon.wire.log_record import find_header, follow
from nsqd.log.journal.reader import walk_frames
from nsqd.log.record import scan, walk_record


def run(data: bytes, random: Random) -> None:
    for verify in (False, True):
        scan(data, 0, random.choice((0, 1, 41)), verify=verify, headers=[], index=[])
    follow(data, 0, 0, random.choice((1, 20, 1 << 62)))
    walk_record(data, 0, not_before=0)
    at = 0
    while (found := find_header(data, at, not_before=0)) is not None:
        at = found[0] + 1
    for _ in RecordCutter(0, 100).records(data):
        pass
    for _ in walk_frames(lambda position, size: data[position : position + size], len(data)):
        pass
