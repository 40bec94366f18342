"""Batches: frames cut in bulk equal frames packed one by one."""

from __future__ import annotations

from itertools import accumulate
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.headers import NONE, encode_headers
from nsqd.broker.batch import JUDGED_AT_ONCE, Batch, Receipt, hex_ids

TIMESTAMP = 1_795_000_000_000_000_001


def batch_of(bodies: list[bytes], *, base_sequence: int = 0, base_id: int = 1) -> Batch:
    payload = b"".join(pack(">I", len(body)) + body for body in bodies)
    offsets = [0, *accumulate(4 + len(body) for body in bodies)]
    return Batch(base_sequence, base_id, TIMESTAMP, payload, offsets)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=30), st.integers(0, 70_000), st.data())
def test_frames_are_what_struct_packs_one_by_one(bodies: list[bytes], attempts: int, data: st.DataObject) -> None:
    batch = batch_of(bodies, base_sequence=100, base_id=0xABC)
    first = data.draw(st.integers(100, 99 + len(bodies)))
    last = data.draw(st.integers(first + 1, 100 + len(bodies)))
    expected = b"".join(
        pack(">IIQH16s", 4 + 26 + len(body), 2, TIMESTAMP, attempts & 0xFFFF, b"%016x" % (0xABC + position)) + body
        for position, body in enumerate(bodies)
        if first <= 100 + position < last
    )
    frames = b"".join(batch.frames(first, last, attempts, batch.ids(first, last)))
    assert frames == expected
    assert b"".join(batch.frames_of_views(first, last, attempts, batch.ids(first, last))) == expected
    assert batch.frames_size(first, last) == len(expected)


@given(st.integers(1, 300), st.binary(max_size=9), st.sampled_from((b"", b"\1a\0\1v")), st.data())
def test_frames_with_headers_are_the_same_whether_messages_are_known_to_be_equal(
    count: int, body: bytes, pairs: bytes, data: st.DataObject
) -> None:
    headers = pack(">H", len(pairs)) + pairs
    payload, stride = (pack(">I", len(body)) + body) * count, 4 + len(body)
    offsets = range(0, len(payload) + 1, stride)
    known = Batch(0, 1, 2, payload, offsets, headers=headers * count)
    unknown = Batch(0, 1, 2, payload, list(offsets), headers=headers * count)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    frames = known.frames_with_headers(first, last, 1, known.ids(first, last))
    assert b"".join(frames) == b"".join(unknown.frames_with_headers(first, last, 1, known.ids(first, last)))
    assert known.headers_size(first, last) == len(headers) * (last - first)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.sampled_from(({}, {"k": "v"}, {"k": "vv"}))), min_size=1),
    st.booleans(),
    st.data(),
)
def test_frames_of_scattered_messages_are_the_frames_of_each(
    messages: list[tuple[bytes, dict[str, str]]], takes_headers: bool, data: st.DataObject
) -> None:
    plain = batch_of([body for body, _ in messages], base_sequence=100, base_id=0xABC)
    has_headers = any(pairs for _, pairs in messages)
    headers = b"".join(encode_headers(pairs) if pairs else NONE for _, pairs in messages) if has_headers else b""
    batch = Batch(100, 0xABC, TIMESTAMP, plain.payload, plain.offsets, headers=headers)
    sequences = data.draw(st.lists(st.integers(100, 99 + len(messages)), min_size=1, unique=True))
    frames_of = batch.frames_with_headers if has_headers and takes_headers else batch.frames
    expected = [b"".join(frames_of(it, it + 1, 1, batch.ids(it, it + 1))) for it in sequences]
    ids = [batch.ids(it, it + 1)[0] for it in sequences]
    assert b"".join(batch.scattered_frames(sequences, 1, ids, with_headers=takes_headers)) == b"".join(expected)


def headed_batch(headers: list[bytes]) -> Batch:
    payload = b"\0\0\0\1x" * len(headers)
    return Batch(10, 1, TIMESTAMP, payload, range(0, len(payload) + 1, 5), headers=b"".join(headers))


def test_messages_are_judged_by_their_own_time_to_live_in_runs() -> None:
    one, ten, none = (encode_headers({"a": b"1", "nsq-ttl": ttl}) for ttl in (b"1", b"10", b"soon"))
    batch = headed_batch([one, one, ten, none, one, encode_headers({})])
    assert batch.may_expire
    later = TIMESTAMP + 5_000_000
    assert batch.expired_run(10, 16, later) == (12, True)
    assert batch.expired_run(12, 16, later) == (14, False)
    assert batch.expired_run(14, 16, later) == (15, True)
    assert batch.expired_run(15, 16, later) == (16, False)
    assert batch.expired_run(10, 11, later) == (11, True)
    assert batch.expired_run(10, 16, TIMESTAMP + 1_000_000) == (16, False)


def test_a_group_has_1_to_128_bytes_of_utf_8() -> None:
    groups = [b"a", b"", b"x" * 128, b"x" * 129, "é".encode(), b"\xff"]
    batch = headed_batch([encode_headers({"a": b"\x09nsq-group", "nsq-group": group}) for group in groups])
    assert [batch.group_of(it) for it in range(10, 16)] == [b"a", None, b"x" * 128, None, "é".encode(), None]
    assert headed_batch([encode_headers({"a": b"\x09nsq-group\0\1x"})]).group_of(10) == b""
    assert batch_of([b"a"]).group_of(0) == b""


def test_headers_of_what_is_not_delivered_yet_are_not_looked_at() -> None:
    """What follows would be refused if somebody decoded it."""
    sound, broken = encode_headers({"nsq-ttl": b"5"}), b"\0\2\1 "
    batch = headed_batch([sound] * JUDGED_AT_ONCE + [broken] * 20_000)
    assert batch.may_expire
    stop, is_over = batch.expired_run(10, 10 + batch.count, TIMESTAMP)
    assert (stop, is_over) == (10 + JUDGED_AT_ONCE, False)


def test_large_bodies_are_not_copied_into_frames() -> None:
    batch = batch_of([b"a" * 5000, b"b" * 5000])
    bodies = batch.frames_of_views(0, 2, 1, batch.ids(0, 2))[2::3]
    assert [body.obj is batch.payload for body in bodies if isinstance(body, memoryview)] == [True, True]


def test_batch_knows_where_it_ends_and_what_is_in_it() -> None:
    batch = batch_of([b"a", b"bcd"], base_sequence=7)
    assert (batch.count, batch.end_sequence) == (2, 9)
    assert (batch.body(7), batch.body(8)) == (b"a", b"bcd")


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1500])
def test_ids_are_consecutive_hex(count: int) -> None:
    start = 0x3FF0_0000_FFFF_FF00
    assert hex_ids(start, count) == tuple(b"%016x" % number for number in range(start, start + count))


def test_receipt_calls_back_once_whenever_it_was_asked() -> None:
    receipt, calls = Receipt(), list[int]()
    receipt.when_settled(lambda: calls.append(1))
    receipt.when_settled(lambda: calls.append(2))
    receipt.settle("disk on fire")
    receipt.settle()
    receipt.when_settled(lambda: calls.append(3))
    assert (calls, receipt.error) == ([1, 2, 3], "disk on fire")
