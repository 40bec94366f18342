"""A histogram of durations with few counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.histogram import DurationHistogram


@given(st.lists(st.floats(1e-6, 100), min_size=1), st.sampled_from([50.0, 95.0, 99.9]))
def test_percentiles_are_near_the_truth(times: list[float], percent: float) -> None:
    histogram = DurationHistogram()
    for seconds in times:
        histogram.add(seconds)
    wanted = len(times) * percent / 100
    truth = next(value for number, value in enumerate(sorted(times), 1) if number >= wanted)
    assert histogram.percentile(percent) == pytest.approx(truth, rel=0.03)


def test_many_at_once() -> None:
    histogram = DurationHistogram()
    histogram.add(0.001, 999)
    histogram.add(2.0)
    found = histogram.milliseconds()
    assert found["p50"] == pytest.approx(1, rel=0.02)
    assert found["p99.9"] == pytest.approx(1, rel=0.02)
    assert found["max"] == 2000
    assert histogram.count == 1000


def test_nothing_yet() -> None:
    assert DurationHistogram().milliseconds() == {"p50": 0, "p95": 0, "p99": 0, "p99.9": 0, "max": 0}


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    histogram = DurationHistogram()
    histogram.add(0.0)
    assert histogram.percentile(50) == 0
