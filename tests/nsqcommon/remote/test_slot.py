"""A slot is read as it was written, or not at all."""

from __future__ import annotations

from dataclasses import astuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.framing import MAGIC, MOST_HEADER, BadObject, NewerFormat, frame, header_of, unframe
from nsqcommon.remote.names import Run
from nsqcommon.remote.operations import (
    Operation,
    Remove,
    Replace,
    body_length,
    decode_operations,
    encode_operations,
    header_length,
)
from nsqcommon.remote.slot import Slot, SlotKind, decode_slot, decode_slot_header, encode_slot
from tests.nsqcommon.remote.strategies import OPERATIONS, slots

RUN = Run(7, "00000000000000ab")
SLOT = Slot(SlotKind.DATA, "node", RUN, 3, RUN.writer, 1, (Replace("a", 3),))
DATA = b"".join(encode_slot(SLOT, [b"one"]))


@given(slots())
def test_a_slot_is_read_as_it_was_written(case: tuple[Slot, list[bytes]]) -> None:
    slot, body = case
    data = b"".join(encode_slot(slot, body))
    found, found_body = decode_slot(data)
    assert found == slot
    assert found_body == b"".join(body)
    assert decode_slot_header(data) == (slot, len(data) - len(found_body))


@given(slots(), st.data())
def test_a_changed_byte_is_found(case: tuple[Slot, list[bytes]], draws: st.DataObject) -> None:
    data = bytearray(b"".join(encode_slot(*case)))
    data[draws.draw(st.integers(0, len(data) - 1))] ^= draws.draw(st.integers(1, 255))
    with pytest.raises(BadObject):
        decode_slot(bytes(data))


@given(slots(), st.data())
def test_so_is_a_missing_end(case: tuple[Slot, list[bytes]], draws: st.DataObject) -> None:
    data = b"".join(encode_slot(*case))
    with pytest.raises(BadObject):
        decode_slot(data[: draws.draw(st.integers(0, len(data) - 1))])


@given(st.lists(OPERATIONS, max_size=5))
def test_operations_take_no_more_than_they_are_counted(operations: list[Operation]) -> None:
    for it in operations:
        taken = len(msgpack.packb(encode_operations([it]))) - 1
        assert taken <= header_length(it) + 3 * sum(map(len, filter(is_text, astuple(it))))


def test_a_slot_that_readers_would_refuse_is_not_made() -> None:
    slot = Slot(SlotKind.DATA, "node", RUN, 3, RUN.writer, 1, (Remove("a" * 100),) * (MOST_HEADER // 100))
    with pytest.raises(BadObject, match="a header of 18119443 bytes is longer than 16777216"):
        encode_slot(slot)


def is_text(argument: object) -> bool:
    return isinstance(argument, str)


@given(slots())
def test_each_operation_gets_its_part_of_the_body(case: tuple[Slot, list[bytes]]) -> None:
    slot, body = case
    data = memoryview(b"".join(body))
    parts = list(slot.split(data))
    assert [operation for operation, _, _ in parts] == list(slot.operations)
    assert [len(part) for _, _, part in parts] == [*map(body_length, slot.operations)]
    assert b"".join(part for _, _, part in parts) == data


def test_two_slots_with_the_same_operations_and_different_bytes_have_different_headers() -> None:
    other = b"".join(encode_slot(SLOT, [b"two"]))
    assert header_of(DATA) != header_of(other)


@pytest.mark.parametrize(
    "operation",
    [["later", "a", 1], ["write-compressed", 1, 2, 3]],
)
def test_an_operation_of_a_newer_version_is_not_skipped(operation: list[object]) -> None:
    with pytest.raises(NewerFormat, match="which this version doesn't know"):
        decode_operations([operation])


@pytest.mark.parametrize("operation", [["write", 1, 2], ["write", 1, -2, 3], ["gone", 1], [], "gone", ["commit", "7"]])
def test_what_is_not_an_operation_is_refused(operation: object) -> None:
    with pytest.raises(BadObject):
        decode_operations([operation])


def test_a_newer_kind_of_slot_and_a_newer_format_are_said_to_be_newer() -> None:
    fields, start = unframe(DATA)
    with pytest.raises(NewerFormat, match="kind 'lease'"):
        decode_slot_header(frame(["lease", *fields[1:]]) + DATA[start:])
    with pytest.raises(NewerFormat, match="has format 2"):
        unframe(MAGIC[:3] + b"\x02" + DATA[4:])


def test_data_that_names_a_next_run_and_a_fence_that_does_not_are_refused() -> None:
    for kind, following in ((SlotKind.DATA, RUN.following("0" * 16)), (SlotKind.FENCE, None), (SlotKind.END, None)):
        slot = Slot(kind, "node", RUN, 3, RUN.writer, 1, (), following)
        with pytest.raises(BadObject, match="as the next run"):
            decode_slot(b"".join(encode_slot(slot)))


def test_a_header_that_is_not_a_list_is_refused() -> None:
    from google_crc32c import value as crc32c

    header: bytes = msgpack.packb({"a": 1})
    with pytest.raises(BadObject, match="not a list"):
        unframe(MAGIC + len(header).to_bytes(4, "big") + crc32c(header).to_bytes(4, "big") + header)
