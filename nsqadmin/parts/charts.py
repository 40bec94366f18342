"""Draws charts as SVG, so that pages show them without scripts.

`web/static/charts.js` redraws the same charts at the real width, updates them with each sample, and adds a cursor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.pipeline import BYTES, MESSAGES, SIZES
from nsqadmin.cluster.series import COUNTS

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Metric, Series
    from nsqadmin.cluster.pipeline import TopicWindows

WIDTH: Final = 480  # width of the coordinate system, which is stretched to the available width
HEIGHT: Final = 128
LETTER: Final = 6  # the largest width of a digit beside the axis
GAP: Final = 5  # between these numbers and the axis
LEAST_LEFT: Final = 40  # least room for these numbers, so that the axes of most charts are aligned
NARROW: Final = 300  # pixels; in the narrowest charts the numbers beside the axis still fit
BOTTOM: Final = 18
TOP: Final = 8
LABEL: Final = 12  # height of a line's label in pixels
SPARK_WIDTH: Final = 88
SPARK_HEIGHT: Final = 22
LEAST_COUNT: Final = 2.0  # lowest top of an axis of counts, so that half of it is a whole number, too
_STYLES: Final = ("solid", "dashed", "dotted")
LAST: Final = 10  # rows of the table for users who can't see the chart

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    metric: str
    label: str
    colour: str  # CSS class
    key: str = ""  # key of the cell that updates it live; empty: no live updates
    filled: bool = False


def lines_of(prefix: str) -> Callable[..., Line]:
    """Return a function for lines whose live cells begin with the prefix."""

    def line(metric: Metric, label: str, colour: str, *, filled: bool = False) -> Line:
        return Line(metric=metric, label=label, colour=colour, key=f"{prefix}/{metric}", filled=filled)

    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    line: Line
    style: str  # CSS class: the second line is dashed, the third one dotted
    path: str
    area: str
    label_y: float | None  # of the label at the line's end; None: no label
    last: str
    last_exact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    form: str  # name in `numbers`: "count", "rate"
    left: float  # x of the axis, as a percentage of the width
    lines: tuple[Drawn, ...]
    levels: tuple[tuple[float, str], ...]  # grid lines: y and the number beside it
    times: tuple[tuple[float, str, str], ...]  # texts below the axis: x as a percentage, anchor and text
    data: str  # JSON for charts.js
    table: tuple[tuple[float, tuple[str, ...]], ...]  # the last values: a time, and a text for each line
    is_empty: bool


def chart(
    title: str, series: Series | None, lines: Sequence[Line], *, form: str = "count", is_partial: bool = False
) -> Chart:
    """Draw all lines on one axis, which starts at zero. With `is_partial`, live updates show a gap in counts."""
    all_values = [_values(series, line.metric) for line in lines]
    top = nice_top(max((value for values in all_values for value in values if value is not None), default=0.0))
    if form == "count":
        top = max(top, LEAST_COUNT)
    write = numbers.FORMS[form]
    step = series.step if series is not None else 1.0
    end = series.end if series is not None else 0.0
    length = max(map(len, all_values), default=0)
    points = max(length, series.points if series is not None else 0)
    levels = tuple((round(_y(level, top), 1), write(level)) for level in (0.0, top / 2, top))
    left = round(100 * max(LEAST_LEFT, GAP + LETTER * max(len(text) for _, text in levels)) / NARROW, 1)
    return Chart(
        title=title,
        form=form,
        left=left,
        lines=_drawn_lines(lines, all_values, points, top, write),
        levels=levels,
        times=_times(points * step, left) if length > 1 else (),
        data=json.dumps(
            {
                "end": end,
                "step": step,
                "points": points,
                "form": form,
                "partial": is_partial,
                "lines": [
                    {
                        "key": line.key,
                        "label": line.label,
                        "colour": line.colour,
                        "filled": line.filled,
                        "count": line.metric in COUNTS,
                        "values": list(map(_short, values)),
                    }
                    for line, values in zip(lines, all_values, strict=True)
                ],
            },
            separators=(",", ":"),
        ),
        table=tuple(
            (
                end - (length - 1 - at) * step,
                tuple(write(values[at]) if at < len(values) else numbers.UNKNOWN for values in all_values),
            )
            for at in range(max(0, length - LAST), length)
        ),
        is_empty=all(value is None for values in all_values for value in values),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCharts:
    """A pipeline's counts for a topic."""

    charts: tuple[Chart, ...]
    window: float  # seconds
    updated: float  # when the file was written
    last_end: float  # end of the last window


