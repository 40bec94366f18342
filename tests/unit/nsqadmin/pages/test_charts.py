from __future__ import annotations

import json

import pytest

from nsqadmin.cluster.model import Metric, Series
from nsqadmin.pages.charts import LAST, LEAST_LEFT, LETTER, Line, area, chart, nice_top, path, spark

IN = Line(metric=Metric.INCOMING, label="in", colour="c1", key="cluster/incoming")


def series(*values: float | None) -> Series:
    return Series(end=1000.0, step=5.0, values={Metric.INCOMING: values})


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.4, 0.4), (1, 1), (1.2, 2), (37, 40), (450, 600), (999, 1000), (65_190, 80_000)]
)
def test_the_axis_ends_at_a_round_number(highest: float, top: float) -> None:
    assert nice_top(highest) == pytest.approx(top)


def test_a_missing_sample_is_a_gap() -> None:
    points = [(0.0, 1.0), (1.0, None), (2.0, 3.0), (3.0, 4.0)]
    assert path(points) == "M0.0 1.0M2.0 3.0L3.0 4.0"
    assert area(points, 9).count("Z") == 2


def test_a_chart_has_its_last_values_as_a_table() -> None:
    drawn = chart("Rate", series(*map(float, range(30))), [IN], form="rate")
    assert len(drawn.table) == LAST
    assert drawn.table[-1] == (1000.0, ("29/s",))
    assert drawn.table[0] == (955.0, ("20/s",))
    assert json.loads(drawn.data)["lines"][0]["values"][-1] == 29


def test_the_axis_leaves_room_for_its_longest_number() -> None:
    assert chart("Rate", series(1.0, 3.0), [IN], form="rate").left == LEAST_LEFT
    wide = chart("Bytes", series(1.0, 20_000.0), [IN], form="size_rate")
    longest = max(len(text) for _, text in wide.levels)
    assert "20.0 kB/s" in [text for _, text in wide.levels]
    assert wide.left >= longest * LETTER
    assert wide.lines[0].path.startswith(f"M{wide.left:.1f} ")
    assert wide.times[0][0] == wide.left


def test_a_chart_of_nothing_says_so() -> None:
    for nothing in (None, series(), series(None, None)):
        drawn = chart("Rate", nothing, [IN])
        assert drawn.is_empty
        assert drawn.lines[0].last == "–"


def test_a_spark_needs_two_points() -> None:
    assert spark(series(1.0), Metric.INCOMING) == ("", "")
    assert spark(series(1.0, 2.0), Metric.INCOMING)[0].startswith("M0.0")
