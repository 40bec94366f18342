"""The page of one message in the history of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import require
from nsqadmin.messages.filters import BadFilter, Filter, parse_filter
from nsqadmin.messages.reading import ANOTHER_LOG
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts.bodies import FORMS
from nsqadmin.parts.messages import NO_CLUSTER, asked_of, no_replay_of, shown_as

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        """Show one message, named by `topic=`, `node=`, `sequence=` and optionally `log=`."""
        snapshot = await painter.picture(request)
        arguments = request.query_params
        topic, node, sequence = (arguments.get(name, "") for name in ("topic", "node", "sequence"))
        asked = asked_of(request)
        identity = require(request, Right.VIEW, topic)
        messages = services.messages
        problem, page = "No such message", None
        if messages is None:
            problem = NO_CLUSTER
        elif snapshot.topic(topic) is not None and snapshot.node(node) is not None and sequence.isdecimal():
            page = await messages.read(topic, identity, node=node, place=sequence, limit=1)
            problem = next((log.reason for log in page.logs if log.reason), problem)
            if any(arguments.get("log", log.log) not in ("", log.log) for log in page.logs if log.log):
                problem, page = ANOTHER_LOG, None
        if page is None or not page.messages or page.messages[0].sequence != int(sequence):
            failure = Failure(
                title="This message cannot be shown",
                text=f"{problem}: {sequence[:20]} of {topic or 'no topic'} on {node or 'no node'}.",
                links=(("Overview", painter.links.to("/")),),
            )
            return error_page(painter, request, snapshot, failure)
        try:
            wanted = parse_filter(asked.wanted)
        except BadFilter:
            wanted = Filter()
        may_see = identity.may(Right.PAYLOAD, topic)
        (one,) = shown_as(page.messages, asked, wanted)
        forms = tuple((form, str(request.url.include_query_params(**{"as": form}).query)) for form in FORMS)
        return painter.page(
            request,
            "message.html",
            snapshot,
            current="Topics",
            topic=topic,
            shown=one,
            asked=asked,
            bytes=painter.links.body(topic, node, int(sequence), one.message.log) if may_see else "",
            forms=forms,
            no_replay=no_replay_of(identity, topic),
        )

    return [Route("GET", "/message", page)]
