"""The arithmetic of a soak's verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.soak.ledger import Ledger
from tests.soak.slopes import Sample, Series, fit
from tests.soak.soak import SHORTEST_JUDGED, growth, verdict

MINUTE = 60.0


def series_of(rss: Callable[[float], float], descriptors: Callable[[float], float] = lambda at: 40) -> Series:
    """Return an hour of samples, one a minute."""
    times = [MINUTE * number for number in range(61)]
    return Series("nsqd", samples=[Sample(at, round(rss(at)), round(descriptors(at)), 3, 0) for at in times])


def test_a_line_has_the_slope_of_its_points() -> None:
    slope = fit([(at, 1000 + at / 36) for at in range(0, 3600, 60)])
    assert slope is not None
    assert slope.an_hour == pytest.approx(100)
    assert slope.percent == pytest.approx(100 * 100 / slope.mean)
    assert slope.error == pytest.approx(0, abs=1e-9)


def test_error_says_how_far_points_are_from_the_line() -> None:
    slope = fit([(0, 0), (1, 1), (2, 0), (3, 1)])
    assert slope is not None
    # Computed by hand: slope 1/5, sum of squared residuals 0.8, two degrees of freedom, spread 5.
    assert slope.an_hour == pytest.approx(0.2 * 3600)
    assert slope.error == pytest.approx((0.8 / 2 / 5) ** 0.5 * 3600)


@pytest.mark.parametrize("points", [[], [(0, 1), (1, 2)], [(5, 1), (5, 2), (5, 3)]])
def test_too_few_points_have_no_line(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


def test_samples_before_the_warm_up_do_not_count() -> None:
    series = series_of(lambda at: 50e6 + min(at, 600) * 1e5)
    settled = series.slope("rss", since=600)
    whole = series.slope("rss", since=0)
    assert settled is not None
    assert settled.percent == 0
    assert whole is not None
    assert whole.percent > 10
    assert series.span(600) == 3000


def test_growth_of_more_than_a_percent_an_hour_is_bad() -> None:
    assert growth(series_of(lambda at: 100e6 + at / 3600 * 0.9e6), 0) == []
    assert growth(series_of(lambda at: 100e6 + at / 3600 * 1.1e6), 0) == [
        "rss of nsqd grows by 1.09 % an hour, more than 1 %"
    ]


def test_descriptors_that_leak_are_bad() -> None:
    (reason,) = growth(series_of(lambda at: 1e8, lambda at: 40 + at // 600), 0)
    assert reason.startswith("descriptors of nsqd grows by ")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda ledger, series: None, "good"),
        (lambda ledger, series: ledger.failed("lost", "message 1"), "NOT GOOD: lost: 1"),
        (lambda ledger, series: series.append(series_of(lambda at: 1e8 + at * 1e4)), "NOT GOOD: rss of nsqd grows by"),
    ],
    ids=["nothing", "a message", "memory"],
)
def test_verdict_says_what_is_wrong(spoil: Callable[[Ledger, list[Series]], None], reason: str) -> None:
    ledger, series, said = Ledger(), [series_of(lambda at: 1e8)], list[str]()
    spoil(ledger, series)
    status = verdict(ledger, series, 0, said.append, is_closed=True)
    assert said[-1].startswith(reason)
    assert (status == 0) == (reason == "good")


def test_a_soak_that_was_given_up_is_not_good() -> None:
    assert verdict(Ledger(), [], 0, lambda text: None, is_closed=False) == 1


def test_what_is_too_short_is_not_judged() -> None:
    series = series_of(lambda at: 1e8 + at * 1e4)
    assert verdict(Ledger(), [series], 3600 - SHORTEST_JUDGED + 60, lambda text: None, is_closed=True) == 0


def test_one_that_is_killed_is_not_judged() -> None:
    series = series_of(lambda at: 1e8 + at * 1e4)
    series.is_judged = False
    assert verdict(Ledger(), [series], 0, lambda text: None, is_closed=True) == 0
