"""The stream of /topic/read, both ends: whatever the pieces or the damage, no message turns into another one."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.history import (
    BadHistory,
    End,
    Event,
    Gap,
    HistoryReader,
    LogRange,
    RecordCutter,
    StoredBatch,
    encode_end,
    encode_gap,
    encode_range,
    records_prefix,
)
from nsqcommon.wire.log_record import HEADER_SIZE, KNOWN_FLAGS, RecordChain, follow
from nsqd.broker.batch import Batch
from nsqd.log.record import encode
from tests.nsqd.log.batches import batch_runs, bodies_of, make_batch
from tests.support.later_version import with_flags

UNKNOWN = st.integers(1, 0xFFFF).filter(lambda flags: flags & ~KNOWN_FLAGS)
RANGE = LogRange("node", "log", 0, 1000)


def record(batch: Batch, key: bytes = b"") -> bytes:
    batch.key = key
    return b"".join(encode(batch))


def packed(*pieces: bytes) -> bytes:
    data = b"".join(pieces)
    return records_prefix(len(data)) + data


def read(stream: bytes, piece: int = 1 << 20) -> list[Event]:
    events: list[Event] = []
    read_into(events, stream, piece)
    return events


def read_into(events: list[Event], stream: bytes, piece: int = 1 << 20) -> None:
    reader = HistoryReader()
    for start in range(0, len(stream), piece):
        reader.receive(stream[start : start + piece])
        while (event := reader.next_event()) is not None:
            events.append(event)


def messages(events: Iterable[Event]) -> dict[int, tuple[int, bytes]]:
    return {s: (i, b) for event in events if isinstance(event, StoredBatch) for s, i, b in event.messages()}


def gaps(events: Iterable[Event]) -> list[tuple[int, int, str]]:
    return [(event.first, event.end, event.reason) for event in events if isinstance(event, Gap)]


@given(run=batch_runs(), piece=st.integers(1, 300), first=st.integers(0, 30), length=st.integers(0, 60))
def test_what_was_sent_is_read_in_pieces_of_any_size(run: list[Batch], piece: int, first: int, length: int) -> None:
    tail = run[-1].end_sequence
    first = min(first, tail)
    end = min(first + length, tail)
    wanted = [batch for batch in run if batch.end_sequence > first and batch.base_sequence < end]
    stream = encode_range(LogRange("n", "l", first, end)) + packed(*map(record, wanted)) + encode_end(End(end))
    events = read(stream, piece)
    assert events[0] == LogRange("n", "l", first, end)
    assert events[-1] == End(end)
    expected = {s: body for batch in run for s, body in enumerate(bodies_of(batch), batch.base_sequence)}
    assert {s: body for s, (_, body) in messages(events).items()} == {s: expected[s] for s in range(first, end)}
    assert gaps(events) == []


def test_it_is_msgpack() -> None:
    stream = encode_range(RANGE) + packed(b"abc") + encode_gap(Gap(3, 5, "damaged")) + encode_end(End(9))
    unpacker = msgpack.Unpacker()
    unpacker.feed(stream)
    assert list(unpacker) == [
        ["log", "node", "log", 0, 1000],
        ["records", b"abc"],
        ["gap", 3, 5, "damaged"],
        ["end", 9],
    ]


def test_other_forms_of_the_same_msgpack_are_read_too() -> None:
    data = record(make_batch(0, [b"a"]))
    arrays: list[list[object]] = [
        ["log", "n" * 40, "l", 0, 70_000],
        ["records", data],
        ["new word", 1],
        ["end", 70_000],
    ]
    events = read(b"".join(msgpack.packb(array) for array in arrays), 7)
    assert messages(events) == {0: (1000, b"a")}
    assert gaps(events) == [(1, 70_000, "damaged")]


def test_a_batch_tells_all_that_was_stored() -> None:
    batch = make_batch(0, [b"a", b"b"], timestamp=77, delay_ms=5)
    (stored,) = [e for e in read(encode_range(RANGE) + packed(record(batch, b"key"))) if isinstance(e, StoredBatch)]
    assert (stored.timestamp, stored.delay_ms, stored.base_id, stored.payload) == (77, 5, 1000, batch.payload)


def test_the_end_makes_an_answer_whole() -> None:
    reader = HistoryReader()
    reader.receive(encode_range(RANGE))
    assert (reader.next_event(), reader.next_event(), reader.complete) == (RANGE, None, False)
    reader.receive(encode_end(End(0)))
    assert (reader.next_event(), reader.complete) == (End(0), True)


@pytest.mark.parametrize("stream", [
    b"\xc0", b"\x90", b"\x91\xc0", b"\x92\xa1x\x01", b"\x91\x01", b"\x91\xa2\xff\xff", b"<html>",
    packed(b""), encode_end(End(0)),
    encode_range(RANGE) * 2,
    encode_range(RANGE) + encode_end(End(0)) + encode_end(End(0)),
    encode_range(RANGE) + b"\x91\xa3end",
])  # fmt: skip
def test_an_invalid_stream_is_refused(stream: bytes) -> None:
    with pytest.raises(BadHistory):
        read(stream)


@given(run=batch_runs(), place=st.integers(0, 7), flags=UNKNOWN, piece=st.integers(1, 300))
def test_a_record_of_a_later_version_is_refused_and_no_gap(
    run: list[Batch], place: int, flags: int, piece: int
) -> None:
    newer = run[min(place, len(run) - 1)]
    records = [with_flags(record(it), flags) if it is newer else record(it) for it in run]
    stream = encode_range(LogRange("n", "l", 0, run[-1].end_sequence)) + packed(*records)
    refused = f"messages {newer.base_sequence} to {newer.end_sequence - 1} have a form that only a later version can"
    events: list[Event] = []
    with pytest.raises(BadHistory, match=refused):
        read_into(events, stream, piece)
    assert sorted(messages(events)) == list(range(newer.base_sequence))
    assert gaps(events) == []


@given(run=batch_runs())
def test_damage_before_a_record_of_a_later_version_is_told_first(run: list[Batch]) -> None:
    damaged = bytearray(record(make_batch(0, [b"x"])))
    damaged[-1] ^= 1
    later = [make_batch(it.base_sequence + 1, bodies_of(it)) for it in run]
    cutter = RecordCutter(0, later[-1].end_sequence)
    found = list(cutter.records(bytes(damaged) + b"".join(with_flags(record(it), 8) for it in later)))
    assert gaps(found)[0] == (0, 1, "damaged")
    assert gaps(found)[1:] == [(it.base_sequence, it.end_sequence, "newer") for it in later]


def test_a_gap_told_by_the_server_is_cut_to_the_range() -> None:
    stream = encode_range(LogRange("n", "l", 3, 8)) + encode_gap(Gap(1, 99, "missing")) + encode_end(End(8))
    assert gaps(read(stream)) == [(3, 8, "missing")]


@given(run=batch_runs(), seed=st.integers(0, 2**32))
def test_a_flipped_bit_costs_at_most_its_record(run: list[Batch], seed: int) -> None:
    random = Random(seed)
    data = bytearray(b"".join(map(record, run)))
    place = random.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    tail = run[-1].end_sequence
    events = read(encode_range(LogRange("n", "l", 0, tail)) + packed(bytes(data)) + encode_end(End(tail)))
    expected = {s: body for batch in run for s, body in enumerate(bodies_of(batch), batch.base_sequence)}
    got = {s: body for s, (_, body) in messages(events).items()}
    missing = {s for first, end, _ in gaps(events) for s in range(first, end)}
    assert got.items() <= expected.items()
    assert missing == expected.keys() - got.keys(), "silence"
    position = 0
    for batch in run:
        size = len(record(batch))
        if position <= place // 8 < position + size:
            assert missing == set(range(batch.base_sequence, batch.end_sequence))
        position += size


def test_damage_over_the_border_of_two_pieces_is_one_gap_or_two_but_never_silence() -> None:
    one, two, three = (record(make_batch(n, [b"x"])) for n in range(3))
    stream = encode_range(LogRange("n", "l", 0, 3)) + packed(one, b"?" * len(two)) + packed(three) + encode_end(End(3))
    events = read(stream)
    assert (sorted(messages(events)), gaps(events)) == ([0, 2], [(1, 2, "damaged")])


def test_a_record_inside_a_message_is_no_record() -> None:
    """A log was published to a log: after damage, the contents of a message must not be read as records."""
    inner = record(make_batch(5, [b"not of this log"]))
    outer = bytearray(record(make_batch(0, [inner + b"tail"])) + record(make_batch(1, [b"b"])))
    outer[20] ^= 1  # of the header
    events = read(encode_range(LogRange("n", "l", 0, 2)) + packed(bytes(outer)) + encode_end(End(2)))
    assert b"not of this log" not in [body for _, body in messages(events).values()]
    assert sum(end - first for first, end, _ in gaps(events)) + len(messages(events)) == 2


# From record to record


def test_follow_ends_behind_the_record_that_holds_the_last_one() -> None:
    data = b"".join(record(make_batch(3 * n, [b"a", b"b", b"c"])) for n in range(4))
    size = len(data) // 4
    assert follow(data, 0, 0, 4) == RecordChain(2 * size, 6, size, 0)
    assert follow(data, 0, 0, 6) == RecordChain(2 * size, 6, size, 0)
    assert follow(data, size, 3, 99) == RecordChain(4 * size, 12, 3 * size, HEADER_SIZE)
    assert follow(data, 0, 0, 0) == RecordChain(0, 0, -1, 0)


def test_follow_says_how_much_is_needed() -> None:
    data = record(make_batch(0, [b"abc"]))
    assert follow(data[:-1], 0, 0, 1) == RecordChain(0, 0, -1, len(data))
    assert follow(data[:55], 0, 0, 1) == RecordChain(0, 0, -1, HEADER_SIZE)


@pytest.mark.parametrize("place", [0, 3, 16, 23])  # magic, sequence
def test_follow_stops_where_a_link_is_broken(place: int) -> None:
    one, two = record(make_batch(0, [b"a"])), bytearray(record(make_batch(1, [b"b"])))
    two[place] ^= 1
    assert follow(one + bytes(two), 0, 0, 2) == RecordChain(len(one), 1, 0, 0)
