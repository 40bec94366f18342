"""Draws charts as SVG, so that pages show them without scripts.

`web/static/charts.js` redraws the same charts at the real width and in the viewer's zone, updates them with each sample,
and adds a cursor and a brush.

Silent nodes leave no hole and no fall. A count includes their last known values, which are a hatched band on top of the
known part:

    ▒▒▒▒▒▒  last known          A rate has no last known part, so it is a lower bound ("at least"), with the band above it.
    ██████  known
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Metric
from nsqadmin.cluster.pipeline import BYTES, MESSAGES, SIZES
from nsqadmin.cluster.time_range import Tick, Window, ticks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqadmin.cluster.model import Series
    from nsqadmin.cluster.pipeline import TopicWindows

WIDTH: Final = 480  # width of the coordinate system, which is stretched to the available width
HEIGHT: Final = 128
LETTER: Final = 6  # the largest width of a digit beside the axis
GAP: Final = 5  # between these numbers and the axis
LEAST_LEFT: Final = 40  # least room for these numbers, so that the axes of most charts are aligned
NARROW: Final = 300  # pixels; in the narrowest charts the numbers beside the axis still fit
BOTTOM: Final = 18
TOP: Final = 8
HATCH: Final = 6  # between two strokes of a band
LEAST_COUNT: Final = 2.0  # lowest top of an axis of counts, so that half of it is a whole number, too
_STYLES: Final = ("solid", "dashed", "dotted")
LAST: Final = 10  # rows of the table for users who can't see the chart
# Sums over nodes, which include last known values, as opposed to rates.
_COUNTS: Final = frozenset((Metric.DEPTH, Metric.BACKEND_DEPTH, Metric.IN_FLIGHT, Metric.DEFERRED, Metric.CLIENTS))
_OF_NO_NODE: Final = frozenset((Metric.FINDINGS, Metric.PROBLEMS, Metric.FAILED_JOBS))
_zeros_at_the_end = re.compile(r"\.(\d*?)0+(?!\d)").sub

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
    band: str  # hatching: last known values on top of the known part, or what a rate may be beyond its lower bound
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
    band: str  # legend of the hatched bands; empty: there are none
    band_number: str  # how much is last known now; empty: nothing, or a rate
    data: str  # JSON for charts.js
    table: tuple[tuple[float, tuple[str, ...]], ...]  # the last values: a time, and a text for each line
    unknown: str  # what to say instead of lines; empty: there are some


@dataclass(frozen=True, slots=True)
class _Points:
    """The points of one line."""

    values: Values
    lows: Values  # lower ends of its band
    highs: Values  # upper ends; None: no band there
    last_known: Sequence[float]


def chart(
    title: str,
    series: Series | None,
    lines: Sequence[Line],
    *,
    form: str = "count",
    window: Window | None = None,
    is_partial: bool = False,
) -> Chart:
    """Draw all lines on one axis, which starts at zero.

    Without a window, the chart shows the whole series. `is_partial`: some node is silent now, as scripts have to know.
    """
    window = window or _window_of(series)
    length = max((len(_values(series, line.metric)) for line in lines), default=0)
    step = series.step if series is not None else 1.0
    end = series.end if series is not None else window.end
    all_values = [_values(series, line.metric) for line in lines]
    top = nice_top(max((value for values in all_values for value in values if value is not None), default=0.0))
    if form == "count":
        top = max(top, LEAST_COUNT)
    points = [_points(series, line.metric, top) for line in lines]
    write = numbers.FORMS[form]
    levels = tuple((round(_y(level, top), 1), axis_text(write(level))) for level in (0.0, top / 2, top))
    left = round(100 * max(LEAST_LEFT, GAP + LETTER * max(len(text) for _, text in levels)) / NARROW, 1)
    times = [end - (length - 1 - at) * step for at in range(length)]
    xs = [window.place(at) * WIDTH for at in times]
    is_empty = all(value is None for values in all_values for value in values)
    band, band_number = _legend(points, write)
    return Chart(
        title=title,
        form=form,
        left=left,
        lines=tuple(_drawn_lines(lines, points, xs, top, write)),
        levels=levels,
        times=tuple(_placed(tick, left) for tick in ticks(window)) if window.length > 1 else (),
        band=band,
        band_number=band_number,
        data=_data(lines, points, series, window, form=form, is_partial=is_partial),
        table=tuple(
            (times[at], tuple(_text(it, at, write) for it in points)) for at in range(max(0, length - LAST), length)
        ),
        unknown=_unknown(window) if is_empty else "",
    )


def _window_of(series: Series | None) -> Window:
    if series is None:
        return Window(0.0, 1.0, False)
    length = max(map(len, series.values.values()), default=0)
    span = max(length, series.points, 2) - 1
    return Window(series.end - span * (series.step or 1.0), series.end, False)


def _unknown(window: Window) -> str:
    return "Unknown: no sample yet" if window.is_live else "Unknown: no sample of this time is kept"


def _points(series: Series | None, metric: str, top: float) -> _Points:
    values = _values(series, metric)
    # Another release's snapshot file may lack a metric, or have more of one part than of another.
    last_known = series.last_known.get(metric, ()) if series is not None else ()
    if last_known:
        lows: Values = [
            None if value is None else value - part for value, part in zip(values, last_known, strict=False)
        ]
        highs: Values = [value if part else None for value, part in zip(values, last_known, strict=False)]
        return _Points(values, lows, highs, last_known)
    if series is not None and series.partial and metric not in _COUNTS | _OF_NO_NODE:
        highs = [
            top if is_partial and value is not None else None
            for value, is_partial in zip(values, series.partial, strict=False)
        ]
        return _Points(values, values, highs, ())
    return _Points(values, values, (), ())


def _legend(points: Sequence[_Points], write: Callable[[float | None], str]) -> tuple[str, str]:
    """Return the legend of the hatched bands, and the last known part now, of the first line that has one."""
    for it in points:
        if any(it.last_known):
            return "last known", write(it.last_known[-1]) if it.last_known[-1] else ""
    return ("at least", "") if any(high is not None for it in points for high in it.highs) else ("", "")


def _text(points: _Points, at: int, write: Callable[[float | None], str]) -> str:
    value = points.values[at] if at < len(points.values) else None
    if at >= len(points.highs) or points.highs[at] is None:
        return write(value)
    return (
        f"{write(value)}, {write(points.last_known[at])} of it last known"
        if points.last_known
        else f"at least {write(value)}"
    )


def _data(
    lines: Sequence[Line],
    points: Sequence[_Points],
    series: Series | None,
    window: Window,
    *,
    form: str,
    is_partial: bool,
) -> str:
    """Return the chart as JSON for scripts. What is absent isn't sent, because this is the largest part of a page."""
    document = {
        "begin": round(window.begin, 1),
        "end": round(window.end, 1),
        "last": round(series.end, 2) if series is not None else round(window.end, 2),
        "step": series.step if series is not None else 1.0,
        "form": form,
        "live": window.is_live,
        "partial": is_partial,
        "lines": [
            {
                "key": line.key,
                "label": line.label,
                "colour": line.colour,
                "filled": line.filled,
                "kind": "count" if line.metric in _COUNTS else "" if line.metric in _OF_NO_NODE else "rate",
                "values": list(map(_short, it.values)),
                **({"old": list(map(_short, it.last_known))} if it.last_known else {}),
            }
            for line, it in zip(lines, points, strict=True)
        ],
    }
    if series is not None and series.partial:
        document["lower"] = list(map(int, series.partial))
    return json.dumps(document, separators=(",", ":"))


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


