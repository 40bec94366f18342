"""The time axis that the charts of a page share: its range, the events on it, and the series for it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.time_range import TimeRange, Window, cut, parse, spans_for
from nsqadmin.http.responses import identity_of
from nsqadmin.parts.annotations import MOST_LISTED, Annotation, Group, annotations_of, grouped
from nsqadmin.parts.charts import BOTTOM, HEIGHT, TOP, WIDTH

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.cluster.model import Series, Snapshot
    from nsqadmin.services import Services

_LABELS: Final = {"12m": "12 min", "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    range: TimeRange
    window: Window
    now: float  # of the snapshot
    interval: float
    events: tuple[Annotation, ...]  # the newest ones, newest first
    left_out: int  # older events
    groups: tuple[Group, ...]

    @property
    def words(self) -> dict[str, str]:
        """The ranges that end now, each with its label."""
        return _LABELS

    @property
    def marks(self) -> str:
        """The events for scripts: JSON with a time and a text for each mark."""
        return json.dumps([(round(it.at, 1), it.tip) for it in self.groups], separators=(",", ":"))

    @property
    def path(self) -> str:
        """The marks without scripts: a stroke for each, in the coordinates of charts."""
        return "".join(f"M{self.window.place(it.at) * WIDTH:.0f} {TOP}V{HEIGHT - BOTTOM}" for it in self.groups)

    def series(self, services: Services, key: str) -> Series | None:
        """Return the history in this time, at the best resolution that has any."""
        for span in spans_for(self.window, now=self.now, interval=self.interval):
            series = services.view.series(key, span)
            if series is not None and (part := cut(series, self.window)) is not None:
                return part
        return None


def timeline_of(
    services: Services,
    request: Request,
    snapshot: Snapshot,
    *,
    topic: str = "",
    channel: str = "",
    nodes: Collection[str] | None = None,
) -> Timeline:
    """Return the time axis for a page about a topic, a channel or nodes; without any, about the cluster."""
    wanted = request.query_params
    chosen = parse(wanted.get("span", ""), wanted.get("from", ""), wanted.get("to", ""))
    window = chosen.window(snapshot.taken_at)
    found = annotations_of(
        services.view.activity(),
        window,
        sees=identity_of(request).sees,
        topic=topic,
        channel=channel,
        nodes=nodes,
        started_at=services.view.started_at,
    )
    return Timeline(
        range=chosen,
        window=window,
        now=snapshot.taken_at,
        interval=snapshot.interval,
        events=found[::-1][:MOST_LISTED],
        left_out=max(0, len(found) - MOST_LISTED),
        groups=grouped(found, window),
    )
