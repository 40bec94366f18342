"""Slots are made of changes, in any pieces and runs, and mean the same."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.remote.operations import Cut, OpenFile, Remove, Rename, Replace, Write
from nsqd.remote.recorder import Recorded
from nsqd.remote.slot_builder import SlotBuilder
from tests.nsqd.remote.changes import random_changes
from tests.simulation.remote.mirror import Mirror


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


def test_a_small_file_is_not_cut_and_may_be_larger_than_a_slot() -> None:
    builder = builder_with(Recorded(OpenFile(1, "a")), Recorded(Replace("b.json", 9), bytes(9)), most=4)
    assert builder.next_content().operations == [OpenFile(1, "a")]
    assert builder.next_content().size == 9


def test_a_file_that_is_open_is_opened_again_in_the_next_run_under_its_new_name() -> None:
    builder = builder_with(Recorded(OpenFile(1, "t.x/a")), Recorded(Rename("t.x", "x.1")))
    builder.next_content()
    builder.begin_run()
    builder.add(write(1, 0, b"one"))
    assert builder.next_content().operations == [OpenFile(1, "x.1/a"), Write(1, 0, 3)]


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
