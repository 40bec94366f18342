from __future__ import annotations

import struct

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.edited_copy import CopyMark
from nsqcommon.wire.headers import decode_headers, encode_headers
from nsqcommon.wire.log_record import COPY, KEYS, KNOWN_FLAGS, decode_keys
from nsqd.broker.batch import Batch
from nsqd.log.compaction.rewrite import part_of
from nsqd.log.record import (
    HEADER_SIZE,
    INDEX_INTERVAL,
    MAGIC,
    Header,
    Scan,
    Stop,
    UnknownFlags,
    decode_batch,
    decode_header,
    encode,
    find_header,
    message_offsets,
    scan,
    size_of,
)
from tests.nsqd.log.batches import batch_runs, batches, facts, make_batch
from tests.support.later_version import with_flags


def record_of(batch: Batch) -> bytes:
    return b"".join(encode(batch))


@given(batches())
def test_batch_comes_back_as_it_was(batch: Batch) -> None:
    record = record_of(batch)
    header = decode_header(record, 0)
    assert header is not None
    assert header.size == len(record)
    assert header.end_sequence == batch.end_sequence
    decoded = decode_batch(header, record, 0)
    assert decoded is not None
    assert facts(decoded) == facts(batch)


@given(batches(), st.binary(min_size=1, max_size=100))
def test_key_before_the_payload_is_no_part_of_the_batch(batch: Batch, key: bytes) -> None:
    batch.key = key
    record = record_of(batch)
    header = decode_header(record, 0)
    assert header is not None
    assert header.key_length == len(key)
    decoded = decode_batch(header, record, 0)
    assert decoded is not None
    assert facts(decoded) == facts(batch)


@given(batches(), st.integers(1, 0xFFFF).filter(lambda flags: flags & ~KNOWN_FLAGS))
def test_a_flag_changes_how_messages_are_read_and_nothing_else(batch: Batch, flags: int) -> None:
    record = with_flags(record_of(batch), flags)
    header = decode_header(record, 0)
    assert header is not None
    assert (header.end_sequence, header.size, header.flags) == (batch.end_sequence, len(record), flags)
    assert scan(record, 0, batch.base_sequence, verify=True) == Scan(len(record), batch.end_sequence, Stop.END, 0)
    with pytest.raises(UnknownFlags, match=f"messages {batch.base_sequence} to"):
        decode_batch(header, record, 0)


@pytest.mark.parametrize("key", [b"", b"edit:1"])
def test_an_edited_copy_stays_one_however_often_it_is_written(key: bytes) -> None:
    payload, headers = b"\0\0\0\1A", encode_headers(CopyMark("c", 1, 0, True, "me").headers())
    batch = Batch(20, 5, 7, payload, (0, 5), 1, key, COPY, headers)
    for _ in range(2):  # compaction reads it, and writes it again
        record = record_of(batch)
        header = decode_header(record, 0)
        assert header is not None
        found = decode_batch(header, record, 0)
        assert found is not None
        assert (found.flags, found.key, found.copy_mark().channel) == (COPY, key, "c")
        batch = found


@given(batches(), st.data())
def test_each_message_may_have_a_key(batch: Batch, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.binary(max_size=64), min_size=batch.count, max_size=batch.count))
    batch.key, batch.flags = b"".join(bytes((len(key),)) + key for key in keys), KEYS
    record = record_of(batch)
    header = decode_header(record, 0)
    assert header is not None
    assert decode_keys(header, record, 0) == [key for key in keys if key]
    decoded = decode_batch(header, record, 0)
    assert decoded is not None
    assert facts(decoded) == facts(batch)


@given(batches(), st.binary(max_size=30), st.data())
def test_each_message_may_have_headers(batch: Batch, key: bytes, data: st.DataObject) -> None:
    pairs = st.dictionaries(st.sampled_from(["a", "b.c", "traceparent"]), st.binary(max_size=40))
    headers = data.draw(st.lists(pairs, min_size=batch.count, max_size=batch.count))
    batch.key, batch.headers = key, b"".join(map(encode_headers, headers))
    record = record_of(batch)
    assert size_of(batch) == len(record)
    header = decode_header(record, 0)
    assert header is not None
    decoded = decode_batch(header, record, 0)
    assert decoded is not None
    assert facts(decoded) == facts(batch)
    assert decoded.headers == batch.headers
    assert [decode_headers(decoded.headers_between(s, s + 1)) for s in sequences(decoded)] == headers
    first = data.draw(st.integers(batch.base_sequence, batch.end_sequence - 1))
    end = data.draw(st.integers(first + 1, batch.end_sequence))
    part = part_of(decoded, first, end)
    assert [decode_headers(part.headers_between(s, s + 1)) for s in sequences(part)] == headers[
        first - batch.base_sequence : end - batch.base_sequence
    ]


def sequences(batch: Batch) -> range:
    return range(batch.base_sequence, batch.end_sequence)


def test_layout_on_disk() -> None:
    payload = b"\0\0\0\2hi"
    record = record_of(Batch(7, 0x0102030405060708, 1_700_000_000_000_000_000, payload, [0, 6], 30_000))
    rest = struct.pack(
        ">IIQQqQIHH", 6, crc32c(payload), 7, 0x0102030405060708, 1_700_000_000_000_000_000, 30_000, 1, 0, 0
    )
    assert record == b"\xf1NS\x01" + crc32c(rest).to_bytes(4, "big") + rest + payload
    assert HEADER_SIZE == 56


