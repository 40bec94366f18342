"""Slots are made of changes, in any pieces and runs, and mean the same."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.names import Run
from nsqcommon.remote.operations import Cut, OpenFile, Remove, Rename, Replace, Write
from nsqcommon.remote.slot import MOST_BODY, Slot, SlotKind, decode_slot, encode_slot
from nsqd.remote.difference import Difference
from nsqd.remote.recorder import Closed, Recorded
from nsqd.remote.slot_builder import OBJECTS, Content, SlotBuilder
from tests.nsqd.remote.changes import random_changes
from tests.simulation.remote.mirror import Mirror

RUN = Run(7, "00000000000000aa")


def write(number: int, offset: int, data: bytes) -> Recorded:
    return Recorded(Write(number, offset, len(data)), data)


def builder_with(*changes: Recorded, most: int = 100) -> SlotBuilder:
    builder = SlotBuilder(most)
    for change in changes:
        builder.add(change)
    return builder


def test_writes_that_follow_each_other_are_one() -> None:
    content = builder_with(Recorded(OpenFile(1, "a")), write(1, 0, b"one"), write(1, 3, b"two")).next_content()
    assert content.operations == [OpenFile(1, "a"), Write(1, 0, 6)]
    assert b"".join(content.body) == b"onetwo"


def test_a_write_that_does_not_fit_is_continued_in_the_next_slot() -> None:
    builder = builder_with(Recorded(OpenFile(1, "a")), write(1, 0, b"onetwo"), most=4)
    first = builder.next_content()
    assert (first.operations[-1], builder.position) == (Write(1, 0, 4), 1)
    second = builder.next_content()
    assert (second.operations, second.body, builder.position) == ([Write(1, 4, 2)], [b"wo"], 2)
    assert builder.waiting_bytes == 0


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.integers(1, 40))
def test_a_write_of_several_buffers_may_be_cut_anywhere(buffers: list[bytes], most: int) -> None:
    data, *rest = buffers
    whole = b"".join(buffers)
    builder = builder_with(Recorded(OpenFile(1, "a")), Recorded(Write(1, 7, len(whole)), data, rest), most=most)
    assert builder.waiting_memory >= len(whole)
    place = 0
    while builder.waiting_bytes:
        content = builder.next_content()
        written = next(it for it in content.operations if isinstance(it, Write))
        piece = whole[place : place + most]
        assert (written, b"".join(content.body), content.size) == (Write(1, 7 + place, len(piece)), piece, len(piece))
        assert content.crcs[-1] == content.crc() == crc32c(piece)
        place += most
    assert (place >= len(whole), builder.position, builder.waiting_memory) == (True, 2, 0)


def test_a_small_file_is_not_cut_and_may_be_larger_than_a_slot() -> None:
    builder = builder_with(Recorded(OpenFile(1, "a")), Recorded(Replace("b.json", 9), bytes(9)), most=4)
    assert builder.next_content().operations == [OpenFile(1, "a")]
    assert builder.next_content().size == 9


@pytest.mark.parametrize("is_deletion", [True, False])
def test_a_slot_has_no_more_operations_than_readers_take(is_deletion: bool) -> None:
    builder = SlotBuilder()
    for number in range(1, 20_001):  # each topic's segment is opened again if there are many
        path = f"topics/t.{number:01000}/00000000000000000000.log"
        builder.add(Recorded(Remove(path)) if is_deletion else Recorded(OpenFile(number, path)))
        if not is_deletion:
            builder.add(write(number, 0, b"x" * 8))
    assert builder.waiting_bytes >= 20_000 * 1000, "they take memory as well"
    found = 0
    while builder.waiting_bytes:
        content = builder.next_content()
        data = encode_slot(Slot(SlotKind.DATA, "node", RUN, 0, RUN.writer, 1, tuple(content.operations)), content.body)
        found += sum(isinstance(it, OpenFile | Remove) for it in decode_slot(b"".join(data))[0].operations)
    assert found == 20_000


def test_small_writes_count_as_much_as_they_take_in_memory() -> None:
    """They are in as many files, so none follows the one before."""
    builder = builder_with(*(Recorded(OpenFile(it, "a")) for it in (1, 2)), most=MOST_BODY)
    tracemalloc.start()
    try:
        for number in range(10_000):
            builder.add(write(1 + number % 2, 5_000_000_000 + 40 * number, bytes([number % 256]) * 40))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= builder.waiting_memory <= 1.5 * taken


def test_the_difference_of_a_start_that_fits_into_a_slot_is_in_one() -> None:
    """Half of it is no state of the files."""
    paths = tuple(f"topics/t.orders/{it:020}.log" for it in range(32_768))
    assert Difference((), paths).fits_into_a_slot
    assert not Difference((), (*paths, "one more")).fits_into_a_slot
    builder = builder_with(*(Recorded(Remove(it)) for it in paths), most=MOST_BODY)
    assert len(builder.next_content().operations) == len(paths)


def test_a_slot_takes_little_memory_even_if_its_writes_are_small() -> None:
    builder = builder_with(*(Recorded(OpenFile(it, "a")) for it in (1, 2)), most=MOST_BODY)
    for number in range(MOST_BODY // OBJECTS):
        builder.add(write(1 + number % 2, number, b"x"))
    content = builder.next_content()
    assert len(content.operations) == pytest.approx(MOST_BODY / (OBJECTS + 1), rel=0.01)
    assert builder.waiting > 0


def test_a_file_that_is_open_is_opened_again_in_the_next_run_under_its_new_name() -> None:
    builder = builder_with(Recorded(OpenFile(1, "t.x/a")), Recorded(Rename("t.x", "x.1")))
    builder.next_content()
    builder.begin_run()
    builder.add(write(1, 0, b"one"))
    assert builder.next_content().operations == [OpenFile(1, "x.1/a"), Write(1, 0, 3)]


def test_a_file_that_was_closed_is_forgotten_and_is_in_no_slot() -> None:
    builder = builder_with(Recorded(OpenFile(1, "a")), Recorded(OpenFile(2, "a")), Recorded(Closed(1)))
    assert builder.next_content().operations == [OpenFile(1, "a"), OpenFile(2, "a")]
    assert (builder.open_files, builder.position) == (1, 3)
    builder.begin_run()
    builder.add(write(2, 0, b"one"))
    assert builder.next_content().operations == [OpenFile(2, "a"), Write(2, 0, 3)]


def test_writes_to_a_file_without_a_name_are_left_out() -> None:
    builder = builder_with(Recorded(OpenFile(1, "a")), Recorded(Remove("a")))
    builder.next_content()
    builder.begin_run()
    builder.add(write(1, 0, b"one"))
    builder.add(Recorded(Cut(1, 0)))
    assert builder.next_content().operations == []
    assert builder.position == 4


@given(st.integers(0, 2**32))
def test_pieces_and_runs_do_not_matter(seed: int) -> None:
    random = Random(seed)
    changes, expected = random_changes(random)
    files, _ = Mirror({}).files_after(changes, random)
    assert files == expected


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_each_operation_has_the_checksum_of_its_bytes(random: Random, most: int) -> None:
    changes, _ = random_changes(random)
    builder = builder_with(*changes, most=most)
    while builder.waiting_bytes:
        content = builder.next_content()
        slot = Slot(SlotKind.DATA, "node", RUN, 0, RUN.writer, 1, tuple(content.operations))
        body = memoryview(b"".join(content.body))
        assert content.crcs == [crc32c(bytes(data)) for _, _, data in slot.split(body)]


def test_a_store_gets_large_buffers_as_they_are_and_small_ones_joined() -> None:
    large = bytes(100_000)
    content = Content()
    for number, data in enumerate((b"a", b"b", large, b"c", b"d")):
        content.add(Replace(f"{number}", len(data)), data)
    assert content.buffers() == [b"ab", large, b"cd"]
    assert content.buffers()[1] is large
    assert Content().buffers() == []


def test_a_large_body_is_not_read_again_for_its_checksum() -> None:
    content = Content()
    for number, size in enumerate((1 << 20, 3, 1 << 21)):
        content.add(Replace(f"{number}", size), bytes([number]) * size)
    content.add(Remove("0"))
    assert content.crc() == crc32c(b"".join(content.body))


def test_a_body_of_many_small_writes_is() -> None:
    content = Content()
    for number in range(100):
        content.add(Replace(f"{number}", 1), b"x")
    assert content.crc() is None
    assert Content().crc() == 0
