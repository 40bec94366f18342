"""The pages and their routes: complete HTML from the newest snapshot, without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.http.app import Handler, Route
from nsqadmin.http.responses import identity_of, json_answer
from nsqadmin.pages import (
    action,
    activity,
    channel,
    consumers,
    counter,
    drain,
    edit,
    error,
    forget,
    help,
    incident,
    incident_mark,
    incidents,
    job,
    jobs,
    lookup,
    message,
    node,
    nodes,
    overview,
    publish,
    redeliver,
    replay,
    retry,
    selected_message,
    selection_plan,
    task,
    topic,
    topics,
    undone,
)
from nsqadmin.parts import jump
from nsqadmin.parts.painter import Painter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.services import Services

_PAGES: Final = (
    overview,
    topics,
    topic,
    channel,
    consumers,
    jobs,
    task,
    job,
    nodes,
    forget,
    drain,
    node,
    lookup,
    activity,
    counter,
    help,
    message,
    selected_message,
    selection_plan,
    incidents,
    incident,
    incident_mark,
    publish,
    replay,
    redeliver,
    retry,
    edit,
    undone,
    action,
)


def routes(services: Services) -> list[Route]:
    painter = Painter(services)

    async def find(request: Request) -> Response:
        """Return the palette's results for `q=`."""
        snapshot, text = await painter.picture(request), request.query_params.get("q", "")
        identity, jobs = identity_of(request), services.jobs
        found = jump.find(
            snapshot,
            painter.links,
            text,
            tasks=jobs.names(identity) if jobs is not None else (),
            jobs=jobs.with_id(text.strip(), identity) if jobs is not None else (),
        )
        return json_answer({"found": [{"name": it.name, "kind": it.kind, "href": it.href} for it in found]})

    return [
        *(route for page in _PAGES for route in page.routes(services, painter)),
        Route("GET", "/jump", find, logged=False),
        Route("GET", "/static/{asset}", painter.asset, logged=False, public=True),
        Route("GET", "/favicon.ico", painter.favicon, logged=False, public=True),
        Route("GET", "/fonts/{asset}", painter.asset, logged=False, public=True),
    ]


def missing(services: Services) -> Handler:
    """Return the handler for unknown paths."""
    return error.missing(Painter(services))
