"""Applies all rules to a snapshot. The rules are in `channels.py`, `topics.py` and `nodes.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from nsqadmin.cluster.model import TAIL_PREFIX, Finding, Severity, Snapshot, Topic
from nsqadmin.diagnosis.case import Case, Trends
from nsqadmin.diagnosis.channels import about_channel
from nsqadmin.diagnosis.impact import impact
from nsqadmin.diagnosis.nodes import about_lookupd, about_node
from nsqadmin.diagnosis.policy import differing_files
from nsqadmin.diagnosis.rules import Effect, rule_of
from nsqadmin.diagnosis.topics import about_topic
from nsqadmin.diagnosis.upkeep import Upkeep

_LEAST_OF_NODES: Final = 10_000  # messages; a node whose queues are empty may take the next publish


def diagnose(snapshot: Snapshot, trends: Trends, upkeep: Upkeep | None = None) -> tuple[Finding, ...]:
    """Return all findings, worst first. `upkeep` has those of the snapshots before."""
    of_nodes = [
        *(finding for node in snapshot.nodes for finding in about_node(node, snapshot)),
        *differing_files(snapshot),
        *(finding for lookupd in snapshot.lookupds for finding in about_lookupd(lookupd)),
    ]
    found = [
        *(finding for topic in snapshot.topics for finding in _about(topic, snapshot, trends)),
        *(_weighed(finding, snapshot) for finding in of_nodes),
    ]
    return tuple(sorted((upkeep or Upkeep()).follow(found, snapshot), key=_order))


def _about(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    """Yield the findings about a topic and about each of its channels."""
    yield from about_topic(topic, Case.of_topic(topic, snapshot, trends))
    for channel in topic.channels:
        if not channel.name.startswith(TAIL_PREFIX):
            yield from about_channel(channel, Case.of_channel(channel, snapshot, trends))


def _weighed(finding: Finding, snapshot: Snapshot) -> Finding:
    """Return a finding about a node with its impact."""
    effect, node = rule_of(finding).effect, snapshot.node(finding.node)
    waiting = node.depth if node is not None and effect > Effect.NONE else 0
    messages = max(waiting, _LEAST_OF_NODES) if finding.severity is Severity.PROBLEM else waiting
    return replace(finding, weight=impact(effect, finding.severity, messages=messages))


def _order(finding: Finding) -> tuple[object, ...]:
    return -finding.weight, finding.topic, finding.channel, finding.node, finding.rule
