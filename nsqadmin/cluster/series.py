"""The history of numbers, in rings in memory, at three resolutions.

    MINUTES   a row for each sample, the last 144     of everything
    HOURS     a row a minute, the last six hours      ┐ of the cluster, of nodes, and of a limited number
    DAYS      a row every ten minutes, the last week  ┘ of topics and channels: the most recently active

Each key (the cluster, a node, a topic, a channel) has its own rings. A row has one value per metric; NaN means unknown.
A key with nothing but zeros has no fine ring, which is the case for most keys of a big cluster.

If a row's sums have last known numbers of a silent node, it is marked as partial: charts show a gap instead of its
counts, while rules on trends (`recent`) use them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Final

from nsqadmin.cluster.model import CLUSTER_SERIES, Metric, Series, Span

METRICS: Final = tuple(Metric)
_PARTIAL: Final = len(METRICS)  # last column: 1 in a partial row; in a mean, the share of partial rows
_WIDTH: Final = len(METRICS) + 1
_COLUMN: Final = {metric: number for number, metric in enumerate(METRICS)}
_COLUMN_OF_WORD: Final = {metric.value: number for number, metric in enumerate(METRICS)}
_FINE_ROWS: Final = 144
_MINUTE: Final = 60
_HOURS_ROWS: Final = 6 * 60
_TEN_MINUTES: Final = 600
_DAYS_ROWS: Final = 7 * 24 * 6
_ZEROS: Final = array("f", [0.0] * _WIDTH)
_UNKNOWN: Final = array("f", [nan] * _WIDTH)
_ALWAYS_KEPT: Final = (CLUSTER_SERIES, "node:")
_MOSTLY: Final = 0.5
_STEADY: Final = 1.5  # times the previous interval; a longer one is a gap
_STILL_FOR: Final = 60  # minutes without activity after which another key may take the place
# The metrics of each kind of key. The other columns of its rows are zero, and not shown.
_METRICS_OF: Final[Mapping[str, frozenset[Metric]]] = {
    "topic": frozenset((Metric.DEPTH, Metric.BACKEND_DEPTH, Metric.INCOMING, Metric.BYTES)),
    "channel": frozenset(Metric) - {Metric.BYTES, Metric.FINDINGS},
    "node": frozenset(Metric) - {Metric.FINDINGS},
    CLUSTER_SERIES: frozenset(Metric),
}
# Sums over nodes. Rates aren't among them: a partial sum of rates has no old part, it is only a lower bound.
COUNTS: Final = frozenset((Metric.DEPTH, Metric.BACKEND_DEPTH, Metric.IN_FLIGHT, Metric.DEFERRED, Metric.CLIENTS))
_FORMAT: Final = 2
_FORMAT_WITHOUT_PARTIAL: Final = 1

Row = Sequence[float]


def row_of(*, is_partial: bool = False, **values: float | None) -> array[float]:
    """Return a row with these metrics, the others zero. None means unknown."""
    row = array("f", _ZEROS)
    row[_PARTIAL] = is_partial
    for word, value in values.items():
        row[_COLUMN_OF_WORD[word]] = nan if value is None else value
    return row


class _Ring:
    """The last `size` rows, numbered consecutively. Skipped rows are unknown."""

    __slots__ = ("_rows", "first", "last", "size")

    def __init__(self, size: int, first: int, *, zeros: bool = False) -> None:
        self.size = size
        self.first = first  # rows before this one are unknown
        self.last = first - 1
        self._rows = array("f", (_ZEROS if zeros else _UNKNOWN) * size)

    def put(self, number: int, row: array[float]) -> None:
        for skipped in range(max(self.last + 1, number - self.size + 1), number):
            self._set(skipped, _UNKNOWN)
        self._set(number, row)
        self.last = number

    def _set(self, number: int, row: array[float]) -> None:
        at = number % self.size * _WIDTH
        self._rows[at : at + _WIDTH] = row

    def value(self, number: int, column: int) -> float:
        if not max(self.first, self.last - self.size + 1) <= number <= self.last:
            return nan
        return self._rows[number % self.size * _WIDTH + column]

    def shown(self, number: int, metric: Metric) -> float:
        """Return the values for charts: a gap where a count is partly old for at least half of the row's time."""
        if metric in COUNTS and self.value(number, _PARTIAL) >= _MOSTLY:
            return nan
        return self.value(number, _COLUMN[metric])

    @property
    def is_zero(self) -> bool:
        return self._rows.tobytes() == _ZEROS.tobytes() * self.size

    def dump(self) -> tuple[int, int, int, bytes]:
        return self.size, self.first, self.last, self._rows.tobytes()

    @classmethod
    def load(cls, size: int, first: int, last: int, rows: bytes, *, has_partial: bool) -> _Ring:
        ring = cls(size, first)
        loaded = array("f")
        loaded.frombytes(rows)
        if not has_partial:
            loaded = _with_column(loaded)
        if len(loaded) != len(ring._rows):
            raise ValueError("a ring of another size")
        ring._rows = loaded
        ring.last = last
        return ring


def _with_column(rows: array[float]) -> array[float]:
    """Return the rows of another release's file with the missing column: no row is known to be partial."""
    widened = array("f")
    for at in range(0, len(rows), _PARTIAL):
        widened += rows[at : at + _PARTIAL]
        widened.append(0.0)
    return widened


