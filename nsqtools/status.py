"""CORE: request times, summed up in a line every `size` requests."""

from __future__ import annotations

from math import ceil


class StatusRing:
    """The durations of the last `size` requests, in seconds."""

    def __init__(self, size: int, label: str) -> None:
        self._size = size
        self._label = label
        self._durations: list[float] = []
        self._at = 0
        self._counted = 0
        self._failures = 0

    def add(self, duration: float) -> str | None:
        """Add a request. The first one after the ring is full returns a line about the ring, as in NSQ."""
        self._counted += 1
        line = None
        if self._counted > 1 and (self._counted - 1) % self._size == 0:
            line = self._line()
        if len(self._durations) < self._size:
            self._durations.append(duration)
        else:
            self._durations[self._at] = duration
            self._at = (self._at + 1) % self._size
        return line

    def failed(self) -> None:
        """Count a failed request. Its duration doesn't count, because it says nothing about the others."""
        self._failures += 1

    def _line(self) -> str:
        ordered = sorted(self._durations)
        average = sum(ordered) / len(ordered)
        text = (
            f"[{self._label}]: finished {self._size} - 99th: {_percentile(99, ordered) * 1000:.2f}ms"
            f" - 95th: {_percentile(95, ordered) * 1000:.2f}ms - avg: {average * 1000:.2f}ms"
        )
        failures, self._failures = self._failures, 0
        return f"{text} - failed: {failures}" if failures else text


def _percentile(percent: int, ordered: list[float]) -> float:
    """Return the percentile that NSQ picks: one place higher than usual, at most the last."""
    size = len(ordered)
    return ordered[min(ceil(percent / 100 * size + 0.5), size - 1)]


class StatusLines:
    """A ring for all targets together and, if there are several, one for each."""

    def __init__(self, size: int, targets: list[str]) -> None:
        self._all = StatusRing(size, "aggregate") if size > 0 else None
        self._each = [StatusRing(size, target) for target in targets] if size > 0 and len(targets) > 1 else []
        self.warnings = (
            [f"Warning: use more than 100 status values for accurate percentiles (configured with {size})"]
            * (len(self._each) + 1)
            if 0 < size < 100
            else []
        )

    def add(self, target: int, duration: float) -> list[str]:
        """Add a request; return the lines that are due."""
        return [line for ring in self._rings(target) if (line := ring.add(duration)) is not None]

    def failed(self, target: int) -> None:
        """Count a failed request."""
        for ring in self._rings(target):
            ring.failed()

    def _rings(self, target: int) -> list[StatusRing]:
        if self._all is None:
            return []
        return [self._all, self._each[target]] if self._each else [self._all]
