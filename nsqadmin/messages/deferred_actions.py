"""What cancelling deferred messages, or moving when they are due, would do, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Severity
from nsqadmin.messages.buried_actions import BadTaking, LeftOut, who_receives
from nsqcommon.durations import parse_long_duration, seconds

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.deferred import DeferredSummary
    from nsqadmin.messages.selection import Selection

_MOST_SECONDS: Final = 3600 * 24 * 365 * 10


class RecallVerb(StrEnum):
    CANCEL = "cancel"
    DUE = "due"

    @property
    def past(self) -> str:
        return "cancelled" if self is RecallVerb.CANCEL else "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallWanted:
    """What a user wants with deferred messages."""

    verb: RecallVerb
    messages: str = ""  # which ones, as a Selection writes it; a plan has it
    when: str = ""  # when they are to be due, as the user has typed it
    delay: float | None = None  # that many seconds from now; None: the user has not said it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallShare:
    """One node's part."""

    node: str
    log: str
    count: int
    runs: tuple[tuple[int, int], ...]  # of sequences, as [first, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalling:
    """What it would do."""

    wanted: RecallWanted
    topic: str
    channel: str
    shares: tuple[RecallShare, ...]
    left_out: tuple[LeftOut, ...]
    consequences: tuple[Consequence, ...]

    @property
    def count(self) -> int:
        return sum(it.count for it in self.shares)

    @property
    def title(self) -> str:
        what = f"{numbers.several(self.count, 'deferred message')} of {self.topic}/{self.channel}"
        if self.wanted.verb is RecallVerb.CANCEL:
            return f"Cancel {what}"
        return f"Move {what}" if self.wanted.delay is None else f"Make {what} due {in_words(self.wanted)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What one node has done."""

    node: str
    asked: int
    done: int = 0
    in_flight: int = 0  # that a consumer has, so they were left as they are
    gone: int = 0  # that were finished, taken back or buried before
    error: str = ""  # why the node did not do it, or not completely
    may_follow: bool = False  # it was asked, and may have done it or still do it, although it has not said so


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The messages to cancel or move, and what must be said about how they were found."""

    selection: Selection
    remarks: tuple[str, ...] = ()


def in_words(wanted: RecallWanted) -> str:
    return f"in {numbers.duration(wanted.delay)}" if wanted.delay else "now"


def parse_when(text: str, now: float) -> float:
    """Read when messages are to be due, and return in how many seconds that is. Raise BadTaking.

    `now`, a duration such as 10m or 1h30m, or a time such as 2026-03-01T12:00:00Z.
    """
    text = text.strip()
    try:
        delay = 0.0 if text == "now" else _delay(text, now)
    except ValueError as error:
        expected = "now, a duration like 10m or 2d, or a time like 2026-03-01T12:00:00Z"
        raise BadTaking(f"say when: {expected}" + (f", not {text[:40]}" if text else "")) from error
    if delay < 0:
        raise BadTaking(f"{text[:40]} is past: choose now, or a later time")
    if delay > _MOST_SECONDS:
        raise BadTaking("no node defers for more than ten years")
    return delay


def _delay(text: str, now: float) -> float:
    if "T" not in text:
        return seconds(parse_long_duration(text))
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() - now


def plan_recalling(channel: Channel, summary: DeferredSummary, selection: Selection, wanted: RecallWanted) -> Recalling:
    """Return what each node that has answered would do. Raise BadTaking for a node that the channel does not have."""
    told = {it.node: it for it in summary.nodes}
    shares: list[RecallShare] = []
    left_out: list[LeftOut] = []
    for source, runs in selection.runs.items():
        if (node := told.get(source.node)) is None:
            raise BadTaking(f"no node of this channel is known as {source.node[:100]}")
        count = sum(end - first for first, end in runs)
        if node.error:
            why = f"has not told what is deferred there: {node.error}"
            left_out.append(LeftOut(node=node.node, why=why, last_known=count))
        else:
            shares.append(RecallShare(node=source.node, log=source.log, count=count, runs=tuple(runs)))
    return Recalling(
        wanted=replace(wanted, messages=str(selection)),
        topic=channel.topic,
        channel=channel.name,
        shares=tuple(shares),
        left_out=tuple(left_out),
        consequences=tuple(_consequences(channel, wanted, shares, left_out)),
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
    if wanted.verb is RecallVerb.CANCEL:
        text = "No consumer of this channel will ever get them. This cannot be undone."
        yield Consequence(text=text, severity=Severity.PROBLEM)
        yield Consequence(text="Other channels of the topic still deliver theirs.")
    elif wanted.delay != 0:
        yield Consequence(text="They wait until then, in this channel alone, and keep their attempts.")
    else:
        yield Consequence(text="They are delivered as soon as a consumer is ready, in this channel alone.")
        yield from who_receives(channel, [it.node for it in shares])
    text = (
        "A message that has become due meanwhile is included while it waits; one that a consumer has is left as it is."
    )
    yield Consequence(text=text)
