"""Starts of slots are spaced, whatever the store's latency."""

from __future__ import annotations

import itertools
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.remote.pacing import FULL_SLOT, LONGEST_PAUSE, SHORTEST_PAUSE, SLOW_FOR, Pacing, pause_before


def new_pacing() -> Pacing:
    return Pacing(interval=0.05, delay=1.0)


def next_start(pacing: Pacing, now: float, *, size: int = 1, awaited: bool = True, under_way: int = 0) -> float:
    return pacing.next_start(now, waiting_bytes=size, is_awaited=awaited, under_way=under_way)


def test_the_first_publish_after_a_pause_leaves_at_once() -> None:
    assert next_start(new_pacing(), 7.0) == 7.0


def test_the_next_one_waits_for_the_interval_and_one_without_a_waiting_publisher_for_the_delay() -> None:
    pacing = new_pacing()
    pacing.started(7.0)
    assert next_start(pacing, 7.01) == pytest.approx(7.05)
    assert next_start(pacing, 7.01, awaited=False) == pytest.approx(8.0)
    assert next_start(pacing, 9.0) == 9.0


def test_a_full_slot_leaves_at_once() -> None:
    pacing = new_pacing()
    pacing.started(7.0)
    assert next_start(pacing, 7.0, size=FULL_SLOT, awaited=False) == 7.0


def test_nothing_starts_without_bytes_or_while_enough_is_under_way() -> None:
    pacing = new_pacing()
    assert next_start(pacing, 7.0, size=0) == inf
    assert next_start(pacing, 7.0, size=FULL_SLOT, under_way=pacing.depth) == inf


def test_starts_are_halved_for_a_while_when_the_store_asks_for_fewer() -> None:
    pacing = new_pacing()
    pacing.slow_down(7.0)
    pacing.slow_down(7.0)
    pacing.started(7.0)
    assert next_start(pacing, 7.0) == pytest.approx(7.2)
    pacing.started(7.0 + SLOW_FOR)
    assert next_start(pacing, 7.0 + SLOW_FOR) == pytest.approx(7.05 + SLOW_FOR)


@given(st.integers(0, 2**32), st.floats(0.001, 0.2), st.floats(0.0, 0.3))
def test_starts_never_exceed_one_for_each_interval(seed: int, interval: float, latency: float) -> None:
    """A publisher that publishes again as soon as it has its OK, with any latency of the store."""
    random = Random(seed)
    pacing = Pacing(interval=interval, delay=1.0)
    now = 0.0
    starts: list[float] = []
    while len(starts) < 30:
        now = next_start(pacing, now)
        pacing.started(now)
        starts.append(now)
        now += latency * random.random()
    assert all(later - start >= interval * 0.999 for start, later in itertools.pairwise(starts))


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_have_bounds(attempt: int, chance: float) -> None:
    pause = pause_before(attempt, chance)
    assert SHORTEST_PAUSE <= pause <= LONGEST_PAUSE
    assert pause_before(attempt + 1, chance) >= pause
