"""The page that confirms and starts a node's drain, and the button that cancels it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, identity_of
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts.remains import remains_on

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Node, Snapshot
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

# The node stays listed this long after it has drained: you stop it by hand, or cancel the drain.
_DRAIN: Final = "/drain?stay=24h"
_UNDRAIN: Final = "/undrain"


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _DrainPages(services, painter)
    return [
        Route("GET", "/nodes/drain", pages.confirm),
        Route("POST", "/nodes/drain", pages.drain),
        Route("POST", "/nodes/undrain", pages.undrain),
    ]


class _DrainPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def confirm(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        node = snapshot.node(request.query_params.get("node", ""))
        if node is None:
            return self._refused(request, snapshot, "No nsqd has this address.", status=404)
        remains = remains_on(self._services.view.snapshot, node, identity_of(request).sees)
        return self._painter.page(
            request,
            "drain.html",
            snapshot,
            remains=remains,
            refusal=why_not_drained(self._services, request, node),
            command=f"curl -X POST 'http://{node.address}{_DRAIN}'",
            step=None,
        )

    async def drain(self, request: Request) -> Response:
        return await self._change(request, _DRAIN, "drain_node", "drain node")

    async def undrain(self, request: Request) -> Response:
        return await self._change(request, _UNDRAIN, "undrain_node", "undrain node")

    async def _change(self, request: Request, target: str, what: str, words: str) -> Response:
        address = (await form_of(request)).get("node", "")
        snapshot = await self._painter.picture(request)
        node = snapshot.node(address)
        executor = self._services.executor
        if node is None or executor is None:
            return self._refused(request, snapshot, "No nsqd has this address.", status=404)
        if reason := identity_of(request).why_not_everywhere(Right.ADMIN):
            executor.note_node(address, caller_of(request), what, f"refused to {words} {address}: {reason}", "refused")
            return self._refused(request, snapshot, reason, status=403)
        step = await executor.change_node(address, target, caller_of(request), what, f"{words} {address}")
        return self._painter.page(
            request, "drain.html", snapshot, node=node, step=step, headline=f"{words.capitalize()} {address}"
        )

    def _refused(self, request: Request, snapshot: Snapshot, why: str, *, status: int) -> Response:
        links = (("All nodes", self._painter.links.to("/nodes")),)
        failure = Failure(title="Nothing was done", text=why, links=links)
        return error_page(self._painter, request, snapshot, failure, status=status)


def why_not_drained(services: Services, request: Request, node: Node) -> str:
    """Return why the user cannot drain the node, or ""."""
    if services.executor is None:
        return "there is no cluster to change"
    if not node.has_history:
        return "only a Python nsqd that answers can be drained"
    return identity_of(request).why_not_everywhere(Right.ADMIN)
