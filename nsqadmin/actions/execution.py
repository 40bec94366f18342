"""Carries out an action: looks up which nodes have the topic, calls each of them, and reports each node's answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.actions.plan import Action, Call, Kind, Receipt, Step, lookupd_calls, node_calls, node_target, nodes_meant
from nsqadmin.actions.undoing import Undoer
from nsqadmin.upstream.acting import acting_for
from nsqadmin.upstream.client import UpstreamError, explain
from nsqadmin.upstream.queries import LOOKUPD, TotalFailure
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.actions.notify import Notifier
    from nsqadmin.actions.undo import UndoState
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.http.responses import Caller
    from nsqadmin.upstream.queries import Queries

log = logging.getLogger(__name__)

_SERVER_ERROR: Final = 500
_NOT_CONNECTED: Final = "dial tcp"  # in Go's errors before anything was sent
_STILL_TO_COME: Final = "No answer in time: it hangs or is overloaded, and may still do this later."
_CREATIONS: Final = frozenset((Kind.CREATE_TOPIC, Kind.CREATE_CHANNEL))
# NSQ sends notifications of these even if no node could be called.
_ALWAYS_NOTIFIED: Final = frozenset(
    (
        Kind.EMPTY_TOPIC,
        Kind.EMPTY_CHANNEL,
        Kind.PAUSE_TOPIC,
        Kind.PAUSE_CHANNEL,
        Kind.UNPAUSE_TOPIC,
        Kind.UNPAUSE_CHANNEL,
    )
)
_IN_LOG: Final = {
    Kind.REMOVE_FROM_NODE: "tombstone node for topic",
    Kind.CREATE_TOPIC: "create topic/channel",
    Kind.CREATE_CHANNEL: "create topic/channel",
    Kind.DELETE_TOPIC: "delete topic",
    Kind.DELETE_CHANNEL: "delete channel",
}


def _nobody(_: Step) -> None:
    pass


class _Steps(list[Step]):
    """The steps of one action, and a callback for each new step."""

    def __init__(self, told: Callable[[Step], None]) -> None:
        super().__init__()
        self.told = told
        self.look: Callable[[str], Awaitable[UndoState | None]] | None = None  # asks a node what can be undone there
        self.states: list[UndoState] = []  # of the nodes that have carried out the action, or still may


class Executor:
    def __init__(
        self, queries: Queries, activity: ActivityLog, notifier: Notifier, *, lost_by: Callable[[Action], int]
    ) -> None:
        """`lost_by` returns how many messages an action loses, as far as we know in advance."""
        self._lost_by = lost_by
        self._queries = queries
        self._activity = activity
        self._notifier = notifier
        self.undoer = Undoer(queries, activity)

    async def execute(
        self,
        action: Action,
        caller: Caller,
        also: Sequence[str] = (),
        told: Callable[[Step], None] = _nobody,
        *,
        before: Snapshot | None = None,
    ) -> Receipt:
        """Carry out an action that was checked and that the caller has the right to. For callers on asyncio.

        `also` are nodes to call even if discovery doesn't list them now, for example silent nodes that the plan has
        listed. `told` is called with each step. With `before`, the snapshot from before the action, nodes are first
        asked for the state that an undo needs. Once started, the action runs to the end, even if the caller
        disconnects.
        """
        return await run_trio(partial(self.perform, before=before), action, caller, also, told)

    async def perform(
        self,
        action: Action,
        caller: Caller,
        also: Sequence[str] = (),
        told: Callable[[Step], None] = _nobody,
        *,
        before: Snapshot | None = None,
    ) -> Receipt:
        """Do the work of `execute`; for callers on trio."""
        began, at = trio.current_time(), time()
        user = caller.identity.user or caller.basic_user
        with self._activity.under_way(action.topic):
            lost = self._lost_by(action)
            with trio.CancelScope(shield=True), acting_for(user):  # each request has its own deadline
                steps = _Steps(told)
                if before is not None:
                    steps.look = partial(self.undoer.look, action, before)
                failure, errors = await self._carry_out(action, also, steps)
            receipt = Receipt(
                action=action,
                at=at,
                took=trio.current_time() - began,
                steps=tuple(steps),
                failure=failure,
                discovery_errors=tuple(errors),
                undo=self.undoer.records.add(action, steps.states),
                no_undo=tuple(f"Cannot be undone on {it.node}: {it.why_not}." for it in steps.states if it.why_not),
            )
            self._report(receipt, caller, lost)
        quoted = caller.identity.quoted
        return replace(
            receipt,
            steps=tuple(replace(step, error=quoted(step.error)) for step in receipt.steps),
            failure=quoted(receipt.failure),
            discovery_errors=tuple(map(quoted, receipt.discovery_errors)),
        )

    def note_refusal(self, action: Action, caller: Caller, reason: str) -> None:
        """Record in the audit log that the caller was refused."""
        text = f"refused to {_words(action)}: {reason}"
        self._activity.note(
            caller,
            action.kind.value,
            text,
            "refused",
            topic=action.topic,
            channel=action.channel,
            nodes=action.nodes,
        )

    async def change_node(self, address: str, target: str, caller: Caller, what: str, words: str) -> Step:
        """Send a node a POST about the node itself, and record it; for callers on asyncio."""

        async def post() -> Step:
            call = Call(address=address, is_lookupd=False, target=target)
            with acting_for(caller.identity.user or caller.basic_user):
                return await self._called(call, _nobody)

        step = await run_trio(post)
        self.note_node(address, caller, what, words, "ok" if step.is_done else "failed")
        return step

    def note_node(self, address: str, caller: Caller, what: str, words: str, result: str) -> None:
        """Record the outcome of a change to a whole node in the audit log."""
        self._activity.note(caller, what, words, result, nodes=(address,))

    async def _carry_out(self, action: Action, also: Sequence[str], steps: _Steps) -> tuple[str, list[str]]:
        """Return why it wasn't finished ("": it was), and discovery's errors. Adds each attempt to `steps`."""
        try:
            if action.kind is Kind.REMOVE_FROM_NODE:
                await self._at_lookupds(action, steps)
                return await self._remove(action, steps), []
            if action.kind in _CREATIONS:
                return await self._create(action, steps)
            found = await self._queries.topic_producers(action.topic)
            if not action.nodes:  # a deletion on some nodes only doesn't change the directory
                await self._at_lookupds(action, steps)
            meant = nodes_meant(action, list(dict.fromkeys((*(it.address for it in found.value), *also))))
            await self._at_nodes(node_calls(action, meant), steps)
            return "", list(found.errors)
        except TotalFailure as error:
            return str(error), []

    async def _create(self, action: Action, steps: _Steps) -> tuple[str, list[str]]:
        await self._at_lookupds(action, steps)
        producers: list[str] = []
        errors: list[str] = []
        if action.kind is Kind.CREATE_CHANNEL:
            if self._queries.has_lookupds:
                found = await self._queries.topic_producers(action.topic)
                producers, errors = [producer.address for producer in found.value], list(found.errors)
            elif not action.nodes:
                raise TotalFailure(f"failed to query any {LOOKUPD}: ")
            # A node only creates a channel in a topic that it has.
            without = [address for address in action.nodes if address not in producers]
            await self._at_nodes(node_calls(replace(action, kind=Kind.CREATE_TOPIC, channel=""), without), steps)
        await self._at_nodes(node_calls(action, nodes_meant(action, producers)), steps)
        return "", errors

    async def _remove(self, action: Action, steps: _Steps) -> str:
        """Remove the topic from one node, at the address that the node itself reports. Return the error, or "".

        As in NSQ, this error text is the whole answer to the client.
        """
        address = action.nodes[0]
        try:
            there = (await self._queries.info(address)).address
        except UpstreamError as error:
            steps.append(_step(Call(address=address, is_lookupd=False, target=node_target(action)), error))
            return f"failed to query any nsqd: {error}"
        await self._at_nodes(node_calls(action, [there]), steps)
        return ""

    async def _at_lookupds(self, action: Action, steps: _Steps) -> None:
        for call in lookupd_calls(action, self._queries.lookupds):
            steps.append(await self._called(call, steps.told))  # a later failure must not lose the earlier steps

    async def _at_nodes(self, calls: Sequence[Call], steps: _Steps) -> None:
        """Make all calls at the same time, so that a hanging node doesn't delay the others."""
        made: dict[int, Step] = {}

        async def make(number: int) -> None:
            made[number] = await self._made(calls[number], steps)

        async with trio.open_nursery() as nursery:
            for number in range(len(calls)):
                nursery.start_soon(make, number)
        steps.extend(made[number] for number in range(len(calls)))
        order = {call.address: number for number, call in enumerate(calls)}
        steps.states.sort(key=lambda state: order[state.node])  # they have answered in any order

    async def _made(self, call: Call, steps: _Steps) -> Step:
        """Call a node, after asking it for the state that an undo needs."""
        try:
            state = await steps.look(call.address) if steps.look is not None else None
        except UpstreamError as error:
            why = f"{explain(call.address, error)} Nothing was changed there."
            step = replace(_step(call, error), may_follow=False, why=why)
            steps.told(step)
            return step
        step = await self._called(call, steps.told)
        if state is not None and (step.is_done or step.may_follow):  # without a change there is nothing to undo
            steps.states.append(state)
        return step

    async def _called(self, call: Call, told: Callable[[Step], None]) -> Step:
        error = await self._queries.post(call.address, call.target, is_lookupd=call.is_lookupd)
        step = _step(call, error)
        told(step)
        return step

    # Reports

    def _report(self, receipt: Receipt, caller: Caller, lost: int) -> None:
        action = receipt.action
        errors = [*receipt.discovery_errors, *(step.error for step in receipt.steps if step.error)]
        what = _IN_LOG.get(action.kind, f"{action.kind.partition('_')[0]} topic/channel")
        if receipt.failure:
            log.error("failed to %s - %s", what, receipt.failure)
        elif errors:
            log.warning("failed to %s - %s", what, "\n".join(errors))
        failed = [step.address for step in receipt.steps if step.error]
        text = _words(action) if receipt.result == "failed" else _words_done(action, lost)
        text += f"; failed on {', '.join(dict.fromkeys(failed))}" if failed else ""
        self._activity.note(
            caller,
            action.kind.value,
            text,
            receipt.result,
            topic=action.topic,
            channel=action.channel,
            nodes=tuple(dict.fromkeys(step.address for step in receipt.steps)) or action.nodes,
            at=receipt.at,
            took=receipt.took,
            undo=receipt.undo,
        )
        if not receipt.failure or action.kind in _ALWAYS_NOTIFIED:
            self._notifier.action(action, caller)


