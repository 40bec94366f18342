"""The form that publishes messages by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, require
from nsqadmin.messages.endpoints import MOST_BODY, bodies_of
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.published import published_page
from nsqadmin.parts.messages import messages_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

REFUSED: Final = "Nothing was published"


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _PublishPages(services, painter)
    return [
        Route("GET", "/actions/publish", pages.publish_form),
        Route("POST", "/actions/publish", pages.publish),
    ]


class _PublishPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    async def publish_form(self, request: Request) -> Response:
        topic = request.query_params.get("topic", "")
        try:
            require(request, Right.PUBLISH, topic)
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)
        return self._painter.page(request, "publish.html", await self._painter.picture(request), topic=topic)

    async def publish(self, request: Request) -> Response:
        try:
            return await self._publish(request, await form_of(request, limit=MOST_BODY))
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)

    async def _publish(self, request: Request, form: Mapping[str, str]) -> Response:
        messages, topic = messages_of(self._services), form.get("topic", "")
        # Browsers send CR LF as line ends of a text area, whatever was typed.
        text = form.get("body", "").replace("\r\n", "\n")
        body: dict[str, object] = {"count": number_in(form, "count", 1)}
        if form.get("lines") == "yes":
            body["bodies"] = [line for line in text.split("\n") if line]
        else:
            body["body"] = text
        bodies = bodies_of(body)
        published = await messages.publish(
            topic, bodies, caller_of(request), node=form.get("node", ""), defer_ms=number_in(form, "defer", 0)
        )
        return await published_page(
            self._painter,
            request,
            headline=f"Publish to {topic}",
            count=published.count,
            detail=f"{numbers.several(published.count, 'message')} to {published.node}.",
            failure=published.error,
            original=published.original_error,
            done=self._links.topic(topic, tab="messages"),
        )


def number_in(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise HttpError(
            400, f"INVALID_{name.upper()}", details={"reason": f"{name}: expected a number, got {text[:40]}"}
        )
    return int(text)
