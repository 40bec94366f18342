"""A channel's buried or deferred messages, or those in flight, for request handlers: read, filter, preview, act, undo.

Bridges to trio, checks the right to the action, hides what the user may not see, and writes the audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from nsqadmin.messages.buried import Burial, BuriedSummary, NodeSummary
from nsqadmin.messages.buried_actions import plan_buried
from nsqadmin.messages.deferred import Deferral, NodeDeferred
from nsqadmin.messages.deferred_actions import chosen_of, plan_deferred
from nsqadmin.messages.in_flight import MessageInFlight, NodeInFlight
from nsqadmin.messages.lists import ListedMessage, ListKind, ListPage, Look, NodeCount, Summary
from nsqadmin.messages.selection import MOST
from nsqadmin.messages.selection_acting import act
from nsqadmin.messages.selection_plan import NodeResult, NodeShare, SelectionPlan, result_of
from nsqadmin.upstream.acting import acting_for
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.http.responses import Caller
    from nsqadmin.messages.buried_actions import BuriedPlan, Wanted
    from nsqadmin.messages.deferred_actions import Chosen, DeferredPlan, RecallWanted
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.reasons import Reasons, ReasonSight
    from nsqadmin.messages.selection_reading import SelectionReader
    from nsqadmin.upstream.client import Upstream

_LONGEST_SEARCH: Final = 20.0  # seconds, for all matches

N = TypeVar("N", bound=NodeCount)
M = TypeVar("M", bound=ListedMessage)
S = TypeVar("S", bound=NodeShare)
R = TypeVar("R", bound=NodeResult)


class Selections(Generic[N, M]):
    """The messages of one kind, for callers on asyncio. The caller has checked that the user may see the topic."""

    def __init__(
        self, reader: SelectionReader[N, M], upstream: Upstream, reasons: Reasons, view: View, activity: ActivityLog
    ) -> None:
        self._reader = reader
        self._upstream = upstream
        self._reasons = reasons
        self._view = view
        self._activity = activity

    @property
    def kind(self) -> ListKind[N, M]:
        return self._reader.kind

    def sight(self, channel: Channel, identity: Identity) -> ReasonSight:
        return self._reasons.sight(identity, channel.topic)

    async def summary(self, channel: Channel, identity: Identity) -> Summary[N]:
        """Return each node's number of messages, as the user may see it."""
        return (await self._told(channel)).seen(self.sight(channel, identity))

    async def read(self, channel: Channel, identity: Identity, look: Look) -> tuple[Summary[N], ListPage[M]]:
        """Return each node's number of messages, and the next messages. Raise BadRequest for an unlisted reason."""
        return await self._read(self._reader.page, channel, identity, look)

    async def one(self, channel: Channel, identity: Identity, node: str, place: str) -> ListPage[M]:
        """Return the message at this position of the node's list. Raise ValueError if the position is invalid."""
        page = await run_trio(self._reader.one, self._view.snapshot, channel, identity, node, place)
        sight = self.sight(channel, identity)
        return replace(page, lines=tuple(it.seen(sight) for it in page.lines))

    async def _read(
        self, read: Callable[..., Awaitable[ListPage[M]]], channel: Channel, identity: Identity, look: Look
    ) -> tuple[Summary[N], ListPage[M]]:
        sight, summary = self.sight(channel, identity), await self._told(channel)
        reason = sight.meant(look.reason, _reasons(summary))
        page = await run_trio(read, channel, summary, identity, replace(look, reason=reason))
        lines = tuple(it.seen(sight) for it in page.lines)
        return summary.seen(sight), replace(page, lines=lines, reason=sight.shown(reason))

    async def _told(self, channel: Channel) -> Summary[N]:
        """Return each node's number of messages, with all texts."""
        return await run_trio(self._reader.summary, self._view.snapshot, channel)

    async def act(
        self, plan: SelectionPlan[S, R], caller: Caller, told: Callable[[str, bool], None] = lambda _, __: None
    ) -> tuple[R, ...]:
        """Carry out the plan. Once started, it runs to the end even if the caller disconnects. Raise 403 without the
        right.

        `told` is called on trio's side with each finished node.
        """
        self._need_right(plan, caller)
        began = time()

        async def shielded() -> tuple[R, ...]:
            with trio.CancelScope(shield=True), acting_for(caller.name):
                results = await act(plan, self._upstream, told)  # each request has its own deadline
            return results

        with self._activity.under_way(plan.topic):
            results = await run_trio(shielded)
        self._note(plan, results, caller, began)
        sight = self._reasons.sight(caller.identity, plan.topic)
        return tuple(it.seen(sight) for it in results)

    def _need_right(self, plan: SelectionPlan[S, R], caller: Caller) -> None:
        action = plan.action
        if reason := plan.refusal(caller.identity):
            text = f"refused to {action.does} {plan.topic}/{plan.channel}: {reason}"
            self._activity.note(caller, action.name, text, "refused", topic=plan.topic, channel=plan.channel)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})

    def _note(self, plan: SelectionPlan[S, R], results: Sequence[R], caller: Caller, began: float) -> None:
        failed = ", ".join(it.node for it in results if it.error)
        self._activity.note(
            caller,
            plan.action.name,
            plan.noted(results) + (f"; no answer or refused: {failed}" if failed else ""),
            result_of(results),
            topic=plan.topic,
            channel=plan.channel,
            nodes=tuple(it.node for it in results),
            at=began,
            took=time() - began,
        )


def _reasons(summary: Summary[N]) -> list[str]:
    """Return the reasons that nodes have listed."""
    return [reason for node in summary.answered for reason in node.listed_reasons]


class BuriedSelections(Selections[NodeSummary, Burial]):
    async def plan(self, channel: Channel, wanted: Wanted, identity: Identity) -> BuriedPlan:
        """Ask the nodes for their messages, and return the plan of a kick or discard. Raise BadRequest."""
        sight, summary = self.sight(channel, identity), BuriedSummary(nodes=(await self._told(channel)).nodes)
        listed = _reasons(summary)
        text = sight.meant(wanted.reason, listed)
        public = self._reasons.public_part(text, listed)
        return plan_buried(channel, summary, wanted, text=text, shown=sight.shown(text), public=public)


class DeferredSelections(Selections[NodeDeferred, Deferral]):
    async def matching(self, channel: Channel, identity: Identity, wanted: Filter, node: str = "") -> Chosen:
        """Return all matches, those due first: as many as a selection holds and the time allows."""
        look = Look(wanted=wanted, limit=MOST, after={}, node=node, seconds=_LONGEST_SEARCH, with_bodies=False)
        _, page = await self._read(self._reader.everything, channel, identity, look)
        return chosen_of(page)

    async def plan(self, channel: Channel, chosen: Chosen, wanted: RecallWanted) -> DeferredPlan:
        """Check which nodes answer, and return the plan. Raise BadRequest."""
        return plan_deferred(channel, await self._told(channel), chosen, wanted)


class InFlightSelections(Selections[NodeInFlight, MessageInFlight]):
    """Messages in flight, which can only be read: nothing takes a message from its consumer."""
