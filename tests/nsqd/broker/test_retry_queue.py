"""The retry queue, compared with plain lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker.reclaimer import Reclaimer
from nsqd.broker.retry_queue import RetryQueue


def test_retries_come_first_in_first_out_in_runs_of_equal_attempts() -> None:
    retries = RetryQueue(Reclaimer())
    for sequence, attempts in [(5, 1), (6, 1), (7, 2), (8, 2), (3, 1)]:
        retries.add(sequence, attempts)
    assert retries.pop_run(10, end=100) == (5, 7, 1)
    assert retries.pop_run(10, end=8) == (7, 8, 2)
    assert retries.pop_run(1, end=100) == (8, 9, 2)
    assert list(retries) == [(3, 1)]


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


def test_a_retry_is_met_although_most_before_it_were_taken_out() -> None:
    retries = RetryQueue(Reclaimer())
    for sequence in range(20_000):
        retries.add(sequence, 3)
    retries.add(7_000_000, 1)
    retries.take_out(BitMap64(range(9_999)))
    met = [retries.pop_run(1, 1 << 60) for _ in range(len(retries))]
    assert sorted(met) == [(it, it + 1, 3) for it in range(9_999, 20_000)] + [(7_000_000, 7_000_001, 1)]


def test_the_next_retries_are_listed_although_many_before_them_were_taken_out() -> None:
    retries = RetryQueue(Reclaimer())
    assert retries.next_ones(3) == []
    for sequence in range(20_000):
        retries.add(sequence, 3)
    retries.take_out(BitMap64(range(9_990)))
    assert len(retries.next_ones(3)) == 3
    assert retries.next_ones(1) == [retries.peek()]
    assert len(retries) == 10_010
