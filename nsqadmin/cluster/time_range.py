"""The time that all charts of a page show: the last minutes, hours or days, or from one moment to another.

It is in the page's URL, so that you can share it: `span=6h`, or `from=2026-11-29T12:05:00Z&to=2026-11-29T12:20:00Z`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Series, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTHS: Final[Mapping[str, float]] = {"12m": 720.0, "1h": 3600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}
LONGEST: Final = 604_800.0  # seconds; no series reaches further back
SHORTEST: Final = 10.0
_EARLIEST: Final = 86_400.0  # nothing was recorded before, nor will be after
_LATEST: Final = 32_503_680_000.0
_SAMPLES: Final = 144  # of the finest series
_HOURS: Final = 6 * 3600.0  # reach of the next one
# A clock that is a little off, and series whose last row ends a moment later.
_SLACK: Final = 1.0
_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200),
    *(86_400, 172_800),
)
_DAY: Final = 86_400
_NEAR_THE_EDGE: Final = 0.05  # share of the width; a text in the middle of its tick would leave the chart


@dataclass(frozen=True, slots=True)
class TimeRange:
    """What a user asks for. `word` is the length of a range that ends now; without it, the range is fixed."""

    word: str = "12m"
    begin: float = 0.0
    end: float = 0.0

    @property
    def is_live(self) -> bool:
        return bool(self.word)

    def window(self, now: float) -> Window:
        if self.word:
            return Window(now - LENGTHS[self.word], now, True)
        return Window(self.begin, self.end, False)


@dataclass(frozen=True, slots=True)
class Window:
    """The time axis of charts."""

    begin: float
    end: float
    is_live: bool

    @property
    def length(self) -> float:
        return self.end - self.begin

    def place(self, at: float) -> float:
        """Return where a moment is on the axis, from 0 to 1."""
        return (at - self.begin) / self.length

    def holds(self, at: float) -> bool:
        return self.begin <= at <= self.end


def parse(span: str, begin: str, end: str) -> TimeRange:
    """Return the range for arguments of a URL. What can't be understood is as if it wasn't there; never raises."""
    first, last = _moment(begin), _moment(end)
    if first is None or last is None:
        return TimeRange(span if span in LENGTHS else "12m")
    first, last = min(first, last), max(first, last)
    if last - first < SHORTEST:
        middle = (first + last) / 2
        first, last = middle - SHORTEST / 2, middle + SHORTEST / 2
    return TimeRange("", max(first, last - LONGEST), last)


def _moment(text: str) -> float | None:
    """Return seconds since 1970. A time without a zone is UTC, as from a form without scripts."""
    try:
        moment = datetime.fromisoformat(text.strip())
        at = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return at if _EARLIEST <= at <= _LATEST else None


def spans_for(window: Window, *, now: float, interval: float) -> Sequence[Span]:
    """Return the resolutions for a window, the best one first: the finest that reaches back to its beginning.

    The others are for keys that don't have it: hours and days are kept for a limited number of topics and channels, and
    begin a minute after the first sample.
    """
    back = now - window.begin - _SLACK
    if back <= max(_SAMPLES * interval, LENGTHS["12m"]) and not (window.is_live and window.length > LENGTHS["12m"]):
        return (Span.MINUTES, Span.HOURS, Span.DAYS)
    if back <= _HOURS:
        return (Span.HOURS, Span.MINUTES, Span.DAYS)
    return (Span.DAYS, Span.HOURS, Span.MINUTES)


def cut(series: Series, window: Window) -> Series | None:
    """Return the part of a series in the window; None if it has no point there."""
    length = max(map(len, series.values.values()), default=0)
    step = series.step or 1.0
    first = series.end - (length - 1) * step
    inside = [at for at in range(length) if window.begin - _SLACK <= first + at * step <= window.end + _SLACK]
    if not inside:
        return None
    kept = slice(inside[0], inside[-1] + 1)
    return replace(
        series,
        end=first + inside[-1] * step,
        values={metric: values[kept] for metric, values in series.values.items()},
        last_known={metric: values[kept] for metric, values in series.last_known.items()},
        partial=series.partial[kept],
    )


@dataclass(frozen=True, slots=True)
class Tick:
    place: float  # from 0 to 1
    anchor: str  # of its text: start, middle, end
    text: str


def ticks(window: Window, *, most: int = 5) -> tuple[Tick, ...]:
    """Return round times for the axis, in UTC. `charts.js` does the same in the viewer's zone."""
    step = next((step for step in _STEPS if window.length / step <= most), _STEPS[-1])
    each = min(step, _DAY)  # where the first one may be
    first = -(-window.begin // each) * each
    times = (first + number * step for number in range(int((window.end - first) // step) + 1))
    return tuple(_tick(window, at, step) for at in times if window.holds(at))


def _tick(window: Window, at: float, step: int) -> Tick:
    place = window.place(at)
    anchor = "start" if place < _NEAR_THE_EDGE else "end" if place > 1 - _NEAR_THE_EDGE else "middle"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)
    if at % _DAY:
        text = moment.strftime("%H:%M" if step >= 60 else "%H:%M:%S")
    else:
        text = f"{moment.day} {moment:%b}"
    return Tick(round(place, 4), anchor, text)
