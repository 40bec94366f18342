"""Messages for request handlers: checks rights, bridges to trio, and writes the audit log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING

import trio

from nsqadmin.access import EDIT, Right
from nsqadmin.messages.buried import BURIED
from nsqadmin.messages.by_id import FoundPlaces, find_message
from nsqadmin.messages.deferred import DEFERRED
from nsqadmin.messages.editing import CannotRun, Editor
from nsqadmin.messages.in_flight import IN_FLIGHT
from nsqadmin.messages.publishing import CannotPublish, Publisher, node_to_publish_at
from nsqadmin.messages.reading import Reader
from nsqadmin.messages.reasons import Reasons
from nsqadmin.messages.redelivery import Redeliverer
from nsqadmin.messages.searching import Search, Searcher
from nsqadmin.messages.selection_reading import SelectionReader
from nsqadmin.messages.selections import BuriedSelections, DeferredSelections, InFlightSelections
from nsqadmin.upstream.acting import acting_for
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.decoding.decoders import Decoders
    from nsqadmin.http.responses import Caller
    from nsqadmin.messages.editing import EditedMessage, EditReceipt
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.masking import Masking
    from nsqadmin.messages.model import (
        Message,
        NodeLog,
        Page,
        Published,
        Redelivered,
        ReplayPlan,
        ReplayReceipt,
        SearchResult,
    )
    from nsqadmin.messages.selection import Selection
    from nsqadmin.upstream.client import Upstream


class Messages:
    """Messages, for callers on asyncio.

    The caller has checked that the user may see the topic. We check further rights here, and raise 403.
    """

    def __init__(
        self,
        upstream: Upstream,
        view: View,
        masking: Masking,
        activity: ActivityLog,
        *,
        all_see_payload: bool,
        decoders: Decoders | None = None,
    ) -> None:
        """`all_see_payload`: every user has the right `payload`."""
        self.reader = Reader(upstream, masking, decoders)
        self._searcher = Searcher(self.reader)
        self._publisher = Publisher(upstream, self.reader)
        self._redeliverer = Redeliverer(upstream, self.reader, self._publisher)
        self._editor = Editor(upstream)
        reasons = Reasons(masking, all_see_payload=all_see_payload)
        buried = SelectionReader(BURIED, upstream, self.reader)
        deferred = SelectionReader(DEFERRED, upstream, self.reader)
        self.buried = BuriedSelections(buried, upstream, reasons, view, activity)
        self.deferred = DeferredSelections(deferred, upstream, reasons, view, activity)
        in_flight = SelectionReader(IN_FLIGHT, upstream, self.reader)
        self.in_flight = InFlightSelections(in_flight, upstream, reasons, view, activity)
        self._upstream = upstream
        self._view = view
        self._activity = activity

    async def logs(self, topic: str, node: str = "") -> tuple[NodeLog, ...]:
        """Return each node's readable history, or why there is none."""
        return await run_trio(self.reader.logs, self._view.snapshot, topic, node)

    async def read(
        self,
        topic: str,
        identity: Identity,
        *,
        node: str = "",
        place: str = "latest",
        limit: int = 100,
        wanted: Filter | None = None,
    ) -> Page:
        """Return a page of history; see `Reader.page`."""

        async def read() -> Page:
            return await self.reader.page(
                self._view.snapshot, topic, identity=identity, node=node, place=place, limit=limit, wanted=wanted
            )

        return await run_trio(read)

    async def find(self, id: str, identity: Identity) -> FoundPlaces:
        """Return where the history of any topic has the message with this id; see `find_message`."""
        return await run_trio(find_message, self._upstream, self._view.snapshot, id, identity)

    async def search(self, search: Search, report: Callable[[SearchResult], None] | None = None) -> SearchResult:
        """Do one step of a search; see `Searcher.search`."""

        async def run() -> SearchResult:
            return await self._searcher.search(self._view.snapshot, search, report)

        return await run_trio(run)

    async def peek(self, topic: str, channel: str, identity: Identity, *, node: str = "", limit: int = 20) -> Page:
        """Return the messages that the channel would deliver next; see `Reader.peek`."""

        async def peek() -> Page:
            return await self.reader.peek(
                self._view.snapshot, topic, channel, identity=identity, node=node, limit=limit
            )

        return await run_trio(peek)

    async def publish(
        self, topic: str, bodies: Sequence[bytes], caller: Caller, *, node: str = "", defer_ms: int = 0
    ) -> Published:
        _need(caller.identity, Right.PUBLISH, topic)
        at = _found_node(self._view, topic, node)

        async def publish() -> Published:
            return await self._publisher.publish(at, topic, bodies, defer_ms=defer_ms)

        began = time()
        published = await run_trio(publish)
        text = f"published {published.count:,} of {len(bodies):,} to {topic}"
        result = "ok" if not published.error else "partly" if published.count else "failed"
        self._note(caller, "publish", text, topic, (at,), result, began)
        return published

    async def plan_replay(
        self, topic: str, node: str, first: int, end: int, target: str, identity: Identity, *, log: str = ""
    ) -> ReplayPlan:
        """Return the plan of replaying [first, end) of this node's log to `target`. `log` is the log's id, if known."""
        _need(identity, Right.PAYLOAD, topic)
        _need(identity, Right.PUBLISH, target)
        logs = await self.logs(topic, node)
        if len(logs) != 1:
            raise HttpError(404, "NODE_NOT_FOUND")
        try:
            return self._publisher.plan_replay(logs[0], topic, first, end, target, expected=log)
        except CannotPublish as error:
            raise _refused(error) from error

    async def replay(self, plan: ReplayPlan, caller: Caller) -> ReplayReceipt:
        _need(caller.identity, Right.PAYLOAD, plan.topic)
        _need(caller.identity, Right.PUBLISH, plan.target)
        began = time()
        receipt = await run_trio(self._publisher.replay, plan)
        text = f"replayed {receipt.published:,} of {plan.topic} [{plan.first}, {plan.end}) to {plan.target}"
        result = "ok" if not receipt.error else "partly" if receipt.published else "failed"
        also = (plan.topic,) if plan.topic != plan.target else ()
        self._note(caller, "replay", text, plan.target, (plan.node,), result, began, also=also)
        return receipt

    async def redeliver(
        self, topic: str, channel: str, selection: Selection, caller: Caller
    ) -> tuple[Redelivered, ...]:
        """Deliver the messages to one channel once more; the others get nothing."""
        _need(caller.identity, Right.OPERATE, topic)
        self._check_nodes(selection)
        found = self._view.snapshot.channel(topic, channel)
        if found is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND", details={"reason": f"{topic} has no channel {channel}"})
        began = time()
        results = await run_trio(self._redeliverer.redeliver, topic, channel, selection)
        self._note_redelivery(caller, results, f"{topic} to the channel {channel} only", topic, channel, began)
        return results

    async def publish_again(self, topic: str, selection: Selection, caller: Caller) -> tuple[Redelivered, ...]:
        """Publish the messages to their topic again, so that all channels get them."""
        _need(caller.identity, Right.PAYLOAD, topic)
        _need(caller.identity, Right.PUBLISH, topic)
        self._check_nodes(selection)
        began = time()
        try:
            results = await run_trio(self._redeliverer.publish_again, topic, selection)
        except CannotPublish as error:
            raise _refused(error) from error
        self._note_redelivery(caller, results, f"{topic} to all its channels", topic, "", began)
        return results

    async def message_to_edit(
        self, channel: Channel, identity: Identity, node: str, sequence: int, place: str = ""
    ) -> tuple[Message | None, str]:
        """Return the message with this sequence, or why it can't be edited. `place` is its place among deferred ones.

        It is in the history, unless retention has removed it there: then a list of the channel still has it.
        """
        if self._view.snapshot.node(node) is None:
            return None, "no node has this address"
        page = await self.read(channel.topic, identity, node=node, place=str(sequence), limit=1)
        found = next((it for it in page.messages if it.sequence == sequence), None)
        why = next((it.reason for it in page.logs if it.reason), "")
        with suppress(ValueError):  # no place in a list
            if found is None and channel.buried_count:
                buried = await self.buried.one(channel, identity, node, str(sequence))
                found = next((it.message for it in buried.lines), None)
            if found is None and place and channel.deferred_count:
                deferred = await self.deferred.one(channel, identity, node, place)
                found = next((it.message for it in deferred.lines if it.sequence == sequence), None)
        return found, "" if found is not None else why or "its node no longer has it"

    async def edit(self, wanted: EditedMessage, caller: Caller) -> EditReceipt:
        """Run an edited copy instead of a message. Raise CannotRun, and 403 without the rights."""
        name = f"message {wanted.sequence} of {wanted.topic}/{wanted.channel}"
        if reason := caller.identity.why_not_edit(wanted.topic):
            text = f"refused to edit {name}: {reason}"
            self._note(caller, EDIT, text, wanted.topic, (), "refused", time(), channel=wanted.channel)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        began = time()

        async def shielded() -> EditReceipt:
            with trio.CancelScope(shield=True), acting_for(caller.name):
                receipt = await self._editor.run(wanted)
            return receipt

        try:
            with self._activity.under_way(wanted.topic):
                receipt = await run_trio(shielded)
        except CannotRun as error:
            text = f"could not run an edited copy of {name}: {error.reason}"
            self._note(caller, EDIT, text, wanted.topic, (wanted.node,), "failed", began, channel=wanted.channel)
            raise
        text = f"ran an edited copy of {name}, as message {receipt.sequence}"
        text += "" if receipt.is_instead else ", in addition"
        text += " (the same request again)" if receipt.is_repeat else ""
        self._note(caller, EDIT, text, wanted.topic, (wanted.node,), "ok", began, channel=wanted.channel)
        return receipt

    def _check_nodes(self, selection: Selection) -> None:
        """Refuse addresses that aren't our nodes: a form must not make us send requests just anywhere."""
        for node in selection.nodes:
            if self._view.snapshot.node(node) is None:
                raise HttpError(404, "NODE_NOT_FOUND", details={"reason": f"no node has the address {node}"})

    def _note_redelivery(
        self, caller: Caller, results: Sequence[Redelivered], what: str, topic: str, channel: str, began: float
    ) -> None:
        done, asked = sum(row.redelivered for row in results), sum(row.asked for row in results)
        failed = [row for row in results if row.error]
        result = "ok" if not failed else "partly" if done or len(failed) < len(results) else "failed"
        nodes = tuple(row.node for row in results)
        text = f"replayed {done:,} of {asked:,} messages of {what}"
        self._note(caller, "replay", text, topic, nodes, result, began, channel=channel)

    def note_tail(self, topic: str, caller: Caller) -> None:
        """Record in the audit log that the user tails a topic."""
        self._note(caller, "tail", f"tailed {topic}", topic, (), "ok", time())

    def _note(
        self,
        caller: Caller,
        what: str,
        text: str,
        topic: str,
        nodes: tuple[str, ...],
        result: str,
        began: float,
        channel: str = "",
        also: tuple[str, ...] = (),
    ) -> None:
        took = time() - began
        self._activity.note(
            caller, what, text, result, topic=topic, channel=channel, nodes=nodes, at=began, took=took, also=also
        )


def _need(identity: Identity, right: Right, topic: str) -> None:
    if reason := identity.why_not(right, topic):
        raise HttpError(403, "FORBIDDEN", details={"reason": reason})


def _found_node(view: View, topic: str, node: str) -> str:
    try:
        return node_to_publish_at(view.snapshot, topic, node)
    except CannotPublish as error:
        raise _refused(error) from error


def _refused(error: CannotPublish) -> HttpError:
    statuses = {"NODE_NOT_FOUND": 404, "NO_NODE": 503, "NO_HISTORY": 409, "ANOTHER_LOG": 409}
    return HttpError(statuses.get(error.code, 400), error.code, details={"reason": error.reason})
