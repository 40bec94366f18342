"""Carries findings from one snapshot to the next: they freeze while a node is silent, and remember when they began.

A silent node's part of a topic or channel is its last answer. The rules still look at the sums, so they find new
problems at once. But if a rule finds nothing any more, we can't know if the problem is over: the finding stays, marked
as frozen, until the node answers or is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from nsqadmin.cluster.model import Finding, Severity, Snapshot

SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}
UNKNOWN_IN_PART: Final = "D17"
_BLIP: Final = 4  # snapshots; a finding that is missing from fewer hasn't ended


def with_frozen(found: Sequence[Finding], before: Iterable[Finding], snapshot: Snapshot) -> Sequence[Finding]:
    """Return the findings, plus findings of the previous snapshot that rest on a silent node and aren't found now.

    If one was worse before, it stays worse. D17, which says that we know nothing, doesn't stay: it gives way to new
    findings.
    """
    if not snapshot.silent:
        return found
    now = {finding.key: finding for finding in found if finding.topic}
    for finding in before:
        newer = now.get(finding.key)
        is_milder = newer is None or SEVERITIES[newer.severity] > SEVERITIES[finding.severity]
        if is_milder and finding.rule != UNKNOWN_IN_PART and _rests_on_silent(finding, snapshot):
            now[finding.key] = replace(finding, is_frozen=True)
    frozen = {(finding.topic, finding.channel) for finding in now.values() if finding.is_frozen}
    return [
        *(it for it in now.values() if it.rule != UNKNOWN_IN_PART or (it.topic, it.channel) not in frozen),
        *(it for it in found if not it.topic),
    ]


def _rests_on_silent(finding: Finding, snapshot: Snapshot) -> bool:
    topic = snapshot.topic(finding.topic)
    if topic is None or not finding.channel:
        return topic is not None and bool(topic.silent)
    channel = topic.channel(finding.channel)
    return channel is not None and bool(channel.silent)


class Beginnings:
    """The start time of each finding. A finding that is missing from a few snapshots keeps it."""

    def __init__(self, before: Iterable[Finding] = ()) -> None:
        self._known = {finding.key: (finding.since, 0) for finding in before}  # its time, and the last snapshot with it

    def dated(self, findings: Iterable[Finding], snapshot: Snapshot) -> Iterator[Finding]:
        """Yield the findings with their times; findings that already have one, for example about a node, keep it."""
        for finding in findings:
            since, _ = self._known.get(finding.key, (snapshot.taken_at, 0))
            self._known[finding.key] = since, snapshot.index
            yield finding if finding.since else replace(finding, since=since)
        for key in [key for key, (_, seen) in self._known.items() if snapshot.index - seen >= _BLIP]:
            del self._known[key]