@given(batch_runs(), st.data())
def test_any_truncation_is_a_torn_tail(run: list[Batch], data: st.DataObject) -> None:
    records = [record_of(batch) for batch in run]
    whole = b"".join(records[:-1])
    cut = data.draw(st.integers(1, len(records[-1]) - 1))
    found = scan(whole + records[-1][:cut], 0, 0, verify=True)
    assert found[:3] == (len(whole), run[-1].base_sequence, Stop.SHORT)
    assert found.needed == (HEADER_SIZE if cut < HEADER_SIZE else len(records[-1]))


@given(batch_runs(), st.data())
def test_any_flipped_bit_is_found(run: list[Batch], data: st.DataObject) -> None:
    records = [record_of(batch) for batch in run]
    damaged = bytearray(b"".join(records))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    found = scan(bytes(damaged), 0, 0, verify=True)
    assert found.stop is Stop.BAD
    assert found.position <= place < found.position + len(records[[b.base_sequence for b in run].index(found.sequence)])


@given(batch_runs())
def test_scan_goes_over_whole_records_to_the_end(run: list[Batch]) -> None:
    buffer = b"".join(map(record_of, run))
    headers: list[tuple[int, Header]] = []
    found = scan(buffer, 0, 0, verify=True, headers=headers)
    assert found == (len(buffer), run[-1].end_sequence, Stop.END, 0)
    decoded = [decode_batch(header, buffer, position) for position, header in headers]
    assert [facts(batch) for batch in decoded if batch is not None] == [facts(batch) for batch in run]


@given(batch_runs(), st.data())
def test_scan_stops_before_the_record_that_holds_a_sequence(run: list[Batch], data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, run[-1].end_sequence - 1))
    found = scan(b"".join(map(record_of, run)), 0, 0, verify=False, until=wanted)
    holder = next(batch for batch in run if wanted < batch.end_sequence)
    assert found.sequence == holder.base_sequence


def test_scan_says_where_sequences_are_missing() -> None:
    buffer = record_of(make_batch(0, [b"a"])) + record_of(make_batch(5, [b"b"]))
    found = scan(buffer, 0, 0, verify=True)
    assert (found.sequence, found.stop) == (1, Stop.GAP)


def test_scan_takes_a_record_with_an_old_sequence_for_bad() -> None:
    buffer = record_of(make_batch(0, [b"a", b"b"])) + record_of(make_batch(1, [b"c"]))
    assert scan(buffer, 0, 0, verify=True).stop is Stop.BAD


def test_scan_indexes_one_record_in_a_while() -> None:
    record = 56 + 4 + 10_000
    buffer = b"".join(record_of(make_batch(sequence, [bytes(10_000)])) for sequence in range(30))
    index: list[tuple[int, int]] = []
    scan(buffer, 0, 0, verify=False, index=index)
    step = -(-INDEX_INTERVAL // record)
    assert index == [(n, n * record) for n in range(step, 30, step)]


@given(batch_runs(), st.binary(max_size=300))
def test_next_header_is_found_behind_garbage(run: list[Batch], garbage: bytes) -> None:
    buffer = garbage + b"".join(map(record_of, run))
    found = find_header(buffer, 0, not_before=0)
    assert found is not None
    assert found[0] == len(garbage)


def test_record_within_a_message_is_not_taken_for_the_next_one() -> None:
    inner = record_of(make_batch(0, [b"earlier"]))
    outer = bytearray(record_of(make_batch(1, [inner])))
    outer[0] ^= 1
    following = record_of(make_batch(2, [b"next"]))
    found = find_header(bytes(outer) + following, 0, not_before=1)
    assert found is not None
    assert found[0] == len(outer)


def test_header_of_a_later_format_is_not_read() -> None:
    record = record_of(make_batch(0, [b"a"]))
    assert decode_header(MAGIC[:3] + b"\x02" + record[4:], 0) is None


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
def test_offsets_are_rebuilt_from_the_sizes(bodies: list[bytes]) -> None:
    batch = make_batch(0, bodies)
    offsets = message_offsets(batch.payload, batch.count)
    assert offsets is not None
    assert list(offsets) == list(batch.offsets)


@given(st.binary(max_size=60), st.integers(0, 8))
def test_offsets_are_given_only_if_messages_fill_the_payload_exactly(payload: bytes, count: int) -> None:
    offsets = message_offsets(payload, count)
    if offsets is not None:
        sizes = [int.from_bytes(payload[at : at + 4], "big") for at in offsets[:-1]]
        assert len(sizes) == count
        assert sum(sizes) + 4 * count == len(payload)


@pytest.mark.parametrize(
    ("payload", "count"),
    [(b"", 0), (b"\0\0\0\1a", 2), (b"\0\0\0\2a", 1), (b"\0\0\0\0\0", 1), (b"\0\0\0\1a\0\0\0\2b", 2), (b"\xff" * 8, 2)],
)
def test_offsets_of_a_wrong_layout_are_refused(payload: bytes, count: int) -> None:
    assert message_offsets(payload, count) is None


def test_sound_checksum_does_not_save_a_payload_of_another_layout() -> None:
    record = record_of(Batch(0, 0, 0, b"\0\0\0\x09short", [0, 9]))
    header = decode_header(record, 0)
    assert header is not None
    assert decode_batch(header, record, 0) is None
