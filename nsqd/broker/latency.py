"""Percentiles of the time from publish to FIN, over a sliding window and in bounded memory.

The algorithm is from Cormode, Korn, Muthukrishnan and Srivastava, "Effective Computation of Biased Quantiles over Data
Streams": a sorted list of samples, each of which represents `width` values. The closer a sample is to one of the target
percentiles, the more precisely we know its rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor
from typing import Final

from nsqd.broker.stats_records import LatencySnapshot

_BUFFER_SIZE: Final = 500
_ERROR: Final = 0.01


class LatencySettings:
    def __init__(self, percentiles: tuple[float, ...], window: float) -> None:
        self.percentiles = percentiles  # in the order of /stats
        self.half_window = window / 2  # seconds


class QuantileSummary:
    """The samples of one half of the window."""

    def __init__(self, targets: tuple[float, ...]) -> None:
        self._targets = targets
        self._buffer: list[float] = []
        # (value, width, delta), by ascending value. A value's rank is at least the sum of the widths up to and including
        # its own, and at most `delta` more.
        self._entries: list[tuple[float, float, float]] = []
        self._width = 0.0  # sum over all entries

    def __len__(self) -> int:
        return int(self._width) + len(self._buffer)

    def add(self, value: float) -> None:
        self._buffer.append(value)
        if len(self._buffer) >= _BUFFER_SIZE:
            self._flush()

    def clear(self) -> None:
        self._buffer.clear()
        self._entries.clear()
        self._width = 0.0

    def merge(self, other: QuantileSummary) -> None:
        self._merge(other.samples())

    def quantile(self, target: float) -> float:
        self._flush()
        entries = self._entries
        if not entries:
            return 0.0
        rank = float(ceil(target * self._width))
        rank += ceil(self._slack(rank) / 2)
        value, width, _ = entries[0]
        passed = 0.0
        for following, its_width, delta in entries[1:]:
            if passed + its_width + delta > rank:
                break
            passed += width
            value, width = following, its_width
        return value

    def samples(self) -> list[tuple[float, float, float]]:
        """Return the samples as (value, width, delta), by ascending value."""
        if not self._entries:
            return [(value, 1.0, 0.0) for value in sorted(self._buffer)]
        self._flush()
        return self._entries

    def _flush(self) -> None:
        buffer, self._buffer = self._buffer, []
        if buffer:
            self._merge([(value, 1.0, 0.0) for value in sorted(buffer)])
        self._compress()

    def _merge(self, samples: Iterable[tuple[float, float, float]]) -> None:
        merged: list[tuple[float, float, float]] = []
        entries = self._entries
        rank, place = 0.0, 0
        for value, width, _ in samples:
            while place < len(entries) and entries[place][0] <= value:
                rank += entries[place][1]
                merged.append(entries[place])
                place += 1
            delta = max(0.0, floor(self._slack(rank)) - 1) if place < len(entries) else 0.0
            merged.append((value, width, delta))
            self._width += width
            rank += width
        self._entries = merged + entries[place:]

    def _compress(self) -> None:
        if len(self._entries) < 2:
            return
        kept: list[tuple[float, float, float]] = []
        value, width, delta = self._entries[-1]
        rank = self._width - 1 - width
        for its_value, its_width, its_delta in reversed(self._entries[:-1]):
            if its_width + width + delta <= self._slack(rank):
                width += its_width
            else:
                kept.append((value, width, delta))
                value, width, delta = its_value, its_width, its_delta
            rank -= its_width
        kept.append((value, width, delta))
        kept.reverse()
        self._entries = kept

    def _slack(self, rank: float) -> float:
        """Return the error that we allow in a rank: small near the target percentiles, larger elsewhere."""
        least = self._width
        for target in self._targets:
            if target * self._width <= rank:
                slack = 2 * _ERROR * rank / target
            elif target < 1:
                slack = 2 * _ERROR * (self._width - rank) / (1 - target)
            else:
                continue
            least = min(least, slack)
        return least


class LatencyWindow:
    """One channel's latency, in two summaries of half a window each.

    When the current half is over, the older summary is cleared and becomes the current one.
    """

    def __init__(self, settings: LatencySettings, now: float) -> None:
        self._settings = settings
        self._halves = [QuantileSummary(settings.percentiles), QuantileSummary(settings.percentiles)]
        self._current = 0
        self._ends = now + settings.half_window

    def add(self, nanoseconds: float, now: float) -> None:
        self._move_on(now)
        self._halves[self._current].add(nanoseconds)

    def _move_on(self, now: float) -> None:
        if now >= self._ends + 2 * self._settings.half_window:  # both halves are too old
            for half in self._halves:
                half.clear()
            self._ends = now + self._settings.half_window
        while now >= self._ends:
            self._current = 1 - self._current
            self._halves[self._current].clear()
            self._ends += self._settings.half_window

    def halves(self, now: float) -> Iterable[QuantileSummary]:
        """Return both summaries, without outdated samples."""
        self._move_on(now)
        return self._halves

    def snapshot(self, now: float) -> LatencySnapshot:
        return merged_snapshot(self._settings, [self], now)


def merged_snapshot(settings: LatencySettings, latencies: Iterable[LatencyWindow], now: float) -> LatencySnapshot:
    """Merge the latencies of several channels, for example all of a topic's."""
    whole = QuantileSummary(settings.percentiles)
    for latency in latencies:
        for half in latency.halves(now):
            whole.merge(half)
    count = len(whole)
    return LatencySnapshot(
        count=count, percentiles=tuple((target, whole.quantile(target)) for target in settings.percentiles)
    )
