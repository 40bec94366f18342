"""The number of messages published by hand, or redelivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter


async def published_page(
    painter: Painter,
    request: Request,
    *,
    headline: str,
    count: int,
    detail: str,
    failure: str,
    original: str,
    done: str,
    again: str = "",
) -> Response:
    """Return the page; `done` is the link back, and `again` the link that continues a stopped replay."""
    return painter.page(
        request,
        "published.html",
        await painter.picture(request),
        headline=headline,
        result="ok" if not failure else "partly" if count else "failed",
        detail=detail,
        failure=failure,
        original=original,
        done=done,
        again=again,
    )
