"""Prometheus's text format for metrics (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name and samples. End a counter's name in `_total`, and use base units: seconds, bytes."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Iterable[Sample]


def counter(name: str, help: str, value: float) -> Metric:
    return Metric(name, "counter", help, (Sample(value, {}),))


def gauge(name: str, help: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    return Metric(name, "gauge", help, (Sample(value, labels or {}),))


def exposition(metrics: Iterable[Metric]) -> bytes:
    return b"".join(exposition_pieces(metrics))


def exposition_pieces(metrics: Iterable[Metric]) -> Iterator[bytes]:
    """Yield the text in small pieces. We iterate over a metric's samples only when we reach the metric."""
    for metric in metrics:
        head = f"# HELP {metric.name} {_escaped(metric.help)}\n# TYPE {metric.name} {metric.kind}\n"
        yield head.encode("utf-8", "replace")
        for it in metric.samples:
            yield f"{metric.name}{_labels(it.labels)} {_number(it.value)}\n".encode("utf-8", "replace")


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
