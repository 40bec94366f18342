"""The result of an action on buried or deferred messages, or on a group, node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqadmin.messages.selection_plan import result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.messages.selection_plan import NodeResult, SelectionPlan
    from nsqadmin.parts.painter import Painter


async def receipt(
    painter: Painter, request: Request, plan: SelectionPlan[Any, Any], results: Sequence[NodeResult], kind: str
) -> Response:
    return painter.page(
        request,
        "selection_receipt.html",
        await painter.picture(request),
        plan=plan,
        rows=results,
        result=result_of(results, plan.left_out),
        summary=plan.receipt(results),
        at_work=plan.at_work(results),
        kicks=plan.kicks(results),
        burials=plan.burials(results),
        done=painter.links.channel(plan.topic, plan.channel, tab=kind),
    )
