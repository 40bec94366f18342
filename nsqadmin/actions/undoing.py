"""Asks nodes for a channel's state before an action that loses messages, and restores it on request."""

from __future__ import annotations

import json
from time import time
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.actions.plan import can_be_undone
from nsqadmin.actions.undo import Undone, UndoRecord, Undos, UndoState, read_state, read_undone, result_of, words_undone
from nsqadmin.upstream.acting import acting_for
from nsqadmin.upstream.client import UpstreamError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.actions.plan import Action
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.http.responses import Caller
    from nsqadmin.upstream.queries import Queries

_SERVER_ERROR: Final = 500
_WHAT: Final = "restore_channel"  # nsqd's word in its record of changes
_NO_STATE: Final = {
    "NOT_FOUND": "it keeps no history: it is a Go nsqd or an older version",
    "TOO_MANY": "its channel has more than 10,000 gaps and requeued or deferred messages",
}
_NOT_RESTORED: Final = {
    "ANOTHER_LOG": "the topic has been deleted and created again: its messages are gone",
    "TOPIC_NOT_FOUND": "the topic has been deleted, and its messages with it",
    "BEYOND_END": "the node has lost messages since, so it cannot be restored",
}


class Undoer:
    def __init__(self, queries: Queries, activity: ActivityLog) -> None:
        self.records = Undos()
        self._queries = queries
        self._activity = activity

    async def look(self, action: Action, before: Snapshot, node: str) -> UndoState | None:
        """Ask a node for the channel's state; on trio. None if this action can never be undone.

        A node that can't report it doesn't block the action. But raise UpstreamError if the node is silent: it would
        run the action at some later time, when no user expects it, and none of it could be undone.
        """
        if not can_be_undone(action):
            return None
        try:
            document = await self._queries.channel_state(node, action.topic, action.channel)
        except UpstreamError as error:
            if not error.status and not error.not_read:
                raise
            reason = _NO_STATE.get(_code(error), f"it did not report the channel's state (HTTP {error.status})")
            return UndoState(node=node, why_not=error.not_read or reason)
        return read_state(node, document, at=time(), oldest_at=_oldest_at(before, action, node))

    async def undo(self, record: UndoRecord, caller: Caller) -> tuple[Undone, ...]:
        """Restore the channel on the record's remaining nodes, and note it in the audit log; for callers on asyncio."""
        states = record.left
        record.done.update(state.node for state in states)  # a second undo at the same time finds nothing left
        return await run_trio(self._undo, record, states, caller)

    def note_refusal(self, record: UndoRecord, caller: Caller, reason: str) -> None:
        self._note(record, caller, f"refused to undo: {record.words}: {reason}", "refused", at=time())

    async def _undo(self, record: UndoRecord, states: tuple[UndoState, ...], caller: Caller) -> tuple[Undone, ...]:
        began, at = trio.current_time(), time()
        rows: dict[str, Undone] = {}

        async def restore(state: UndoState) -> None:
            rows[state.node] = await self._restored(record.action, state)
            if rows[state.node].error:
                record.done.discard(state.node)

        with self._activity.under_way(record.action.topic):
            with trio.CancelScope(shield=True), acting_for(caller.identity.user or caller.basic_user):
                async with trio.open_nursery() as nursery:
                    for state in states:
                        nursery.start_soon(restore, state)
            asked = tuple(rows[state.node] for state in states)
            nodes = tuple(rows)
            took = trio.current_time() - began
            self._note(record, caller, words_undone(record, asked), result_of(asked), at=at, nodes=nodes, took=took)
        return (*asked, *(Undone(node=it.node, error=f"cannot be undone: {it.why_not}") for it in record.lacking))

    async def _restored(self, action: Action, state: UndoState) -> Undone:
        try:
            answer = await self._queries.restore_channel(state.node, action.topic, action.channel, state.document)
        except UpstreamError as error:
            if not error.status:
                reason, can_retry = "does not answer: nothing could be undone there", True
            else:
                reason = _NOT_RESTORED.get(_code(error), f"it refused to undo it (HTTP {error.status})")
                can_retry = error.status >= _SERVER_ERROR
            return Undone(node=state.node, count=state.count, error=reason, can_retry=can_retry)
        return read_undone(state, answer)

    def _note(
        self,
        record: UndoRecord,
        caller: Caller,
        text: str,
        result: str,
        *,
        at: float,
        nodes: tuple[str, ...] = (),
        took: float | None = None,
    ) -> None:
        action = record.action
        self._activity.note(
            caller, _WHAT, text, result, topic=action.topic, channel=action.channel, nodes=nodes, at=at, took=took
        )


def _code(error: UpstreamError) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _oldest_at(before: Snapshot, action: Action, node: str) -> float | None:
    channel = before.channel(action.topic, action.channel)
    rows = channel.nodes if channel is not None else ()
    return next((row.oldest_at for row in rows if row.node == node), None)
