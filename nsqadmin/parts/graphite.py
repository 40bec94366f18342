"""URLs of graphite's images, for clusters that push to statsd, with NSQ's names and formats.

Some of NSQ's targets are invalid; ours are valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

TIMEFRAMES: Final = ("2h", "1h", "12h", "24h", "48h", "168h", "off")

_OF_TOPIC: Final = (("Depth", "depth"), ("Messages", "message_count"))
_OF_CHANNEL: Final = (
    ("Depth", "depth"),
    ("In flight", "in_flight_count"),
    ("Deferred", "deferred_count"),
    ("Requeued", "requeue_count"),
    ("Timed out", "timeout_count"),
    ("Messages", "message_count"),
    ("Consumers", "clients"),
)
_OF_NODE: Final = (
    ("Heap objects", "mem.heap_objects"),
    ("Collections", "mem.gc_runs"),
    ("Heap", "mem.heap_in_use_bytes"),
)
_COUNTERS: Final = frozenset(("requeue_count", "timeout_count", "message_count", "mem.gc_runs"))
_RED: Final = frozenset(("depth", "deferred_count"))

Pictures = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphite:
    """How to reach graphite, and how statsd names things there."""

    url: str  # graphite's own, or our path that proxies it
    statsd_prefix: str
    counter_format: str
    gauge_format: str
    interval: float  # seconds

    def of_topic(self, topic: str, timeframe: str) -> Pictures:
        name = f"topic.{_clean(topic)}."
        return self._pictures(_OF_TOPIC, name, "*", timeframe, summed=True)

    def of_channel(self, topic: str, channel: str, timeframe: str) -> Pictures:
        name = f"topic.{_clean(topic)}.channel.{_clean(channel)}."
        return self._pictures(_OF_CHANNEL, name, "*", timeframe, summed=True)

    def of_node(self, address: str, timeframe: str) -> Pictures:
        return self._pictures(_OF_NODE, "", re.sub(r"[.:]", "_", address), timeframe, summed=False)

    def _pictures(
        self, metrics: tuple[tuple[str, str], ...], name: str, host: str, timeframe: str, *, summed: bool
    ) -> Pictures:
        if timeframe == "off":
            return ()
        prefix = self.statsd_prefix.replace("%s", host)
        dot = "" if prefix.endswith(".") or not prefix else "."
        return tuple(
            (title, self._url(metric, f"{prefix}{dot}{name}{metric}", timeframe, summed=summed))
            for title, metric in metrics
        )

    def _url(self, metric: str, key: str, timeframe: str, *, summed: bool) -> str:
        is_counter = metric in _COUNTERS
        form = self.counter_format if is_counter else self.gauge_format
        target = form.replace("%s", key) if form else key
        if summed:
            target = f"sumSeries({target})"
        target = f'summarize({target},"{self.interval:g}sec","avg")'
        if is_counter:
            target = f"scale({target},{1 / self.interval:.10g})"
        values = {
            "height": 128,
            "width": 480,
            "bgcolor": "ff000000",
            "fgcolor": "888888",
            "colorList": "red" if metric in _RED else "blue",
            "yMin": 0,
            "lineMode": "connected",
            "drawNullAsZero": "false",
            "from": f"-{timeframe}",
            "until": "-1min",
            "target": target,
        }
        return f"{self.url}/render?{urlencode(values)}"


def _clean(name: str) -> str:
    """Return the name as nsqd spells it for statsd."""
    return re.sub(r"[^a-zA-Z0-9\-_.]", "", name.replace(" ", "_").replace("/", "-"))
