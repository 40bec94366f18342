from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqjobs.django.priorities import WEIGHTS, Band, Turns, band_of, band_topic, prefetches

HIGH, NORMAL, LOW = Band


@pytest.mark.parametrize(("priority", "band"), [(-100, LOW), (-1, LOW), (0, NORMAL), (1, HIGH), (100, HIGH)], ids=str)
def test_priorities_are_in_three_bands(priority: int, band: Band) -> None:
    assert band_of(priority) is band


def test_the_normal_topic_is_that_of_the_queue() -> None:
    assert [band_topic("mails", band) for band in Band] == ["mails.high", "mails", "mails.low"]


def test_bands_of_a_long_name_do_not_meet() -> None:
    assert len({band_topic("ü" * 70, band) for band in Band}) == 3


def test_the_highest_comes_first() -> None:
    turns = Turns()
    assert [turns.choose(waiting) for waiting in ((LOW, NORMAL, HIGH), (LOW, NORMAL), (LOW,))] == [HIGH, NORMAL, LOW]


def test_a_band_that_was_alone_owes_nothing() -> None:
    turns = Turns()
    for _ in range(100):
        turns.choose((NORMAL,))
    assert turns.choose((NORMAL, HIGH)) is HIGH


def test_bands_that_always_wait_get_turns_by_their_weights() -> None:
    turns = Turns()
    chosen = Counter(turns.choose(tuple(Band)) for _ in range(sum(WEIGHTS.values()) * 10))
    assert chosen == {band: weight * 10 for band, weight in WEIGHTS.items()}


@given(st.lists(st.sets(st.sampled_from(Band)).map(lambda others: {LOW, *others}), min_size=42, max_size=42))
def test_low_tasks_are_never_starved(waiting: list[Collection[Band]]) -> None:
    turns = Turns()
    assert LOW in [turns.choose(bands) for bands in waiting]


def test_a_free_thread_may_take_from_any_band() -> None:
    assert prefetches({HIGH: 1, NORMAL: 0, LOW: 0}, 4) == {HIGH: 4, NORMAL: 3, LOW: 3}


def test_one_of_each_band_is_at_hand_when_no_thread_is_free() -> None:
    assert prefetches({HIGH: 1, NORMAL: 3, LOW: 0}, 4) == {HIGH: 2, NORMAL: 4, LOW: 1}
