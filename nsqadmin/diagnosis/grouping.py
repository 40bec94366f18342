"""Groups the findings of a snapshot by cause. Each finding goes into the first group that fits:

    a node that doesn't answer      that it doesn't, and the findings about channels that only lack this node
    a consumer's program or hosts   whose clients hang or fail (`suspects.py`)
    similar names                   `tenant_*.events/indexer`; one channel's name over many topics; one topic's channels
    one rule about many nodes       "5 nodes are not registered with l2:4161"
    one object                      a topic, a channel or a node

A group only has findings of one family (`rules.py`), and the family is part of its key. So a node's death is another
incident than the warning about its policy file, and a channel whose consumers hang and then leave stays one.

Groups of names need a few members, so that two findings stay separate. A known group may shrink to one member:
otherwise its key would change, and with it its history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from nsqadmin.cluster.model import Finding, Severity, Snapshot
from nsqadmin.diagnosis.finding_index import Index
from nsqadmin.diagnosis.impact import together
from nsqadmin.diagnosis.incident import Cause, CauseKind, Incident, Numbers
from nsqadmin.diagnosis.names import pattern_of
from nsqadmin.diagnosis.rules import Effect, Family, name_of_rule, rule_of
from nsqadmin.diagnosis.suspects import causes_of
from nsqadmin.diagnosis.upkeep import UNKNOWN_IN_PART
from nsqadmin.diagnosis.wording import subject_of, verdict_of

FEW: Final = 3  # findings that make a group of names
_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}

_NOBODY_THERE: Final = "D4"  # on some nodes

_CauseOf = Callable[[Finding], Cause | None]
_NameOf = Callable[[Finding], str]  # "": the finding has no such name
_Named = tuple[str, Family, bool]  # a name, the family, and True if the finding is only a remark
_Groups = dict[Cause, list[Finding]]


def group(snapshot: Snapshot, known: Collection[str] = ()) -> tuple[Incident, ...]:
    """Return the incidents, in the order of their worst findings. `known` are the keys of the previous ones."""
    groups: _Groups = {}
    index = Index(snapshot, snapshot.findings)
    rest = _taken(snapshot.findings, _by_dead_node(index), groups)
    causes = causes_of(rest, index)
    rest = _taken(rest, lambda finding: causes.get(id(finding)), groups)
    for name_of in (_pattern, _channel, _topic, _of_nodes):
        rest = _taken_by_name(rest, name_of, groups, known)
    _taken(rest, _by_object, groups)
    return tuple(incident_of(cause, findings, index) for cause, findings in groups.items())


def incident_of(cause: Cause, findings: Sequence[Finding], index: Index) -> Incident:
    numbers = index.numbers(cause, findings)
    if cause.kind is CauseKind.SINGLE and len(findings) == 1:  # in the worst case there are ten thousand of these
        return _single(cause, findings[0], numbers, index)
    severities = {finding.severity for finding in findings}
    severity = min(severities, key=_SEVERITIES.__getitem__)
    ordered = findings  # they come by their impact
    if len(severities) > 1 or cause.kind is CauseKind.NODE:
        ordered = sorted(findings, key=lambda it: (_SEVERITIES[it.severity], _is_elsewhere(cause, it)))
    return Incident(
        key=cause.key,
        cause=cause,
        severity=severity,
        subject=subject_of(cause, ordered),
        verdict=verdict_of(cause, ordered, numbers, index),
        findings=tuple(ordered),
        numbers=numbers,
        weight=together(finding.weight for finding in findings),
        since=_beginning(severity, findings) or index.snapshot.taken_at,
        is_inferred=cause.kind is CauseKind.CONSUMER or all(finding.is_inferred for finding in findings),
    )


def _is_elsewhere(cause: Cause, finding: Finding) -> bool:
    """Return True if the finding is a consequence: it is about a channel that lacks the node."""
    return cause.kind is CauseKind.NODE and not finding.node


def _beginning(severity: Severity, findings: Sequence[Finding]) -> float:
    """Return when the incident began to be as bad as it is now."""
    worst = [finding for finding in findings if finding.severity is severity and finding.since]
    effect = max((rule_of(finding).effect for finding in worst), default=Effect.NONE)
    return min((finding.since for finding in worst if rule_of(finding).effect is effect), default=0.0)


def _single(cause: Cause, finding: Finding, numbers: Numbers, index: Index) -> Incident:
    return Incident(
        key=cause.key,
        cause=cause,
        severity=finding.severity,
        subject=cause.name,
        verdict=finding.verdict,
        findings=(finding,),
        numbers=numbers,
        weight=finding.weight,
        since=finding.since or index.snapshot.taken_at,
        is_inferred=finding.is_inferred,
    )


def _taken(findings: Iterable[Finding], cause_of: _CauseOf, groups: _Groups) -> list[Finding]:
    """Move findings into the groups of their causes, and return the others."""
    left = []
    for finding in findings:
        if (cause := cause_of(finding)) is None:
            left.append(finding)
        else:
            groups.setdefault(cause, []).append(finding)
    return left


def _taken_by_name(
    findings: Sequence[Finding], name_of: _NameOf, groups: _Groups, known: Collection[str]
) -> list[Finding]:
    """Move findings of one rule that share a name into groups, and return the others.

    Most names of a snapshot with 10,000 findings may be unrelated, so we only build a cause and its key for a group.
    """
    named = [(name_of(finding), rule_of(finding).family, finding.severity is Severity.INFO) for finding in findings]
    causes: dict[_Named, Cause] = {}
    for it, size in Counter(named).items():
        if it[0] and (size >= FEW or known):
            cause = Cause(CauseKind.PATTERN, *it)
            if size >= FEW or cause.key in known:
                causes[it] = cause
    if not causes:
        return list(findings)
    left = []
    for it, finding in zip(named, findings, strict=True):
        if it in causes:
            groups.setdefault(causes[it], []).append(finding)
        else:
            left.append(finding)
    return left


def _by_dead_node(index: Index) -> _CauseOf:
    snapshot = index.snapshot
    dead = {node.address for node in snapshot.nodes if not node.is_reachable}
    dead |= {lookupd.address for lookupd in snapshot.lookupds if not lookupd.is_reachable}
    causes: Mapping[str, Cause] = {address: Cause(CauseKind.NODE, address, Family.REACH) for address in dead}
    since = {node.address: node.since for node in snapshot.nodes}

    def cause_of(finding: Finding) -> Cause | None:
        if finding.node:
            return causes.get(finding.node) if rule_of(finding).family is Family.REACH else None
        blamed = _blamed(finding, index)
        if finding.severity is not Severity.INFO and blamed and 0 < finding.since < since.get(min(blamed), 0.0):
            return None  # it was found before the node fell silent, so it is no consequence of that
        return causes.get(min(blamed)) if blamed and dead.issuperset(blamed) else None

    return cause_of if dead else lambda finding: None


def _blamed(finding: Finding, index: Index) -> tuple[str, ...]:
    """Return the silent nodes that cause such a finding about a channel."""
    channel = index.channel(finding) if finding.rule in (_NOBODY_THERE, UNKNOWN_IN_PART) else None
    if channel is None:
        return ()
    if finding.rule == UNKNOWN_IN_PART:
        return channel.silent
    return tuple(row.node for row in channel.nodes if row.depth and not row.client_count)


def _pattern(finding: Finding) -> str:
    if not finding.channel:
        return pattern_of(finding.topic)
    return f"{pattern_of(finding.topic)}/{pattern_of(finding.channel)}"


def _channel(finding: Finding) -> str:
    return f"*/{finding.channel}" if finding.channel else ""


def _topic(finding: Finding) -> str:
    return f"{finding.topic}/*" if finding.channel else ""


def _of_nodes(finding: Finding) -> str:
    """Return the name of what may be wrong with several nodes. It isn't the verdict, which may have numbers in it."""
    return "" if finding.topic else " ".join((name_of_rule(finding), *_missing(finding)))


def _missing(finding: Finding) -> Sequence[str]:
    """Return the nsqlookupds with which a node isn't registered."""
    return finding.others if rule_of(finding).family is Family.REGISTRATION else ()


def _by_object(finding: Finding) -> Cause:
    is_remark, family = finding.severity is Severity.INFO, rule_of(finding).family
    if finding.node:
        return Cause(CauseKind.NODE, finding.node, family, is_remark)
    name = f"{finding.topic}/{finding.channel}" if finding.channel else finding.topic
    return Cause(CauseKind.SINGLE, name, family, is_remark)
