"""The states of topics, channels and nodes: the findings about each, and the words shown in lists.

A state is the worst of a thing and of its parts: a topic's state includes its channels, and a node's state its share of
them. If several things are to be said, a paused channel whose consumers fail, say, the worst comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from nsqadmin import numbers
from nsqadmin.cluster.flow import dropped_among
from nsqadmin.cluster.model import (
    Channel,
    ChannelNode,
    Finding,
    Health,
    Node,
    Paused,
    Severity,
    Snapshot,
    Topic,
)
from nsqadmin.diagnosis.rules import Effect, Family, rule_of

_KINDS: Final = {"problem": 0, "warning": 1, "info": 2, "muted": 3, "ok": 4}
_MOST: Final = 3  # words of a state


@dataclass(frozen=True, slots=True)
class State:
    """A state in a list: the worst that there is to say, and `also` the rest."""

    word: str
    kind: str  # colour and icon: ok, info, warning, problem, muted
    also: tuple[State, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset((self.kind, *(state.kind for state in self.also)))


OK: Final = State("OK", "ok")
PAUSED: Final = State("Paused", "warning")
PAUSED_ITSELF: Final = State("Paused itself", "problem")
PARTLY_PAUSED: Final = State("Partly paused", "warning")
PARTLY_UNKNOWN: Final = State("Partly unknown", "warning")  # a node doesn't answer, and the others are fine
UNKNOWN: Final = State("Unknown", "warning")  # no node answers
INACTIVE: Final = State("Inactive", "muted")
DRAINING: Final = State("Draining", "info")
PROBLEM: Final = State("Problem", "problem")
WARNING: Final = State("Warning", "warning")

HEALTH: Final = {
    Health.OK: State("OK", "ok"),
    Health.SLOW: State("Slow", "warning"),
    Health.DOWN: State("No answer", "problem"),
    Health.NEVER: State("Never reached", "problem"),
}
_PAUSES: Final = frozenset(("D1", "D2", "D20"))  # the rules that say what a word of the state says
_NOBODY_THERE: Final = "D4"  # on some nodes


def joined(states: Iterable[State]) -> State:
    """Return the states as one, the worst first. OK is only said if there is nothing else."""
    said = sorted(dict.fromkeys(state for state in states if state.kind != "ok"), key=lambda it: _KINDS[it.kind])
    return replace(said[0], also=tuple(said[1:_MOST])) if said else OK


class Standing:
    """The states of all topics and channels, from the findings about them."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._about: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in findings:
            self._about.setdefault((finding.topic, finding.channel, finding.node), []).append(finding)

    def about(self, topic: str = "", channel: str = "", node: str = "") -> tuple[Finding, ...]:
        return tuple(self._about.get((topic, channel, node), ()))

    def impact(self, topic: str, channel: str = "") -> float:
        """Return the impact of the worst finding that is no remark; 0: there is none."""
        found = self._about.get((topic, channel, ""), ())
        return max((it.weight for it in found if it.severity is not Severity.INFO), default=0.0)

    def channel(self, channel: Channel) -> State:
        return joined(self._of_channel(channel))

    def topic(self, topic: Topic) -> State:
        """Return the topic's own state, without its channels."""
        return joined(self._of_topic(topic))

    def whole_topic(self, topic: Topic) -> State:
        """Return the state of the topic, with how many of its channels have problems or warnings."""
        kinds = [self.channel(channel) for channel in topic.channels]
        kinds = [state for state in kinds if state not in (PARTLY_UNKNOWN, UNKNOWN)]
        own = self._of_topic(topic)
        parts = list(_counted(state.kind for state in kinds))
        return joined([*parts, *(own if not parts else (it for it in own if it not in (PARTLY_UNKNOWN, UNKNOWN)))])

    def share(self, channel: Channel, row: ChannelNode) -> State:
        """Return the state of the channel on one node."""
        found = self._about.get((channel.topic, channel.name, ""), ())
        paused = PAUSED_ITSELF if row.paused_why else PAUSED
        here = [it for it in found if any(each is row for each in _accused(channel, it))]
        return joined((*([paused] if row.paused else ()), *_of_severity(here, has_pause=row.paused)))

    def _of_channel(self, channel: Channel) -> list[State]:
        found = self._about.get((channel.topic, channel.name, ""), ())
        pauses = [PAUSED_ITSELF] if channel.paused is Paused.YES and channel.paused_why else _of_pause(channel.paused)
        return self._at_best([*pauses, *_of_severity(found, has_pause=bool(pauses))], channel)

    def _of_topic(self, topic: Topic) -> list[State]:
        if topic.is_inactive:
            return [INACTIVE]
        found, pauses = self._about.get((topic.name, "", ""), ()), _of_pause(topic.paused)
        return self._at_best([*pauses, *_of_severity(found, has_pause=bool(pauses))], topic)

    @staticmethod
    def _at_best(states: list[State], of: Topic | Channel) -> list[State]:
        """Return the states, unless they say that all is well although a node is silent."""
        if states or not of.silent:
            return states
        return [UNKNOWN if len(of.silent) == len(of.nodes) else PARTLY_UNKNOWN]


