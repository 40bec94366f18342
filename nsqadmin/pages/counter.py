"""The number of messages handled by the cluster, in large digits for a screen on a wall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.http.app import Route
from nsqadmin.pages.overview import in_and_out
from nsqadmin.parts.timeline import timeline_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        channels = [channel for topic in snapshot.topics for channel in topic.channels]
        counts = {
            "published": sum(topic.message_count for topic in snapshot.topics),
            "delivered": sum(channel.message_count for channel in channels),
            "channels": len(channels),
        }
        timeline = timeline_of(services, request, snapshot)
        charts = [in_and_out(services, timeline, snapshot)]
        return painter.page(
            request, "counter.html", snapshot, scope="counter", page=counts, charts=charts, timeline=timeline
        )

    return [Route("GET", "/counter", painter.cached(page))]
