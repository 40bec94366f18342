"""The page of one buried or deferred message."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import require
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts.bodies import FORMS, shown
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.selection_tab import ADDRESS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.messages.selections import Selections
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_GONE: Final = {
    "buried": "It is not buried any more.",
    "deferred": "It is not deferred any more, or is due at another time now.",
}


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _SelectedMessagePages(services, painter)
    return [Route("GET", f"/{kind}", partial(pages.message, kind)) for kind in ADDRESS]


class _SelectedMessagePages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def message(self, kind: str, request: Request) -> Response:
        """Show one message, named by `topic=`, `channel=`, `node=` and its place."""
        arguments, messages = request.query_params, self._services.messages
        topic, name, node, place = (arguments.get(it, "") for it in ("topic", "channel", "node", ADDRESS[kind]))
        identity = require(request, Right.VIEW, topic)
        snapshot = await self._painter.picture(request)
        channel = snapshot.channel(topic, name)
        if channel is None or messages is None:
            return self._no_message(request, snapshot, "There is no such channel.")
        selections: Selections[Any, Any] = messages.buried if kind == "buried" else messages.deferred
        try:
            page = await selections.one(channel, identity, node, place)
        except ValueError:
            return self._no_message(request, snapshot, "This address names no message.")
        one = next(iter(page.lines), None)
        if one is None:
            problem = next((f"{at}: {why}." for at, why in page.missing), _GONE[kind])
            return self._no_message(request, snapshot, problem)
        form = word_of(request, "as", FORMS)
        has_bytes = one.message is not None and one.message.sequence is not None and identity.may(Right.PAYLOAD, topic)
        return self._painter.page(
            request,
            "selected_message.html",
            snapshot,
            current="Topics",
            channel=channel,
            kind=kind,
            one=one,
            shown=shown(one.message, form) if one.message is not None else None,
            form=form,
            bytes=self._painter.links.body(topic, node, one.sequence, one.message.log) if has_bytes else "",
            forms=tuple((it, str(request.url.include_query_params(**{"as": it}).query)) for it in FORMS),
        )

    def _no_message(self, request: Request, snapshot: Snapshot, why: str) -> Response:
        links = (("Overview", self._painter.links.to("/")),)
        failure = Failure(title="This message cannot be shown", text=why, links=links)
        return error_page(self._painter, request, snapshot, failure)