def _step(call: Call, error: UpstreamError | None) -> Step:
    step = Step(address=call.address, is_lookupd=call.is_lookupd, target=call.target)
    if error is None:
        return step
    why = _STILL_TO_COME if error.timed_out else explain(call.address, error)
    return replace(step, error=str(error), why=why, may_follow=may_follow(error))


def may_follow(error: UpstreamError) -> bool:
    """Return True if the node may still carry out the request although it hasn't confirmed it.

    Once the connection is made, the request waits in the node's socket, even while the node is stopped. After a 500 of
    nsqd the change is in effect; only saving it to disk failed.
    """
    return error.status >= _SERVER_ERROR or not (error.status or _NOT_CONNECTED in str(error))


def _words(action: Action) -> str:
    words = f"{action.kind.replace('_', ' ')} {action.name}"
    if action.kind is Kind.REMOVE_FROM_NODE:
        words = f"remove {action.topic} from node {', '.join(action.nodes)}"
    elif action.kind is Kind.FORGET_READER:
        words = f"forget that {action.reader} reads {action.topic}"
    elif action.place:
        words += f" to {action.place}"
    return words


def _words_done(action: Action, lost: int) -> str:
    """Return the words for a finished action, with the number of messages lost."""
    count = f"{lost:,} message{'' if lost == 1 else 's'}"
    match action.kind:
        case Kind.EMPTY_TOPIC | Kind.EMPTY_CHANNEL:
            return f"emptied {action.kind.partition('_')[2]} {action.name} of {count}"
        case Kind.DELETE_TOPIC | Kind.DELETE_CHANNEL:
            return f"deleted {action.kind.partition('_')[2]} {action.name} with {count}"
    return _words(action)
