"""The page of one buried or deferred message."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import require
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts.opened import of_list
from nsqadmin.parts.selection_tab import ADDRESS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _SelectedMessagePages(services, painter)
    return [Route("GET", f"/{kind}", partial(pages.message, kind)) for kind in ADDRESS]


class _SelectedMessagePages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def message(self, kind: str, request: Request) -> Response:
        """Show one message, named by `topic=`, `channel=`, `node=` and its place."""
        arguments = request.query_params
        topic, name = arguments.get("topic", ""), arguments.get("channel", "")
        identity = require(request, Right.VIEW, topic)
        snapshot = await self._painter.picture(request)
        channel = snapshot.channel(topic, name)
        if channel is None or self._services.messages is None:
            return self._no_message(request, snapshot, "There is no such channel.")
        named = {it: arguments.get(it, "") for it in ("node", ADDRESS[kind])}
        sheet = await of_list(self._services, self._painter.links, request, channel, identity, kind, **named)
        if sheet.problem:
            return self._no_message(request, snapshot, sheet.problem)
        return self._painter.page(request, "selected_message.html", snapshot, current="Topics", sheet=sheet)

    def _no_message(self, request: Request, snapshot: Snapshot, why: str) -> Response:
        links = (("Overview", self._painter.links.to("/")),)
        failure = Failure(title="This message cannot be shown", text=why, links=links)
        return error_page(self._painter, request, snapshot, failure)
