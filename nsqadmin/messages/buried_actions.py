"""What a kick or discard of buried messages would do on each node, for the user to confirm, and what has become of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access.policy import Right
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Paused, Severity
from nsqadmin.messages.buried import Job  # noqa: TC001 - to_json reads annotations at run time

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.buried import NodeSummary, Summary

MOST_NAMED: Final = 900  # messages at once, as nsqd allows
DEFAULT_RATE: Final = 1000.0  # messages a second, over all nodes
_HIGHEST_RATE: Final = 1e9
_WITHOUT_JOB: Final = 2000  # messages that nsqd takes before it answers
_LEAST_RATE: Final = 0.001
_FEW: Final = 5  # names in a sentence
_kick: Final = re.compile(r"([0-9]{1,16})@(\S+)", re.ASCII).fullmatch
_pick: Final = re.compile(r"([0-9a-f]{16})@(\S+)", re.ASCII).fullmatch


class Verb(StrEnum):
    KICK = "kick"
    DISCARD = "discard"

    @property
    def right(self) -> Right:
        return Right.OPERATE if self is Verb.KICK else Right.ADMIN

    @property
    def past(self) -> str:
        return "kicked" if self is Verb.KICK else "discarded"


class BadTaking(ValueError):
    """The request makes no sense; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user wants to kick or discard: the messages with these ids, or all whose reason contains a text.

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
    room: int | None = None  # how many messages a kick can give back there without force; None: any number

    @property
    def has_room(self) -> bool:
        return self.room is None or self.count <= self.room


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A node that is not asked to do anything."""

    node: str
    why: str
    last_known: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """What a kick or discard would do."""

    wanted: Wanted
    topic: str
    channel: str
    shares: tuple[Share, ...]
    left_out: tuple[LeftOut, ...]
    consequences: tuple[Consequence, ...]
    reason: str = ""  # what the user may see of the reason that is wanted
    _text: str = field(default="", repr=False)  # that reason; in no answer

    @property
    def text(self) -> str:
        """The reason that is wanted, as nodes know it. The user may not be allowed to see it."""
        return self._text

    @property
    def count(self) -> int:
        return sum(it.count for it in self.shares)

    @property
    def title(self) -> str:
        return f"{self.wanted.verb.capitalize()} {numbers.several(self.count, 'buried message')} of {self.topic}/{self.channel}"

    @property
    def needs_force(self) -> bool:
        """Whether a node refuses the kick, unless it is told to use force."""
        return self.wanted.verb is Verb.KICK and not all(it.has_room for it in self.shares)

    @property
    def must_type(self) -> str:
        """The number that the user has to type as a confirmation; empty: none."""
        return str(self.count) if self.wanted.verb is Verb.DISCARD and not self.wanted.ids and self.count else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one node has done so far."""

    node: str
    asked: int
    done: int = 0
    job: Job | None = None  # that does the rest, or that was stopped
    error: str = ""  # why the node did not do it, or not completely
    may_follow: bool = False  # it was asked, and may have done it or still do it, although it has not said so
    kick: int = 0  # the number by which a kick can be taken back; 0: it cannot


