"""The list of what is buried: sorted, small, and told to the journal in pieces."""

from __future__ import annotations

import tracemalloc
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.buried import BuriedMessage, BuriedMessages, Note, buried_sequences, bury_change
from nsqd.broker.reclaimer import Reclaimer

BAD = Note("bad", "worker-1")


def burial(sequence: int, note: Note = BAD) -> BuriedMessage:
    return BuriedMessage(sequence, 1000 + sequence, 5, 1_700_000_000_000 + sequence, note)


def buried(*sequences: int) -> BuriedMessages:
    found = BuriedMessages()
    for sequence in sequences:
        found.add(burial(sequence))
    return found


def test_a_burial_is_told_as_it_was_made() -> None:
    found = buried(7)
    assert found.get(7) == burial(7)
    assert found.get(8) is None
    assert 7 in found
    assert len(found) == 1


def test_the_largest_numbers_have_room() -> None:
    largest = BuriedMessage((1 << 63) - 1, (1 << 64) - 1, (1 << 16) - 1, 253_402_300_799_999, BAD)
    found = BuriedMessages()
    found.add(largest)
    assert found.get(largest.sequence) == largest


def test_more_attempts_than_can_be_counted_stay_at_the_highest_number() -> None:
    found = BuriedMessages()
    found.add(burial(1)._replace(attempts=70_000))
    told = found.get(1)
    assert told is not None
    assert told.attempts == 65_535


def test_a_message_that_is_buried_again_has_its_new_reason() -> None:
    found = buried(3)
    found.add(burial(3, Note("worse", "worker-2")))
    assert [it.note.reason for it in found.from_place(0)] == ["worse"]
    assert found.reasons(100) == [(Note("worse", "worker-2"), 1)]


def test_a_list_begins_at_any_place_and_leaves_out_what_leaves_meanwhile() -> None:
    found = buried(9, 2, 5, 7)
    listed = found.from_place(3)
    assert next(listed).sequence == 5
    found.remove(7)
    assert [it.sequence for it in listed] == [9]


def test_ranges_join_neighbours() -> None:
    found = buried(1, 2, 3, 7, 9, 10)
    found.remove(9)
    assert found.ranges(0, 100) == [(1, 4), (7, 8), (10, 11)]
    assert found.ranges(2, 8) == [(2, 4), (7, 8)]
    assert found.ranges(4, 7) == []


def test_messages_are_found_by_their_ids() -> None:
    assert sorted(chain.from_iterable(buried(1, 2, 3).find([1003, 1001, 5]))) == [1, 3]


def test_reasons_are_counted_and_forgotten_with_their_last_message() -> None:
    other = Note("timed out", "worker-2")
    found = buried(1, 2)
    found.add(burial(3, other))
    assert found.reasons(100) == [(BAD, 2), (other, 1)]
    found.remove(3)
    assert found.reasons(100) == [(BAD, 2)]
    found.add(burial(4, other))  # a number of its own again, which was free
    assert found.get(4) == burial(4, other)
    assert found.get(1) == burial(1)


def test_a_cut_drops_what_lies_behind_the_tail() -> None:
    found = buried(1, 5, 9)
    assert found.cut(5)
    assert [it.sequence for it in found.from_place(0)] == [1]
    assert not found.cut(5)


def test_what_is_needed_of_the_log_begins_at_the_lowest_sequence() -> None:
    found = buried(70_000, 200_000)
    assert found.lowest() == 70_000
    found.remove(70_000)
    assert found.lowest() == 200_000


def test_a_journal_is_told_in_pieces_as_of_one_moment() -> None:
    found = buried(*range(5_000))
    found.add(burial(5_000, Note("else", "")))
    changes = found.changes("t", "c")
    first = next(changes)
    found.clear(Reclaimer())
    told = [first, *changes]
    again = BuriedMessages()
    for change in told:
        match change:
            case ("bury", "t", "c", notes, entries):
                assert len(buried_sequences(entries)) <= 2_000
                again.apply(notes, entries)
    assert [*again.from_place(0)] == [*(burial(it) for it in range(5_000)), burial(5_000, Note("else", ""))]


