"""Rules about the effects of the nodes' policy files: D20 to D26.

nsqd counts by cause, and the end of a cause's name is the outcome: ", dropped", ", rejected", ", buried", ", dry run".
A dry run isn't a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.actions.plan import Kind
from nsqadmin.cluster.flow import is_loss, is_removal
from nsqadmin.cluster.model import Channel, ChannelNode, Counts, Evidence, Finding, Node, Severity, Snapshot, Topic
from nsqadmin.cluster.policy_counts import LATELY
from nsqadmin.diagnosis.words import counted, in_minutes, number, say

if TYPE_CHECKING:
    from nsqadmin.diagnosis.case import Case

DIFFERING_FILES: Final = "D26"

_Files = dict[str, list[str]]  # by digest: the addresses of the nodes
_DAY: Final = 86_400.0
_SHORT_DIGEST: Final = 12  # characters
_MOST_NAMED: Final = 5  # nodes of one policy file to name
_NO_FILE: Final = "no policy file"
_NOT_ON_DISK: Final = "not on disk, dropped"  # nsqd's name for it
_OVERFLOWN: Final = (
    "More waits than the policy file allows, so the oldest messages are dropped without having been delivered. Add "
    "consumers, or raise the limit. You can redeliver messages that retention still keeps from the topic's tab Messages."
)
_FULL: Final = "full, dropped"  # nsqd's name for it
_NO_ROOM: Final = (
    "The channel is full of messages that no limit drops: they were delivered before, deferred, or requeued by an "
    "operator. So new messages are dropped as they arrive. Find out why the others are not finished, add consumers, or "
    "raise the limit. You can redeliver messages that retention still keeps from the topic's tab Messages."
)
_NOT_BURIED: Final = (
    "A rule of the policy file would have buried messages (max_attempts, ttl_action, overflow), but an ephemeral channel "
    "is in memory only and buries nothing: they are dropped. Find out why they fail or wait, or consume from a channel "
    "that is not ephemeral."
)


# Channels and topics: D20 to D24


def stopped_itself(channel: Channel, case: Case) -> Iterator[Finding]:
    rows = [row for row in channel.nodes if row.paused and row.paused_why]
    if not rows:
        return
    where = f" on {len(rows)} of {counted(len(channel.nodes), 'node')}" if len(rows) < len(channel.nodes) else ""
    is_by_count = any("(max_buried)" in row.paused_why for row in rows)
    yield case.finding(
        "D20",
        Severity.PROBLEM,
        f"It has paused itself{where}: {rows[0].paused_why}",
        "Find out why its messages fail. Then kick or discard those that are buried, and unpause it: with more than "
        "max_buried of them, the next one pauses it again."
        if is_by_count
        else "Find out why its messages fail, and then unpause it: the breaker starts counting from 0.",
        number("buried", sum(row.buried_count for row in rows)),
        number("waiting", channel.depth),
        say("paused on", ", ".join(row.node for row in rows)),
        action=Kind.UNPAUSE_CHANNEL,
        others=tuple(row.node for row in rows),
    )


def rejecting(topic: Topic, case: Case) -> Iterator[Finding]:
    refused = _ending(_going_on(topic), ", rejected")
    if not refused:
        return
    worst = topic.worst_channel
    fullest = [] if worst is None else [number(f"waiting in {worst.name}, its longest channel", worst.depth)]
    yield case.finding(
        "D21",
        Severity.PROBLEM,
        f"Publishes are refused: {_bounds(refused)} is reached",
        "Publishers get an error until consumers have caught up. Add consumers to the longest channel, or raise its "
        "limit in the policy file.",
        *_evidence(refused),
        *fullest,
        number("waiting in the topic", topic.depth),
        window=LATELY,
    )


def dropping(it: Topic | Channel, case: Case) -> Iterator[Finding]:
    dropped = tuple(entry for entry in _ending(_going_on(it), ", dropped") if entry[0] != "ttl, dropped")
    if not dropped:
        return
    causes = {cause for cause, _ in dropped}
    advice = [_NOT_BURIED] * (_NOT_ON_DISK in causes) + [_NO_ROOM] * (_FULL in causes)
    advice += [_OVERFLOWN] * bool(causes - {_NOT_ON_DISK, _FULL})
    yield case.finding(
        "D22",
        Severity.PROBLEM,
        f"Messages are lost: {counted(_sum(dropped), 'message')} dropped in the last {in_minutes(LATELY)}",
        " ".join(advice),
        *_evidence(dropped),
        number("waiting", it.depth),
        window=LATELY,
    )


def expiring(channel: Channel, case: Case) -> Iterator[Finding]:
    expired = tuple(entry for entry in _going_on(channel) if entry[0] in ("ttl, dropped", "ttl, buried"))
    if not expired:
        return
    yield case.finding(
        "D23",
        Severity.PROBLEM if any(is_loss(cause) for cause, _ in expired) else Severity.WARNING,
        f"Messages expire: {counted(_sum(expired), 'message')} waited for too long in the last {in_minutes(LATELY)}",
        "They waited for longer than the ttl of the policy file, and are not delivered any more. Add consumers, or "
        "lengthen the ttl.",
        *_evidence(expired),
        number("waiting", channel.depth),
        number("consumers", channel.client_count),
        window=LATELY,
    )


def ending(it: Topic | Channel, case: Case) -> Iterator[Finding]:
    """Find topics and channels that the policy deletes within a day because they are unused."""
    now = case.snapshot.taken_at
    rows = [(row.expires_at, row) for row in it.nodes if row.expires_at is not None and row.expires_at - now < _DAY]
    if not rows:
        return
    first, node = min((at, row.node) for at, row in rows)
    held = it.total_depth if isinstance(it, Topic) else it.depth + it.deferred_count + it.buried_count
    where = f" on {node}" if len(rows) < len(it.nodes) else ""
    unless = "someone publishes or subscribes" if isinstance(it, Topic) else "a consumer connects"
    yield case.finding(
        "D24",
        Severity.WARNING if held else Severity.INFO,
        f"It is deleted{where} in {numbers.duration(max(first - now, 0.0))} unless {unless}",
        "It is unused, and the policy file deletes idle ones (expire_after). If you need it, raise that time.",
        number("messages in it", held),
        say("deleted on", ", ".join(f"{row.node} in {numbers.duration(max(at - now, 0.0))}" for at, row in rows)),
    )


def removed_lately(it: Channel | ChannelNode) -> bool:
    """Return True if a policy has taken messages out of the queue lately, so that an empty queue is no good sign."""
    return any(is_removal(cause) for cause, _ in it.policy_recent)


def _going_on(it: Topic | Channel) -> Counts:
    """Return the counts of the last minutes for what still happens.

    What has stopped is over at once, and its findings stay for a while (`upkeep.py`): otherwise they would end minutes
    after their cause is gone.
    """
    growing = it.policy_growing
    return it.policy_recent if growing is None else tuple(entry for entry in it.policy_recent if entry[0] in growing)


def _ending(counts: Counts, word: str) -> Counts:
    return tuple((cause, count) for cause, count in counts if cause.endswith(word))


def _sum(counts: Counts) -> int:
    return sum(count for _, count in counts)


def _bounds(refused: Counts) -> str:
    return " or ".join(cause.removesuffix(", rejected") for cause, _ in refused)


def _evidence(counts: Counts) -> Iterator[Evidence]:
    for cause, count in counts:
        yield number(cause, count)


# Nodes: D25, D26


def refuses_its_file(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    if not node.policy_error:
        return
    yield Finding(
        rule="D25",
        severity=Severity.WARNING,
        verdict=f"{node.address} has started with a copy of its policy file, because the file is broken"
        if node.policy_is_copy
        else f"{node.address} refuses its policy file: the previous version stays in effect",
        # The text of the error may quote names of topics that a viewer may not see.
        advice="The node's page lists the errors. Correct the file there: nsqd looks for changes every second.",
        node=node.address,
        evidence=(say("in force", _named(node.policy_digest)),),
    )


def differing_files(snapshot: Snapshot) -> Iterator[Finding]:
    """Find nodes with another policy file than most of the nodes that answer and report theirs.

    All findings have the same evidence: the files, each with its nodes.
    """
    told: _Files = {}
    last_told: _Files = {}  # by nodes that don't answer now
    for node in snapshot.nodes:
        if node.policy_digest is not None:
            files = told if node.is_reachable else last_told
            files.setdefault(node.policy_digest, []).append(node.address)
    if len(told) <= 1:
        return

    def votes(digest: str) -> tuple[int, bool]:
        # A silent node counts as well: otherwise its silence could turn the majority around, and accuse another node.
        return len(told[digest]) + len(last_told.get(digest, ())), bool(digest)  # in a tie, any file rather than none

    usual = max(told, key=votes)
    whose = _listed(told[usual])
    evidence = (
        *(say(_named(digest), _listed(nodes)) for digest, nodes in told.items()),
        *(say(f"{_named(digest)}, when last seen", _listed(nodes)) for digest, nodes in last_told.items()),
    )
    for digest, nodes in told.items():
        for address in nodes if digest != usual else ():
            yield Finding(
                rule=DIFFERING_FILES,
                severity=Severity.WARNING,
                verdict=f"{address} has another policy file than {whose}"
                if digest
                else f"{address} has no policy file, unlike {whose}",
                advice="Nodes don't share policies. Deploy the same file to each, and start each with --policy-file.",
                node=address,
                others=tuple(told[usual]),
                evidence=evidence,
            )


def _named(digest: str | None) -> str:
    return digest[:_SHORT_DIGEST] if digest else _NO_FILE


def _listed(addresses: list[str]) -> str:
    more = len(addresses) - _MOST_NAMED
    return ", ".join(addresses[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
