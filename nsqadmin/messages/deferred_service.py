"""What channels have deferred, for request handlers: bridges to trio, and says in words what was done."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Final

from nsqadmin.access.policy import Right
from nsqadmin.messages.deferred import DeferredLook
from nsqadmin.messages.deferred_actions import Chosen, RecallVerb, in_words, plan_recalling
from nsqadmin.messages.selection import MOST, Source, selected
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqadmin.access.policy import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.http.responses import Caller
    from nsqadmin.messages.changing import Changing
    from nsqadmin.messages.deferred import DeferredPage, DeferredSummary
    from nsqadmin.messages.deferred_actions import Recalled, Recalling, RecallWanted
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.selection import Selection
    from nsqadmin.messages.selection_acting import Recaller
    from nsqadmin.messages.selection_reading import DeferredReader

_LONGEST_SEARCH: Final = 20.0  # seconds, for everything that matches
RECALL_ACTIONS: Final = {RecallVerb.CANCEL: "cancel_deferred", RecallVerb.DUE: "move_deferred"}


class DeferredMessages:
    """Deferred messages, for callers on asyncio.

    The caller has checked that the user may see the topic. Further rights are checked here, and lacking ones raise 403.
    """

    def __init__(self, reader: DeferredReader, recaller: Recaller, view: View, changing: Changing) -> None:
        self._reader = reader
        self._recaller = recaller
        self._view = view
        self._changing = changing

    async def summary(self, channel: Channel) -> DeferredSummary:
        """Return how many messages are deferred on each node."""
        return await run_trio(self._reader.summary, self._view.snapshot, channel)

    async def page(
        self, channel: Channel, summary: DeferredSummary, identity: Identity, look: DeferredLook
    ) -> DeferredPage:
        """Return the next deferred messages."""
        return await run_trio(self._reader.page, channel, summary, identity, look)

    async def matching(self, channel: Channel, identity: Identity, wanted: Filter, node: str = "") -> Chosen:
        """Return all messages that match, those that are due first: as many as a selection holds and the time allows."""
        summary = await self.summary(channel)
        look = DeferredLook(wanted=wanted, limit=MOST, after={}, node=node, seconds=_LONGEST_SEARCH, with_bodies=False)
        page = await run_trio(self._reader.everything, channel, summary, identity, look)
        remarks = [f"{node} was not looked at, or not to the end: {why}." for node, why in page.missing]
        if page.after and len(page.deferrals) >= MOST:
            remarks.append(f"These are the {MOST:,} that are due first. There may be more: do it again for the rest.")
        elif page.after:
            remarks.append(f"Only the {page.looked:,} messages that are due first were looked at: there may be more.")
        chosen = selected((Source(it.node, it.log), it.sequence) for it in page.deferrals if it.log)
        return Chosen(selection=chosen, remarks=tuple(remarks))

    async def plan(self, channel: Channel, selection: Selection, wanted: RecallWanted) -> Recalling:
        """Ask the nodes whether they answer, and return what it would do. Raise BadTaking."""
        return plan_recalling(channel, await self.summary(channel), selection, wanted)

    async def recall(
        self, recalling: Recalling, caller: Caller, told: Callable[[str, bool], None] | None = None
    ) -> tuple[Recalled, ...]:
        """Cancel or move as planned. `told` is called on trio's side with each node that has ended."""
        wanted = recalling.wanted
        what = RECALL_ACTIONS[wanted.verb]
        words = "cancel deferred messages of" if wanted.verb is RecallVerb.CANCEL else "move deferred messages of"
        self._changing.need(Right.OPERATE, caller, recalling.topic, recalling.channel, what, words)

        async def recall() -> Sequence[Recalled]:
            return await self._recaller.recall(recalling, told or (lambda _, __: None))

        began = time()
        results = await self._changing.changed(recall, caller, recalling.topic)
        done, asked = sum(it.done for it in results), recalling.count + sum(it.last_known for it in recalling.left_out)
        text = f"cancelled {done:,} of {asked:,}" if wanted.verb is RecallVerb.CANCEL else f"made {done:,} of {asked:,}"
        text += f" deferred messages of {recalling.topic}/{recalling.channel}"
        text += f" due {in_words(wanted)}" if wanted.verb is RecallVerb.DUE else ""
        if recalling.left_out:
            text += f"; not asked: {', '.join(it.node for it in recalling.left_out)}"
        self._changing.note(caller, what, text, recalling.topic, recalling.channel, results, began)
        return results
