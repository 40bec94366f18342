"""Prometheus's text format for metrics (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, Literal

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    value: float
    labels: Mapping[str, str]
    suffix: str = ""  # of the metric's name, in a histogram


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name and samples. End a counter's name in `_total`, and use base units: seconds, bytes."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Iterable[Sample]


def counter(name: str, help: str, value: float) -> Metric:
    return Metric(name, "counter", help, (Sample(value, {}),))


def gauge(name: str, help: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    return Metric(name, "gauge", help, (Sample(value, labels or {}),))


class Histogram:
    """Counts values by their size. Not thread-safe."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Count the values up to each of these bounds, which ascend, and the larger ones."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> Histogram:
        made = Histogram(self.bounds)
        made.counts, made.sum = [*self.counts], self.sum
        return made


def histogram(name: str, help: str, values: Histogram) -> Metric:
    """Return the metric of a histogram. Each bucket includes the smaller ones, as Prometheus wants it."""
    buckets = zip((*values.bounds, inf), accumulate(values.counts), strict=True)
    samples = [Sample(count, {"le": _number(bound)}, "_bucket") for bound, count in buckets]
    return Metric(
        name,
        "histogram",
        help,
        [*samples, Sample(values.sum, {}, "_sum"), Sample(sum(values.counts), {}, "_count")],
    )


def exposition(metrics: Iterable[Metric]) -> bytes:
    return b"".join(exposition_pieces(metrics))


def exposition_pieces(metrics: Iterable[Metric]) -> Iterator[bytes]:
    """Yield the text in small pieces. We iterate over a metric's samples only when we reach the metric."""
    for metric in metrics:
        head = f"# HELP {metric.name} {_escaped(metric.help)}\n# TYPE {metric.name} {metric.kind}\n"
        yield head.encode("utf-8", "replace")
        for it in metric.samples:
            yield f"{metric.name}{it.suffix}{_labels(it.labels)} {_number(it.value)}\n".encode("utf-8", "replace")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    # int first: repr writes a large float with an exponent, which is allowed but hard to read.
    return str(int(value)) if value == value and abs(value) < 2**63 and value == int(value) else _special(value)


def _special(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
