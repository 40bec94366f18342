"""All incidents, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Severity
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.parts.incident_cards import IncidentFilter, listing
from nsqadmin.parts.painter import word_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_MOST: Final = 100  # incidents on the page


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        chosen = IncidentFilter(
            severity=word_of(request, "severity", ("", *Severity)),
            rule=request.query_params.get("rule", "")[:8],
            words=request.query_params.get("filter", "").strip(),
        )
        found = listing(services.incidents.seen_by(identity_of(request)), painter.links, most=_MOST, chosen=chosen)
        return painter.page(
            request,
            "incidents.html",
            snapshot,
            current="Overview",
            scope="overview",
            page=found,
            chosen=chosen,
        )

    return [Route("GET", "/incidents", painter.cached(page))]
