"""What channels have buried, for request handlers: bridges to trio, and says in words what was done."""

from __future__ import annotations

from dataclasses import replace
from time import time
from typing import TYPE_CHECKING

from nsqadmin.access.policy import Right
from nsqadmin.messages.buried_actions import plan_taking
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqadmin.access.policy import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.http.responses import Caller
    from nsqadmin.messages.buried import BuriedPage, Look, Summary
    from nsqadmin.messages.buried_actions import Taken, Taking, Wanted
    from nsqadmin.messages.buried_reading import BuriedReader
    from nsqadmin.messages.buried_taking import BuriedTaker
    from nsqadmin.messages.changing import Changing
    from nsqadmin.messages.reasons import Reasons


class Buried:
    """Buried messages, for callers on asyncio.

    The caller has checked that the user may see the topic. Further rights are checked here, and lacking ones raise 403.
    """

    def __init__(
        self, reader: BuriedReader, taker: BuriedTaker, reasons: Reasons, view: View, changing: Changing
    ) -> None:
        self._reader = reader
        self._taker = taker
        self._reasons = reasons
        self._view = view
        self._changing = changing

    def sees_reasons(self, channel: Channel, identity: Identity) -> bool:
        """Return whether the user sees reasons whole, and so may search for any text in them."""
        return self._reasons.sees_whole(identity, channel.topic)

    async def summary(self, channel: Channel, identity: Identity) -> Summary:
        """Return how many messages are buried on each node, and why, as the user may see it."""
        return self._reasons.summary(await self._asked(channel), whole=self.sees_reasons(channel, identity))

    async def page(self, channel: Channel, identity: Identity, look: Look) -> BuriedPage:
        """Return the next buried messages, as the user may see them. Raise BadTaking for a reason that is not listed."""
        whole = self.sees_reasons(channel, identity)
        text = await self._meant(channel, look.reason, whole)
        page = await run_trio(self._reader.page, self._view.snapshot, channel, identity, replace(look, reason=text))
        return replace(
            page,
            burials=tuple(self._reasons.burial(it, whole=whole) for it in page.burials),
            reason=self._reasons.shown(text, whole=whole),
        )

    async def plan(self, channel: Channel, wanted: Wanted, identity: Identity) -> Taking:
        """Ask the nodes what they have, and return what a kick or discard would do. Raise BadTaking."""
        whole = self.sees_reasons(channel, identity)
        summary = await self._asked(channel)
        text = self._reasons.meant(wanted.reason, _listed(summary), whole=whole)
        return plan_taking(channel, summary, wanted, text=text, shown=self._reasons.shown(text, whole=whole))

    async def _asked(self, channel: Channel) -> Summary:
        return await run_trio(self._reader.summary, self._view.snapshot, channel)

    async def _meant(self, channel: Channel, reason: str, whole: bool) -> str:
        listed = _listed(await self._asked(channel)) if self._reasons.is_listed(reason, whole=whole) else ()
        return self._reasons.meant(reason, listed, whole=whole)

    async def take(self, taking: Taking, caller: Caller) -> tuple[Taken, ...]:
        """Kick or discard as planned. Once begun, it is carried out even if the caller disconnects."""
        verb = taking.wanted.verb
        what = f"{verb}_buried"
        self._changing.need(verb.right, caller, taking.topic, taking.channel, what, f"{verb} buried messages of")

        async def take() -> tuple[Taken, ...]:
            return await self._taker.take(taking)

        began = time()
        results = await self._changing.changed(take, caller, taking.topic)
        jobs = sum(it.asked for it in results if it.job is not None)
        text = f"{verb.past} {sum(it.done for it in results):,} of {taking.count:,} buried messages"
        text += f" of {taking.topic}/{taking.channel}"
        text += f" with the reason “{self._reasons.public(taking.text)}”" if taking.text else ""
        if jobs:
            text += ", the rest at work" + (f" at {taking.wanted.rate:g} a second" if taking.wanted.rate else "")
        self._changing.note(caller, what, text, taking.topic, taking.channel, results, began)
        return self._shown(results, caller, taking.topic)

    async def undo(self, channel: Channel, kicks: Sequence[tuple[str, int]], caller: Caller) -> tuple[Taken, ...]:
        """Take kicks back, each given as node and number, as far as no consumer has got their messages."""
        what = "undo_kick"
        self._changing.need(
            Right.OPERATE, caller, channel.topic, channel.name, what, "take back a kick of buried messages of"
        )

        async def undo() -> tuple[Taken, ...]:
            return await self._taker.undo(channel.topic, channel.name, kicks)

        began = time()
        results = await self._changing.changed(undo, caller, channel.topic)
        done, kicked = sum(it.done for it in results), sum(it.asked for it in results)
        text = f"took back a kick of {channel.topic}/{channel.name}: {done:,} of {kicked:,} messages are buried again"
        self._changing.note(caller, what, text, channel.topic, channel.name, results, began)
        return self._shown(results, caller, channel.topic)

    async def stop(self, channel: Channel, caller: Caller) -> tuple[Taken, ...]:
        """End every kick and discard that is under way in the channel."""
        self._changing.need(
            Right.OPERATE, caller, channel.topic, channel.name, "stop_buried", "stop what kicks or discards buried of"
        )

        async def stop() -> tuple[Taken, ...]:
            return await self._taker.stop(channel.topic, channel.name, [row.node for row in channel.nodes])

        began = time()
        results = await self._changing.changed(stop, caller, channel.topic)
        done = [f"{it.job.verb} on {it.node} after {it.done:,}" for it in results if it.job is not None]
        text = f"stopped in {channel.topic}/{channel.name}: {', '.join(done) or 'nothing was under way'}"
        self._changing.note(caller, "stop_buried", text, channel.topic, channel.name, results, began)
        return self._shown(results, caller, channel.topic)

    def _shown(self, results: Sequence[Taken], caller: Caller, topic: str) -> tuple[Taken, ...]:
        whole = self._reasons.sees_whole(caller.identity, topic)
        return tuple(self._reasons.taken(it, whole=whole) for it in results)


def _listed(summary: Summary) -> Iterator[str]:
    """Yield the reasons that nodes have listed."""
    return (it.reason for node in summary.answered for it in node.reasons)
