"""Actions on buried messages: kick or discard them, stop running jobs, and undo a kick.

To add an action, write a plan here, and its fields in nsqadmin/pages/selection_plan.py and its template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Severity
from nsqadmin.messages.buried import Operation, job_in, kick_in
from nsqadmin.messages.lists import BadRequest, Sight, whole_in
from nsqadmin.messages.selection_plan import (
    FEW,
    LeftOut,
    NodeRequest,
    NodeResult,
    SelectionAction,
    SelectionPlan,
    who_receives,
)

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.buried import BuriedSummary, NodeSummary

MOST_NAMED: Final = 900  # messages at once, as nsqd allows
DEFAULT_RATE: Final = 1000.0  # messages a second, over all nodes
_HIGHEST_RATE: Final = 1e9
_WITHOUT_JOB: Final = 2000  # messages that nsqd handles before it answers
_LEAST_RATE: Final = 0.001
_IN_ONE_REQUEST: Final = 200  # messages by their ids, so that the URL stays below 8 kB
_WORDS: Final = {
    "NOT_FOUND": "it cannot bury messages: it is a Go nsqd or an older version",
    "JOB_UNDER_WAY": "a kick or discard is already running there",
    "FULL": "the channel has no room for them: kick fewer, wait until consumers have made room, or use force",
    "KICK_NOT_FOUND": "it is too late: the kick was more than 10 minutes ago, there was a later one, or nsqd was restarted",
}
_kick: Final = re.compile(r"([0-9]{1,16})@(\S+)", re.ASCII).fullmatch
_pick: Final = re.compile(r"([0-9a-f]{16})@(\S+)", re.ASCII).fullmatch


class Verb(StrEnum):
    KICK = "kick"
    DISCARD = "discard"

    @property
    def past(self) -> str:
        return "kicked" if self is Verb.KICK else "discarded"


VERBS: Final = {
    Verb.KICK: SelectionAction(
        name="kick_buried",
        right=Right.OPERATE,
        does="kick buried messages of",
        label="Kick",
        icon="replay",
        words=_WORDS,
    ),
    Verb.DISCARD: SelectionAction(
        name="discard_buried",
        right=Right.ADMIN,
        does="discard buried messages of",
        label="Discard",
        icon="delete",
        words=_WORDS,
    ),
}
STOP: Final = SelectionAction(
    name="stop_buried", right=Right.OPERATE, does="stop kicks and discards of", done="", words=_WORDS
)
UNDO: Final = SelectionAction(
    name="undo_kick", right=Right.OPERATE, does="undo a kick of buried messages of", words=_WORDS
)
ACTIONS: Final = (*VERBS.values(), STOP, UNDO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The messages to kick or discard: those with these ids, or all with a text in their reason.

    The text may be the name of a listed reason.
    """

    verb: Verb
    ids: tuple[tuple[str, str], ...] = ()  # node and id
    reason: str = ""
    limit: int = 0  # 0: all
    rate: float = 0.0  # messages a second over all nodes; 0: as fast as the nodes can
    force: bool = False  # kick also what has no room in the channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One node's part."""

    node: str
    count: int
    rate: float = 0.0
    ids: tuple[str, ...] = ()
    room: int | None = None  # how many messages a kick can return there without force; None: any number

    @property
    def has_room(self) -> bool:
        return self.room is None or self.count <= self.room


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(NodeResult):
    """The progress of one node so far."""

    job: Operation | None = None  # does the rest, or was stopped
    kick: int = 0  # number for undoing a kick; 0: can't be undone

    def seen(self, sight: Sight) -> Taken:
        return replace(self, job=self.job and self.job.seen(sight))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedPlan(SelectionPlan[Share, Taken]):
    """The consequences of a kick or discard."""

    wanted: Wanted
    reason: str = ""  # the part of the selected reason that the user may see
    _text: str = field(default="", repr=False)  # that reason as nodes know it; in no answer
    _public: str = field(default="", repr=False)  # the part that everyone may see

    @property
    def action(self) -> SelectionAction:
        return VERBS[self.wanted.verb]

    @property
    def title(self) -> str:
        return f"{self.wanted.verb.capitalize()} {numbers.several(self.count, 'buried message')} of {self.topic}/{self.channel}"

    @property
    def needs_force(self) -> bool:
        """True if a node refuses the kick without force."""
        return self.wanted.verb is Verb.KICK and not all(it.has_room for it in self.shares)

    @property
    def must_type(self) -> str:
        return str(self.count) if self.wanted.verb is Verb.DISCARD and not self.wanted.ids and self.count else ""

    def conversation(self, share: Share) -> Generator[tuple[Taken, NodeRequest], bytes, Taken]:
        taken = Taken(node=share.node, asked=share.count)
        if len(share.ids) > _IN_ONE_REQUEST and self.needs_force and not self.wanted.force and not share.has_room:
            return replace(taken, error=_WORDS["FULL"])  # it would accept the first requests and refuse the last
        for arguments in self._arguments(share):
            goes_on = [("kick", taken.kick)] if taken.kick else []
            request = NodeRequest(f"/channel/{self.wanted.verb}", [*self.named, *arguments, *goes_on])
            told = json.loads((yield taken, request))
            done = taken.done + whole_in(told[self.wanted.verb.past])
            taken = replace(taken, done=done, job=job_in(told["job"]), kick=kick_in(told))
        return taken

    def _arguments(self, share: Share) -> Iterator[list[tuple[str, object]]]:
        """Yield the arguments of each request.

        A selection by reason has the plan's number of messages as its limit, so messages buried after the user has
        looked aren't touched.
        """
        forced: list[tuple[str, object]] = [("force", "true")] if self.wanted.force else []
        for at in range(0, len(share.ids), _IN_ONE_REQUEST):
            yield [*(("id", id) for id in share.ids[at : at + _IN_ONE_REQUEST]), *forced]
        if not share.ids:
            more = {"reason": self._text, "rate": f"{share.rate:.3f}" if share.rate else ""}
            yield [("limit", share.count), *forced, *((name, it) for name, it in more.items() if it)]

    def noted(self, results: Sequence[Taken]) -> str:
        text = f"{self.wanted.verb.past} {sum(it.done for it in results):,} of {self.count:,} buried messages"
        text += f" of {self.topic}/{self.channel}"
        text += f" with the reason “{self._public}”" if self._text else ""
        if sum(it.asked for it in results if it.job is not None):
            text += ", still running" + (f" at {self.wanted.rate:g} a second" if self.wanted.rate else "")
        return text

    def outcome(self, results: Sequence[Taken]) -> str:
        done = sum(it.done for it in results)
        left = sum(it.asked - it.done for it in results if it.job is not None)
        return f"{done:,} of {done + left:,} {self.wanted.verb.past}" if left else _counted(done, self.wanted.verb.past)

    def answered(self, result: Taken) -> str:
        if result.job is not None:
            return _running(result.job)
        left = result.asked - result.done
        return f"done; {left:,} no longer buried" if left > 0 else "done"

    def at_work(self, results: Sequence[Taken]) -> bool:
        return any(it.job is not None for it in results)

    def kicks(self, results: Sequence[Taken]) -> tuple[str, ...]:
        return tuple(f"{it.kick}@{it.node}" for it in results if it.kick and it.done)


