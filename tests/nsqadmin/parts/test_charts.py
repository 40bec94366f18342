from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from nsqadmin.cluster.model import Metric, Series
from nsqadmin.parts.charts import (
    LABEL,
    LAST,
    LEAST_LEFT,
    LETTER,
    NARROW,
    TOP,
    Line,
    area,
    chart,
    label_places,
    nice_top,
    path,
    spark,
)

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
    assert path(points) == "M0.0 1.0h0M2.0 3.0L3.0 4.0"  # a point between gaps is a dot, not nothing
    assert area(points, 9).count("Z") == 2


def test_a_chart_has_its_last_values_as_a_table() -> None:
    drawn = chart("Rate", series(*map(float, range(30))), [IN], form="rate")
    assert len(drawn.table) == LAST
    assert drawn.table[-1] == (1000.0, ("29/s",))
    assert drawn.table[0] == (955.0, ("20/s",))
    assert json.loads(drawn.data)["lines"][0]["values"][-1] == 29


def test_the_axis_leaves_room_for_its_longest_number() -> None:
    assert chart("Rate", series(1.0, 3.0), [IN], form="rate").left == pytest.approx(LEAST_LEFT / NARROW * 100, abs=0.1)
    wide = chart("Bytes", series(1.0, 20_000.0), [IN], form="size_rate")
    longest = max(len(text) for _, text in wide.levels)
    assert "20.0 kB/s" in [text for _, text in wide.levels]
    assert wide.left / 100 * NARROW >= longest * LETTER
    assert wide.times[0][0] == wide.left


def test_the_time_shown_is_the_same_from_the_first_sample_on() -> None:
    """Otherwise the ticks would say 25 s, then 11m 56s, and every line would grow from the left edge."""
    few = chart("Rate", replace(series(1.0, 3.0), points=144), [IN], form="rate")
    assert [text for _, _, text in few.times] == ["−12m", "−6m", "now"]
    assert few.lines[0].path.split("L")[0].startswith("M476.6 ")  # at the right, where the newest samples are
    late = chart("Rate", replace(series(1.0, 3.0), points=144, step=5.02), [IN], form="rate")
    assert [text for _, _, text in late.times] == ["−12m", "−6m", "now"]


def test_lines_differ_by_more_than_their_colour_and_have_a_label_each() -> None:
    both = Series(end=1000.0, step=5.0, values={"incoming": (5.0, 5.0), "finished": (5.0, 5.0)})
    out = Line(metric=Metric.FINISHED, label="out", colour="c2")
    drawn = chart("Rate", both, [IN, out], form="rate").lines
    assert [line.style for line in drawn] == ["solid", "dashed"]
    places = [line.label_y for line in drawn if line.label_y is not None]
    assert abs(places[0] - places[1]) >= LABEL
    assert chart("Rate", series(1.0, 2.0), [IN]).lines[0].label_y is None  # a single line is named by the title


@pytest.mark.parametrize("ends", [[10.0, 11.0, 12.0], [8.0, 8.0], [110.0, 8.0], [None, 50.0], [None, None]])
def test_labels_of_lines_never_cover_each_other_nor_leave_the_chart(ends: list[float | None]) -> None:
    places = sorted(place for place in label_places(ends) if place is not None)
    assert len(places) == sum(end is not None for end in ends)
    assert all(place >= TOP for place in places)
    assert all(after - before >= LABEL - 0.1 for before, after in pairwise(places))


def test_a_chart_of_nothing_says_so() -> None:
    for nothing in (None, series(), series(None, None)):
        drawn = chart("Rate", nothing, [IN])
        assert drawn.is_empty
        assert drawn.lines[0].last == "–"


def test_a_spark_needs_two_points() -> None:
    assert spark(series(1.0), Metric.INCOMING) == ("", "")
    assert spark(series(1.0, 2.0), Metric.INCOMING)[0].startswith("M0.0")
