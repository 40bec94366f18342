"""Actions on deferred messages: cancel them, or change when they are due."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Paused, Severity
from nsqadmin.messages.lists import BadRequest, ListPage, Summary, whole_in
from nsqadmin.messages.selection import MOST, Selection, Source, arguments_of, selected
from nsqadmin.messages.selection_plan import (
    FEW,
    LeftOut,
    NodeRequest,
    NodeResult,
    SelectionAction,
    SelectionPlan,
    who_receives,
)
from nsqcommon.durations import parse_long_duration, seconds

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.deferred import Deferral, NodeDeferred

_MOST_SECONDS: Final = 3600 * 24 * 365 * 10


_WORDS: Final = {
    "NOT_FOUND": "it cannot cancel or move messages: it is a Go nsqd or an older version",
    "MISSING_ARG_CHANNEL": "it cannot cancel or move messages by sequence: it is an older version",
    "INVALID_REQUEST": "it cannot cancel or move messages by sequence: it is an older version",
    "INVALID_DEFER": "it does not defer for that long: see its --max-defer-timeout",
    "EPHEMERAL_TOPIC": "messages of an ephemeral topic cannot be named",
}


class RecallVerb(StrEnum):
    CANCEL = "cancel"
    DUE = "due"

    @property
    def past(self) -> str:
        return "cancelled" if self is RecallVerb.CANCEL else "moved"


def _action(name: str, does: str, done: str) -> SelectionAction:
    return SelectionAction(name=name, right=Right.OPERATE, does=does, done=done, words=_WORDS)


VERBS: Final = {
    RecallVerb.CANCEL: _action("cancel_deferred", "cancel deferred messages of", "Cancelled"),
    RecallVerb.DUE: _action("move_deferred", "move deferred messages of", "Moved"),
}
ACTIONS: Final = tuple(VERBS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallWanted:
    """A user's request for deferred messages."""

    verb: RecallVerb
    messages: str = ""  # which ones, in the form of a Selection; a plan has it
    when: str = ""  # when they should be due, as typed by the user
    delay: float | None = None  # seconds from now; None: not chosen yet


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallShare:
    """One node's part."""

    node: str
    log: str
    count: int
    runs: tuple[tuple[int, int], ...]  # of sequences, as [first, end)

    @property
    def sequences(self) -> str:
        """The first few messages, so that a user recognises what was selected."""
        first = [f"{it:,}" for it in islice((it for run in self.runs for it in range(*run)), FEW)]
        return ", ".join(first) + (f" and {self.count - len(first):,} more" if self.count > len(first) else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(NodeResult):
    """One node's result."""

    in_flight: int = 0  # a consumer has them, so they weren't changed
    gone: int = 0  # finished, taken back or buried before


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The messages to cancel or move, and remarks about the search."""

    selection: Selection
    by_filter: bool = False  # selected as all matches, not by name
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredPlan(SelectionPlan[RecallShare, Recalled]):
    """The consequences of cancelling or moving them."""

    wanted: RecallWanted
    remarks: tuple[str, ...] = ()
    _by_filter: bool = field(default=False, repr=False)

    @property
    def action(self) -> SelectionAction:
        return VERBS[self.wanted.verb]

    @property
    def title(self) -> str:
        what = f"{numbers.several(self.count, 'deferred message')} of {self.topic}/{self.channel}"
        if self.wanted.verb is RecallVerb.CANCEL:
            return f"Cancel {what}"
        return (
            f"Change the due time of {what}"
            if self.wanted.delay is None
            else f"Make {what} due {in_words(self.wanted.delay)}"
        )

    @property
    def must_type(self) -> str:
        return str(self.count) if self.wanted.verb is RecallVerb.CANCEL and self._by_filter else ""

    def conversation(self, share: RecallShare) -> Generator[tuple[Recalled, NodeRequest], bytes, Recalled]:
        verb, recalled = self.wanted.verb, Recalled(node=share.node, asked=share.count)
        more: list[tuple[str, object]] = [("log", share.log)] if share.log else []
        more += [("defer", round((self.wanted.delay or 0) * 1000))] if verb is RecallVerb.DUE else []
        for arguments in arguments_of(share.runs):
            request = NodeRequest(f"/message/{verb}", [*self.named, *more, *arguments])
            told = json.loads((yield recalled, request))
            recalled = replace(
                recalled,
                done=recalled.done + whole_in(told[verb.past]),
                in_flight=recalled.in_flight + whole_in(told["in_flight"]),
                gone=recalled.gone + whole_in(told["done"]) + whole_in(told["buried"]),
            )
        return recalled

    def noted(self, results: Sequence[Recalled]) -> str:
        is_cancel, done = self.wanted.verb is RecallVerb.CANCEL, sum(it.done for it in results)
        text = f"{'cancelled' if is_cancel else 'made'} {done:,} of {self.count + sum(it.last_known for it in self.left_out):,}"
        text += f" deferred messages of {self.topic}/{self.channel}"
        text += "" if is_cancel else f" due {in_words(self.wanted.delay)}"
        left_out = ", ".join(it.node for it in self.left_out)
        return f"{text}; not asked: {left_out}" if left_out else text

    def outcome(self, results: Sequence[Recalled]) -> str:
        words = numbers.several(sum(it.done for it in results), "message").capitalize()
        words += " cancelled" if self.wanted.verb is RecallVerb.CANCEL else f" made due {in_words(self.wanted.delay)}"
        if in_flight := sum(it.in_flight for it in results):
            words += f"; {in_flight:,} left in flight at a consumer"
        gone = sum(it.gone for it in results)
        return f"{words}; {gone:,} no longer waiting" if gone else words

    def answered(self, result: Recalled) -> str:
        in_flight = f"; a consumer has {result.in_flight:,}" if result.in_flight else ""
        return f"done{in_flight}" + (f"; {result.gone:,} no longer waiting" if result.gone else "")

    def not_asked(self, node: LeftOut) -> str:
        stays = "stays as it is" if node.last_known == 1 else "stay as they are"
        return f"{node.node} was not asked: it {node.why}. {numbers.several(node.last_known, 'message')} there {stays}."


def chosen_of(page: ListPage[Deferral]) -> Chosen:
    """Return all messages that a search has found, with remarks where it hasn't looked."""
    remarks = [f"{node} was not fully searched: {why}." for node, why in page.missing]
    if page.after and len(page.lines) >= MOST:
        remarks.append(f"These are the {MOST:,} that are due first. There may be more: do it again for the rest.")
    elif page.after:
        remarks.append(f"Only the {page.looked:,} messages that are due first were searched: there may be more.")
    found = selected((Source(it.node, it.log), it.sequence) for it in page.lines if it.log)
    return Chosen(selection=found, by_filter=True, remarks=tuple(remarks))


def in_words(delay: float | None) -> str:
    return f"in {numbers.duration(delay)}" if delay else "now"


def parse_when(text: str, now: float) -> float:
    """Parse the time when messages should be due, and return the seconds until then. Raise BadRequest.

    Accepts `now`, a duration such as 10m or 1h30m, or a time such as 2026-03-01T12:00:00Z.
    """
    text = text.strip()
    try:
        delay = 0.0 if text == "now" else _delay(text, now)
    except ValueError as error:
        expected = "now, a duration like 10m or 2d, or a time like 2026-03-01T12:00:00Z"
        raise BadRequest(f"say when: {expected}" + (f", not {text[:40]}" if text else "")) from error
    if delay < 0:
        raise BadRequest(f"{text[:40]} is past: choose now, or a later time")
    if delay > _MOST_SECONDS:
        raise BadRequest("no node defers for more than ten years")
    return delay


def _delay(text: str, now: float) -> float:
    if "T" not in text:
        return seconds(parse_long_duration(text))
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now


def plan_deferred(
    channel: Channel, summary: Summary[NodeDeferred], chosen: Chosen, wanted: RecallWanted
) -> DeferredPlan:
    """Return the plan for each node that has answered. Raise BadRequest for a node that the channel doesn't have."""
    told = {it.node: it for it in summary.nodes}
    shares: list[RecallShare] = []
    left_out: list[LeftOut] = []
    for source, runs in chosen.selection.runs.items():
        if (node := told.get(source.node)) is None:
            raise BadRequest(f"no node of this channel has the address {source.node[:100]}")
        count = sum(end - first for first, end in runs)
        if node.error:
            why = f"did not report its deferred messages: {node.error}"
            left_out.append(LeftOut(node=node.node, why=why, last_known=count))
        else:
            shares.append(RecallShare(node=source.node, log=source.log, count=count, runs=tuple(runs)))
    return DeferredPlan(
        wanted=replace(wanted, messages=str(chosen.selection)),
        topic=channel.topic,
        channel=channel.name,
        shares=tuple(shares),
        left_out=tuple(left_out),
        consequences=tuple(_consequences(channel, wanted, shares, left_out)),
        remarks=chosen.remarks,
        _by_filter=chosen.by_filter,
    )


def _consequences(
    channel: Channel, wanted: RecallWanted, shares: Sequence[RecallShare], left_out: Sequence[LeftOut]
) -> Iterator[Consequence]:
    for it in left_out:
        text = f"{it.node} {it.why}. It is not asked, and {it.last_known:,} of these messages stay as they are."
        yield Consequence(text=text, severity=Severity.WARNING)
    if not shares:
        yield Consequence(text="No other node has any of these messages.", severity=Severity.WARNING)
        return
    is_one = sum(it.count for it in shares) == 1
    them = "it" if is_one else "them"
    if wanted.verb is RecallVerb.CANCEL:
        text = f"No consumer of this channel will ever receive {them}. This cannot be undone."
        yield Consequence(text=text, severity=Severity.PROBLEM)
        yield Consequence(text=f"Other channels of the topic still deliver {them}.")
    elif wanted.delay != 0:
        text = "It waits until then, in this channel only, and keeps its attempts."
        if not is_one:
            text = "They wait until then, in this channel only, and keep their attempts."
        yield Consequence(text=text)
    else:
        text = "It is" if is_one else "They are"
        text += " due at once" if channel.paused is not Paused.NO else " delivered as soon as a consumer is ready"
        yield Consequence(text=f"{text}, in this channel only.")
        yield from who_receives(channel, [it.node for it in shares])
    if is_one:
        text = "If it becomes due before you confirm, this still works, unless a consumer already has it."
    else:
        text = (
            "This covers messages that become due before you confirm. Those that a consumer already has are left alone."
        )
    yield Consequence(text=text)
