"""The result of an action, node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin import numbers
from nsqadmin.actions.plan import Kind, Plan, Receipt
from nsqadmin.actions.taking_back import opposite
from nsqadmin.pages.create import CREATIONS
from nsqadmin.pages.undone import undoable

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.links import Links
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def receipt_page(
    services: Services,
    painter: Painter,
    request: Request,
    snapshot: Snapshot,
    receipt: Receipt,
    planned: Plan,
) -> Response:
    return painter.page(
        request,
        "receipt.html",
        snapshot,
        headline=planned.title,
        result=receipt.result,
        summary=in_words(planned, receipt),
        failure=receipt.failure,
        discovery_errors=list(receipt.discovery_errors),
        warnings=[it.text for it in planned.consequences if it.severity == "warning"]
        if receipt.action.kind in CREATIONS
        else [],
        steps=receipt.steps,
        may_follow=receipt.may_follow,
        done=_after(painter.links, planned, receipt.result),
        undo=opposite(snapshot, receipt, services.activity.newest()),
        undoable=undoable(services, request, receipt.undo),
        no_undo=receipt.no_undo,
        retry=receipt.retry,
    )


def _after(links: Links, plan: Plan, result: str) -> str:
    action = plan.action
    if plan.is_of_directory and result != "ok":
        return links.to("/lookup")
    if action.kind is Kind.DELETE_TOPIC and result == "ok" and not action.nodes:
        return links.to("/topics")
    if action.kind is Kind.DELETE_CHANNEL and result == "ok" and not action.nodes:
        return links.topic(action.topic)
    return links.about(action.topic, action.channel, "")


def in_words(planned: Plan, receipt: Receipt) -> str:
    """Return the result of an action, as one sentence for a toast."""
    action = receipt.action
    nodes = [step for step in receipt.steps if not step.is_lookupd]
    done = sum(step.is_done for step in nodes)
    silent = dict.fromkeys(step.address for step in receipt.steps if step.may_follow)
    failed = dict.fromkeys(step.address for step in receipt.steps if not step.is_done and not step.may_follow)
    words = planned.title.removesuffix(f" on {', '.join(action.nodes)}") + ": "
    words += f"done on {done} of {numbers.several(len(nodes), 'node')}" if nodes else "done"
    if silent:
        words += f", asked, no answer: {', '.join(silent)}"
    if failed:
        words += f", failed on {', '.join(failed)}"
    return f"{words}."
