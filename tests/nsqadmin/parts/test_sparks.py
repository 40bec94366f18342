"""Sparklines: one short path, and its numbers as words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.model import CLUSTER_SERIES, Metric, Snapshot, channel_series
from nsqadmin.cluster.series import SeriesStore, row_of
from nsqadmin.parts.sparks import HEIGHT, POINTS, STEP, Sparks, spark


def test_its_numbers_are_its_label() -> None:
    drawn = spark([12.0, *[100.0] * 142, 59_157.0], 5.0)
    assert drawn is not None
    assert drawn.label == "from 12 to 59,157 in 12 min, rising"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([5.0, 1.0], "from 5 to 1 in 5 s, falling"),
        ([100.0, 20.0, 103.0], "from 100 to 103 in 10 s, steady"),
        ([None, None, *[7.0] * 25], "from 7 to 7 in 2 min, steady"),
    ],
)
def test_the_time_and_the_direction_are_those_of_the_known_part(values: list[float | None], said: str) -> None:
    drawn = spark(values, 5.0)
    assert drawn is not None
    assert drawn.label == said


@pytest.mark.parametrize("values", [[], [3.0], [0.0] * 144, [None] * 144, [None, 4.0]])
def test_nothing_is_drawn_of_nothing(values: list[float | None]) -> None:
    assert spark(values, 5.0) is None


def test_samples_far_apart_are_cut_to_twelve_minutes() -> None:
    drawn = spark([1_000.0, *map(float, range(100, 113))], 60.0)
    assert drawn is not None
    assert drawn.label == "from 100 to 112 in 12 min, rising"


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=300))
def test_it_stays_small_and_inside_its_box(values: list[float | None]) -> None:
    drawn = spark(values, 5.0)
    if drawn is None:
        return
    assert len(drawn.path) <= POINTS * 6
    numbers = list(map(int, re.findall(r"\d+", drawn.path)))
    assert max(numbers[::2]) <= (POINTS - 1) * STEP
    assert max(numbers[1::2]) <= HEIGHT


class View:
    """The series of a store alone."""

    snapshot: Snapshot
    started_at = 0.0

    def __init__(self, store: SeriesStore) -> None:
        self.series = store.series

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_a_topic_has_the_sum_of_its_channels_where_all_are_known() -> None:
    store = SeriesStore(most_coarse=0)
    keys = [channel_series("t", name) for name in "abc"]
    for number in range(10):
        rows = [(key, row_of(depth=10.0 + number)) for key in keys[: 3 if number >= 5 else 2]]
        store.put([(CLUSTER_SERIES, row_of(depth=1)), *rows], now=1_000_000.0 + 5 * number)
    sparks = Sparks(View(store))
    both, none = sparks.of(Metric.DEPTH, keys[:2]), sparks.of(Metric.DEPTH, ["channel:t/other"])
    assert both is not None
    assert (both.label, none) == ("from 20 to 38 in 45 s, rising", None)
    all_of_them = sparks.of(Metric.DEPTH, keys)
    assert all_of_them is not None
    assert all_of_them.label == "from 45 to 57 in 20 s, rising"  # before, the third one is unknown
