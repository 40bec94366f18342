"""The pages and their routes: complete HTML from the newest snapshot, without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.http.app import Handler, Route
from nsqadmin.pages import (
    action,
    activity,
    channel,
    consumers,
    counter,
    drain,
    edit,
    error,
    find,
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
    several,
    task,
    topic,
    topics,
    undone,
)
from nsqadmin.parts.painter import Painter

if TYPE_CHECKING:
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
    find,
    incidents,
    incident,
    incident_mark,
    publish,
    replay,
    redeliver,
    retry,
    edit,
    undone,
    several,
    action,
)


def routes(services: Services) -> list[Route]:
    painter = Painter(services)
    logging_in: list[Route] = []
    if services.login is not None:
        from nsqadmin.pages import login  # its modules would be for nothing without OIDC

        has_passwords = bool(services.options.auth_file)
        logging_in = login.routes(services.login, services.access, painter, has_passwords=has_passwords)
    return [
        *logging_in,
        *(route for page in _PAGES for route in page.routes(services, painter)),
        Route("GET", "/static/{asset}", painter.asset, logged=False, public=True),
        Route("GET", "/favicon.ico", painter.favicon, logged=False, public=True),
        Route("GET", "/fonts/{asset}", painter.asset, logged=False, public=True),
    ]


def missing(services: Services) -> Handler:
    """Return the handler for unknown paths."""
    return error.missing(Painter(services))
