"""The command palette: its answers for our script, and the same as a page, which works without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, json_answer
from nsqadmin.palette.service import Palette

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.palette.results import Answer
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    palette = Palette(services, painter.links)

    async def answer_of(request: Request) -> Answer:
        asked = request.query_params
        return await palette.answer(identity_of(request), asked.get("q", ""), asked.get("scope", ""))

    async def jump(request: Request) -> Response:
        """Return the results of `q=`, typed on the page `scope=`."""
        answer = await answer_of(request)
        found = [
            {
                "name": it.name,
                "kind": it.kind,
                "href": it.href,
                "detail": it.detail,
                "mark": it.mark,
                "dialog": it.is_dialog,
            }
            for it in answer.hits
        ]
        return json_answer({"found": found, "said": answer.said, "notes": answer.notes})

    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        asked = request.query_params
        return painter.page(
            request,
            "find.html",
            snapshot,
            text=asked.get("q", "").strip(),
            scope_asked=asked.get("scope", ""),
            answer=await answer_of(request),
        )

    return [Route("GET", "/jump", jump, logged=False), Route("GET", "/find", page)]
