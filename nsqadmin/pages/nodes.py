"""All nodes, and their problems."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nsqadmin.cluster.model import Finding, Severity, Snapshot
from nsqadmin.diagnosis.policy import DIFFERING_FILES
from nsqadmin.http.app import Route
from nsqadmin.pages.drain import why_not_drained

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        return painter.page(
            request,
            "nodes.html",
            snapshot,
            current="Nodes",
            scope="nodes",
            page={"findings": findings_of_nodes(snapshot), "differing": differing_files(snapshot)},
            why_not_drained=partial(why_not_drained, services, request),
        )

    return [Route("GET", "/nodes", painter.cached(page))]


def findings_of_nodes(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return the nodes' findings, without D26: the page shows the policy files once for all nodes."""
    return tuple(
        found
        for found in snapshot.findings
        if found.node and found.severity is not Severity.INFO and found.rule != DIFFERING_FILES
    )


def differing_files(snapshot: Snapshot) -> tuple[Finding, ...]:
    return tuple(found for found in snapshot.findings if found.rule == DIFFERING_FILES)
