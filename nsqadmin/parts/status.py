"""The states of topics, channels and nodes: the findings about each, and the word shown in lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Channel, Finding, Health, Paused, Severity, Topic

_ORDER: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class State:
    """A state in a list."""

    word: str
    kind: str  # colour and icon: ok, info, warning, problem, muted


OK: Final = State("OK", "ok")
PAUSED: Final = State("Paused", "warning")
PAUSED_ITSELF: Final = State("Paused itself", "problem")
PARTLY_PAUSED: Final = State("Partly paused", "warning")
PARTLY_UNKNOWN: Final = State("Partly unknown", "warning")  # a node doesn't answer, and the others are fine
UNKNOWN: Final = State("Unknown", "warning")  # no node answers
INACTIVE: Final = State("Inactive", "muted")
PROBLEM: Final = State("Problem", "problem")
WARNING: Final = State("Warning", "warning")

HEALTH: Final = {
    Health.OK: State("OK", "ok"),
    Health.SLOW: State("Slow", "warning"),
    Health.DOWN: State("Down", "problem"),
    Health.NEVER: State("Never reached", "problem"),
}


class Standing:
    """The states of all topics and channels, from the findings about them."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._about: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in findings:
            self._about.setdefault((finding.topic, finding.channel, finding.node), []).append(finding)

    def about(self, topic: str = "", channel: str = "", node: str = "") -> tuple[Finding, ...]:
        return tuple(self._about.get((topic, channel, node), ()))

    def severity(self, topic: str = "", channel: str = "", node: str = "") -> Severity | None:
        findings = self._about.get((topic, channel, node), ())
        return min((finding.severity for finding in findings), key=_ORDER.__getitem__, default=None)

    def channel(self, channel: Channel) -> State:
        if channel.paused is Paused.YES and channel.paused_why:
            return PAUSED_ITSELF
        return _at_best(self._state(self.severity(channel.topic, channel.name), channel.paused), channel)

    def topic(self, topic: Topic) -> State:
        if topic.is_inactive:
            return INACTIVE
        return _at_best(self._state(self.severity(topic.name), topic.paused), topic)

    def whole_topic(self, topic: Topic) -> State:
        """Return the topic's own state, or if that is fine, how many of its channels aren't."""
        own = self.topic(topic)
        if own not in (OK, PARTLY_UNKNOWN, UNKNOWN):
            return own
        states = [self.channel(channel) for channel in topic.channels]
        for kind in ("problem", "warning"):
            if number := sum(state.kind == kind and state not in (PARTLY_UNKNOWN, UNKNOWN) for state in states):
                return State(numbers.several(number, kind), kind)
        return own

    @staticmethod
    def _state(severity: Severity | None, paused: Paused) -> State:
        if paused is Paused.YES:
            return PAUSED
        if severity is Severity.PROBLEM:
            return PROBLEM
        if paused is Paused.PARTLY:
            return PARTLY_PAUSED
        return WARNING if severity is Severity.WARNING else OK


def _at_best(state: State, of: Topic | Channel) -> State:
    """Return the state, unless it says that all is well although a node is silent."""
    if state is not OK or not of.silent:
        return state
    return UNKNOWN if len(of.silent) == len(of.nodes) else PARTLY_UNKNOWN