def _running(job: Operation) -> str:
    return "running" + (f", {numbers.rate(job.rate)}" if job.rate else "")


def _counted(done: int, past: str) -> str:
    return f"{numbers.several(done, 'message')} {past}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsAtNode:
    """A node to ask about a kick, or about all its running jobs."""

    node: str
    count: int = 0
    kick: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan(SelectionPlan[OperationsAtNode, Taken]):
    """The consequences of undoing kicks: unconsumed messages are buried again. `asked` is the number kicked."""

    @property
    def action(self) -> SelectionAction:
        return UNDO

    @property
    def title(self) -> str:
        return f"Undo the kick of {self.topic}/{self.channel}"

    def conversation(self, share: OperationsAtNode) -> Generator[tuple[Taken, NodeRequest], bytes, Taken]:
        taken, request = Taken(node=share.node, asked=0), [*self.named, ("kick", share.kick)]
        told = json.loads((yield taken, NodeRequest("/channel/kick/undo", request)))
        asked, done = whole_in(told["kicked"]), whole_in(told["buried"])
        return replace(taken, asked=asked, done=done, job=job_in(told["job"]))

    def noted(self, results: Sequence[Taken]) -> str:
        done, kicked = sum(it.done for it in results), sum(it.asked for it in results)
        return f"undid a kick of {self.topic}/{self.channel}: {done:,} of {kicked:,} messages buried again"

    def outcome(self, results: Sequence[Taken]) -> str:
        words = _counted(sum(it.done for it in results), "buried again")
        if at_work := [it.node for it in results if it.job is not None]:
            return f"{words} so far; still running on {', '.join(at_work)}"
        left = sum(it.asked - it.done for it in results)
        return f"{words}; {left:,} already delivered or dropped" if left else words

    def answered(self, result: Taken) -> str:
        if result.job is not None:
            return _running(result.job)
        left = result.asked - result.done
        return f"done; {left:,} already delivered" if left > 0 else "done"

    def at_work(self, results: Sequence[Taken]) -> bool:
        return any(it.job is not None for it in results)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan(SelectionPlan[OperationsAtNode, Taken]):
    """Ends every running kick and discard. A node without one has no `job` in its result."""

    @property
    def action(self) -> SelectionAction:
        return STOP

    @property
    def title(self) -> str:
        return f"Stop kicks and discards of {self.topic}/{self.channel}"

    def conversation(self, share: OperationsAtNode) -> Generator[tuple[Taken, NodeRequest], bytes, Taken]:
        taken = Taken(node=share.node, asked=0)
        job = job_in(json.loads((yield taken, NodeRequest("/channel/jobs/stop", self.named)))["job"])
        return replace(taken, asked=job.limit if job else 0, done=job.done if job else 0, job=job)

    def noted(self, results: Sequence[Taken]) -> str:
        done = [f"{it.job.verb} on {it.node} after {it.done:,}" for it in results if it.job is not None]
        return f"stopped in {self.topic}/{self.channel}: {', '.join(done) or 'nothing was running'}"

    def outcome(self, results: Sequence[Taken]) -> str:
        return "; ".join(_stopped(it, it.job) for it in results if it.job is not None) or "Nothing was running"

    def answered(self, result: Taken) -> str:
        return "nothing was running" if result.job is None else "stopped"


