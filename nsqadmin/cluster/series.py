"""How numbers went: rings in memory, at three finenesses.

    MINUTES   a row for each sample, the last 144: of everything
    HOURS     a row a minute, the last six hours     ┐ of the cluster, of nodes, and of so many
    DAYS      a row every ten minutes, the last week ┘ topics and channels, the most lively ones

A row is one value for each metric, and NaN stands for what is not known. What has been zero all the time has no ring at
all, which is most of a big cluster.
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
_WIDTH: Final = len(METRICS)
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
_STILL_FOR: Final = 60  # minutes after which one that is lively may take the place of one that is not
# What there is of each kind of key; the others are zero in its rows, and not shown.
_OF: Final[Mapping[str, frozenset[Metric]]] = {
    "topic": frozenset((Metric.DEPTH, Metric.BACKEND_DEPTH, Metric.INCOMING, Metric.BYTES)),
    "channel": frozenset(Metric) - {Metric.BYTES, Metric.FINDINGS},
    "node": frozenset(Metric) - {Metric.FINDINGS},
    CLUSTER_SERIES: frozenset(Metric),
}
_FORMAT: Final = 1

Row = Sequence[float]


def row_of(**values: float | None) -> array[float]:
    """A row by metrics' words; None is not known."""
    row = array("f", _ZEROS)
    for word, value in values.items():
        row[_COLUMN_OF_WORD[word]] = nan if value is None else value
    return row


class _Ring:
    """So many rows, by a number that counts up. Rows between two that were put are unknown."""

    __slots__ = ("_rows", "first", "last", "size")

    def __init__(self, size: int, first: int, *, zeros: bool = False) -> None:
        self.size = size
        self.first = first  # below it nothing is known
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

    @property
    def is_zero(self) -> bool:
        return self._rows.tobytes() == _ZEROS.tobytes() * self.size

    def dump(self) -> tuple[int, int, int, bytes]:
        return self.size, self.first, self.last, self._rows.tobytes()

    @classmethod
    def load(cls, size: int, first: int, last: int, rows: bytes) -> _Ring:
        ring = cls(size, first)
        loaded = array("f")
        loaded.frombytes(rows)
        if len(loaded) != len(ring._rows):
            raise ValueError("a ring of another size")
        ring._rows = loaded
        ring.last = last
        return ring


