"""Sparklines: tiny charts in the cells of tables, each one path, with its numbers as its label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Metric, Span

if TYPE_CHECKING:
    from nsqadmin.cluster.view import View

POINTS: Final = 24  # with whole coordinates, some 150 bytes; a page has up to a thousand rows
STEP: Final = 2  # of x
HEIGHT: Final = 20
_LONGEST: Final = 720.0  # seconds
MOST_ADDED: Final = 100  # keys; each costs a little time whenever a page is drawn
_STEADY: Final = 0.05  # share of the highest value; a smaller change is none

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Spark:
    path: str
    label: str  # for people who can't see it
    kind: str = ""  # CSS class


def spark(values: Values, step: float, form: str = "exact") -> Spark | None:
    """Draw the values of the last 12 minutes; None if fewer than two are known, or all are zero."""
    values = values[-(math.floor(_LONGEST / step + 1.01)) :] if step else values
    shown = _thinned(values)
    known = [value for value in values if value is not None]
    if len(known) < 2 or not any(known):
        return None
    top = max(known)
    parts, is_in_a_run = [], False
    for at, value in enumerate(shown):
        if value is not None:
            # Pairs of numbers after M are lines to the next points.
            height = round(HEIGHT - 1 - max(0.0, value) / top * (HEIGHT - 2))
            parts.append(f"{' ' if is_in_a_run else 'M'}{at * STEP} {height}")
        is_in_a_run = value is not None
    write, first, last = numbers.FORMS[form], known[0], known[-1]
    change = "steady" if abs(last - first) <= _STEADY * top else "rising" if last > first else "falling"
    seconds = step * (len(values) - 1 - next(at for at, value in enumerate(values) if value is not None))
    return Spark("".join(parts), f"from {write(first)} to {write(last)} in {_time(seconds)}, {change}")


def _time(seconds: float) -> str:
    return f"{round(seconds / 60)} min" if seconds >= 60 else f"{round(seconds)} s"


def _thinned(values: Values) -> Values:
    """Return as many values as are drawn. The ends stay; of the others, the highest of each few."""
    if len(values) <= POINTS:
        return values
    first, *between, last = values
    cuts = [round(at * len(between) / (POINTS - 2)) for at in range(POINTS - 1)]
    highest = [
        max((value for value in between[begin:end] if value is not None), default=None) for begin, end in pairwise(cuts)
    ]
    return [first, *highest, last]


class Sparks:
    """Draws the sparklines of a page from its series."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[tuple[str, Metric], tuple[Values, float]] = {}

    def of(self, metric: Metric, keys: Sequence[str], form: str = "exact") -> Spark | None:
        """Draw the sum over these keys; None for very many. Where one is unknown, the sum of the others is no sum."""
        if len(keys) > MOST_ADDED:
            return None
        read = [self._values(key, metric) for key in keys]
        found = [values for values, _ in read if values]
        if not found:
            return None
        step = next(step for values, step in read if values)
        if len(found) == 1:
            return spark(found[0], step, form)
        # The newest values are of the same sample. A key that began later was not there before.
        newest_first = zip_longest(*(reversed(values) for values in found), fillvalue=0.0)
        sums = [None if None in row else sum(value for value in row if value is not None) for row in newest_first]
        return spark(sums[::-1], step, form)

    def _values(self, key: str, metric: Metric) -> tuple[Values, float]:
        """Return the samples, and the seconds between two of them."""
        known = self._known.get((key, metric))
        if known is None:
            series = self._view.series(key, Span.MINUTES, (metric,))
            known = ((), 0.0) if series is None else (series.values.get(metric.value, ()), series.step)
            self._known[key, metric] = known
        return known