def parse_picks(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Read names of messages, `ID@NODE`. Raise BadTaking."""
    picks = dict.fromkeys(words)
    if len(picks) > MOST_NAMED:
        raise BadTaking(f"at most {MOST_NAMED} messages can be named at once")
    found = [_pick(word) for word in picks]
    if not all(found):
        raise BadTaking("these are no messages of this page")
    return tuple((it[2], it[1]) for it in found if it is not None)


def parse_kicks(words: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Read names of kicks, `NUMBER@NODE`. Raise BadTaking."""
    found = [_kick(word) for word in dict.fromkeys(words)]
    if not found or not all(found):
        raise BadTaking("this is no kick that could be taken back")
    return tuple((it[2], int(it[1])) for it in found if it is not None)


def parse_rate(text: str) -> float:
    """Read a rate; empty: as fast as possible. Raise BadTaking."""
    if not text.strip():
        return 0.0
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not _LEAST_RATE <= rate <= _HIGHEST_RATE:
        raise BadTaking(f"a rate is a number of messages a second, not {text[:40]}")
    return rate


def plan_taking(channel: Channel, summary: Summary, wanted: Wanted, *, text: str = "", shown: str = "") -> Taking:
    """Return what each node that has answered would do. Raise BadTaking for a node that the channel does not have.

    `text` is the reason that is wanted, and `shown` what the user may see of it.
    """
    left_out = [
        LeftOut(node=it.node, why=f"has not told what is buried there: {it.error}", last_known=it.count)
        for it in summary.missing
    ]
    if wanted.ids:
        shares = _named(summary, wanted)
        meant = {node for node, _ in wanted.ids}
        left_out = [it for it in left_out if it.node in meant]
    else:
        left_out += [
            LeftOut(node=node, why=f"is at work on a {job.verb} already: stop that, or wait for its end")
            for node, job in summary.under_way
        ]
        shares = _selected([it for it in summary.answered if it.job is None], wanted, text)
    return Taking(
        wanted=wanted,
        topic=channel.topic,
        channel=channel.name,
        shares=shares,
        left_out=tuple(left_out),
        consequences=tuple(_consequences(channel, summary, wanted, shares, left_out)),
        reason=shown,
        _text=text,
    )


def _named(summary: Summary, wanted: Wanted) -> tuple[Share, ...]:
    ids: dict[str, list[str]] = {}
    for node, id in wanted.ids:
        ids.setdefault(node, []).append(id)
    if unknown := ids.keys() - {it.node for it in summary.nodes}:
        raise BadTaking(f"no node of this channel is known as {min(unknown)[:100]}")
    rooms = {it.node: it.room for it in summary.answered}
    return tuple(
        Share(node=node, count=len(it), ids=tuple(it), room=rooms[node]) for node, it in ids.items() if node in rooms
    )


def _selected(nodes: Sequence[NodeSummary], wanted: Wanted, text: str) -> tuple[Share, ...]:
    """Share a limit out node after node, and a rate by what each node has, so that all end at the same time."""
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
    channel: Channel, summary: Summary, wanted: Wanted, shares: Sequence[Share], left_out: Sequence[LeftOut]
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
        yield Consequence(text="Nothing that fits is buried on the other nodes.", severity=Severity.WARNING)
        return
    if wanted.reason and summary.others:
        text = "This is the most that it can be: not every reason is listed."
        yield Consequence(text=text)
    if wanted.verb is Verb.DISCARD:
        yield Consequence(text="They are finished for ever. This cannot be undone.", severity=Severity.PROBLEM)
    else:
        yield from _of_a_kick(channel, wanted, shares, count)
    if not wanted.ids and (wanted.rate or any(it.count > _WITHOUT_JOB for it in shares)):
        stays = "leaves the others buried"
        yield Consequence(text=f"While it runs, “Stop the rest” {stays}; what was {wanted.verb.past} stays so.")
    if wanted.verb is Verb.KICK:
        yield Consequence(text="For 10 minutes, Undo buries again what no consumer has got.")


def _of_a_kick(channel: Channel, wanted: Wanted, shares: Sequence[Share], count: int) -> Iterator[Consequence]:
    text = "They go back to this channel alone, with attempts counted anew."
    yield Consequence(text=text)
    yield from who_receives(channel, [it.node for it in shares])
    yield from _of_full_channels([it for it in shares if not it.has_room], force=wanted.force)
    if wanted.rate:
        lasts = numbers.duration(max(1.0, count / wanted.rate))
        yield Consequence(text=f"At most {wanted.rate:,.10g} a second over all nodes: about {lasts}.")
    elif not wanted.ids:
        yield Consequence(text="All at once: as fast as the nodes can.")


def _of_full_channels(shares: Sequence[Share], *, force: bool) -> Iterator[Consequence]:
    """Say where a bound of the policy file leaves no room: nothing drops what is kicked."""
    if not shares:
        return
    room = ", ".join(f"{it.room:,} of {it.count:,} on {it.node}" for it in shares[:_FEW])
    more = f" and {len(shares) - _FEW} more nodes have too little" if len(shares) > _FEW else ""
    if force:
        becomes = (
            "By force they go back all the same: until they are consumed, new messages are dropped as they arrive."
        )
    else:
        becomes = "A node with too little room refuses all of them: kick fewer, wait for the consumers, or use force."
    text = f"The policy file bounds the channel, and it has room for {room}{more}. {becomes}"
    yield Consequence(text=text, severity=Severity.WARNING)


def who_receives(channel: Channel, nodes: Sequence[str]) -> Iterator[Consequence]:
    """Say to whom messages go that come back to the channel on these nodes."""
    if channel.paused is not Paused.NO:
        where = "" if channel.paused is Paused.YES else " on some nodes"
        text = f"The channel is paused{where}: there they wait until it is unpaused."
        yield Consequence(text=text, severity=Severity.WARNING)
    consumers = {row.node: row.client_count for row in channel.nodes}
    without = [node for node in nodes if not consumers.get(node)]
    if len(without) == len(nodes):
        text = "No consumer is connected there: they wait in the channel."
        yield Consequence(text=text, severity=Severity.WARNING)
    else:
        yield Consequence(text=f"Its consumers will receive them: {_consumers(channel)}.")
        if without:
            text = f"No consumer is connected to {_names(without)}: there they wait."
            yield Consequence(text=text, severity=Severity.WARNING)


def _consumers(channel: Channel) -> str:
    hosts = dict.fromkeys(it.hostname or it.client_id for row in channel.nodes for it in row.clients or ())
    return _names(list(hosts)) if hosts else f"{channel.client_count:,}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
