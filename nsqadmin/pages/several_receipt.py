"""The receipt of one action on several topics and channels, with one Undo for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqadmin import numbers
from nsqadmin.actions.several import Part, SeveralPlan, pick_of
from nsqadmin.actions.taking_back import opposite
from nsqadmin.pages.undone import undoable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.plan import Receipt
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


@dataclass(frozen=True, slots=True)
class _Row:
    """The outcome for one topic or channel."""

    part: Part
    receipt: Receipt | None  # None: it was left out

    @property
    def result(self) -> str:
        return "left out" if self.receipt is None else self.receipt.result

    @property
    def text(self) -> str:
        if self.receipt is None:
            return self.part.why_not
        nodes = [step for step in self.receipt.steps if not step.is_lookupd]
        if not nodes:
            return "" if self.receipt.result == "ok" else "no node could be asked"
        return f"on {sum(step.is_done for step in nodes)} of {numbers.several(len(nodes), 'node')}"

    @property
    def failures(self) -> Iterator[tuple[str, str, str]]:
        """Yield where it failed, why, and the original error."""
        if self.receipt is None:
            return
        for step in self.receipt.steps:
            if not step.is_done:
                yield step.address, step.why or "It failed.", step.error
        if self.receipt.failure:
            yield "", "nsqadmin could not find out which nodes to ask.", self.receipt.failure
        for error in self.receipt.discovery_errors:
            yield "", "Not every node could be found; those missing were not asked.", error


def several_receipt(
    services: Services,
    painter: Painter,
    request: Request,
    snapshot: Snapshot,
    planned: SeveralPlan,
    receipts: Sequence[Receipt | None],
    back: str,
) -> Response:
    rows = [_Row(part, receipt) for part, receipt in zip(planned.parts, receipts, strict=True)]
    made = [receipt for receipt in receipts if receipt is not None]
    done = sum(receipt.result == "ok" for receipt in made)
    results = {receipt.result for receipt in made}
    activity = services.activity.newest()
    opposites = [action for it in made if (action := opposite(snapshot, it, activity)) is not None]
    records = [record for it in made if (record := undoable(services, request, it.undo)) is not None]
    no_undo = dict.fromkeys(text for it in made for text in it.no_undo)
    if dropped := sum(bool(it.undo) for it in made) - len(records):
        no_undo[f"{dropped:,} of them cannot be undone: nsqadmin has no room for the states of so many."] = None
    return painter.page(
        request,
        "several_receipt.html",
        snapshot,
        plan=planned,
        rows=rows,
        result=results.pop() if len(results) == 1 else "partly",
        summary=f"{planned.title}: {done:,} of {len(made):,} done.",
        left_out=len(receipts) - len(made),
        may_follow=any(it.may_follow for it in made),
        no_undo=list(no_undo),
        take_back=[str(pick_of(action)) for action in opposites],
        records=records,
        retry=[str(pick_of(action)) for it in made if (action := it.retry) is not None],
        back=back,
    )
