"""The page of one message in the history of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import require
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts.opened import of_history

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        """Show one message, named by `topic=`, `node=`, `sequence=` and optionally `log=`."""
        snapshot = await painter.picture(request)
        names = ("topic", "node", "sequence", "log", "channel")
        named = {name: request.query_params.get(name, "") for name in names}
        identity = require(request, Right.VIEW, named["topic"])
        sheet = await of_history(services, painter.links, request, snapshot, identity, **named)
        if sheet.problem:
            failure = Failure(
                title="This message cannot be shown",
                text=sheet.problem,
                links=(("Overview", painter.links.to("/")),),
            )
            return error_page(painter, request, snapshot, failure)
        return painter.page(request, "message.html", snapshot, current="Topics", sheet=sheet)

    return [Route("GET", "/message", page)]
