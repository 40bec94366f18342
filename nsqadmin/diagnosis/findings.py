"""Applies all rules to a snapshot. The rules are in `channels.py`, `topics.py` and `nodes.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nsqadmin.cluster.internal import is_internal
from nsqadmin.cluster.model import TAIL_PREFIX, Finding, Snapshot, Topic
from nsqadmin.diagnosis.case import Case, Trends
from nsqadmin.diagnosis.channels import about_channel
from nsqadmin.diagnosis.nodes import about_lookupd, about_node
from nsqadmin.diagnosis.policy import differing_files
from nsqadmin.diagnosis.topics import about_topic
from nsqadmin.diagnosis.upkeep import SEVERITIES, Beginnings, with_frozen


def diagnose(
    snapshot: Snapshot, trends: Trends, *, before: Iterable[Finding] = (), beginnings: Beginnings | None = None
) -> tuple[Finding, ...]:
    """Return all findings, worst first.

    `before` are the findings of the previous snapshot: while a node is silent, they don't end. `beginnings` remembers
    when each finding began.
    """
    found = [
        *(
            finding
            for topic in snapshot.topics
            if not is_internal(topic.name)
            for finding in _about(topic, snapshot, trends)
        ),
        *(finding for node in snapshot.nodes for finding in about_node(node, snapshot)),
        *differing_files(snapshot),
        *(finding for lookupd in snapshot.lookupds for finding in about_lookupd(lookupd)),
    ]
    beginnings = beginnings or Beginnings(before)
    return tuple(sorted(beginnings.dated(with_frozen(found, before, snapshot), snapshot), key=_order))


def _about(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    """Yield the findings about a topic and about each of its channels."""
    yield from about_topic(topic, Case.of_topic(topic, snapshot, trends))
    for channel in topic.channels:
        if not channel.name.startswith(TAIL_PREFIX):
            yield from about_channel(channel, Case.of_channel(channel, snapshot, trends))


def _order(finding: Finding) -> tuple[object, ...]:
    about = (finding.topic, finding.channel, finding.node)
    return SEVERITIES[finding.severity], -finding.weight, about, finding.rule
