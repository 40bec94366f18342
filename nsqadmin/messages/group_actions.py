"""Actions on one group of a channel: bury, cancel or reschedule what waits of it, and give back what was buried.

A group's name is the value of a header, so these actions need the right to see messages, too. The audit log, which more
people read, doesn't have the name.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Severity
from nsqadmin.messages.buried import job_in, kick_in
from nsqadmin.messages.buried_actions import Taken
from nsqadmin.messages.deferred_actions import in_words
from nsqadmin.messages.lists import BadRequest, text_in, whole_in
from nsqadmin.messages.selection_plan import (
    LeftOut,
    NodeRequest,
    NodeResult,
    SelectionAction,
    SelectionPlan,
    who_receives,
)
from nsqcommon.wire.groups import checked_group
from nsqcommon.wire.headers import BadHeaders

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.message_groups import MessageGroup, NodeGroups
    from nsqadmin.cluster.model import Channel

_WORDS: Final = {
    "NOT_FOUND": "it does not support groups: it is a Go nsqd or an older version",
    "NO_GROUPS": "its policy file has no rules about groups for this channel any more",
    "INVALID_DEFER": "it does not defer for that long: see its --max-defer-timeout",
    "STOPPED": "it was stopped: repeat it for the rest",
    "EPHEMERAL_TOPIC": "messages of an ephemeral topic cannot be changed",
    "EPHEMERAL_CHANNEL": "messages of an ephemeral channel cannot be changed",
    "FULL": "the channel has no room for them: wait until consumers have made room, or kick fewer in the tab Buried",
    "JOB_UNDER_WAY": "a kick or discard is already running there",
}


class GroupVerb(StrEnum):
    BURY = "bury"
    CANCEL = "cancel"
    DUE = "due"

    @property
    def past(self) -> str:
        return {GroupVerb.BURY: "buried", GroupVerb.CANCEL: "cancelled", GroupVerb.DUE: "moved"}[self]


def _action(name: str, does: str, label: str, icon: str, done: str) -> SelectionAction:
    return SelectionAction(name=name, right=Right.OPERATE, does=does, label=label, icon=icon, done=done, words=_WORDS)


VERBS: Final = {
    GroupVerb.DUE: _action("move_group", "move a group of", "Move", "move", "Moved"),
    GroupVerb.BURY: _action("bury_group", "bury a group of", "Bury", "empty", "Buried"),
    GroupVerb.CANCEL: _action("cancel_group", "cancel a group of", "Cancel", "delete", "Cancelled"),
}
UNDO: Final = SelectionAction(
    name="undo_bury_group", right=Right.OPERATE, does="undo the burial of a group of", done="Back", words=_WORDS
)
ACTIONS: Final = (*VERBS.values(), UNDO)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWanted:
    """A user's request about a group."""

    verb: GroupVerb
    group: str
    when: str = ""  # when its messages should be due, as typed by the user
    delay: float | None = None  # seconds from now; None: not chosen yet


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """One node's part."""

    node: str
    count: int = 0  # messages of the group that the node has listed; it may have more


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged(NodeResult):
    """One node's result."""

    in_flight: int = 0  # a consumer has them, so they weren't changed
    unread: int = 0  # the disk refuses to read them, so they weren't changed
    reason: str = ""  # of the burials


