"""Deferred messages, compared with plain sets and lists."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import chain, groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker.bitmaps import bitmap_of
from nsqd.broker.deferred_queue import DeferredQueue
from nsqd.broker.reclaimer import Reclaimer
from tests.nsqd.looks import Looks
from tests.support.quick import unless_quick

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
    for sequence in range(24_000):
        deferred.add(random.randrange(distinct), sequence, sequence % 3)
    for sequence in range(0, 24_000, 5):
        deferred.take_out(BitMap64([sequence]))
    in_order = sorted(filter(None, deferred.copy()))
    for sequence in range(1, 24_000, 5):  # these stay in the heap until they are met there
        deferred.take_out(BitMap64([sequence]))
    in_order = [it for it in in_order if it[1] % 5 > 1]
    for first in (0, 100, 2_000, 12_000, len(in_order) - 50):
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


@pytest.mark.parametrize("seed", range(unless_quick(3, quick=1)))
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
