"""One incident with its timeline; with `.txt` after its key, as text to paste into a chat."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Metric, Snapshot, channel_series
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, text_answer
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts import charts
from nsqadmin.parts.charts import Line
from nsqadmin.parts.incident_cards import as_text, card_of, time_line
from nsqadmin.parts.tables import page_number
from nsqadmin.parts.timeline import timeline_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.diagnosis.incident import Open
    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.timeline import Timeline
    from nsqadmin.services import Services

_MOST: Final = 100  # findings on a page
_MOST_CHARTS: Final = 3
_TEXT: Final = ".txt"


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        """Show one incident; with `.txt` after the key as plain text, which a browser can copy without scripts."""
        key = str(request.path_params["key"])
        snapshot = await painter.picture(request)
        it = find(services, request, key.removesuffix(_TEXT))
        if it is None:
            return missing(services, painter, request, snapshot, key.removesuffix(_TEXT))
        text = as_text(it, now=time.time(), url=_url(services, request, painter.links.incident(it.key)))
        if key.endswith(_TEXT):
            return text_answer(text, v1=False)
        topics = it.incident.topics
        timeline = timeline_of(services, request, snapshot, topic=min(topics) if len(topics) == 1 else "")
        number = max(1, page_number(request))
        findings = it.incident.findings
        return painter.page(
            request,
            "incident.html",
            snapshot,
            current="Overview",
            scope="overview",
            card=card_of(it, painter.links),
            it=it,
            line=time_line(it),
            findings=findings[(number - 1) * _MOST : number * _MOST],
            number=number,
            pages=-(-len(findings) // _MOST),
            charts=_charts(services, timeline, it, is_partial=bool(snapshot.silent)),
            timeline=timeline,
            text=text,
        )

    return [Route("GET", "/incidents/{key}", page)]


def find(services: Services, request: Request, key: str) -> Open | None:
    return next((it for it in services.incidents.seen_by(identity_of(request)) if it.key == key), None)


def missing(services: Services, painter: Painter, request: Request, snapshot: Snapshot, key: str) -> Response:
    record = services.incidents.record(key)
    failure = Failure(
        title="This incident is over" if record else "No such incident",
        text="Its cause is gone."
        if record
        else "No incident has this address now. It may be over, or you may not see some of its topics.",
        advice="If it returns, it has the same address, and within ten minutes its acknowledgement." if record else "",
        links=(("All incidents", painter.links.to("/incidents")), ("Activity", painter.links.to("/activity"))),
    )
    return error_page(painter, request, snapshot, failure)


def _charts(services: Services, timeline: Timeline, it: Open, *, is_partial: bool) -> Sequence[charts.Chart]:
    """Draw the depth of the heaviest channels."""
    channels = dict.fromkeys((each.topic, each.channel) for each in it.incident.findings if each.channel)
    return [
        charts.chart(
            f"{topic}/{channel}",
            timeline.series(services, channel_series(topic, channel)),
            [
                Line(
                    metric=Metric.DEPTH,
                    label="waiting",
                    colour="c1",
                    key=f"topics/{topic}/{channel}/depth",
                    filled=True,
                )
            ],
            window=timeline.window,
            is_partial=is_partial,
        )
        for topic, channel in list(channels)[:_MOST_CHARTS]
    ]


def _url(services: Services, request: Request, path: str) -> str:
    outside = services.options.external_url.rstrip("/")
    return f"{outside or f'{request.url.scheme}://{request.url.netloc}'}{path}"
