"""What both queues share: attempts as bitmaps, and that stale entries go."""

from __future__ import annotations

import sys
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker.deferred_queue import DeferredQueue
from nsqd.broker.keys import KeyMemory, TopicKeys
from nsqd.broker.queue_members import AttemptCounts
from nsqd.broker.reclaimer import Reclaimer
from nsqd.broker.retry_queue import RetryQueue


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


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=30))
def test_many_numbers_at_once_are_as_those_one_by_one(given: list[tuple[int, int]]) -> None:
    single, together, asked = AttemptCounts(), AttemptCounts(), [sequence for sequence, _ in given]
    first = dict(given)
    for sequence, number in first.items():
        single.set(sequence, number)
    together.set_all(list(first), list(first.values()))
    assert together.of_all(asked) == [first[sequence] for sequence in asked]
    assert [together.get(sequence) for sequence in range(25)] == [single.get(sequence) for sequence in range(25)]


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