def test_one_change_names_each_reason_once() -> None:
    other = Note("else", "worker-2")
    change = bury_change("t", "c", [burial(1), burial(2, other), burial(3)])
    match change:
        case ("bury", _, _, notes, entries):
            assert (notes, entries[4::5]) == (["bad", "worker-1", "else", "worker-2"], [0, 1, 0])
        case _:
            raise AssertionError(change)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60), st.integers(0, 60))
def test_what_was_taken_as_of_one_moment_stays_as_it_was(steps: list[tuple[bool, int]], moment: int) -> None:
    found = BuriedMessages()
    taken, expected = found.changes("t", "c"), list[BuriedMessage]()
    for at, (comes, place) in enumerate(steps):
        if at == moment:
            taken, expected = found.changes("t", "c"), [*found.from_place(0)]
        if comes:
            found.add(burial(place * 5_000, Note(str(at), "")))  # over several blocks
        else:
            found.remove(place * 5_000)
    again = BuriedMessages()
    for change in taken:
        again.apply(change[3], change[4])  # type: ignore[arg-type, misc]
    assert [*again.from_place(0)] == expected


def test_taking_them_as_of_now_copies_nothing() -> None:
    found = buried(*range(50_000))
    tracemalloc.start()
    try:
        taken = found.changes("t", "c"), found.sequences(), found.from_place(0)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken
    assert size < 10_000


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200))
def test_whatever_comes_and_goes_the_list_is_sorted_and_complete(steps: list[tuple[bool, int]]) -> None:
    found, expected = BuriedMessages(), set[int]()
    for comes, sequence in steps:
        if comes:
            found.add(burial(sequence))
            expected.add(sequence)
        else:
            assert found.remove(sequence) == (sequence in expected)
            expected.discard(sequence)
        if sequence % 3 == 0:
            assert [it.sequence for it in found.from_place(sequence)] == sorted(s for s in expected if s >= sequence)
    assert [it.sequence for it in found.from_place(0)] == sorted(expected)
    assert sorted(chain.from_iterable(found.sequences())) == sorted(expected)
    assert sum(end - start for start, end in found.ranges(0, 100)) == len(found) == len(expected)
    assert sum(count for _, count in found.reasons(100)) == len(expected)


def test_each_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        found = BuriedMessages()
        for sequence in range(20_000):
            found.add(BuriedMessage(sequence, sequence, 5, 1_700_000_000_000, Note("bad", "worker-1")))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 20_000
    assert size < 20_000 * 250


def test_rare_reasons_are_no_longer_counted_one_by_one_and_stay_with_their_messages() -> None:
    found = BuriedMessages()
    for sequence in range(30_000):
        found.add(burial(sequence, Note("frequent" if sequence % 3 == 0 else f"order {sequence}", "worker-1")))
    reasons = found.reasons(100_000)
    assert reasons[0] == (Note("frequent", "worker-1"), 10_000)
    assert len(reasons) < 10_000
    for sequence in (1, 3, 29_999):
        told = found.get(sequence)
        assert told is not None
        assert told.note == Note("frequent" if sequence % 3 == 0 else f"order {sequence}", "worker-1")
    for sequence in range(29_990):
        assert found.remove(sequence)
    assert sum(count for _, count in found.reasons(100)) == len(found) == 10
    assert [it.note.reason for it in found.from_place(0)][:2] == ["order 29990", "frequent"]


def test_a_reason_that_becomes_frequent_is_counted_whatever_came_before() -> None:
    found = BuriedMessages()
    for sequence in range(20_000):
        found.add(burial(sequence, Note(f"order {sequence}", "")))
    for sequence in range(20_000, 40_000):
        found.add(burial(sequence, Note("timed out" if sequence % 2 else f"order {sequence}", "")))
    reason, count = found.reasons(1)[0]
    assert reason.reason == "timed out"
    assert count == 10_000


def test_a_reason_for_each_message_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        found = BuriedMessages()
        for sequence in range(20_000):
            found.add(
                BuriedMessage(sequence, sequence, 5, 1_700_000_000_000, Note(f"no such order: {sequence}", "worker-1"))
            )
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 20_000 * 300