class _Coarse:
    """The coarse rings of one key. Rows are numbered by minutes, and by tens of minutes, since 1970."""

    __slots__ = ("days", "hours", "lively")

    def __init__(self, minute: int) -> None:
        self.hours = _Ring(_HOURS_ROWS, minute)
        self.days = _Ring(_DAYS_ROWS, minute // 10)
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
                ring = fine[key] = self._ring_of_zeros(known, number)
            known.last = number
            ring.put(number, row)
        if number % _FINE_ROWS == 0:
            self._forget()

    def _ring_of_zeros(self, presence: _Presence, number: int) -> _Ring:
        """Return the ring of a key that had none, because all its rows before this sample were zeros."""
        ring = _Ring(_FINE_ROWS, presence.first, zeros=True)
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
            mean = self._mean_of_minute(key)
            for minute in range(self._minute, through + 1):
                coarse.hours.put(minute, mean)
            if is_end_of_ten:
                ten = self._minute // 10
                coarse.days.put(ten, _mean(coarse.hours, ten * 10, self._minute))

    def _mean_of_minute(self, key: str) -> array[float]:
        ring = self._fine.get(key)
        if ring is not None:
            return _mean(ring, self._minute_began, self._number)
        return _ZEROS if self._present[key].last >= self._minute_began else _UNKNOWN

    def _new_coarse(self, key: str, is_lively: bool) -> _Coarse | None:
        """Give an active key coarse rings if there is room, or if a key that was still for an hour can make room."""
        if not key.startswith(_ALWAYS_KEPT):
            if not is_lively or not self._most_coarse:
                return None
            if self._limited >= self._most_coarse and not self._make_room():
                return None
            self._limited += 1
        coarse = self._coarse[key] = _Coarse(self._minute)
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
        for key in [key for key, ring in self._fine.items() if ring.is_zero and ring.last == self._number]:
            del self._fine[key]

    # Reading

    def series(self, key: str, span: Span) -> Series | None:
        if span is Span.MINUTES:
            return self._minutes(key)
        coarse = self._coarse.get(key)
        if coarse is None:
            return None
        if span is Span.HOURS:
            return _series_of(key, coarse.hours, _MINUTE)
        return _series_of(key, coarse.days, _TEN_MINUTES)

    def recent(self, key: str, metric: Metric, seconds: float) -> list[float]:
        """Return the known values of the last `seconds`, oldest first."""
        column = _COLUMN[metric]
        values = (self._fine_value(key, number, column) for number in self._numbers(seconds))
        return [value for value in values if not isnan(value)]

    def _minutes(self, key: str) -> Series | None:
        if key not in self._present:
            return None
        numbers = list(self._numbers())
        values = {
            metric.value: tuple(_known(self._shown_value(key, number, metric)) for number in numbers)
            for metric in _metrics_of(key)
        }
        first, last = (self._times[number % _FINE_ROWS] for number in (numbers[0], numbers[-1]))
        step = (last - first) / (len(numbers) - 1) if len(numbers) > 1 else 0.0
        return Series(end=last, step=step, values=values, points=_FINE_ROWS)

    def _numbers(self, seconds: float | None = None) -> Iterator[int]:
        first = max(0, self._number - _FINE_ROWS + 1)
        since = 0.0 if seconds is None or self._number < 0 else self._times[self._number % _FINE_ROWS] - seconds
        return (number for number in range(first, self._number + 1) if self._times[number % _FINE_ROWS] >= since)

    def _shown_value(self, key: str, number: int, metric: Metric) -> float:
        ring = self._fine.get(key)
        return ring.shown(number, metric) if ring is not None else self._fine_value(key, number, _COLUMN[metric])

    def _fine_value(self, key: str, number: int, column: int) -> float:
        ring = self._fine.get(key)
        if ring is not None:
            return ring.value(number, column)
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
            if dumped["format"] not in (_FORMAT, _FORMAT_WITHOUT_PARTIAL):
                raise ValueError("another format")
            has_partial = dumped["format"] == _FORMAT
            for key, (hours, days) in dumped["coarse"].items():
                coarse = _Coarse(0)
                coarse.hours, coarse.days = (_Ring.load(*ring, has_partial=has_partial) for ring in (hours, days))
                coarse.lively = coarse.hours.last
                self._coarse[str(key)] = coarse
                self._limited += not str(key).startswith(_ALWAYS_KEPT)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a file of series: {error!r}") from error


def _mean(ring: _Ring, first: int, last: int) -> array[float]:
    """Return the mean of the known values of each column, or unknown if there are none."""
    row = array("f", _UNKNOWN)
    numbers = range(max(first, ring.last - ring.size + 1, ring.first), min(last, ring.last) + 1)
    for column in range(_WIDTH):
        known = [value for number in numbers if not isnan(value := ring.value(number, column))]
        if known:
            row[column] = sum(known) / len(known)
    return row


def _series_of(key: str, ring: _Ring, step: int) -> Series | None:
    if ring.last < ring.first:
        return None
    numbers = range(max(ring.first, ring.last - ring.size + 1), ring.last + 1)
    values = {
        metric.value: tuple(_known(ring.shown(number, metric)) for number in numbers) for metric in _metrics_of(key)
    }
    return Series(end=float((ring.last + 1) * step), step=float(step), values=values, points=ring.size)


def _metrics_of(key: str) -> list[Metric]:
    chosen = _METRICS_OF[key.partition(":")[0]]
    return [metric for metric in METRICS if metric in chosen]


def _known(value: float) -> float | None:
    return None if isnan(value) else value
