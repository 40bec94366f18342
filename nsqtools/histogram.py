"""CORE: a histogram of any number of durations in a few hundred counters. Exact within 2 %."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import exp, floor, log
from typing import Final

_STEP: Final = log(1.02)
_LEAST: Final = 1e-7  # seconds; shorter times count as this
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)


class DurationHistogram:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.longest = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self._buckets[floor(log(max(seconds, _LEAST)) / _STEP)] += count
        self.count += count
        self.longest = max(self.longest, seconds)

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds; 0 without any durations."""
        wanted = self.count * percent / 100
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return min(exp((bucket + 0.5) * _STEP), self.longest)
        return self.longest

    def milliseconds(self) -> Mapping[str, float]:
        """Return the percentiles and the maximum in milliseconds: `{"p50": 0.41, ..., "max": 12.0}`."""
        found = {f"p{percent:g}": round(self.percentile(percent) * 1000, 3) for percent in PERCENTILES}
        return {**found, "max": round(self.longest * 1000, 3)}
