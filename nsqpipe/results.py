"""The small file with the last windows of each topic, which `aggregate` updates for nsqadmin, scripts and people.

    {"v": 1, "window_seconds": 60, "updated": "2026-03-01T12:00:03Z",
     "topics": {"clicks": [{"start": "2026-03-01T11:59:00Z", "messages": 1200, "rate": 20.0, ...}]}}

Until the watermark has passed its end, a window may appear again with higher counts; the last values count. The rate of
an open window is for its part before `updated`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark_nsq.stores.storage import read_text, replace_text

if TYPE_CHECKING:
    from pyspark_nsq.stores.places import Place

FORMAT: Final = 1
_SHORTEST: Final = 1.0  # shortest time for computing a rate: over a moment it would be absurd


class Results:
    def __init__(self, window_seconds: int, keep: int) -> None:
        self._window_seconds = window_seconds
        self._keep = keep
        self._topics: dict[str, dict[str, dict[str, Any]]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            values = dict(row)
            topic, start = str(values.pop("topic")), _spelled(values.pop("start"))
            values.pop("end", None)
            windows = self._topics.setdefault(topic, {})
            windows[start] = {"start": start, **values}
            while len(windows) > self._keep:
                del windows[min(windows)]

    def to_json(self, now: datetime) -> dict[str, Any]:
        topics = {
            topic: [self._rated(windows[start], now) for start in sorted(windows)]
            for topic, windows in sorted(self._topics.items())
        }
        return {"v": FORMAT, "window_seconds": self._window_seconds, "updated": _spelled(now), "topics": topics}

    def _rated(self, window: dict[str, Any], now: datetime) -> dict[str, Any]:
        """Return the window with its rate. An open window has had less time for its messages."""
        open_for = (now - datetime.fromisoformat(window["start"])).total_seconds()
        seconds = max(_SHORTEST, min(self._window_seconds, open_for))
        return {**window, "rate": window.get("messages", 0) / seconds}

    @classmethod
    def from_json(cls, text: str, window_seconds: int, keep: int) -> Results:
        """Read the file of an earlier run. Windows of another length are dropped."""
        results = cls(window_seconds, keep)
        found = json.loads(text)
        if found.get("v") == FORMAT and found.get("window_seconds") == window_seconds:
            for topic, windows in found["topics"].items():
                results._topics[topic] = {window["start"]: window for window in windows}
        return results


def load(place: Place, window_seconds: int, keep: int) -> Results:
    try:
        return Results.from_json(read_text(place) or "", window_seconds, keep)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Results(window_seconds, keep)


def save(place: Place, results: Results, now: datetime) -> None:
    replace_text(place, json.dumps(results.to_json(now)) + "\n")


def _spelled(moment: datetime) -> str:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
