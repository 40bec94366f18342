"""One action on several topics and channels: what the user has picked, and the joint plan to confirm once.

    picks ──► plan_several(snapshot, verb, picks, ...)  ──►  SeveralPlan, one part for each topic or channel

A part without a plan is left out, and says why: the user lacks the right, it is gone, or there is nothing to change.
This module sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from nsqadmin.actions.plan import MOST_WITHOUT_TYPING, Action, BadAction, Consequence, Danger, Kind, messages_lost, plan
from nsqadmin.cluster.model import Paused

if TYPE_CHECKING:
    from nsqadmin.actions.plan import Call, Plan
    from nsqadmin.cluster.model import Snapshot

MOST: Final = 500  # topics and channels at once: each is at least one request to each of its nodes
_GONE: Final = {"TOPIC_NOT_FOUND": "it does not exist any more", "CHANNEL_NOT_FOUND": "it does not exist any more"}


class Verb(StrEnum):
    """The actions that several topics and channels can have at once."""

    PAUSE = "pause"
    UNPAUSE = "unpause"
    EMPTY = "empty"
    DELETE = "delete"

    def kind(self, *, of_channel: bool) -> Kind:
        return Kind(f"{self.value}_{'channel' if of_channel else 'topic'}")

    @property
    def opposite(self) -> Verb:
        """The verb that takes a pause or unpause back."""
        return Verb.UNPAUSE if self is Verb.PAUSE else Verb.PAUSE


@dataclass(frozen=True, slots=True)
class Pick:
    """A topic or channel in a form: `orders`, `orders/billing`, and with nodes `orders/billing@n1%3A4151`.

    Names are escaped, because a node may send names with a slash or an @ in them.
    """

    topic: str
    channel: str = ""
    nodes: tuple[str, ...] = ()  # empty: all of them

    def __str__(self) -> str:
        name = _escaped(self.topic) + (f"/{_escaped(self.channel)}" if self.channel else "")
        return name + "".join(f"@{_escaped(node)}" for node in self.nodes)


def parse_picks(words: Iterable[str]) -> tuple[Pick, ...]:
    """Parse the picks of a form, without repetitions. Raise BadAction if one names nothing, or there are too many."""
    picks = tuple(dict.fromkeys(map(_parse_pick, words)))
    if len(picks) > MOST:
        raise BadAction(f"{len(picks):,} topics and channels are selected; at most {MOST:,} at once")
    return picks


def _parse_pick(word: str) -> Pick:
    name, *nodes = word.split("@")
    topic, _, channel = name.partition("/")
    if not topic or not all(nodes):
        raise BadAction(f"this names no topic or channel: {word[:40]!r}")
    return Pick(unquote(topic), unquote(channel), tuple(map(unquote, nodes)))


def pick_of(action: Action) -> Pick:
    return Pick(action.topic, action.channel, action.nodes)


def _escaped(text: str) -> str:
    return quote(text, safe="", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The action on one of the topics or channels."""

    action: Action
    plan: Plan | None = None  # None: it is left out
    why_not: str = ""
    lost: int = 0  # messages


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralPlan:
    """The consequences of one action on several topics and channels."""

    verb: Verb
    parts: tuple[Part, ...]
    common: tuple[tuple[bool, Consequence], ...]  # said once: they hold for every channel (True), or every topic

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(part.plan for part in self.parts if part.plan is not None)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for each in self.plans for call in each.calls)

    @property
    def unreachable(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(address for each in self.plans for address in each.unreachable))

    @property
    def lost(self) -> int:
        return sum(part.lost for part in self.parts if part.plan is not None)

    @property
    def loses(self) -> bool:
        """True if this is an action that may lose messages."""
        return self.danger is not Danger.NONE

    @property
    def danger(self) -> Danger:
        return {Verb.EMPTY: Danger.LOSES_MESSAGES, Verb.DELETE: Danger.DESTROYS}.get(self.verb, Danger.NONE)

    @property
    def must_type(self) -> str:
        """The word that the user has to type. A name that only the directory has is deleted without it."""
        if self.verb is Verb.DELETE and any(not call.is_lookupd for call in self.calls):
            return self.verb.value
        return self.verb.value if self.lost > MOST_WITHOUT_TYPING else ""

    @property
    def title(self) -> str:
        title = f"{self.verb.capitalize()} {self.counted}"
        return f"{title} ({_several(self.lost, 'message')})" if self.loses else title

    @property
    def counted(self) -> str:
        """The number of topics and channels to act on, or to choose from if all are left out."""
        actions = [it.action for it in self.plans] or [it.action for it in self.parts]
        channels = sum(bool(it.channel) for it in actions)
        counts = ((len(actions) - channels, "topic"), (channels, "channel"))
        return " and ".join(_several(count, what) for count, what in counts if count) or "nothing"

    def own(self, part: Part) -> tuple[Consequence, ...]:
        """Return the consequences of one part that do not hold for all of them."""
        if part.plan is None:
            return ()
        return tuple(it for it in part.plan.consequences if (bool(part.action.channel), it) not in self.common)

    @property
    def said_once(self) -> tuple[Consequence, ...]:
        """The common consequences; they name their kind, if there are parts of both kinds."""
        is_mixed = len({bool(it.action.channel) for it in self.plans}) > 1
        if not is_mixed:
            return tuple(it for _, it in self.common)
        names = {False: "Topics", True: "Channels"}
        return tuple(
            replace(it, text=f"{names[is_channel]}: {_uncapitalized(it.text)}") for is_channel, it in self.common
        )


