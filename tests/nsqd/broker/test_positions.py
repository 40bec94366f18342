"""Skip ranges, retries and deferrals, compared with plain sets and lists."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import chain, groupby, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker.keys import KeyMemory, TopicKeys
from nsqd.broker.positions import (
    AttemptCounts,
    DeferredQueue,
    RetryQueue,
    SkipRanges,
    between,
    bitmap_of,
    bitmap_of_ranges,
    number_of_ranges,
    ranges_in,
)
from nsqd.broker.reclaimer import Reclaimer
from tests.nsqd.looks import Looks


def skip_ranges(*ranges: tuple[int, int]) -> SkipRanges:
    skips = SkipRanges()
    for start, end in ranges:
        skips.add(start, end)
    return skips


def covered(skips: SkipRanges) -> set[int]:
    return {sequence for start, end in skips for sequence in range(start, end)}


def test_neighbouring_ranges_become_one() -> None:
    skips = skip_ranges((3, 5), (5, 7), (9, 10))
    assert (list(skips), skips.total) == ([(3, 7), (9, 10)], 5)


def test_empty_range_is_none() -> None:
    assert list(skip_ranges((5, 5))) == []


def test_cursor_passes_over_what_it_meets_and_forgets_what_it_leaves() -> None:
    skips = skip_ranges((3, 5), (7, 8))
    assert skips.pass_over(2) == 2
    assert skips.pass_over(3) == 5
    assert (skips.next_start(), skips.total) == (7, 1)
    assert skips.pass_over(100) == 100
    assert (skips.next_start(), skips.total) == (None, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=8), st.integers(0, 45), st.integers(0, 60))
def test_newest_uncovered_sequences_are_covered(gaps: list[tuple[int, int]], floor: int, count: int) -> None:
    skips, end = SkipRanges(), 0
    for gap, length in gaps:
        skips.add(end + gap, end + gap + length)
        end += gap + length
    end = max(end, floor) + 3
    free = [s for s in range(floor, end) if s not in covered(skips)]
    before = covered(skips)
    assert [s for start, stop in skips.free_ranges(floor, end) for s in range(start, stop)] == free
    ranges = skips.add_newest(count, floor, end)
    assert [s for start, stop in ranges[::-1] for s in range(start, stop)] == (free[-count:] if count else [])
    assert all(start < stop for start, stop in ranges)
    assert covered(skips) == before | set(free[-count:] if count else [])
    assert skips.total == len(covered(skips))


def test_retries_come_first_in_first_out_in_runs_of_equal_attempts() -> None:
    retries = RetryQueue(Reclaimer())
    for sequence, attempts in [(5, 1), (6, 1), (7, 2), (8, 2), (3, 1)]:
        retries.add(sequence, attempts)
    assert retries.pop_run(10, end=100) == (5, 7, 1)
    assert retries.pop_run(10, end=8) == (7, 8, 2)
    assert retries.pop_run(1, end=100) == (8, 9, 2)
    assert list(retries) == [(3, 1)]


ENTRIES = st.tuples(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 65_535))


@given(st.lists(ENTRIES, unique_by=lambda entry: entry[1]))
def test_deferred_come_out_by_due_time(entries: list[tuple[int, int, int]]) -> None:
    deferred = DeferredQueue(Reclaimer())
    for due, sequence, attempts in entries:
        deferred.add(due, sequence, attempts)
    until = 2**62
    due_now = sorted(entry for entry in entries if entry[0] <= until)
    assert list(deferred.pop_due(until, 1000)) == [(sequence, attempts) for _, sequence, attempts in due_now]
    assert sorted(deferred) == sorted(entry for entry in entries if entry[0] > until)


def test_filling_is_like_adding_one_by_one() -> None:
    entries = [(9, 1, 0), (3, 2, 1), (5, 3, 7)]
    deferred = DeferredQueue(Reclaimer())
    deferred.fill(iter(entries))
    assert deferred.next_due() == 3
    assert list(deferred.pop_due(100, 1000)) == [(2, 1), (3, 7), (1, 0)]


@given(st.lists(st.one_of(st.tuples(st.just("add"), st.integers(0, 50), st.integers(0, 9)),
                          st.tuples(st.just("out"), st.just(0), st.integers(0, 9)),
                          st.tuples(st.just("due"), st.integers(0, 50), st.just(0)),
                          st.tuples(st.just("before"), st.integers(0, 50), st.integers(0, 9)))))  # fmt: skip
def test_what_is_taken_out_early_never_comes_and_may_be_deferred_again(steps: list[tuple[str, int, int]]) -> None:
    deferred, model = DeferredQueue(Reclaimer()), dict[int, int]()
    for word, number, sequence in steps:
        if word == "add" and sequence not in model:
            model[sequence] = number
            deferred.add(number, sequence, 1)
        elif word == "out":
            assert (sequence in deferred.take_out(BitMap64([sequence]))) == (model.pop(sequence, None) is not None)
        elif word == "due":
            expected = sorted((due, it) for it, due in model.items() if due <= number)
            assert list(deferred.pop_due(number, 1000)) == [(it, 1) for _, it in expected]
            model = {it: due for it, due in model.items() if due > number}
        elif word == "before":
            model = {it: due for it, due in model.items() if it >= sequence} | {0: number}
            deferred.replace_before(sequence, [(number, 0, 1)] if sequence else [])
            if not sequence:
                model.pop(0)
                deferred.take_out(BitMap64([0]))
        assert len(deferred) == len(model)
        assert deferred.lowest() == min(model, default=None)
        assert all((it in deferred) == (it in model) for it in range(10))
    assert sorted(deferred) == sorted((due, it, 1) for it, due in model.items())
    in_order = sorted((due, it, 1) for it, due in model.items())
    assert list(deferred.earliest(3)) == in_order[:3]
    if in_order:
        assert list(deferred.earliest(99, after=in_order[0][:2])) == in_order[1:]
    assert sorted(it for piece in deferred.sequences() for it in piece) == sorted(model)
    assert sorted(filter(None, deferred.copy())) == in_order


@pytest.mark.parametrize("distinct", [7, 20_000, 10**9])
def test_every_page_of_many_is_in_order_and_lacks_what_was_taken_out(distinct: int) -> None:
    random = Random(distinct)
    deferred = DeferredQueue(Reclaimer())
    for sequence in range(60_000):
        deferred.add(random.randrange(distinct), sequence, sequence % 3)
    for sequence in range(0, 60_000, 5):
        deferred.take_out(BitMap64([sequence]))
    in_order = sorted(filter(None, deferred.copy()))
    for sequence in range(1, 60_000, 5):  # these stay in the heap until they are met there
        deferred.take_out(BitMap64([sequence]))
    in_order = [it for it in in_order if it[1] % 5 > 1]
    for first in (0, 100, 2_000, 30_000, len(in_order) - 50):
        after = in_order[first - 1][:2] if first else (-1, -1)
        found = [it for it in deferred.earliest(100, after) if it is not None]
        assert found == in_order[first : first + 100]
    assert set(deferred.earliest(100, in_order[-1][:2])) <= {None}  # only turns for others


def test_others_have_their_turn_also_where_much_of_a_page_was_taken_out() -> None:
    deferred = DeferredQueue(Reclaimer())
    for sequence in range(120_000):
        deferred.add(sequence, sequence, 0)
    for sequence in range(60_000, 70_000):
        deferred.take_out(BitMap64([sequence]))
    found = list(deferred.earliest(100, (60_000, 60_000)))
    assert [it for it in found if it is not None] == [(sequence, sequence, 0) for sequence in range(70_000, 70_100)]
    assert found.count(None) == 10  # one for each 1,000 that were looked at


def in_blocks(deferred: DeferredQueue) -> list[list[int]]:
    return [block for blocks in (deferred._blocks, deferred._former) for _, _, block in blocks]


@pytest.mark.parametrize("taken_out", [0, 31_000])
def test_a_copy_of_many_touches_few_of_them(taken_out: int) -> None:
    """The garbage collector has no more to go over, either."""
    deferred, random = DeferredQueue(Reclaimer()), Random(3)
    for sequence in range(60_000):
        deferred.add(random.randrange(10**9), sequence, 0)
    deferred.take_out(BitMap64(range(taken_out)))
    entries = [*deferred._heap, *chain.from_iterable(in_blocks(deferred))]
    gc.collect(1)
    before = [sys.getrefcount(it) for it in entries]
    copied = deferred.copy()
    after = [sys.getrefcount(it) for it in entries]
    assert sum(was != now for was, now in zip(before, after, strict=True)) <= 1_024
    assert len(in_blocks(deferred)) < 100
    assert next(copied) is not None
    young = [it for generation in (0, 1) for it in gc.get_objects(generation) if isinstance(it, list)]
    assert max((len(it) for it in young if it is not before and it is not after), default=0) <= 1_024
    assert sum(it is not None for it in copied) == 60_000 - taken_out - 1


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_has_what_was_there_whatever_comes_and_goes_before_it_is_read(seed: int) -> None:
    random, deferred, model = Random(seed), DeferredQueue(Reclaimer()), dict[int, tuple[int, int]]()
    copies, now, last = [(deferred.copy(), [*model.items()])], 0, 0

    def new(count: int) -> Iterator[tuple[int, int, int]]:
        nonlocal last
        for _ in range(count):
            last += random.randrange(1, 3)
            model[last] = (now + random.choice((1, 50, random.randrange(10_000))), random.randrange(3))
            yield model[last][0], last, model[last][1]

    def popped(count: int) -> list[tuple[int, int]]:
        expected = sorted((due, it, attempts) for it, (due, attempts) in model.items() if due <= now)
        found = list(deferred.pop_due(now, count))
        assert found == [(it, attempts) for _, it, attempts in expected[: len(found)]]
        for sequence, _ in found:
            del model[sequence]
        return found

    for _ in range(40):
        match random.randrange(8):
            case 0 | 1 | 2:
                for due, sequence, attempts in new(random.randrange(1_500)):
                    deferred.add(due, sequence, attempts)
            case 3:
                now += random.randrange(2_000)
                while (at := deferred.next_due()) is not None and at <= now:
                    popped(random.randrange(1, 900))
                assert not any(due <= now for due, _ in model.values())
            case 4:
                start = random.randrange(last + 1)
                wanted = BitMap64(range(start, start + random.randrange(2_000)))
                assert deferred.take_out(wanted) == BitMap64(model) & wanted
                for sequence in [it for it in model if it in wanted]:
                    del model[sequence]
            case 5:
                deferred.fill(new(random.randrange(4_000)))
            case 6:
                start, end = last + 1, last + random.randrange(2, 3_000)
                model.update(dict.fromkeys(range(start, end), (now + 7, 0)))
                deferred.add_runs(now + 7, [[(start, end - start, 0)]], bitmap_of(start, end))
                last = end
            case _:
                end = random.randrange(last + 1) // 4
                for sequence in [it for it in model if it < end]:
                    del model[sequence]
                given = [(now + 99, sequence, 1) for sequence in range(0, end, 3)]
                model.update((sequence, (due, attempts)) for due, sequence, attempts in given)
                deferred.replace_before(end, given)
        while deferred.has_runs:
            deferred.unpack(700)
        copies.append((deferred.copy(), [*model.items()]))
        assert len(deferred) == len(model)
        assert deferred.entries <= 2 * len(model) + 2 * 1_024
        assert sum(map(len, in_blocks(deferred))) <= 2 * deferred.entries
        page = [it for it in deferred.earliest(100) if it is not None]
        assert page == sorted((due, it, attempts) for it, (due, attempts) in model.items())[:100]
    for copied, expected in copies:
        assert sorted(filter(None, copied)) == sorted((due, it, attempts) for it, (due, attempts) in expected)


def test_one_that_is_late_among_a_thousand_keeps_neither_their_memory_nor_a_block() -> None:
    deferred, count = DeferredQueue(Reclaimer()), 60 * 1_024
    for sequence in range(count):
        deferred.add(sequence if sequence % 1_000 else 10**9, sequence, 0)
    due = [sequence for _ in range(3) for sequence, _ in deferred.pop_due(count, count)]
    assert due == [sequence for sequence in range(count) if sequence % 1_000]
    assert (len(in_blocks(deferred)), sum(map(len, in_blocks(deferred)))) == (0, 0)
    assert sorted(deferred) == [(10**9, sequence, 0) for sequence in range(0, count, 1_000)]


def test_shortening_many_blocks_at_once_counts_as_much_as_messages_that_are_due() -> None:
    deferred, blocks = DeferredQueue(Reclaimer()), 50
    for sequence in range(blocks * 1_024):
        place = sequence % 1_024
        deferred.add(1 if place < 511 else 2 if place == 511 else 3, sequence, 0)
    while deferred.next_due() == 1:
        assert len([*deferred.pop_due(1, 5_000)]) > 500
    assert [len(block) for block in in_blocks(deferred)] == [1_024] * blocks
    made = []
    while deferred.next_due() == 2:
        made.append(len([*deferred.pop_due(2, 500)]))
    assert sum(made) == blocks
    assert [len(block) for block in in_blocks(deferred)] == [512] * blocks
    assert max(made) < 20


def test_a_page_far_behind_what_was_taken_out_looks_at_some_thousands_in_a_turn() -> None:
    """Others may take messages out meanwhile, and add some. Those that stay are all there, and in order."""
    deferred, looks, count = DeferredQueue(Reclaimer()), Looks(), 60_000
    order = Random(5).sample(range(count), count)
    for sequence in order:
        deferred.add(sequence, sequence, 0)
    deferred.take_out(BitMap64(range(10_000, 30_000)))
    looks.watch_deferred(deferred)
    found: list[int] = []
    for number, place in enumerate(deferred.earliest(10_000, (9_000, 9_000))):
        if place is not None:
            found.append(place[1])
            continue
        looks.turn()
        deferred.take_out(BitMap64([50_000 + number]))
        deferred.add(8_000, 70_000 + number, 0)
    looks.turn()
    assert looks.most <= 10_000
    assert found == [*range(9_001, 10_000), *range(30_000, 39_001)]


def test_others_have_their_turn_after_each_thousand_of_a_long_page() -> None:
    deferred = DeferredQueue(Reclaimer())
    for sequence in range(30_000):
        deferred.add(sequence % 1_000, sequence, 0)
    found = list(deferred.earliest(8_000))
    assert [it for it in found if it is not None] == sorted(deferred)[:8_000]
    assert max(len(list(turn)) for is_turn, turn in groupby(found, bool) if is_turn) <= 1_000


def test_a_long_page_is_in_order_although_messages_come_and_go_meanwhile() -> None:
    deferred = DeferredQueue(Reclaimer())
    for sequence in range(20_000):
        deferred.add(2 * sequence, sequence, 0)
    found: list[tuple[int, int, int]] = []
    for number, place in enumerate(deferred.earliest(9_000)):
        if place is not None:
            found.append(place)
            continue
        deferred.add(1, 30_000 + number, 0)  # before what was listed
        deferred.add(40_001, 40_000 + number, 0)
        deferred.take_out(BitMap64([found[-1][1] + 1]))
    assert found == sorted(found)
    assert len(found) == len(set(found)) == 9_000
    assert found[-1][1] == 8_999 + 9  # one was taken out in each turn that others had


def test_positions_are_taken_out_with_their_attempts() -> None:
    deferred = DeferredQueue(Reclaimer())
    for sequence in range(6):
        deferred.add(10 - sequence, sequence, sequence * 2)
    assert [deferred.attempts_of(sequence) for sequence in (1, 4)] == [2, 8]
    assert list(deferred.take_out(BitMap64([1, 4, 99]))) == [1, 4]
    assert not deferred.take_out(BitMap64([1]))
    deferred.add(20, 4, 8)
    assert [it[1] for it in deferred.earliest(9) if it is not None] == [5, 3, 2, 0, 4]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=6), st.sets(st.integers(0, 40)))
def test_single_sequences_are_covered_anywhere(gaps: list[tuple[int, int]], singles: set[int]) -> None:
    skips, end = SkipRanges(), 0
    for gap, length in gaps:
        skips.add(end + gap, end + gap + length)
        end += gap + length
    expected = covered(skips)
    for sequence in sorted(singles, key=lambda it: it % 7):
        assert skips.covers(sequence) == (sequence in expected)
        if sequence not in expected:
            skips.add(sequence, sequence + 1)
            expected.add(sequence)
        assert (covered(skips), skips.total) == (expected, len(expected))
        assert list(skips) == sorted(skips)


def test_a_retry_is_taken_out_of_the_middle() -> None:
    retries = RetryQueue(Reclaimer())
    for sequence in (4, 5, 6):
        retries.add(sequence, sequence * 2)
    assert retries.attempts_of(5) == 10
    assert list(retries.take_out(BitMap64([5, 9]))) == [5]
    assert not retries.take_out(BitMap64([5]))
    assert (list(retries), retries.lowest()) == ([(4, 8), (6, 12)], 4)
    retries.take_out(BitMap64([4, 6]))
    assert (len(retries), retries.lowest()) == (0, None)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 30), st.integers(0, 5)),
            st.tuples(st.just("out"), st.integers(0, 30), st.integers(1, 10)),
            st.tuples(st.just("pop"), st.integers(1, 4), st.integers(0, 40)),
            st.tuples(st.just("turn"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("before"), st.integers(0, 30), st.just(0)),
        ),
        max_size=60,
    )
)
def test_retries_keep_their_order_whatever_is_taken_out_and_comes_back(steps: list[tuple[str, int, int]]) -> None:
    retries, model = RetryQueue(Reclaimer()), list[tuple[int, int]]()
    for word, number, other in steps:
        if word == "add" and number not in dict(model):
            retries.add(number, other)
            model.append((number, other))
        elif word == "out":
            wanted = BitMap64(range(number, number + other))
            assert retries.take_out(wanted) == BitMap64(it for it, _ in model if it in wanted)
            model = [it for it in model if it[0] not in wanted]
        elif word == "pop" and model:
            assert retries.peek() == model[0]
            first, end, attempts = retries.pop_run(number, max(other, model[0][0] + 1))
            assert model[: end - first] == [(it, attempts) for it in range(first, end)]
            model = model[end - first :]
        elif word == "turn" and number <= len(model) == retries.entries:
            those = {it for it, attempts in model[:number] if not attempts and it % 2}
            assert retries.turn(number, those) == [it for it, _ in model[:number] if it in those]
            model = model[number:] + [it for it in model[:number] if it[0] not in those]
        elif word == "before":
            model = [(number, 7)] * (number > 0) + [it for it in model if it[0] > number]
            retries.replace_before(number + 1, [(number, 7)] if number else [])
        assert (list(retries), len(retries)) == (model, len(model))
        assert all(retries.attempts_of(it) == attempts for it, attempts in model)
    assert list(retries.copy()) == sorted(model)
    assert sorted(it for piece in retries.sequences() for it in piece) == sorted(it for it, _ in model)


def test_what_was_taken_out_takes_no_memory_for_long() -> None:
    retries, deferred = RetryQueue(Reclaimer()), DeferredQueue(Reclaimer())
    for sequence in range(10_000):
        retries.add(sequence, 1)
        deferred.add(sequence, sequence, 1)
    for at in range(0, 9_000, 10):
        retries.take_out(BitMap64(range(at, at + 10)))
        deferred.take_out(BitMap64(range(at, at + 10)))
    for sequence in range(10_000, 13_000):
        retries.add(sequence, 1)
        deferred.add(sequence, sequence, 1)
    assert retries.entries <= 2 * len(retries) + 100
    assert deferred.entries <= 2 * len(deferred) + 100
    assert [retries.pop_run(1, 1 << 60)[0] for _ in range(4_000)] == list(range(9_000, 13_000))
    assert [sequence for sequence, _ in deferred.pop_due(1 << 40, 20_000)] == list(range(9_000, 13_000))


def test_replacing_again_and_again_leaves_no_more_over_from_some_time_on() -> None:
    count, waiting = 8_000, 2_000
    retries, deferred = RetryQueue(Reclaimer()), DeferredQueue(Reclaimer())
    for sequence in range(count, count + waiting):
        retries.add(sequence, 0)
        deferred.add(sequence, sequence, 0)
    most = 0
    for number in range(24):
        retries.replace_before(count, [(sequence, 1) for sequence in range(count)])
        deferred.replace_before(count, [(sequence, sequence, 1) for sequence in range(count)])
        if number == 11:
            most = max(retries.entries, deferred.entries)
    assert len(retries) == len(deferred) == count + waiting
    assert max(retries.entries, deferred.entries) <= 1.1 * most


def test_as_many_positions_as_a_document_has_are_replaced_without_a_call_for_each() -> None:
    count = 10_000
    retries, deferred = RetryQueue(Reclaimer()), DeferredQueue(Reclaimer())
    for sequence in range(2 * count):
        retries.add(sequence, 0)
        deferred.add(sequence, sequence, 0)
    numbers = [number % 9 for number in range(count)]
    retried = [(2 * number, attempts) for number, attempts in enumerate(numbers)]
    later = [(7 * count - number, 2 * number, attempts) for number, attempts in enumerate(numbers)]
    calls: list[str] = []
    for _ in range(9):
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        try:
            retries.replace_before(2 * count, retried)
            deferred.replace_before(2 * count, later)
        finally:
            sys.setprofile(None)
        assert calls.count("call") < 500
        assert max(retries.entries, deferred.entries) <= 3 * count, "what was replaced stays in memory"
        calls.clear()
    assert list(retries) == retried
    assert sorted(deferred) == sorted(later)


def test_a_retry_is_met_although_most_before_it_were_taken_out() -> None:
    retries = RetryQueue(Reclaimer())
    for sequence in range(20_000):
        retries.add(sequence, 3)
    retries.add(7_000_000, 1)
    retries.take_out(BitMap64(range(9_999)))
    met = [retries.pop_run(1, 1 << 60) for _ in range(len(retries))]
    assert sorted(met) == [(it, it + 1, 3) for it in range(9_999, 20_000)] + [(7_000_000, 7_000_001, 1)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=30))
def test_many_numbers_at_once_are_as_those_one_by_one(given: list[tuple[int, int]]) -> None:
    single, together, asked = AttemptCounts(), AttemptCounts(), [sequence for sequence, _ in given]
    first = dict(given)
    for sequence, number in first.items():
        single.set(sequence, number)
    together.set_all(list(first), list(first.values()))
    assert together.of_all(asked) == [first[sequence] for sequence in asked]
    assert [together.get(sequence) for sequence in range(25)] == [single.get(sequence) for sequence in range(25)]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=9), st.integers(0, 50), st.integers(0, 50))
def test_bitmaps_are_ranges(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    sequences = {it for first, count in ranges for it in range(first, first + count)}
    bitmap = bitmap_of_ranges((first, first + count) for first, count in ranges)
    found = list(ranges_in(bitmap))
    assert sequences == {it for first, stop in found for it in range(first, stop)}
    assert all(stop < first for (_, stop), (first, _) in pairwise(found))
    assert number_of_ranges(bitmap) == len(found)
    assert set(between(bitmap, start, end)) == {it for it in sequences if start <= it < end}


@given(st.lists(st.sets(st.integers(0, 9)), max_size=20), st.dictionaries(st.integers(10, 19), st.integers(1, 99)))
def test_numbers_are_counted_in_bits(increments: list[set[int]], given: dict[int, int]) -> None:
    numbers = AttemptCounts()
    for sequence, number in given.items():
        numbers.set(sequence, number)
    for sequences in increments:
        numbers.increment(BitMap64(sequences))
    expected = given | {it: sum(it in sequences for sequences in increments) for it in range(10)}
    assert {it: numbers.get(it) for it in expected} == expected
    numbers.forget(3, 15)
    assert {it: numbers.get(it) for it in expected} == {it: 0 if 3 <= it < 15 else n for it, n in expected.items()}


def test_a_run_is_deferred_at_once_and_comes_onto_the_heap_little_by_little() -> None:
    deferred = DeferredQueue(Reclaimer())
    deferred.add(5, 90, 2)
    deferred.add_runs(7, [[(10, 10, 0)]], bitmap_of(10, 20))
    assert (len(deferred), 12 in deferred, deferred.has_any(15, 30), deferred.lowest()) == (11, True, True, 10)
    assert (
        sorted(deferred) == sorted(filter(None, deferred.copy())) == [(5, 90, 2), *((7, it, 0) for it in range(10, 20))]
    )
    deferred.take_out(BitMap64([11, 12, 13]))
    deferred.add(3, 12, 0)
    deferred.unpack(4)
    assert (deferred.has_runs, deferred.next_due()) == (True, 3)
    assert list(deferred.pop_due(9, 100)) == [(12, 0), (90, 2), (10, 0)]
    found = list(deferred.earliest(3))
    assert found == [None, (7, 14, 0), (7, 15, 0), (7, 16, 0)]
    assert not deferred.has_runs
    assert [it for it, _ in deferred.pop_due(9, 100)] == [14, 15, 16, 17, 18, 19]
    assert len(deferred) == 0


def test_a_run_of_many_batches_leaves_out_what_was_taken_back_before() -> None:
    deferred = DeferredQueue(Reclaimer())
    pieces = [[(10, 1, 5), (12, 3, 1)], [(20, 2, 0)]]
    deferred.add_runs(7_000, pieces, BitMap64([10, 12, 14, 21]))
    expected = [(12_000, 10, 0), (8_000, 12, 0), (8_000, 14, 0), (7_000, 21, 0)]
    assert (len(deferred), 13 in deferred, 14 in deferred) == (4, False, True)
    assert list(deferred) == list(filter(None, deferred.copy())) == expected
    before = deferred.copy()
    assert (deferred.unpack(3), deferred.has_runs, deferred.next_due()) == (3, True, 8_000)
    deferred.take_out(BitMap64([14]))
    deferred.add(1_000, 14, 2)  # it was moved,
    deferred.add(2_000, 13, 0)  # and this one was redelivered and requeued
    assert (deferred.unpack(9), deferred.unpack(9), deferred.has_runs) == (3, 0, False)
    assert list(filter(None, before)) == expected
    assert list(deferred.pop_due(20_000, 99)) == [(14, 2), (13, 0), (21, 0), (12, 0), (10, 0)]
    assert len(deferred) == 0


def test_the_next_retries_are_listed_although_many_before_them_were_taken_out() -> None:
    retries = RetryQueue(Reclaimer())
    assert retries.next_ones(3) == []
    for sequence in range(20_000):
        retries.add(sequence, 3)
    retries.take_out(BitMap64(range(9_990)))
    assert len(retries.next_ones(3)) == 3
    assert retries.next_ones(1) == [retries.peek()]
    assert len(retries) == 10_010


def test_what_few_channels_use_takes_no_memory_in_the_others() -> None:
    """A node may have thousands of channels, and each empty deque takes 800 bytes."""
    reclaimer, kept = Reclaimer(), list[object]()
    memory = KeyMemory(window=1, most=1, reclaimer=reclaimer)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            kept += [RetryQueue(reclaimer), DeferredQueue(reclaimer), TopicKeys(memory, lambda: None)]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / 100 < 3_500