def _refusal(plan: SelectionPlan[Any, Any], identity: Identity) -> str:
    return identity.why_not(plan.action.right, plan.topic) or identity.why_not(Right.PAYLOAD, plan.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan(SelectionPlan[GroupShare, GroupChanged]):
    """The consequences of an action on a group."""

    wanted: GroupWanted

    @property
    def action(self) -> SelectionAction:
        return VERBS[self.wanted.verb]

    def refusal(self, identity: Identity) -> str:
        return _refusal(self, identity)

    @property
    def title(self) -> str:
        what = f"the group {self.wanted.group} in {self.topic}/{self.channel}"
        if self.wanted.verb is not GroupVerb.DUE:
            return f"{self.wanted.verb.capitalize()} {what}"
        return f"Move {what}" if self.wanted.delay is None else f"Make {what} due {in_words(self.wanted.delay)}"

    @property
    def must_type(self) -> str:
        return self.wanted.group if self.wanted.verb is GroupVerb.CANCEL else ""

    @property
    def to_type(self) -> str:
        return "the name of the group"

    def is_confirmed_by(self, typed: str) -> bool:
        return typed == self.must_type

    def conversation(self, share: GroupShare) -> Generator[tuple[GroupChanged, NodeRequest], bytes, GroupChanged]:
        verb = self.wanted.verb
        arguments: list[tuple[str, object]] = [*self.named, ("group", self.wanted.group)]
        if verb is GroupVerb.DUE and self.wanted.delay:
            arguments.append(("defer", round(self.wanted.delay * 1000)))
        asked = GroupChanged(node=share.node, asked=share.count)
        told = json.loads((yield asked, NodeRequest(f"/channel/{verb}", arguments)))
        return GroupChanged(
            node=share.node,
            asked=share.count,
            done=whole_in(told[verb.past]),
            in_flight=whole_in(told["in_flight"]),
            unread=whole_in(told["unread"]),
            reason=text_in(told["reason"]) if verb is GroupVerb.BURY else "",
        )

    def noted(self, results: Sequence[GroupChanged]) -> str:
        verb = self.wanted.verb
        text = (
            f"{'made' if verb is GroupVerb.DUE else verb.past} {sum(it.done for it in results):,} messages of a group"
        )
        text += f" of {self.topic}/{self.channel}"
        return f"{text} due {in_words(self.wanted.delay)}" if verb is GroupVerb.DUE else text

    def outcome(self, results: Sequence[GroupChanged]) -> str:
        words = numbers.several(sum(it.done for it in results), "message").capitalize()
        is_due = self.wanted.verb is GroupVerb.DUE
        words += f" made due {in_words(self.wanted.delay)}" if is_due else f" {self.wanted.verb.past}"
        if in_flight := sum(it.in_flight for it in results):
            words += f"; {in_flight:,} left in flight at a consumer"
        if unread := sum(it.unread for it in results):
            words += f"; {unread:,} left as they are, because the disk cannot read them"
        return words

    def answered(self, result: GroupChanged) -> str:
        words = f"done; a consumer has {result.in_flight:,}" if result.in_flight else "done"
        return words + (f"; {result.unread:,} cannot be read" if result.unread else "")

    def burials(self, results: Sequence[GroupChanged]) -> tuple[str, ...]:
        return tuple(f"{it.reason}@{it.node}" for it in results if it.reason and it.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurialShare:
    """A node to ask for the messages that it has buried with this reason."""

    node: str
    reason: str
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoBuryPlan(SelectionPlan[BurialShare, Taken]):
    """Kicks what was buried of a group."""

    @property
    def action(self) -> SelectionAction:
        return UNDO

    def refusal(self, identity: Identity) -> str:
        return _refusal(self, identity)

    @property
    def title(self) -> str:
        return f"Undo the burial of a group of {self.topic}/{self.channel}"

    def conversation(self, share: BurialShare) -> Generator[tuple[Taken, NodeRequest], bytes, Taken]:
        taken = Taken(node=share.node, asked=0)
        told = json.loads((yield taken, NodeRequest("/channel/kick", [*self.named, ("reason", share.reason)])))
        done = whole_in(told["kicked"])
        return Taken(node=share.node, asked=done, done=done, job=job_in(told["job"]), kick=kick_in(told))

    def noted(self, results: Sequence[Taken]) -> str:
        rest = ", still running for the rest" if self.at_work(results) else ""
        done = sum(it.done for it in results)
        return f"undid the burial of a group of {self.topic}/{self.channel}: {done:,} messages returned to their group{rest}"

    def outcome(self, results: Sequence[Taken]) -> str:
        words = f"{numbers.several(sum(it.done for it in results), 'message').capitalize()} returned to the group"
        return f"{words} so far" if self.at_work(results) else words

    def answered(self, result: Taken) -> str:
        return "running" if result.job is not None else "done"

    def at_work(self, results: Sequence[Taken]) -> bool:
        return any(it.job is not None for it in results)

    def kicks(self, results: Sequence[Taken]) -> tuple[str, ...]:
        return tuple(f"{it.kick}@{it.node}" for it in results if it.kick and it.done)


def undo_bury_plan(channel: Channel, words: Iterable[str]) -> UndoBuryPlan:
    """Plan to undo burials, each given as REASON@NODE. Raise BadRequest."""
    nodes = {row.node for row in channel.nodes}
    burials = [word.rpartition("@") for word in dict.fromkeys(words)]
    if not burials or not all(reason and node in nodes for reason, _, node in burials):
        raise BadRequest("this burial can't be undone")
    shares = tuple(BurialShare(node=node, reason=reason) for reason, _, node in burials)
    return UndoBuryPlan(topic=channel.topic, channel=channel.name, shares=shares)


def parse_group(text: str) -> str:
    """Return the name of a group, which isn't empty. Raise BadRequest."""
    try:
        return checked_group(text).decode()
    except BadHeaders as error:
        raise BadRequest(str(error)) from error


def plan_group(channel: Channel, told: Iterable[NodeGroups], wanted: GroupWanted) -> GroupPlan:
    """Return the plan for each node that answers and has rules about groups."""
    left_out: list[LeftOut] = []
    asked: list[NodeGroups] = []
    for it in told:
        if it.untold:
            left_out.append(LeftOut(node=it.node, why=f"did not report its groups: {it.untold}"))
        elif not it.has_rules:
            left_out.append(LeftOut(node=it.node, why="has no rules about groups for this channel"))
        else:
            asked.append(it)
    found = {it.node: row for it in asked for row in it.largest if row.name == wanted.group}
    shares = tuple(
        GroupShare(node=it.node, count=row.held + row.again if (row := found.get(it.node)) is not None else 0)
        for it in asked
    )
    return GroupPlan(
        wanted=wanted,
        topic=channel.topic,
        channel=channel.name,
        shares=shares,
        left_out=tuple(left_out),
        consequences=tuple(_consequences(channel, wanted, asked, found.values(), left_out)),
    )


def _consequences(
    channel: Channel,
    wanted: GroupWanted,
    asked: Sequence[NodeGroups],
    rows: Iterable[MessageGroup],
    left_out: Sequence[LeftOut],
) -> Iterator[Consequence]:
    for it in left_out:
        yield Consequence(text=f"{it.node} {it.why}. It is not asked.", severity=Severity.WARNING)
    if not asked:
        yield Consequence(text="No node with rules about groups answers.", severity=Severity.WARNING)
        return
    in_flight = sum(row.in_flight for row in rows)
    text = "This includes all waiting messages of the group: held, new, deferred and requeued."
    if unlooked := sum(it.ahead + it.unsorted for it in asked):
        text += f" The nodes have not read {numbers.several(unlooked, 'message')} yet, so there may be more of it."
    yield Consequence(text=text)
    if in_flight:
        text = f"{in_flight:,} of its messages are in flight now, and stay there."
        yield Consequence(text=text)
    if wanted.verb is GroupVerb.CANCEL:
        text = "No consumer of this channel will ever receive them. This cannot be undone."
        yield Consequence(text=text, severity=Severity.PROBLEM)
        yield Consequence(text="Other channels of the topic still deliver them.")
    elif wanted.verb is GroupVerb.BURY:
        yield Consequence(text="They wait until they are kicked. Messages published later are delivered.")
        yield Consequence(text="Undo returns them in their order; attempts restart at 1.")
    elif wanted.delay != 0:
        text = "They wait until then, in this channel only. Messages published later are delivered before them."
        yield Consequence(text=text)
    else:
        yield Consequence(text="Deferred ones become due now, in this channel only. The others keep their places.")
        yield from who_receives(channel, [it.node for it in asked])