def plan_several(
    snapshot: Snapshot, verb: Verb, picks: Iterable[Pick], refusal: Callable[[Action], str]
) -> SeveralPlan:
    """Return the joint plan. `refusal` returns why the user may not carry out an action, or ""."""
    actions = [
        Action(kind=verb.kind(of_channel=bool(it.channel)), topic=it.topic, channel=it.channel, nodes=it.nodes)
        for it in picks
    ]
    whole = {it.topic for it in actions if it.kind is Kind.DELETE_TOPIC and not it.nodes and not refusal(it)}
    parts = tuple(_part(snapshot, action, whole, refusal) for action in actions)
    plans = [part.plan for part in parts if part.plan is not None]
    sizes = Counter(bool(each.action.channel) for each in plans)
    counts = Counter((bool(each.action.channel), it) for each in plans for it in dict.fromkeys(each.consequences))
    common = tuple((is_channel, it) for (is_channel, it), count in counts.items() if count == sizes[is_channel])
    return SeveralPlan(verb=verb, parts=parts, common=common)


def _part(snapshot: Snapshot, action: Action, whole: set[str], refusal: Callable[[Action], str]) -> Part:
    # A topic that the user may not see is not in the snapshot: for them it does not exist.
    if snapshot.topic(action.topic) is None:
        return Part(action=action, why_not=_GONE["TOPIC_NOT_FOUND"])
    if why_not := refusal(action) or _why_needless(snapshot, action, whole):
        return Part(action=action, why_not=why_not)
    try:
        return Part(action=action, plan=plan(snapshot, action), lost=messages_lost(snapshot, action))
    except BadAction as error:
        return Part(action=action, why_not=_GONE.get(str(error), str(error)))


def _why_needless(snapshot: Snapshot, action: Action, whole: set[str]) -> str:
    """Return why there is nothing to do, or ""."""
    if action.kind is Kind.DELETE_CHANNEL and action.topic in whole:
        return "it is deleted with its topic"
    topic = snapshot.topic(action.topic)
    found = topic.channel(action.channel) if topic is not None and action.channel else topic
    if found is None or action.nodes:
        return ""
    if not found.nodes and action.kind not in (Kind.DELETE_TOPIC, Kind.DELETE_CHANNEL):
        return "no node has it"
    if action.kind in (Kind.PAUSE_TOPIC, Kind.PAUSE_CHANNEL) and found.paused is Paused.YES:
        return "it is paused already"
    if action.kind in (Kind.UNPAUSE_TOPIC, Kind.UNPAUSE_CHANNEL) and found.paused is Paused.NO:
        return "it is not paused"
    return ""


def _uncapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
