"""Charts as SVG, drawn here so that they are there without scripts; `web/static/charts.js` draws the same ones anew at
the true width, moves them on with each sample, and adds the cursor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.pipeline import BYTES, MESSAGES, SIZES
from nsqadmin.pages import numbers

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Metric, Series
    from nsqadmin.cluster.pipeline import TopicWindows

WIDTH: Final = 480
HEIGHT: Final = 128
LETTER: Final = 6  # the numbers of the axis: how wide a letter of theirs is at most,
GAP: Final = 5  # how far they are from the axis,
LEAST_LEFT: Final = 40  # and how much room they have at least, so that most charts begin at the same place
BOTTOM: Final = 18
TOP: Final = 8
RIGHT: Final = 4
SPARK_WIDTH: Final = 88
SPARK_HEIGHT: Final = 22
LEAST_COUNT: Final = 2.0  # half of it is a whole number, too
LAST: Final = 10  # values in the table for those who cannot see the chart

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart. `key` is the name under which its value comes live; `colour` a class of the style sheet."""

    metric: str
    label: str
    colour: str
    key: str = ""
    filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    line: Line
    path: str
    area: str
    last: str
    last_exact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    form: str  # a name of `numbers`: "count", "rate"
    left: int  # where the axis is
    lines: tuple[Drawn, ...]
    levels: tuple[tuple[float, str], ...]  # of the grid: where, and the number beside it
    times: tuple[tuple[float, str, str], ...]  # below the axis: where, the anchor, the words
    data: str  # JSON for charts.js
    table: tuple[tuple[float, tuple[str, ...]], ...]  # the last values: a time, and a text for each line
    is_empty: bool


def chart(title: str, series: Series | None, lines: Sequence[Line], *, form: str = "count") -> Chart:
    """All lines on one axis that starts at zero."""
    all_values = [_values(series, line.metric) for line in lines]
    top = nice_top(max((it for values in all_values for it in values if it is not None), default=0.0))
    if form == "count":
        top = max(top, LEAST_COUNT)
    write = numbers.FORMS[form]
    step = series.step if series is not None else 1.0
    end = series.end if series is not None else 0.0
    length = max(map(len, all_values), default=0)
    levels = tuple((round(_y(level, top), 1), write(level)) for level in (0.0, top / 2, top))
    left = max(LEAST_LEFT, GAP + LETTER * max(len(text) for _, text in levels))
    return Chart(
        title=title,
        form=form,
        left=left,
        lines=tuple(_drawn(line, values, top, left, write) for line, values in zip(lines, all_values, strict=True)),
        levels=levels,
        times=_times(length * step, left) if length > 1 else (),
        data=json.dumps(
            {
                "end": end,
                "step": step,
                "form": form,
                "lines": [
                    {
                        "key": line.key,
                        "label": line.label,
                        "colour": line.colour,
                        "filled": line.filled,
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
        is_empty=all(it is None for values in all_values for it in values),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a pipeline has counted of a topic."""

    charts: tuple[Chart, ...]
    window: float
    updated: float
    last_end: float


def counts(counted: TopicWindows) -> Counts:
    """Not live: the lines have no keys, and stay as they are until the page is made again."""
    series = counted.series
    sizes = [
        Line(metric=it, label=it[-3:], colour=colour) for it, colour in zip(SIZES, ("c1", "c3", "c4"), strict=True)
    ]
    return Counts(
        charts=(
            chart("Messages", series, [Line(metric=MESSAGES, label="in", colour="c1", filled=True)], form="rate"),
            chart("Bytes", series, [Line(metric=BYTES, label="bytes", colour="c2")], form="size_rate"),
            chart("Size of a message", series, sizes, form="size"),
        ),
        window=counted.window,
        updated=counted.updated,
        last_end=series.end,
    )


def spark(series: Series | None, metric: Metric) -> tuple[str, str]:
    """A tiny line and the area below it, as paths."""
    values = _values(series, metric)[-60:]
    top = max((it for it in values if it is not None), default=0.0)
    if len(values) < 2:
        return "", ""
    points = [
        (
            at * SPARK_WIDTH / (len(values) - 1),
            None if it is None else SPARK_HEIGHT - 2 - (it / top if top else 0.0) * (SPARK_HEIGHT - 4),
        )
        for at, it in enumerate(values)
    ]
    return path(points), area(points, SPARK_HEIGHT)


def nice_top(highest: float) -> float:
    """The end of an axis on which half of it is a round number, too."""
    if highest <= 0:
        return 1.0
    magnitude: float = 10.0 ** math.floor(math.log10(highest))
    return next(it * magnitude for it in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0) if it * magnitude >= highest * 0.999)


def path(points: Sequence[tuple[float, float | None]]) -> str:
    """Lines through the points; where one is missing is a gap."""
    parts, is_down = [], False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = y is not None
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


def _drawn(line: Line, values: Values, top: float, left: int, write: Callable[[float | None], str]) -> Drawn:
    wide = WIDTH - left - RIGHT
    points = [
        (left + at * wide / max(1, len(values) - 1), None if it is None else _y(it, top))
        for at, it in enumerate(values)
    ]
    last = values[-1] if values else None
    return Drawn(
        line=line,
        path=path(points),
        area=area(points, _y(0.0, top)) if line.filled else "",
        last=write(last),
        last_exact=numbers.exact(last),
    )


def _y(value: float, top: float) -> float:
    high = HEIGHT - BOTTOM - TOP
    return TOP + high - min(1.0, max(0.0, value) / top) * high


def _times(span: float, left: int) -> tuple[tuple[float, str, str], ...]:
    wide = WIDTH - left - RIGHT
    return (
        (left, "start", f"{numbers.duration(span)} ago"),
        (left + wide / 2, "middle", f"{numbers.duration(span / 2)} ago"),
        (left + wide, "end", "now"),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
