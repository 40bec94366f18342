"""How the memory, descriptors, threads and disk of a process grow: a line fitted through its samples. A core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Slope:
    """A least-squares line."""

    mean: float
    an_hour: float
    error: float  # standard error of `an_hour`

    @property
    def percent(self) -> float:
        """Return the growth an hour in percent of the mean."""
        return 100 * self.an_hour / self.mean if self.mean else 0.0

    @property
    def percent_error(self) -> float:
        return 100 * self.error / self.mean if self.mean else 0.0


def fit(points: Sequence[tuple[float, float]]) -> Slope | None:
    """Fit a line through (seconds, value). None if there are fewer than three, or all at one moment."""
    count = len(points)
    if count < 3:
        return None
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    residue = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return Slope(mean_y, slope * HOUR, sqrt(residue / (count - 2) / spread) * HOUR)


@dataclass(frozen=True, slots=True)
class Sample:
    """The memory, descriptors, threads and disk of one process at one moment."""

    at: float
    rss: int
    descriptors: int
    threads: int
    disk: int


@dataclass(slots=True)
class Series:
    """The samples of one process, and the lines through them."""

    name: str
    is_judged: bool = True  # False: it is killed and started again, so a line means little
    samples: list[Sample] = field(default_factory=list)

    def slope(self, what: str, since: float) -> Slope | None:
        return fit([(it.at, getattr(it, what)) for it in self.samples if it.at >= since])

    def span(self, since: float) -> float:
        times = [it.at for it in self.samples if it.at >= since]
        return times[-1] - times[0] if times else 0.0