def nice_top(highest: float) -> float:
    """Return the top of an axis: a round number, at least about `highest`, whose half is round, too."""
    if highest <= 0:
        return 1.0
    magnitude: float = 10.0 ** math.floor(math.log10(highest))
    tops = (digit * magnitude for digit in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0))
    return next(top for top in tops if top >= highest * 0.999)


def axis_text(text: str) -> str:
    """Return a number as people write it beside an axis: 80k and 1.5M, not 80.0k and 1.50M."""
    return _zeros_at_the_end(lambda found: f".{found[1]}" if found[1] else "", text)


def path(points: Iterable[tuple[float, float | None]]) -> str:
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


def area(points: Iterable[tuple[float, float | None]], floor: float) -> str:
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


def hatching(points: Iterable[tuple[float, float | None, float | None]]) -> str:
    """Return the strokes of a band between two heights at each x. None: no band there.

    Strokes need no pattern with an id, and are seen with forced colours, too.
    """
    strokes: list[str] = []
    before: tuple[float, float, float] | None = None
    for x, low, high in points:
        if low is None or high is None:
            before = None
            continue
        if before is None:
            strokes.append(f"M{x:.0f} {low:.0f}V{high:.0f}")
        else:
            for at in range(-(-math.floor(before[0] + 1) // HATCH) * HATCH, math.floor(x) + 1, HATCH):
                share = (at - before[0]) / (x - before[0])
                from_y, to_y = before[1] + share * (low - before[1]), before[2] + share * (high - before[2])
                strokes.append(f"M{at} {from_y:.0f}V{to_y:.0f}")
        before = x, low, high
    return "".join(strokes)


def _values(series: Series | None, metric: str) -> Values:
    return () if series is None else series.values.get(metric, ())


def _drawn_lines(
    lines: Sequence[Line],
    points: Sequence[_Points],
    xs: Sequence[float],
    top: float,
    write: Callable[[float | None], str],
) -> Iterable[Drawn]:
    for line, it, style in zip(lines, points, _STYLES, strict=False):
        heights = [(x, None if value is None else _y(value, top)) for x, value in zip(xs, it.values, strict=False)]
        known = [(x, None if value is None else _y(value, top)) for x, value in zip(xs, it.lows, strict=False)]
        bands = [
            (x, None if low is None else _y(low, top), None if high is None else _y(high, top))
            for x, low, high in zip(xs, it.lows, it.highs, strict=False)
        ]
        last = it.values[-1] if it.values else None
        yield Drawn(
            line=line,
            style=style,
            path=path(heights),
            area=area(known, _y(0.0, top)) if line.filled else "",
            band=hatching(bands) if it.last_known or it is points[0] else "",  # one band above lower bounds is enough
            last=write(last),
            last_exact=numbers.exact(last),
        )


def _y(value: float, top: float) -> float:
    high = HEIGHT - BOTTOM - TOP
    return TOP + high - min(1.0, max(0.0, value) / top) * high


def _placed(tick: Tick, left: float) -> tuple[float, str, str]:
    return round(left + tick.place * (100 - left), 2), tick.anchor, tick.text


def _short(value: float | None) -> float | None:
    return None if value is None else int(value) if value == int(value) else round(value, 3)
