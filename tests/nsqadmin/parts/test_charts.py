from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.model import Metric, Series
from nsqadmin.cluster.time_range import Window
from nsqadmin.parts.charts import (
    LAST,
    LEAST_LEFT,
    LETTER,
    NARROW,
    TOP,
    Line,
    area,
    axis_text,
    chart,
    hatching,
    nice_top,
    path,
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
    assert "20 kB/s" in [text for _, text in wide.levels]
    assert wide.left / 100 * NARROW >= longest * LETTER
    assert wide.times[0][0] >= wide.left


def test_samples_stand_where_their_time_is() -> None:
    """From the first sample on, the axis has its whole length: otherwise every line would grow from the left edge."""
    few = chart("Rate", series(1.0, 3.0), [IN], form="rate", window=Window(280.0, 1000.0, True))
    assert few.lines[0].path.startswith("M476.7 ")  # at the right, where the newest samples are
    assert [text for _, _, text in few.times] == ["00:05", "00:10", "00:15"]
    assert json.loads(few.data)["begin"] == 280.0


def test_lines_differ_by_more_than_their_colour() -> None:
    both = Series(end=1000.0, step=5.0, values={"incoming": (5.0, 5.0), "finished": (5.0, 5.0)})
    out = Line(metric=Metric.FINISHED, label="out", colour="c2")
    drawn = chart("Rate", both, [IN, out], form="rate").lines
    assert [line.style for line in drawn] == ["solid", "dashed"]


DEPTH = Line(metric=Metric.DEPTH, label="depth", colour="c1", filled=True)


def silent(values: tuple[float | None, ...], old: tuple[float, ...]) -> Series:
    partial = tuple(part > 0 for part in old)
    return Series(
        end=1000.0,
        step=5.0,
        values={Metric.DEPTH: values, Metric.INCOMING: values},
        last_known={Metric.DEPTH: old},
        partial=partial,
    )


def strokes(band: str) -> list[tuple[int, int, int]]:
    return [tuple(map(int, found)) for found in re.findall(r"M(\d+) (\d+)V(\d+)", band)]  # type: ignore[misc]


def test_what_silent_nodes_had_is_a_band_on_top_of_the_known_part() -> None:
    drawn = chart("Depth", silent((100.0, 100.0, 100.0, 100.0), (0.0, 0.0, 40.0, 40.0)), [DEPTH])
    (line,) = drawn.lines
    assert (drawn.band, drawn.band_number) == ("last known", "40")
    assert {y for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", line.path)} == {"8.0"}  # the sum never falls
    assert "L480.0 48.8" in line.area  # up to 60
    assert strokes(line.band)[0] == (320, 49, 8)
    assert strokes(line.band)[-1] == (480, 49, 8)
    assert drawn.table[-1][1] == ("100, 40 of it last known",)
    assert json.loads(drawn.data)["lines"][0]["old"] == [0, 0, 40, 40]


def test_a_rate_without_silent_nodes_is_at_least_that() -> None:
    drawn = chart("Rate", silent((10.0, 4.0, 4.0), (0.0, 3.0, 3.0)), [IN], form="rate")
    assert (drawn.band, drawn.band_number) == ("at least", "")
    assert all(top == TOP for _, _, top in strokes(drawn.lines[0].band))
    assert [texts for _, texts in drawn.table] == [("10/s",), ("at least 4/s",), ("at least 4/s",)]


def test_without_silent_nodes_there_is_neither_a_band_nor_its_legend() -> None:
    drawn = chart("Depth", silent((1.0, 2.0), (0.0, 0.0)), [DEPTH])
    assert (drawn.band, drawn.lines[0].band) == ("", "")
    plain = chart("Rate", series(1.0, 2.0), [IN])
    assert (plain.band, plain.lines[0].band) == ("", "")


heights = st.floats(0, 128)
columns = st.lists(st.tuples(st.floats(0, 40), st.none() | heights, st.none() | heights), max_size=60)


@given(columns)
def test_a_band_stays_between_its_two_heights(points: list[tuple[float, float | None, float | None]]) -> None:
    x, shape = 0.0, []
    for width, low, high in points:
        shape.append((x, low, high))
        x += width
    known = [value for _, low, high in shape if low is not None and high is not None for value in (low, high)]
    for at, low, high in strokes(hatching(shape)):
        assert 0 <= at <= x + 1
        assert min(known) - 1 <= min(low, high)
        assert max(low, high) <= max(known) + 1


@pytest.mark.parametrize(
    ("text", "short"),
    [("80.0k", "80k"), ("1.50M", "1.5M"), ("20.0 kB/s", "20 kB/s"), ("1,000/s", "1,000/s"), ("0.5/s", "0.5/s"), ("100", "100")],
)  # fmt: skip
def test_numbers_beside_an_axis_have_no_zeros_to_spare(text: str, short: str) -> None:
    assert axis_text(text) == short


def test_a_chart_of_nothing_says_what_is_unknown() -> None:
    for nothing in (None, series(), series(None, None)):
        drawn = chart("Rate", nothing, [IN], window=Window(280.0, 1000.0, True))
        assert drawn.unknown == "Unknown: no sample yet"
        assert drawn.lines[0].last == "–"
    assert chart("Rate", None, [IN], window=Window(0.0, 60.0, False)).unknown.endswith("of this time is kept")