class NodeStates:
    """The states of nodes. A node's share in each channel's problems is only looked up if it is asked for."""

    def __init__(self, snapshot: Snapshot, standing: Standing) -> None:
        self._snapshot = snapshot
        self._standing = standing

    def own(self, address: str) -> State:
        """Return the state of the node itself, without what it has of channels."""
        return joined(self._own(address))

    def whole(self, address: str) -> State:
        """Return the node's state, with the number of channels whose share on this node has problems or warnings."""
        return joined((*self._own(address), *_counted(self._shares.get(address, {}).values())))

    def _own(self, address: str) -> list[State]:
        node = self._snapshot.node(address)
        if node is None:
            return [State("Unknown", "muted")]
        found = [it for it in self._standing.about(node=address) if rule_of(it).family is not Family.REACH]
        return [HEALTH[node.health], *_draining(node), *_of_severity(found)]

    @cached_property
    def _shares(self) -> Mapping[str, Mapping[tuple[str, str], str]]:
        """By node and channel: the kind of the worst finding about its share."""
        shares: dict[str, dict[tuple[str, str], str]] = {}
        for topic in self._snapshot.topics:
            for channel in topic.channels:
                for finding in self._standing.about(topic.name, channel.name):
                    if finding.severity is Severity.INFO:
                        continue
                    for row in _accused(channel, finding):
                        of_node = shares.setdefault(row.node, {})
                        known = of_node.get((topic.name, channel.name), "ok")
                        of_node[topic.name, channel.name] = min(known, finding.severity.value, key=_KINDS.__getitem__)
        return shares


def _draining(node: Node) -> list[State]:
    return [DRAINING] if node.draining else []


def _accused(channel: Channel, finding: Finding) -> list[ChannelNode]:
    """Return the rows that a finding is about: where its messages wait, or are lost. All rows if that can't be said."""
    is_accused = _has_messages
    if finding.rule == _NOBODY_THERE:
        is_accused = _has_no_consumer
    elif rule_of(finding).effect is Effect.LOST:
        is_accused = _loses
    places = [row for row in channel.nodes if row.node in finding.others] if rule_of(finding).spreads else []
    places = places or list(channel.nodes)
    return [row for row in places if is_accused(row)] or places


def _has_messages(row: ChannelNode) -> bool:
    return bool(row.depth or row.in_flight_count)


def _has_no_consumer(row: ChannelNode) -> bool:
    return bool(row.depth and not row.client_count)


def _loses(row: ChannelNode) -> bool:
    return dropped_among(row.policy_recent) > 0


def _of_pause(paused: Paused) -> list[State]:
    return [PAUSED] if paused is Paused.YES else [PARTLY_PAUSED] if paused is Paused.PARTLY else []


def _of_severity(findings: Iterable[Finding], *, has_pause: bool = False) -> list[State]:
    """Return the worst severity of the findings; one that only says that it is paused doesn't count then."""
    severities = {it.severity for it in findings if not (has_pause and it.rule in _PAUSES)}
    return [PROBLEM] if Severity.PROBLEM in severities else [WARNING] if Severity.WARNING in severities else []


def _counted(kinds: Iterable[str]) -> Iterable[State]:
    counted = list(kinds)
    for kind in ("problem", "warning"):
        if number := counted.count(kind):
            yield State(numbers.several(number, kind), kind)
