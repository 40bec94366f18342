"""The history of numbers, in rings in memory, at three resolutions.

    MINUTES   a row for each sample, the last 144     of everything
    HOURS     a row a minute, the last six hours      ┐ of the cluster, of nodes, and of a limited number
    DAYS      a row every ten minutes, the last week  ┘ of topics and channels: the most recently active

Each key (the cluster, a node, a topic, a channel) has its own rings. A row has one value per metric; NaN means unknown.
A key with nothing but zeros has no fine ring, which is the case for most keys of a big cluster. A ring has no array for
a metric that is zero in all its rows: most channels requeue nothing and defer nothing.

Sums include the last known numbers of silent nodes, so that no sum falls because a node is silent. Such a row is marked
as partial, and says how much of each count is last known. Charts draw that part as a band:

    depth        100  100  100  130      of two nodes; the second one falls silent after the second sample
    last known     0    0   40   40      its last answer had 40
    known        100  100   60   90      the difference

These parts are in a second array, which a ring has only while one of its rows is partial.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from operator import itemgetter
from typing import Any, Final

from nsqadmin.cluster.model import CLUSTER_SERIES, Metric, Series, Span

METRICS: Final = tuple(Metric)
# Sums over nodes whose last known part is kept. Rates have none: a rate without a silent node is a lower bound.
COUNTS: Final = (Metric.DEPTH, Metric.BACKEND_DEPTH, Metric.IN_FLIGHT, Metric.DEFERRED)
_PARTIAL: Final = len(METRICS)  # column of a row: 1 if it is partial; in a mean, the share of partial rows
_LAST_KNOWN: Final = _PARTIAL + 1  # first column of the last known parts
_WIDTH: Final = _LAST_KNOWN + len(COUNTS)
_COLUMN_OF_WORD: Final = {metric.value: number for number, metric in enumerate(METRICS)}
_FINE_ROWS: Final = 144
_MINUTE: Final = 60
_HOURS_ROWS: Final = 6 * 60
_TEN_MINUTES: Final = 600
_DAYS_ROWS: Final = 7 * 24 * 6
_ALWAYS_KEPT: Final = (CLUSTER_SERIES, "node:")
_STEADY: Final = 1.5  # times the previous interval; a longer one is a gap
_STILL_FOR: Final = 60  # minutes without activity after which another key may take the place
_OF_CLUSTER: Final = frozenset((Metric.FINDINGS, Metric.PROBLEMS, Metric.FAILED_JOBS))
# The metrics of each kind of key.
_METRICS_OF: Final[Mapping[str, frozenset[Metric]]] = {
    "topic": frozenset((Metric.DEPTH, Metric.BACKEND_DEPTH, Metric.INCOMING, Metric.BYTES)),
    "channel": frozenset(Metric) - _OF_CLUSTER - {Metric.BYTES},
    "node": frozenset(Metric) - _OF_CLUSTER,
    CLUSTER_SERIES: frozenset(Metric),
}
_FORMAT: Final = 4
# Files of earlier releases have rows instead of columns. Before the third format, each row has the metrics below,
# whatever its key; before the second one, none is marked as partial.
_WITHOUT_PARTIAL: Final = 1
_ROWS_AS_NOW: Final = 3
_EARLIER_METRICS: Final = METRICS[: METRICS.index(Metric.FINDINGS) + 1]

Row = Sequence[float]


def row_of(
    *, is_partial: bool = False, last_known: Mapping[Metric, float] | None = None, **values: float | None
) -> array[float]:
    """Return a row with these metrics, the others zero. None means unknown. `last_known` are parts of the counts."""
    row = array("f", [0.0]) * _WIDTH
    row[_PARTIAL] = is_partial
    for word, value in values.items():
        row[_COLUMN_OF_WORD[word]] = nan if value is None else value
    if last_known:
        for at, metric in enumerate(COUNTS):
            row[_LAST_KNOWN + at] = min(last_known.get(metric, 0.0), row[_COLUMN_OF_WORD[metric.value]])
    return row


class _Layout:
    """The columns in the rings of one kind of key: its metrics and `partial`; and of last known parts: its counts."""

    def __init__(self, chosen: frozenset[Metric]) -> None:
        self.metrics = tuple(metric for metric in METRICS if metric in chosen)
        self.counts = tuple(metric for metric in COUNTS if metric in chosen)
        self.column = {metric: at for at, metric in enumerate(self.metrics)}
        self.partial = len(self.metrics)
        self.width = self.partial + 1
        self.zeros = array("f", [0.0] * self.width)
        self.unknown = array("f", [nan] * self.width)
        self.nothing = array("f", [0.0] * len(self.counts))  # no last known part
        self._own = itemgetter(*map(METRICS.index, self.metrics), _PARTIAL)
        self._last_known = itemgetter(*(_LAST_KNOWN + COUNTS.index(metric) for metric in self.counts))

    def own(self, row: array[float]) -> array[float]:
        return array("f", self._own(row))

    def last_known(self, row: array[float]) -> array[float] | None:
        return array("f", self._last_known(row)) if row[_PARTIAL] else None

    def of_earlier(self, content: bytes, format: int) -> Iterator[array[float]]:
        """Yield these columns of the rows in an earlier release's file. Metrics that it hasn't are unknown."""
        rows, metrics = _floats(content), self.metrics if format == _ROWS_AS_NOW else _EARLIER_METRICS
        width = len(metrics) + (format != _WITHOUT_PARTIAL)
        count = len(rows) // width
        for metric in self.metrics:
            yield rows[metrics.index(metric) :: width] if metric in metrics else array("f", [nan]) * count
        yield rows[width - 1 :: width] if format != _WITHOUT_PARTIAL else array("f", [0.0]) * count


_LAYOUTS: Final = {kind: _Layout(chosen) for kind, chosen in _METRICS_OF.items()}


def _layout_of(key: str) -> _Layout:
    return _LAYOUTS[key.partition(":")[0]]


class _Ring:
    """The last `size` rows, numbered consecutively. Skipped rows are unknown.

    Each column has its own array, and only while one of its rows isn't zero. For example, most channels requeue nothing,
    so they have no column for that.
    """

    __slots__ = ("_columns", "_last_known", "first", "last", "layout", "size")

    def __init__(self, layout: _Layout, size: int, first: int) -> None:
        self.layout = layout
        self.size = size
        self.first = first  # rows before this one are unknown
        self.last = first - 1
        self._columns: list[array[float] | None] = [None] * layout.width  # None: zero in each known row
        self._last_known: array[float] | None = None  # None: no row has any

    def put(self, number: int, own: array[float], last_known: array[float] | None) -> None:
        for skipped in range(max(self.last + 1, number - self.size + 1), number):
            self._set(skipped, self.layout.unknown, None)
        for undone in range(number + 1, min(self.last, number + self.size - 1) + 1):  # the clock was set back
            self._set(undone, self.layout.unknown, None)
        self.first = min(self.first, number)
        self._set(number, own, last_known)
        self.last = number

    def _set(self, number: int, own: array[float], last_known: array[float] | None) -> None:
        at, columns, partial = number % self.size, self._columns, self.layout.partial
        is_known = not isnan(own[partial])
        for index, column in enumerate(columns):
            value = own[index]
            if column is not None:
                column[at] = value
            elif value and (is_known or index == partial):
                column = columns[index] = self._column(index)
                column[at] = value
        if last_known is not None or self._last_known is not None:
            nothing = self.layout.nothing
            if self._last_known is None:
                self._last_known = nothing * self.size
            width = len(nothing)
            self._last_known[at * width : (at + 1) * width] = nothing if last_known is None else last_known

    def _column(self, index: int) -> array[float]:
        """Return a column; if it has no array, a new one that is zero in each known row."""
        column, partial = self._columns[index], self._columns[self.layout.partial]
        if column is not None:
            return column
        if partial is None:
            return array("f", [0.0]) * self.size
        return array("f", [0.0 * value for value in partial])  # NaN stays NaN

    def value(self, number: int, index: int) -> float:
        if number not in self._numbers:
            return nan
        column, at = self._columns[index], number % self.size
        if column is not None:
            return column[at]
        partial = self._columns[self.layout.partial]
        return 0.0 if partial is None else 0.0 * partial[at]

    def values(self, index: int, numbers: range) -> list[float]:
        """Return one column of these rows."""
        column, size, known = self._column(index), self.size, self._numbers
        return [column[number % size] if number in known else nan for number in numbers]

    def last_known(self, metric: Metric, numbers: range) -> list[float]:
        """Return the last known parts of a count; [] if there are none in these rows."""
        if self._last_known is None or metric not in self.layout.counts:
            return []
        values = self._last_known[self.layout.counts.index(metric) :: len(self.layout.counts)]
        size, known = self.size, self._numbers
        found = [values[number % size] if number in known else 0.0 for number in numbers]
        return found if any(found) else []

    def mean(self, first: int, last: int) -> tuple[array[float], array[float] | None]:
        """Return the mean of the known values of each column, or unknown if there are none; and of last known parts."""
        numbers = range(max(first, self._numbers.start), min(last, self.last) + 1)
        # A row without last known parts is a zero in their mean, and a row that is missing isn't.
        there = [number for number in numbers if not isnan(self.value(number, self.layout.partial))]
        if not there:
            return self.layout.unknown, None
        own, size = array("f", self.layout.zeros), self.size
        for index, column in enumerate(self._columns):
            if column is not None:
                own[index] = _mean([column[number % size] for number in there])
        if self._last_known is None or not own[self.layout.partial] > 0:
            return own, None
        parts = array("f", self.layout.nothing)
        for at, metric in enumerate(self.layout.counts):
            parts[at] = sum(self.last_known(metric, numbers)) / len(there)
        return own, parts

    def forget_zeros(self) -> None:
        """Free columns that have become zero, and the last known parts if there are none any more."""
        for index, column in enumerate(self._columns):
            if column is not None and not any(column):
                self._columns[index] = None
        if self._last_known is not None and not any(self._last_known):
            self._last_known = None

    @property
    def _numbers(self) -> range:
        return range(max(self.first, self.last - self.size + 1), self.last + 1)

    @property
    def is_zero(self) -> bool:
        """Return True if all known rows are zero, as far as `forget_zeros` has found out."""
        return all(column is None for column in self._columns)

    def dump(self) -> tuple[int, int, int, list[bytes], bytes]:
        columns = [b"" if column is None else column.tobytes() for column in self._columns]
        parts = b"" if self._last_known is None else self._last_known.tobytes()
        return self.size, self.first, self.last, columns, parts

    @classmethod
    def load(
        cls,
        layout: _Layout,
        format: int,
        size: int,
        first: int,
        last: int,
        content: bytes | Sequence[bytes],
        last_known: bytes = b"",
    ) -> _Ring:
        """Return the dumped ring. `content` is columns; in files of earlier releases, rows."""
        ring = cls(layout, size, first)
        columns = [*(layout.of_earlier(content, format) if isinstance(content, bytes) else map(_floats, content))]
        parts = _floats(last_known)
        widths = {len(it) for it in columns if it}
        if len(columns) != layout.width or widths - {size} or len(parts) not in (0, len(layout.nothing) * size):
            raise ValueError("a ring of another size")
        ring._columns = [column if any(column) else None for column in columns]
        ring._last_known = parts or None
        ring.last = last
        return ring


def _floats(content: bytes) -> array[float]:
    found = array("f")
    found.frombytes(content)
    return found


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return sum(known) / len(known) if known else nan


class _Coarse:
    """The coarse rings of one key. Rows are numbered by minutes, and by tens of minutes, since 1970."""

    __slots__ = ("days", "hours", "lively")

    def __init__(self, layout: _Layout, minute: int) -> None:
        self.hours = _Ring(layout, _HOURS_ROWS, minute)
        self.days = _Ring(layout, _DAYS_ROWS, minute // 10)
        self.lively = minute  # the last minute with activity


@dataclass(slots=True)
class _Presence:
    """The samples that had a key, by number."""

    first: int
    last: int
    lively: int = -1  # the last one with activity


class SeriesStore:
    def __init__(self, *, most_coarse: int) -> None:
        self._most_coarse = most_coarse
        self._number = -1  # of the newest sample
        self._times = array("d", [0.0] * _FINE_ROWS)
        self._fine: dict[str, _Ring] = {}
        self._present: dict[str, _Presence] = {}
        self._coarse: OrderedDict[str, _Coarse] = OrderedDict()  # most recently active last
        self._limited = 0  # how many of these count against `most_coarse`
        self._minute = -1  # of the newest sample, since 1970
        self._minute_began = 0  # number of the first sample in this minute

    def __len__(self) -> int:
        return len(self._fine)

    # Writing

    def put(self, rows: Iterable[tuple[str, array[float]]], *, now: float) -> None:
        """Add a sample, with a row for each key that is present now."""
        minute = int(now) // _MINUTE
        if minute != self._minute:
            if self._minute >= 0:
                through = minute - 1 if self._is_steady(now) else self._minute
                self._condense(through, is_end_of_ten=minute // 10 != self._minute // 10)
            self._minute, self._minute_began = minute, self._number + 1
        self._number += 1
        number = self._number
        self._times[number % _FINE_ROWS] = now
        fine, present = self._fine, self._present
        for key, row in rows:
            is_lively = any(value > 0 for value in row[:_PARTIAL])  # unknown values (NaN) don't count
            known = present.get(key)
            if known is None:
                if not is_lively and row != row:
                    continue  # a row with a NaN (unequal to itself): a key starts when its rates are known
                known = present[key] = _Presence(number, number)
            if is_lively:
                known.lively = number
            ring = fine.get(key)
            if ring is None:
                if not is_lively and known.last >= number - 1:
                    known.last = number
                    continue
                ring = fine[key] = self._ring_of_zeros(key, known, number)
            known.last = number
            ring.put(number, ring.layout.own(row), ring.layout.last_known(row))
        if number % _FINE_ROWS == 0:
            self._forget()

    def _ring_of_zeros(self, key: str, presence: _Presence, number: int) -> _Ring:
        """Return the ring of a key that had none, because all its rows before this sample were zeros."""
        ring = _Ring(_layout_of(key), _FINE_ROWS, presence.first)
        ring.last = min(presence.last, number - 1)
        return ring

    def _is_steady(self, now: float) -> bool:
        """Return True if this sample comes as long after the last one as that came after the one before.

        Then minutes without a sample are due to the interval, which is long in a large cluster, and aren't a gap.
        """
        if self._number < 1:
            return False
        last, before = (self._times[number % _FINE_ROWS] for number in (self._number, self._number - 1))
        return now - last <= _STEADY * (last - before)

    def _condense(self, through: int, *, is_end_of_ten: bool) -> None:
        """Add the finished minute to the coarse rings, and after every ten minutes their mean.

        The following minutes up to `through` had no sample and repeat this one. Later minutes without a sample are
        never added, so the last one of the ten may be missing.
        """
        for key, presence in self._present.items():
            is_lively = presence.lively >= self._minute_began
            coarse = self._coarse.get(key) or self._new_coarse(key, is_lively)
            if coarse is None:
                continue
            if is_lively:
                coarse.lively = self._minute
                self._coarse.move_to_end(key)
            own, last_known = self._mean_of_minute(key)
            for minute in range(self._minute, through + 1):
                coarse.hours.put(minute, own, last_known)
            if is_end_of_ten:
                ten = self._minute // 10
                coarse.days.put(ten, *coarse.hours.mean(ten * 10, self._minute))

    def _mean_of_minute(self, key: str) -> tuple[array[float], array[float] | None]:
        ring = self._fine.get(key)
        if ring is not None:
            return ring.mean(self._minute_began, self._number)
        layout = _layout_of(key)
        return layout.zeros if self._present[key].last >= self._minute_began else layout.unknown, None

    def _new_coarse(self, key: str, is_lively: bool) -> _Coarse | None:
        """Give an active key coarse rings if there is room, or if a key that was still for an hour can make room."""
        if not key.startswith(_ALWAYS_KEPT):
            if not is_lively or not self._most_coarse:
                return None
            if self._limited >= self._most_coarse and not self._make_room():
                return None
            self._limited += 1
        coarse = self._coarse[key] = _Coarse(_layout_of(key), self._minute)
        return coarse

    def _make_room(self) -> bool:
        for key, coarse in self._coarse.items():
            if key.startswith(_ALWAYS_KEPT):
                continue
            if self._minute - coarse.lively < _STILL_FOR:
                return False  # otherwise active keys would drive each other out
            del self._coarse[key]
            self._limited -= 1
            return True
        return False

    def _forget(self) -> None:
        """Forget keys that are in none of the kept samples, and drop rings of zeros."""
        oldest = self._number - _FINE_ROWS
        for key in [key for key, presence in self._present.items() if presence.last < oldest]:
            del self._present[key]
            self._fine.pop(key, None)
        for ring in self._fine.values():
            ring.forget_zeros()
        for key in [key for key, ring in self._fine.items() if ring.is_zero and ring.last == self._number]:
            del self._fine[key]
        for coarse in self._coarse.values():
            coarse.hours.forget_zeros()
            coarse.days.forget_zeros()

    # Reading

    def series(self, key: str, span: Span, metrics: Collection[Metric] = METRICS) -> Series | None:
        if span is Span.MINUTES:
            return self._minutes(key, metrics)
        coarse = self._coarse.get(key)
        if coarse is None:
            return None
        if span is Span.HOURS:
            return _series_of(coarse.hours, _MINUTE, metrics)
        return _series_of(coarse.days, _TEN_MINUTES, metrics)

    def recent(self, key: str, metric: Metric, seconds: float) -> list[float]:
        """Return the known values of the last `seconds`, oldest first."""
        values = (self._fine_value(key, number, metric) for number in self._numbers(seconds))
        return [value for value in values if not isnan(value)]

    def _minutes(self, key: str, metrics: Collection[Metric]) -> Series | None:
        presence = self._present.get(key)
        if presence is None:
            return None
        numbers = range(max(0, self._number - _FINE_ROWS + 1), self._number + 1)
        first, last = (self._times[number % _FINE_ROWS] for number in (numbers[0], numbers[-1]))
        step = (last - first) / (len(numbers) - 1) if len(numbers) > 1 else 0.0
        ring = self._fine.get(key)
        if ring is not None:
            return _with_rows(ring, numbers, metrics, Series(end=last, step=step, values={}, points=_FINE_ROWS))
        zeros = tuple(0.0 if presence.first <= number <= presence.last else None for number in numbers)
        chosen = {metric.value: zeros for metric in _layout_of(key).metrics if metric in metrics}
        return Series(end=last, step=step, values=chosen, points=_FINE_ROWS)

    def _numbers(self, seconds: float) -> Iterator[int]:
        first = max(0, self._number - _FINE_ROWS + 1)
        since = 0.0 if self._number < 0 else self._times[self._number % _FINE_ROWS] - seconds
        return (number for number in range(first, self._number + 1) if self._times[number % _FINE_ROWS] >= since)

    def _fine_value(self, key: str, number: int, metric: Metric) -> float:
        ring = self._fine.get(key)
        if ring is not None:
            return ring.value(number, ring.layout.column[metric]) if metric in ring.layout.column else 0.0
        presence = self._present.get(key)
        return 0.0 if presence is not None and presence.first <= number <= presence.last else nan

    # Over a restart

    def dump(self) -> Mapping[str, Any]:
        """Return hours and days, the part worth keeping, as values that msgpack can pack."""
        return {
            "format": _FORMAT,
            "coarse": {key: (coarse.hours.dump(), coarse.days.dump()) for key, coarse in self._coarse.items()},
        }

    def load(self, dumped: Any) -> None:
        """Restore the output of `dump`. Raise ValueError for anything else."""
        try:
            format = dumped["format"]
            if format not in range(_WITHOUT_PARTIAL, _FORMAT + 1):
                raise ValueError("another format")
            for key, (hours, days) in dumped["coarse"].items():
                layout = _layout_of(str(key))
                coarse = _Coarse(layout, 0)
                coarse.hours, coarse.days = (_Ring.load(layout, format, *ring) for ring in (hours, days))
                coarse.lively = coarse.hours.last
                self._coarse[str(key)] = coarse
                self._limited += not str(key).startswith(_ALWAYS_KEPT)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a file of series: {error!r}") from error


def _series_of(ring: _Ring, step: int, metrics: Collection[Metric]) -> Series | None:
    if ring.last < ring.first:
        return None
    numbers = range(max(ring.first, ring.last - ring.size + 1), ring.last + 1)
    whole = Series(end=float((ring.last + 1) * step), step=float(step), values={}, points=ring.size)
    return _with_rows(ring, numbers, metrics, whole)


def _with_rows(ring: _Ring, numbers: range, metrics: Collection[Metric], series: Series) -> Series:
    """Return the series with these rows."""
    chosen = [metric for metric in ring.layout.metrics if metric in metrics]
    parts = {metric.value: tuple(found) for metric in chosen if (found := ring.last_known(metric, numbers))}
    partial = tuple(value > 0 for value in ring.values(ring.layout.partial, numbers))
    return replace(
        series,
        values={
            metric.value: tuple(map(_known, ring.values(ring.layout.column[metric], numbers))) for metric in chosen
        },
        last_known=parts,
        partial=partial if any(partial) else (),
    )


def _known(value: float) -> float | None:
    return None if isnan(value) else value
