"""Finds consumers' programs that are the likely cause of findings: a release whose clients hang or fail.

A finding about handlers accuses some clients of its channel. If these share a program (`shop-worker/1.5-rc1`), at least
half of that program's clients are accused, and no clients of other programs are, the program is the likely cause. We
try the same with host names (`mail-*`). Without clients to compare with, we name no cause: for example, if all three of
three clients hang, that says nothing about their program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Channel, Client, Finding, Severity, Snapshot, Topic
from nsqadmin.diagnosis.clients import NEEDS_ATTENTION, Condition, judged
from nsqadmin.diagnosis.incident import Cause, CauseKind
from nsqadmin.diagnosis.names import pattern_of
from nsqadmin.diagnosis.rules import rule_of

if TYPE_CHECKING:
    from nsqadmin.diagnosis.finding_index import Index

_ACCUSED: Final[Mapping[str, frozenset[Condition]]] = {
    "D5": frozenset((Condition.NOT_READY,)),
    "D7": frozenset((Condition.STUCK,)),
    "D8": frozenset((Condition.FAILING,)),
    "D9": NEEDS_ATTENTION,
    "D18": frozenset((Condition.FAILING,)),
}
RULES: Final = _ACCUSED.keys()  # the rules that accuse handlers


def _program(client: Client) -> str:
    return client.user_agent


def _hosts(client: Client) -> str:
    return pattern_of(client.hostname)


_SIGNATURES: Final[tuple[Callable[[Client], str], ...]] = (_program, _hosts)


@dataclass(frozen=True, slots=True)
class _Accusation:
    finding: Finding
    channel: Channel
    accused: Sequence[Client]


def causes_of(findings: Iterable[Finding], index: Index) -> Mapping[int, Cause]:
    """Return the likely cause of each finding that has one, by the finding's `id()`."""
    accusations = list(_accusations(findings, index))
    causes: dict[int, Cause] = {}
    for signature in _SIGNATURES if accusations else ():
        left = [it for it in accusations if id(it.finding) not in causes]
        causes.update(_causes_by(signature, left, index.snapshot))
    return causes


def suspects(finding: Finding, channel: Channel, now: float) -> list[Client]:
    """Return the channel's clients that the finding accuses."""
    return [it.client for it in judged(channel, now) if it.condition in _ACCUSED[finding.rule]]


def _accusations(findings: Iterable[Finding], index: Index) -> Iterator[_Accusation]:
    for finding in findings:
        if finding.rule not in RULES or finding.severity is Severity.INFO:
            continue
        channel = index.channel(finding)
        if channel is not None and (accused := suspects(finding, channel, index.snapshot.taken_at)):
            yield _Accusation(finding, channel, accused)


def _causes_by(
    signature: Callable[[Client], str], accusations: Sequence[_Accusation], snapshot: Snapshot
) -> Iterator[tuple[int, Cause]]:
    by_name: dict[str, list[_Accusation]] = {}
    for it in accusations:
        names = {signature(client) for client in it.accused}
        if len(names) == 1 and (name := names.pop()):
            by_name.setdefault(name, []).append(it)
    if not by_name:
        return
    clients = Counter(signature(client) for client in _clients(snapshot.topics))
    for name, group in by_name.items():
        accused = len({id(client) for it in group for client in it.accused})
        is_everybody = clients[name] == clients.total()
        if is_everybody or 2 * accused < clients[name]:
            continue
        if len(group) > 1 or _has_others(group[0].channel, signature, name):
            for it in group:
                yield id(it.finding), Cause(CauseKind.CONSUMER, name, rule_of(it.finding).family)


def _has_others(channel: Channel, signature: Callable[[Client], str], name: str) -> bool:
    return any(signature(client) != name for client in channel.clients or ())


def _clients(topics: Iterable[Topic]) -> Iterator[Client]:
    for topic in topics:
        for channel in topic.channels:
            if channel.client_count:
                for row in channel.nodes:
                    yield from row.clients or ()