def counts(windows: TopicWindows) -> PipelineCharts:
    """Draw the pipeline's windows. The lines have no keys, because they have no live updates."""
    series = windows.series
    sizes = [
        Line(metric=name, label=name[-3:], colour=colour)
        for name, colour in zip(SIZES, ("c1", "c3", "c4"), strict=True)
    ]
    return PipelineCharts(
        charts=(
            chart("Messages", series, [Line(metric=MESSAGES, label="in", colour="c1", filled=True)], form="rate"),
            chart("Bytes", series, [Line(metric=BYTES, label="bytes", colour="c2")], form="size_rate"),
            chart("Size of a message", series, sizes, form="size"),
        ),
        window=windows.window,
        updated=windows.updated,
        last_end=series.end,
    )


def spark(series: Series | None, metric: Metric) -> tuple[str, str]:
    """Return the paths of a tiny chart: its line and the area below."""
    values = _values(series, metric)[-60:]
    top = max((value for value in values if value is not None), default=0.0)
    if len(values) < 2:
        return "", ""
    points = [
        (
            at * SPARK_WIDTH / (len(values) - 1),
            None if value is None else SPARK_HEIGHT - 2 - (value / top if top else 0.0) * (SPARK_HEIGHT - 4),
        )
        for at, value in enumerate(values)
    ]
    return path(points), area(points, SPARK_HEIGHT)


def nice_top(highest: float) -> float:
    """Return the top of an axis: a round number, at least about `highest`, whose half is round, too."""
    if highest <= 0:
        return 1.0
    magnitude: float = 10.0 ** math.floor(math.log10(highest))
    tops = (digit * magnitude for digit in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0))
    return next(top for top in tops if top >= highest * 0.999)


def path(points: Sequence[tuple[float, float | None]]) -> str:
    """Return the path of a line through the points, with a gap for each missing one. A point between gaps is a dot."""
    parts, run = [], 0
    for x, y in [*points, (0.0, None)]:
        if y is not None:
            parts.append(f"{'L' if run else 'M'}{x:.1f} {y:.1f}")
            run += 1
        else:
            if run == 1:
                parts.append("h0")
            run = 0
    return "".join(parts)


def area(points: Sequence[tuple[float, float | None]], floor: float) -> str:
    parts: list[str] = []
    run: list[tuple[float, float]] = []
    for x, y in [*points, (0.0, None)]:
        if y is not None:
            run.append((x, y))
        elif run:
            inside = "".join(f"L{x:.1f} {y:.1f}" for x, y in run)
            parts.append(f"M{run[0][0]:.1f} {floor:.1f}{inside}L{run[-1][0]:.1f} {floor:.1f}Z")
            run = []
    return "".join(parts)


def _values(series: Series | None, metric: str) -> Values:
    return () if series is None else series.values.get(metric, ())


def _drawn_lines(
    lines: Sequence[Line], all_values: Sequence[Values], points: int, top: float, write: Callable[[float | None], str]
) -> tuple[Drawn, ...]:
    ends = [_y(values[-1], top) if values and values[-1] is not None else None for values in all_values]
    labels = label_places(ends) if len(lines) > 1 else [None] * len(lines)
    drawn = []
    for line, values, style, label in zip(lines, all_values, _STYLES, labels, strict=False):
        first = points - len(values)  # missing values at the start leave room at the left
        line_points = [
            ((first + at) * WIDTH / max(1, points - 1), None if value is None else _y(value, top))
            for at, value in enumerate(values)
        ]
        last = values[-1] if values else None
        drawn.append(
            Drawn(
                line=line,
                style=style,
                path=path(line_points),
                area=area(line_points, _y(0.0, top)) if line.filled else "",
                label_y=label,
                last=write(last),
                last_exact=numbers.exact(last),
            )
        )
    return tuple(drawn)


def label_places(ends: Sequence[float | None]) -> list[float | None]:
    """Return where to put the labels of lines ending at these heights: above each line, and without overlap."""
    places: list[float | None] = [None] * len(ends)
    lowest = math.inf
    # From the bottom up, so that labels are pushed into free space; nothing goes above the top.
    for at in sorted((at for at, end in enumerate(ends) if end is not None), key=lambda at: -(ends[at] or 0.0)):
        lowest = min((ends[at] or 0.0) - 4, lowest - LABEL)
        places[at] = round(lowest, 1)
    highest = min((place for place in places if place is not None), default=0.0)
    down = max(0.0, TOP + 2 - highest)
    return [None if place is None else place + down for place in places]


def _y(value: float, top: float) -> float:
    high = HEIGHT - BOTTOM - TOP
    return TOP + high - min(1.0, max(0.0, value) / top) * high


def _times(span: float, left: float) -> tuple[tuple[float, str, str], ...]:
    span = round_span(span)
    return (
        (left, "start", f"−{numbers.duration(span)}"),
        ((100 + left) / 2, "middle", f"−{numbers.duration(span / 2)}"),
        (100, "end", "now"),
    )


def round_span(seconds: float) -> float:
    """Round a chart's time span: samples come a little late, and 12 minutes shouldn't be shown as 12m 3s."""
    for unit, least in ((60, 600), (10, 60)):
        if seconds >= least:
            return unit * math.floor(seconds / unit + 0.5)
    return seconds


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
