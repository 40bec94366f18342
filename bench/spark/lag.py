"""The lag of a stream: how long the oldest uncommitted message has been there.

Samples record how much is published and committed; the time at which a message was published follows from them.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.brokers import Broker

_EVERY: Final = 0.05  # seconds


@dataclass(frozen=True)
class Sample:
    at: float
    published: int
    committed: int


@dataclass(frozen=True)
class Lag:
    at: float
    seconds: float


def lags(samples: Sequence[Sample]) -> list[Lag]:
    found: list[Lag] = []
    place = 0  # the last sample at which no more was published than is committed now
    for sample in samples:
        while place + 1 < len(samples) and samples[place + 1].published <= sample.committed:
            place += 1
        is_behind = sample.committed < sample.published
        found.append(Lag(sample.at, sample.at - _published_at(samples, place, sample.committed) if is_behind else 0.0))
    return found


def _published_at(samples: Sequence[Sample], place: int, number: int) -> float:
    before, after = samples[place], samples[min(place + 1, len(samples) - 1)]
    if number <= before.published or after.published == before.published:
        return before.at
    return before.at + (after.at - before.at) * (number - before.published) / (after.published - before.published)


def between(found: Sequence[Lag], begin: float, end: float) -> list[float]:
    return [lag.seconds for lag in found if begin <= lag.at < end]


def growth(found: Sequence[Lag], begin: float, end: float) -> float:
    """Return by how many seconds the lag grew from the second quarter of this time to the last.

    Means are compared, because with micro-batches the lag rises and falls all the time.
    """
    quarter = (end - begin) / 4
    early = between(found, begin + quarter, begin + 2 * quarter)
    late = between(found, end - quarter, end)
    return fmean(late) - fmean(early) if early and late else math.inf


def bisect(low: float, high: float, tries: int, holds: Callable[[float], bool]) -> float:
    """Return the highest rate that held, or `low`. Each try halves the range that is left, on a logarithmic scale."""
    for _ in range(tries):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


# Samples


class Committed:
    """The progress of a checkpoint: the next sequence after its last committed batch."""

    def __init__(self, checkpoint: Path) -> None:
        self.next = 0
        self.batch = -1
        self._checkpoint = checkpoint

    def look(self) -> Committed:
        commits, batch = self._checkpoint / "commits", self.batch
        if batch < 0:  # Spark keeps the latest hundred
            batch = max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)
        while (commits / str(batch + 1)).exists():
            batch += 1
        if batch != self.batch:
            written = (self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
            self.next, self.batch = sum(json.loads(written)["lanes"].values()), batch
        return self


class LagWatch(threading.Thread):
    """Takes samples until the end of the block."""

    def __init__(self, broker: Broker, topic: str, checkpoint: Path) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self.committed = Committed(checkpoint)
        self._broker = broker
        self._topic = topic
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(_EVERY):
            committed = self.committed.look().next  # first, or it might be ahead of what was published
            self.samples.append(Sample(time.monotonic(), int(self._broker.log(self._topic)["next"]), committed))

    def lags(self) -> list[Lag]:
        return lags(list(self.samples))

    @property
    def latest(self) -> float:
        found = self.lags()
        return found[-1].seconds if found else 0.0

    def __enter__(self) -> LagWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()