class _Coarse:
    """Minutes and tens of minutes of one key. The numbers of its rows are minutes since 1970, and tens of them."""

    __slots__ = ("days", "hours", "lively")

    def __init__(self, minute: int) -> None:
        self.hours = _Ring(_HOURS_ROWS, minute)
        self.days = _Ring(_DAYS_ROWS, minute // 10)
        self.lively = minute  # when it was that last


@dataclass(slots=True)
class _Born:
    """Since which sample it is known, the last one in which it was, and the last in which something happened."""

    first: int
    last: int
    lively: int = -1


class SeriesStore:
    def __init__(self, *, most_coarse: int) -> None:
        self._most_coarse = most_coarse
        self._number = -1  # of the sample that is being put
        self._times = array("d", [0.0] * _FINE_ROWS)
        self._fine: dict[str, _Ring] = {}
        self._born: dict[str, _Born] = {}
        self._coarse: OrderedDict[str, _Coarse] = OrderedDict()  # the one that was lively last is last
        self._limited = 0  # how many of these are bounded in number
        self._minute = -1
        self._minute_began = 0  # the number of its first sample

    def __len__(self) -> int:
        return len(self._fine)

    # In

    def put(self, rows: Iterable[tuple[str, array[float]]], *, now: float) -> None:
        """A sample: a row for each key. What is not among them was not there."""
        minute = int(now) // _MINUTE
        if minute != self._minute:
            if self._minute >= 0:
                self._condense()
            self._minute, self._minute_began = minute, self._number + 1
        self._number += 1
        number = self._number
        self._times[number % _FINE_ROWS] = now
        fine, born = self._fine, self._born
        for key, row in rows:
            is_lively = any(value > 0 for value in row)  # NaN is not
            known = born.get(key)
            if known is None:
                if not is_lively and row != row:
                    continue  # nothing can be said yet: it is known when its rates are
                known = born[key] = _Born(number, number)
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

    def _ring_of_zeros(self, born: _Born, number: int) -> _Ring:
        ring = _Ring(_FINE_ROWS, born.first, zeros=True)
        ring.last = max(born.last, born.first - 1) if born.last < number else number - 1
        return ring

    def _condense(self) -> None:
        """The minute that is over becomes a row, and so do ten of them."""
        for key, born in self._born.items():
            is_lively = born.lively >= self._minute_began
            coarse = self._coarse.get(key) or self._new_coarse(key, is_lively)
            if coarse is None:
                continue
            if is_lively:
                coarse.lively = self._minute
                self._coarse.move_to_end(key)
            coarse.hours.put(self._minute, self._mean_of_minute(key))
            if self._minute % 10 == 9:
                coarse.days.put(self._minute // 10, _mean(coarse.hours, self._minute - 9, self._minute))

    def _mean_of_minute(self, key: str) -> array[float]:
        ring = self._fine.get(key)
        if ring is not None:
            return _mean(ring, self._minute_began, self._number)
        return _ZEROS if self._born[key].last >= self._minute_began else _UNKNOWN

    def _new_coarse(self, key: str, is_lively: bool) -> _Coarse | None:
        """For who is lively, while there is room, or another one has been still for an hour."""
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
                return False  # else they would drive each other out
            del self._coarse[key]
            self._limited -= 1
            return True
        return False

    def _forget(self) -> None:
        """What has not been there for all the fine rows; and rings that hold nothing but zeros are no rings."""
        oldest = self._number - _FINE_ROWS
        for key in [key for key, born in self._born.items() if born.last < oldest]:
            del self._born[key]
            self._fine.pop(key, None)
        for key in [key for key, ring in self._fine.items() if ring.is_zero and ring.last == self._number]:
            del self._fine[key]

    # Out

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
        """The known values of the last seconds, the oldest first."""
        column = _COLUMN[metric]
        values = (self._fine_value(key, number, column) for number in self._numbers(seconds))
        return [value for value in values if not isnan(value)]

    def _minutes(self, key: str) -> Series | None:
        if key not in self._born:
            return None
        numbers = list(self._numbers())
        values = {
            metric.value: tuple(_known(self._fine_value(key, number, _COLUMN[metric])) for number in numbers)
            for metric in _metrics_of(key)
        }
        first, last = (self._times[number % _FINE_ROWS] for number in (numbers[0], numbers[-1]))
        step = (last - first) / (len(numbers) - 1) if len(numbers) > 1 else 0.0
        return Series(end=last, step=step, values=values)

    def _numbers(self, seconds: float | None = None) -> Iterator[int]:
        first = max(0, self._number - _FINE_ROWS + 1)
        since = 0.0 if seconds is None or self._number < 0 else self._times[self._number % _FINE_ROWS] - seconds
        return (it for it in range(first, self._number + 1) if self._times[it % _FINE_ROWS] >= since)

    def _fine_value(self, key: str, number: int, column: int) -> float:
        ring = self._fine.get(key)
        if ring is not None:
            return ring.value(number, column)
        born = self._born.get(key)
        return 0.0 if born is not None and born.first <= number <= born.last else nan

    # Over a restart

    def dump(self) -> Mapping[str, Any]:
        """What is worth keeping: hours and days. For msgpack."""
        return {
            "format": _FORMAT,
            "coarse": {key: (it.hours.dump(), it.days.dump()) for key, it in self._coarse.items()},
        }

    def load(self, dumped: Any) -> None:
        """Raises ValueError for what is none of ours."""
        try:
            if dumped["format"] != _FORMAT:
                raise ValueError("another format")
            for key, (hours, days) in dumped["coarse"].items():
                coarse = _Coarse(0)
                coarse.hours, coarse.days = _Ring.load(*hours), _Ring.load(*days)
                coarse.lively = coarse.hours.last
                self._coarse[str(key)] = coarse
                self._limited += not str(key).startswith(_ALWAYS_KEPT)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a file of series: {error!r}") from error


def _mean(ring: _Ring, first: int, last: int) -> array[float]:
    """Of the known values of each column; unknown where there is none."""
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
        metric.value: tuple(_known(ring.value(number, _COLUMN[metric])) for number in numbers)
        for metric in _metrics_of(key)
    }
    return Series(end=float((ring.last + 1) * step), step=float(step), values=values)


def _metrics_of(key: str) -> list[Metric]:
    chosen = _OF[key.partition(":")[0]]
    return [metric for metric in METRICS if metric in chosen]


def _known(value: float) -> float | None:
    return None if isnan(value) else value
