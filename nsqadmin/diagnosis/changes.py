"""Looks up changes just before an incident began: lost nodes, actions of people, bursts, new consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Activity, Finding
from nsqadmin.diagnosis.incident import CauseKind

if TYPE_CHECKING:
    from nsqadmin.diagnosis.incident import Incident

BEFORE: Final = 600.0  # seconds before the start in which a change may be the reason
AFTER: Final = 60.0  # and after it: the change may be older than the sweep that saw it
MOST: Final = 8  # changes of one incident
_MOST_TOPICS: Final = 20  # of an incident to look up
_BURST: Final = "D11"

# Events that concern everything. Other events only matter if they are about the incident's own topics and nodes.
_EVERYWHERE: Final = frozenset(
    ("node_down", "node_gone", "node_up", "node_appeared", "nsqd_restarted", "taken_over", "lookupd_down", "lookupd_up")
)


class Recent:
    """The newest activity, by subject."""

    def __init__(self, activity: Iterable[Activity], findings: Iterable[Finding], *, since: float) -> None:
        """`activity` has the newest first, and is read back to `since`."""
        self._everywhere: list[Activity] = []
        self._by_topic: dict[str, list[Activity]] = {}
        for entry in activity:
            if entry.at < since:
                break
            if entry.topic:
                self._by_topic.setdefault(entry.topic, []).append(entry)
            elif entry.what in _EVERYWHERE:
                self._everywhere.append(entry)
        for finding in findings:
            if finding.rule == _BURST:
                text = f"{finding.topic}: {finding.verdict[:1].lower()}{finding.verdict[1:]}"
                entry = Activity(at=finding.since, what="burst", text=text, topic=finding.topic)
                self._by_topic.setdefault(finding.topic, []).append(entry)

    def before(self, incident: Incident, began: float) -> tuple[Activity, ...]:
        """Return the possible reasons for the incident, oldest first."""
        # The channels in the incident of a node are those that suffer from it.
        topics = () if incident.cause.kind is CauseKind.NODE else incident.topics[:_MOST_TOPICS]
        channels: Mapping[str, set[str]] = {topic: set() for topic in topics}
        for finding in incident.findings:
            if finding.topic in channels:
                channels[finding.topic].add(finding.channel)
        found = [
            entry
            for topic, names in channels.items()
            for entry in self._by_topic.get(topic, ())
            if not entry.channel or entry.channel in names or "" in names
        ]
        found += self._everywhere
        near = [entry for entry in found if began - BEFORE <= entry.at <= began + AFTER]
        near.sort(key=lambda entry: (not entry.is_action, entry.what not in _EVERYWHERE, -entry.at))
        return tuple(sorted(near[:MOST], key=lambda entry: entry.at))
