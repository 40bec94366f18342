"""The result of an action, node by node."""

from __future__ import annotations

from collections.abc import Sequence
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
    receipts: Sequence[Receipt],
    plans: Sequence[Plan],
) -> Response:
    first = receipts[0]
    results = {receipt.result for receipt in receipts}
    is_one = len(receipts) == 1
    retry = first.retry if is_one else None
    undo = opposite(snapshot, first, services.activity.newest()) if is_one else None
    return painter.page(
        request,
        "receipt.html",
        snapshot,
        headline=plans[0].title if is_one else f"Delete {len(receipts)} topics",
        result=first.result if len(results) == 1 else "partly",
        summary=in_words(plans[0], first) if is_one else "",
        failure=next((receipt.failure for receipt in receipts if receipt.failure), ""),
        discovery_errors=[text for receipt in receipts for text in receipt.discovery_errors],
        warnings=[it.text for it in plans[0].consequences if it.severity == "warning"]
        if first.action.kind in CREATIONS
        else [],
        steps=[step for receipt in receipts for step in receipt.steps],
        may_follow=any(receipt.may_follow for receipt in receipts),
        done=_after(painter.links, plans[0], first.result, not is_one),
        undo=undo,
        undoable=undoable(services, request, first.undo),
        no_undo=first.no_undo,
        retry=retry,
    )


def _after(links: Links, plan: Plan, result: str, is_many: bool) -> str:
    action = plan.action
    if is_many or (plan.is_of_directory and result != "ok"):
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
