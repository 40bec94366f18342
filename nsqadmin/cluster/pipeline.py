"""Turns the results file of `nsqpipe aggregate` into series for the pages of topics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from nsqadmin.cluster.model import Series

FORMAT: Final = 1
MESSAGES, BYTES = "rate", "bytes_rate"
SIZES: Final = ("size_p50", "size_p95", "size_p99")
LONGEST: Final = 1440  # windows in a chart


@dataclass(frozen=True, slots=True)
class TopicWindows:
    """The pipeline's windows for one topic."""

    window: float  # the length of one, in seconds
    updated: float  # when the file was written, in seconds since 1970
    series: Series


def parse(text: str) -> dict[str, TopicWindows]:
    """Parse the file's windows by topic. Raise ValueError, KeyError, TypeError or AttributeError for any other text."""
    found = json.loads(text)
    if found["v"] != FORMAT:
        raise ValueError(f"expected results of version {FORMAT}, not {found['v']!r}")
    window, updated = float(found["window_seconds"]), _moment(found["updated"])
    if window <= 0:
        raise ValueError(f"a window of {window:g} seconds")
    return {
        topic: TopicWindows(window, updated, _series(windows, window))
        for topic, windows in found["topics"].items()
        if windows
    }


def _series(windows: Iterable[Mapping[str, Any]], length: float) -> Series:
    """Space the windows equally: the file leaves out those without messages."""
    by_start = {_moment(window["start"]): window for window in windows}
    last = max(by_start)
    first = max(min(by_start), last - (LONGEST - 1) * length)
    starts = [first + at * length for at in range(round((last - first) / length) + 1)]
    found = [by_start.get(start) for start in starts]
    values: dict[str, tuple[float | None, ...]] = {
        MESSAGES: tuple(0.0 if window is None else float(window["rate"]) for window in found),
        BYTES: tuple(0.0 if window is None else float(window["bytes"]) / length for window in found),
    }
    for name in SIZES:
        values[name] = tuple(
            None if window is None or window.get(name) is None else float(window[name]) for window in found
        )
    return Series(end=last + length, step=length, values=values)


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
