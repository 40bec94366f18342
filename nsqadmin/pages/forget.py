"""The page that confirms forgetting a silent node, and does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, identity_of
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts.silence import forgetting

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_KIND = "forget_node"  # its name in Activity and the audit log


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _ForgetPages(services, painter)
    return [Route("GET", "/nodes/forget", pages.confirm), Route("POST", "/nodes/forget", pages.forget)]


class _ForgetPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._sampler = services.sampler
        self._activity = services.activity
        self._painter = painter

    async def confirm(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        return self._asked(request, snapshot, request.query_params.get("node", ""))

    async def forget(self, request: Request) -> Response:
        address = (await form_of(request)).get("node", "")
        snapshot = await self._painter.picture(request)
        node = snapshot.node(address)
        if self._sampler is None or node is None:
            return self._asked(request, snapshot, address)
        if reason := identity_of(request).why_not(Right.ADMIN):
            self._note(request, address, f"refused to forget node {address}: {reason}", "refused")
            return self._refused(request, snapshot, address, reason, status=403)
        if not self._sampler.forget(address):
            return self._refused(request, snapshot, address, "It answers, so there is nothing to forget.", status=409)
        plan = forgetting(snapshot, node)
        self._note(request, address, f"forget node {address}, with {plan.depth:,} messages when last seen", "ok")
        return self._painter.page(request, "forget.html", snapshot, plan=plan, refusal="", is_done=True)

    def _asked(self, request: Request, snapshot: Snapshot, address: str) -> Response:
        node = snapshot.node(address)
        if node is None:
            return self._refused(request, snapshot, address, f"No nsqd has the address {address}.", status=404)
        if node.is_reachable:
            return self._refused(request, snapshot, address, "It answers, so there is nothing to forget.", status=409)
        refusal = identity_of(request).why_not(Right.ADMIN)
        if self._sampler is None:
            refusal = "there is no cluster to change"
        plan = forgetting(snapshot, node)
        return self._painter.page(request, "forget.html", snapshot, plan=plan, refusal=refusal, is_done=False)

    def _refused(self, request: Request, snapshot: Snapshot, address: str, why: str, *, status: int) -> Response:
        failure = Failure(
            title=f"{address or 'No node'} is not forgotten",
            text=why,
            links=(("All nodes", self._painter.links.to("/nodes")),),
        )
        return error_page(self._painter, request, snapshot, failure, status=status)

    def _note(self, request: Request, address: str, text: str, result: str) -> None:
        self._activity.note(caller_of(request), _KIND, text, result, nodes=(address,))
