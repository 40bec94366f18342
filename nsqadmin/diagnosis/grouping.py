"""Groups the findings of a snapshot by cause. Each finding goes into the first group that fits:

    a node that doesn't answer      with the findings about it, and about channels that only lack this node
    a consumer's program or hosts   whose clients hang or fail (`suspects.py`)
    one rule over similar names     `tenant_*.events/indexer`; one channel's name over many topics; one topic's channels
    one verdict about many nodes    "is not registered with l2:4161"
    one node                        several findings about a node that answers
    the finding alone

Groups of names need a few members, so that two findings stay separate. A known group may shrink to one member:
otherwise its key would change, and its acknowledgement and notes would be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from nsqadmin.cluster.model import Finding, Severity, Snapshot
from nsqadmin.diagnosis.finding_index import Index
from nsqadmin.diagnosis.incident import Cause, CauseKind, Incident, Numbers
from nsqadmin.diagnosis.names import pattern_of
from nsqadmin.diagnosis.suspects import causes_of
from nsqadmin.diagnosis.upkeep import UNKNOWN_IN_PART
from nsqadmin.diagnosis.wording import subject_of, verdict_of, without_node

FEW: Final = 3  # findings that make a group of names
_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}

_NOBODY_THERE: Final = "D4"  # on some nodes

_CauseOf = Callable[[Finding], Cause | None]
_NameOf = Callable[[Finding], str]  # "": the finding has no such name
_Named = tuple[str, str, bool]  # a name, the rule, and True if the finding is only a remark
_Groups = dict[Cause, list[Finding]]


def group(snapshot: Snapshot, known: Collection[str] = ()) -> tuple[Incident, ...]:
    """Return the incidents, in the order of their worst findings. `known` are the keys of the previous ones."""
    groups: _Groups = {}
    index = Index(snapshot, snapshot.findings)
    rest = _taken(snapshot.findings, _by_dead_node(index), groups)
    causes = causes_of(rest, index)
    rest = _taken(rest, lambda finding: causes.get(id(finding)), groups)
    for name_of in (_pattern, _channel, _topic, _verdict):
        rest = _taken_by_name(rest, name_of, groups, known)
    rest = _taken(rest, _by_node, groups)
    _taken(rest, _alone, groups)
    return tuple(incident_of(cause, findings, index) for cause, findings in groups.items())


def incident_of(cause: Cause, findings: Sequence[Finding], index: Index) -> Incident:
    numbers = index.numbers(cause, findings)
    if cause.kind is CauseKind.SINGLE and len(findings) == 1:  # in the worst case there are ten thousand of these
        return _single(cause, findings[0], numbers, index)
    return Incident(
        key=cause.key,
        cause=cause,
        severity=min((finding.severity for finding in findings), key=_SEVERITIES.__getitem__),
        subject=subject_of(cause, findings),
        verdict=verdict_of(cause, findings, numbers),
        findings=tuple(findings),
        numbers=numbers,
        weight=sum(finding.weight for finding in findings),
        since=min((finding.since for finding in findings if finding.since), default=index.snapshot.taken_at),
        is_inferred=cause.kind is CauseKind.CONSUMER or all(finding.is_inferred for finding in findings),
    )


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
    named = [(name_of(finding), finding.rule, finding.severity is Severity.INFO) for finding in findings]
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
    causes: Mapping[str, Cause] = {address: Cause(CauseKind.NODE, address) for address in dead}

    def cause_of(finding: Finding) -> Cause | None:
        blamed = (finding.node,) if finding.node else _blamed(finding, index)
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


def _verdict(finding: Finding) -> str:
    return "" if finding.topic else without_node(finding.verdict, finding.node, "*")


def _by_node(finding: Finding) -> Cause | None:
    if not finding.node:
        return None
    return Cause(CauseKind.NODE, finding.node, is_remark=finding.severity is Severity.INFO)


def _alone(finding: Finding) -> Cause:
    name = f"{finding.topic}/{finding.channel}" if finding.channel else finding.topic or finding.node
    return Cause(CauseKind.SINGLE, name, finding.rule, finding.severity is Severity.INFO)
