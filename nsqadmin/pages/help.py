"""The keys, the words, and the user's rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.palette.commands import help_lines

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_RIGHTS: Final = (
    ("See numbers", Right.VIEW),
    ("See messages", Right.PAYLOAD),
    ("Publish", Right.PUBLISH),
    ("Pause, create", Right.OPERATE),
    ("Empty, delete, remove, move, replay", Right.ADMIN),
)


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        identity = identity_of(request)
        rights = [(label, identity.why_not(right)) for label, right in _RIGHTS]
        return painter.page(
            request, "help.html", await painter.picture(request), page={"rights": rights, "commands": help_lines()}
        )

    return [Route("GET", "/help", painter.cached(page))]