def _stopped(taken: Taken, job: Operation) -> str:
    past = Verb(job.verb).past if job.verb in tuple(Verb) else job.verb
    of = f" of {taken.asked:,}" if taken.asked else ""
    return f"{taken.done:,}{of} {past} on {taken.node}, the others stay buried"


def stop_plan(channel: Channel) -> StopPlan:
    parts = tuple(OperationsAtNode(node=row.node) for row in channel.nodes)
    return StopPlan(topic=channel.topic, channel=channel.name, shares=parts)


def undo_plan(channel: Channel, words: Iterable[str]) -> UndoPlan:
    """Plan to undo the kicks with these names, `NUMBER@NODE`. Raise BadRequest."""
    kicks = parse_kicks(words)
    if unknown := {node for node, _ in kicks} - {row.node for row in channel.nodes}:
        raise BadRequest(f"no node of this channel has the address {min(unknown)[:100]}")
    parts = tuple(OperationsAtNode(node=node, kick=kick) for node, kick in kicks)
    return UndoPlan(topic=channel.topic, channel=channel.name, shares=parts)


def parse_picks(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Parse names of messages, `ID@NODE`. Raise BadRequest."""
    picks = dict.fromkeys(words)
    if len(picks) > MOST_NAMED:
        raise BadRequest(f"at most {MOST_NAMED} messages can be named at once")
    found = [_pick(word) for word in picks]
    if not all(found):
        raise BadRequest("these aren't messages of this page")
    return tuple((it[2], it[1]) for it in found if it is not None)


def parse_kicks(words: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Parse names of kicks, `NUMBER@NODE`. Raise BadRequest."""
    found = [_kick(word) for word in dict.fromkeys(words)]
    if not found or not all(found):
        raise BadRequest("this kick can't be undone")
    return tuple((it[2], int(it[1])) for it in found if it is not None)


def parse_rate(text: str) -> float:
    """Parse a rate; empty: as fast as possible. Raise BadRequest."""
    if not text.strip():
        return 0.0
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not _LEAST_RATE <= rate <= _HIGHEST_RATE:
        raise BadRequest(f"a rate is a number of messages a second, not {text[:40]}")
    return rate


def plan_buried(
    channel: Channel, summary: BuriedSummary, wanted: Wanted, *, text: str = "", shown: str = "", public: str = ""
) -> BuriedPlan:
    """Return the plan for each node that has answered. Raise BadRequest for a node that the channel doesn't have.

    `text` is the selected reason, `shown` the part that the user may see, and `public` the part for everyone.
    """
    left_out = [
        LeftOut(node=it.node, why=f"did not report its buried messages: {it.error}", last_known=it.count)
        for it in summary.missing
    ]
    if wanted.ids:
        shares = _named(summary, wanted)
        meant = {node for node, _ in wanted.ids}
        left_out = [it for it in left_out if it.node in meant]
    else:
        left_out += [
            LeftOut(node=node, why=f"is already running a {job.verb}: stop it, or wait until it ends")
            for node, job in summary.under_way
        ]
        shares = _selected([it for it in summary.answered if it.job is None], wanted, text)
    return BuriedPlan(
        wanted=wanted,
        topic=channel.topic,
        channel=channel.name,
        shares=shares,
        left_out=tuple(left_out),
        consequences=tuple(_consequences(channel, summary, wanted, shares, left_out, text)),
        reason=shown,
        _text=text,
        _public=public,
    )


def _named(summary: BuriedSummary, wanted: Wanted) -> tuple[Share, ...]:
    ids: dict[str, list[str]] = {}
    for node, id in wanted.ids:
        ids.setdefault(node, []).append(id)
    if unknown := ids.keys() - {it.node for it in summary.nodes}:
        raise BadRequest(f"no node of this channel has the address {min(unknown)[:100]}")
    rooms = {it.node: it.room for it in summary.answered}
    return tuple(
        Share(node=node, count=len(it), ids=tuple(it), room=rooms[node]) for node, it in ids.items() if node in rooms
    )


def _selected(nodes: Sequence[NodeSummary], wanted: Wanted, text: str) -> tuple[Share, ...]:
    """Divide a limit among nodes in turn, and a rate by the nodes' numbers of messages, so that all end together."""
    counts: dict[str, int] = {}
    left = wanted.limit
    for it in nodes:
        count = it.having(text) if text else it.count
        if wanted.limit:
            count = min(count, left)
            left -= count
        if count:
            counts[it.node] = count
    total, rooms = sum(counts.values()), {it.node: it.room for it in nodes}
    return tuple(
        Share(
            node=node,
            count=count,
            rate=max(_LEAST_RATE, wanted.rate * count / total) if wanted.rate else 0.0,
            room=rooms[node],
        )
        for node, count in counts.items()
    )


# Consequences


def _consequences(
    channel: Channel,
    summary: BuriedSummary,
    wanted: Wanted,
    shares: Sequence[Share],
    left_out: Sequence[LeftOut],
    text: str,
) -> Iterator[Consequence]:
    for it in left_out:
        had = (
            f" It had {numbers.several(it.last_known, 'buried message')} when it was last seen."
            if it.last_known
            else ""
        )
        yield Consequence(text=f"{it.node} {it.why}. It is not asked.{had}", severity=Severity.WARNING)
    count = sum(it.count for it in shares)
    if not count:
        yield Consequence(text="No matching message is buried on the other nodes.", severity=Severity.WARNING)
        return
    different = len({it.reason for node in summary.answered for it in node.reasons if text in it.reason}) if text else 0
    if different > 1:
        yield Consequence(
            text=f"{different:,} different reasons contain this text: the messages of all of them are included."
        )
    if wanted.reason and summary.others:
        yield Consequence(text="This is an upper limit: not every reason is listed.")
    if wanted.verb is Verb.DISCARD:
        yield Consequence(
            text="They are deleted from this channel for good. This cannot be undone.", severity=Severity.PROBLEM
        )
    else:
        yield from _of_a_kick(channel, wanted, shares, count)
    if not wanted.ids and (wanted.rate or any(it.count > _WITHOUT_JOB for it in shares)):
        stays = f"messages already {wanted.verb.past} stay {wanted.verb.past}"
        yield Consequence(
            text=f"While it runs, the tab Buried has a button Stop, which leaves the others buried; {stays}."
        )
    if wanted.verb is Verb.KICK:
        yield Consequence(text="For 10 minutes after it ends, Undo buries again those that no consumer has received.")


def _of_a_kick(channel: Channel, wanted: Wanted, shares: Sequence[Share], count: int) -> Iterator[Consequence]:
    text = "Requeues them in this channel only; attempts restart at 1."
    yield Consequence(text=text)
    yield from who_receives(channel, [it.node for it in shares])
    yield from _of_full_channels([it for it in shares if not it.has_room], force=wanted.force)
    if wanted.rate:
        lasts = numbers.duration(max(1.0, count / wanted.rate))
        yield Consequence(text=f"At most {wanted.rate:,.10g} a second over all nodes: about {lasts}.")
    elif not wanted.ids:
        yield Consequence(text="No limit: as fast as the nodes can.")


def _of_full_channels(shares: Sequence[Share], *, force: bool) -> Iterator[Consequence]:
    """Say where a limit of the policy file leaves no room: nothing drops kicked messages."""
    if not shares:
        return
    room = ", ".join(f"{it.room:,} of {it.count:,} on {it.node}" for it in shares[:FEW])
    more = f" and {len(shares) - FEW} more nodes have too little" if len(shares) > FEW else ""
    if force:
        becomes = "With force they are requeued anyway: until they are consumed, new messages are dropped on arrival."
    else:
        becomes = "A node with too little room refuses all of them: kick fewer, wait for the consumers, or use force."
    text = f"The policy file limits the channel: it has room for {room}{more}. {becomes}"
    yield Consequence(text=text, severity=Severity.WARNING)
