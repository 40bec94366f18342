"""Which nsqd the next message is published to."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqclient.core.hostpool import ByKey, EpsilonGreedy, HostPool, Pool, RoundRobin, pool_of, quorum, weight_of


def test_in_turn_the_second_is_first() -> None:
    pool = RoundRobin(2)
    assert [pool.pick(0) for _ in range(4)] == [1, 0, 1, 0]


def test_who_fails_is_left_alone_for_longer_and_longer() -> None:
    pool, tried = HostPool(2), []
    for second in range(1000):
        number = pool.pick(float(second))
        if number == 0:
            tried.append(second)
            pool.failed(0, float(second))
        else:
            pool.succeeded(1, 0.001, float(second))
    assert tried == [0, 30, 90, 210, 450, 930]


def test_one_that_works_again_is_used_again() -> None:
    pool = HostPool(2)
    pool.failed(0, 0)
    assert [pool.pick(1), pool.pick(2), pool.pick(31)] == [1, 1, 0]
    pool.succeeded(0, 0.001, 31)
    assert [pool.pick(32), pool.pick(33)] == [1, 0]


def test_when_all_fail_all_are_tried() -> None:
    pool, picked = HostPool(2), Counter[int]()
    for _ in range(12):
        number = pool.pick(0)
        picked[number] += 1
        pool.failed(number, 0)
    assert picked == {0: 6, 1: 6}


def test_the_first_that_works() -> None:
    pool = pool_of("first", 3, Random(1))
    assert [pool.pick(0), pool.pick(0)] == [0, 0]
    pool.failed(0, 0)
    assert [pool.pick(1), pool.pick(2)] == [1, 1]
    assert pool.pick(30) == 0


@pytest.mark.parametrize("scale", [1.0, 1e-5])  # includes hosts that answer in microseconds
def test_the_quickest_gets_most_and_no_one_nothing(scale: float) -> None:
    times = [0.5 * scale, 1.0 * scale, 10.0 * scale]
    pool, picked, now = EpsilonGreedy(3, Random(7)), Counter[int](), 1000.0
    for _ in range(5000):
        number = pool.pick(now)
        picked[number] += 1
        pool.succeeded(number, times[number], now)
        now += 0.01
    assert picked[0] > picked[1] > picked[2] > 0
    assert picked[0] / 5000 > 0.5


def test_a_quick_one_that_fails_is_left_alone() -> None:
    pool, now = EpsilonGreedy(2, Random(7)), 1000.0
    for number, seconds in [(0, 0.001), (1, 1.0)] * 10:
        pool.succeeded(number, seconds, now)
    pool.failed(0, now)
    assert {pool.pick(now + 1) for _ in range(50)} == {1}


def test_what_was_five_minutes_ago_is_forgotten() -> None:
    pool = EpsilonGreedy(1, Random(7))
    pool.succeeded(0, 1.0, 1000.0)
    assert pool._speeds[0].average(1001.0) > 0
    assert pool._speeds[0].average(1301.0) == 0


KEYS = [b"%d" % number for number in range(900)]


def by_key(*names: str) -> ByKey:
    return ByKey(len(names), lambda number: names[number])


def chosen(names: list[str], pool: ByKey, now: float = 0.0) -> dict[bytes, str]:
    return {key: names[pool.pick_for(key, now)] for key in KEYS}


@given(st.permutations(["a:4150", "b:4150", "c:4150"]))
def test_a_key_belongs_to_the_same_one_in_whatever_order_they_are_given(names: list[str]) -> None:
    there = ["a:4150", "b:4150", "c:4150"]
    assert chosen(names, by_key(*names)) == chosen(there, by_key(*there))


def test_keys_are_shared_out_equally() -> None:
    shares = Counter(chosen(["a", "b", "c"], by_key("a", "b", "c")).values())
    assert min(shares.values()) > 250


def test_only_the_keys_of_one_that_fails_move_and_they_come_back() -> None:
    names = ["a", "b", "c"]
    pool = by_key(*names)
    before = chosen(names, pool)
    pool.failed(0, 0.0)
    during = chosen(names, pool, 1.0)
    assert {key for key in KEYS if during[key] != before[key]} == {key for key in KEYS if before[key] == "a"}
    assert set(during.values()) == {"b", "c"}
    first = next(key for key in KEYS if before[key] == "a")
    assert names[pool.pick_for(first, 31.0)] == "a"  # it is tried again
    pool.succeeded(0, 0.001, 31.0)
    assert chosen(names, pool, 32.0) == before


def test_only_the_keys_of_one_that_is_gone_move() -> None:
    before = chosen(["a", "b", "c"], by_key("a", "b", "c"))
    after = chosen(["b", "c"], by_key("b", "c"))
    assert all(after[key] == before[key] for key in KEYS if before[key] != "a")


def test_a_key_avoids_who_has_refused_its_message() -> None:
    names = ["a", "b", "c"]
    pool = by_key(*names)
    before = chosen(names, pool)
    assert all(names[pool.pick_for(key, 0.0, [names.index(before[key])])] != before[key] for key in KEYS)
    assert names[pool.pick_for(KEYS[0], 0.0, [0, 1, 2])] == before[KEYS[0]]


@pytest.mark.parametrize(
    ("key", "one", "two"),
    [
        ("customer-3", "e5a4c59e11e5bfe4", "50f3764f49c231b1"),
        ("Zürich", "62a6ed955a674775", "e2f5e7bc282eb70f"),
    ],
)
def test_weights_are_those_that_the_reference_describes(key: str, one: str, two: str) -> None:
    """Clients in other languages compute the same."""
    assert [weight_of(f"10.0.0.{last}:4150", key.encode())[0].hex() for last in (1, 2)] == [one, two]


def test_when_all_have_failed_a_key_is_where_it_belongs() -> None:
    names = ["a", "b"]
    pool = by_key(*names)
    before = chosen(names, pool)
    pool.failed(0, 0.0)
    pool.failed(1, 0.0)
    assert names[pool.pick_for(KEYS[0], 1.0)] == before[KEYS[0]]


@given(
    st.sampled_from(["round_robin", "hostpool", "epsilon_greedy", "first", "by_key", "by_group", "by_topic"]),
    st.integers(1, 5),
    st.lists(st.tuples(st.booleans(), st.floats(0, 100))),
    st.integers(),
)
def test_somebody_is_always_picked(strategy: str, size: int, steps: list[tuple[bool, float]], seed: int) -> None:
    pool: Pool = pool_of(strategy, size, Random(seed))  # type: ignore[arg-type]
    now = 0.0
    for works, seconds in steps:
        now += seconds
        number = pool.pick(now)
        assert 0 <= number < size
        if works:
            pool.succeeded(number, seconds, now)
        else:
            pool.failed(number, now)


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="no such strategy"):
        pool_of("best", 2, Random(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a quorum of 0"):
        quorum(0)
