"""Puts incidents into words: the subject and the problem of each, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nsqadmin.diagnosis.incident import Cause, CauseKind, Numbers
from nsqadmin.diagnosis.words import counted
from nsqadmin.numbers import percent

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Finding
    from nsqadmin.diagnosis.finding_index import Index

# The words for a rule's result, for one channel or topic, and for several.
_OF_RULES: Final[Mapping[str, tuple[str, str]]] = {
    "D1": ("is paused", "are paused"),
    "D2": ("is paused on some of its nodes", "are paused on some of their nodes"),
    "D3": ("has no consumer", "have no consumer"),
    "D4": ("has no consumer on some nodes", "have no consumer on some nodes"),
    "D5": ("has consumers that ask for nothing (RDY 0)", "have consumers that ask for nothing (RDY 0)"),
    "D6": ("has saturated consumers", "have saturated consumers"),
    "D7": ("has stuck consumers", "have stuck consumers"),
    "D8": ("has failing consumers", "have failing consumers"),
    "D9": ("has one slow consumer", "have one slow consumer each"),
    "D10": ("has messages that wait for their delay", "have messages that wait for their delay"),
    "D11": ("gets a burst", "get a burst"),
    "D12": ("has consumers that sample", "have consumers that sample"),
    "D13": ("has messages but no channel", "have messages but no channel"),
    "D14": ("has messages that do not reach its channels", "have messages that do not reach their channels"),
    "D15": ("holds more messages than memory", "hold more messages than memory"),
    "D18": ("has a consumer that fails", "have consumers that fail"),
    "D20": ("has paused itself", "have paused themselves"),
    "D21": ("refuses publishes", "refuse publishes"),
    "D22": ("loses messages by its limits", "lose messages by their limits"),
    "D23": ("has messages that expire", "have messages that expire"),
    "D24": ("is deleted soon", "are deleted soon"),
    "D36": ("may hold no more messages of its groups", "may hold no more messages of their groups"),
    "D37": ("gets messages with a wrong nsq-group", "get messages with a wrong nsq-group"),
    "D38": ("is held up by one group", "are held up by one group each"),
    "D39": ("buries messages", "bury messages"),
    "D40": ("has buried messages", "have buried messages"),
    "D41": ("has consumers with long work", "have consumers with long work"),
    "D42": ("finishes nothing, stuck or long work", "finish nothing, stuck or long work"),
    "D17": ("is partly unknown", "are partly unknown"),
}


def subject_of(cause: Cause, findings: Sequence[Finding]) -> str:
    if cause.kind is CauseKind.CONSUMER and len(names := _names_of(findings)) == 1:
        return names[0]  # a version such as ledger/2.0 looks like a channel
    if cause.kind is CauseKind.PATTERN and not findings[0].topic:
        return ""  # nodes: the verdict names them
    return cause.name


_HANDLERS: Final[Mapping[str, str]] = {
    "D5": "ask for nothing (RDY 0)",
    "D7": "are stuck",
    "D8": "requeue many messages",
    "D9": "are slow",
    "D18": "requeue many messages",
}


_FAILING: Final = frozenset(("D8", "D18"))


def verdict_of(cause: Cause, findings: Sequence[Finding], numbers: Numbers, index: Index) -> str:
    match cause.kind:
        case CauseKind.NODE:
            return _of_node(cause.name, findings, numbers)
        case CauseKind.CONSUMER:
            return _of_consumers(cause.name, findings, index)
        case CauseKind.PATTERN:
            return _of_nodes(findings) if not findings[0].topic else _of_names(findings)
        case CauseKind.SINGLE:
            return f"{findings[0].verdict}{_further(len(findings) - 1)}"


def _of_consumers(name: str, findings: Sequence[Finding], index: Index) -> str:
    """Say what consumers with a version, or on hosts with a pattern, do. The share is of the last minute."""
    channels = [it for finding in findings if (it := index.channel(finding)) is not None]
    clients = {id(it): it for channel in channels for row in channel.nodes for it in row.clients or ()}.values()
    of_version = [it for it in clients if it.user_agent == name]
    is_alone = len(_names_of(findings)) == 1
    if of_version:
        who = f"version {name}" if is_alone else "this version"
    else:
        who = name if is_alone else "these hosts"
    faults = sorted({_HANDLERS[finding.rule] for finding in findings})
    requeued = sum(it.requeue_rate or 0.0 for it in of_version)
    if requeued and {finding.rule for finding in findings} <= _FAILING:
        share = requeued / (requeued + sum(it.finish_rate or 0.0 for it in of_version))
        faults = [f"requeue {percent(share)} of their messages"]
    where = "" if is_alone else f", on {counted(len(_names_of(findings)), 'channel')}"
    return f"consumers {'with' if of_version else 'on'} {who} {' and '.join(faults)}{where}"


def without_node(verdict: str, node: str, by: str = "") -> str:
    """Return the verdict about a node without the node's address, or with `by` instead."""
    return " ".join(verdict.replace(f"nsqlookupd {node}", by).replace(node, by).split())


def _of_node(address: str, findings: Sequence[Finding], numbers: Numbers) -> str:
    about = [finding for finding in findings if finding.node == address]
    verdict = without_node(about[0].verdict, address).rstrip(".") if about else "does not answer"
    affected = f"; this affects {counted(numbers.channels, 'channel')}" if numbers.channels else ""
    return f"{verdict}{_further(len(about) - 1)}{affected}"


def _further(count: int) -> str:
    return f", and {counted(count, 'more finding')}" if count > 0 else ""


def _of_nodes(findings: Sequence[Finding]) -> str:
    verdict = without_node(findings[0].verdict, findings[0].node, "*")
    nodes = counted(len({finding.node for finding in findings}), "node")
    if verdict.startswith("* is "):
        return f"{nodes} are {verdict.removeprefix('* is ')}"
    return f"{nodes}: {verdict}"


def _of_names(findings: Sequence[Finding]) -> str:
    """Say how many there are for each rule, the worst rule first; a name counts once."""
    if len(rules := {finding.rule for finding in findings}) == 1:
        number = len({(finding.topic, finding.channel) for finding in findings})
        one, many = _OF_RULES.get(rules.pop(), (findings[0].verdict, findings[0].verdict))
        return f"{counted(number, _what(findings[0]))} {one if number == 1 else many}"
    by_rule: dict[str, set[tuple[str, str]]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, set()).add((finding.topic, finding.channel))
    parts: list[str] = []
    said = set[tuple[str, str]]()
    for rule, names in by_rule.items():
        if number := len(names - said):
            first = next(finding for finding in findings if finding.rule == rule)
            one, many = _OF_RULES.get(rule, (first.verdict, first.verdict))
            what = f"{number:,}" if parts else counted(number, _what(first))
            parts.append(f"{what} {one if number == 1 else many}")
            said |= names
    return ", ".join(parts)


def _what(finding: Finding) -> str:
    return "channel" if finding.channel else "topic"


def _names_of(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(f"{finding.topic}/{finding.channel}" for finding in findings))
