"""The page for errors: a missing page, or why an action was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.parts.silence import unless_unknown

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.http.app import Handler
    from nsqadmin.parts.painter import Painter
    from nsqcommon.http_api import HttpError

_NO_REASONS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The content of the page."""

    title: str
    text: str
    advice: str = ""
    raw: str = ""
    links: tuple[tuple[str, str], ...] = ()


def error_page(
    painter: Painter, request: Request, snapshot: Snapshot, failure: Failure, *, status: int = 404
) -> Response:
    return painter.page(request, "error.html", snapshot, status=status, failure=failure)


async def refusal_page(
    painter: Painter, request: Request, error: HttpError, title: str, reasons: Mapping[str, str] = _NO_REASONS
) -> Response:
    """Show that an action was refused. `reasons` has texts for codes without one."""
    failure = Failure(
        title=title,
        text=str((error.details or {}).get("reason", reasons.get(error.code, error.code))),
        raw=f"{error.status} {error.code}",
        links=(("Overview", painter.links.to("/")),),
    )
    return error_page(painter, request, await painter.picture(request), failure, status=error.status)


async def missing_job(painter: Painter, request: Request, title: str, text: str) -> Response:
    """Show that there is no such job or task."""
    snapshot = await painter.picture(request)
    text = unless_unknown(snapshot, text)
    failure = Failure(title=title, text=text, links=(("Jobs", painter.links.to("/jobs")),))
    return error_page(painter, request, snapshot, failure)


def missing(painter: Painter) -> Handler:
    """Return the handler for unknown paths."""

    async def page(request: Request) -> Response:
        failure = Failure(
            title="No such page",
            text="There is nothing at this address.",
            advice="The link may be old, or the address mistyped. Ctrl K finds topics, channels, nodes, consumers, tasks, and messages and jobs by their id.",
            links=(("Overview", painter.links.to("/")), ("All topics", painter.links.to("/topics"))),
        )
        return error_page(painter, request, await painter.picture(request), failure)

    return page
