"""Rules about the copies that nodes keep in an object store: D28 to D33. All are about a node that answers.

A standby is in no nsqlookupd, so we seldom see one. But it polls the owner, and the owner lists its standbys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Evidence, Finding, Node, RemoteCopy, Severity, Snapshot
from nsqadmin.diagnosis.case import first_that_speaks
from nsqadmin.diagnosis.words import age, number, say

_LATE: Final = 60.0  # seconds
_HOUR: Final = 3600.0
_SETTLED: Final = 60.0  # seconds in which a running standby has polled


def about_copy(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    copy = node.remote
    if copy is not None:
        yield from first_that_speaks(rule(node, copy) for rule in (_store_away, _late))
        yield from _taken_over(node, copy, snapshot)
        yield from _aside(node, copy)
        yield from _used_twice(node, copy, snapshot)
        yield from _unwatched(node, copy, snapshot)


def _store_away(node: Node, copy: RemoteCopy) -> Iterable[Finding]:
    if copy.is_down:
        yield _finding(
            "D28",
            Severity.PROBLEM,
            node,
            f"{node.address} gets no answer from its store: topics with ack remote refuse publishes",
            "Look at the store and at the network to it; nsqd remote check on that machine says why. "
            "Consumers and other topics go on. Publishes are accepted again by themselves when the store answers.",
            say("store", copy.store),
            say("it says", copy.refusal),
            number("bytes not copied", copy.behind_bytes),
        )


def _late(node: Node, copy: RemoteCopy) -> Iterable[Finding]:
    if copy.behind_seconds > _LATE:
        yield _finding(
            "D29",
            Severity.WARNING,
            node,
            f"The copy of {node.address} is {numbers.duration(copy.behind_seconds)} behind",
            "The store is too slow for what this node writes. If its machine were lost now, topics without ack remote "
            "would lose that much.",
            age("behind", copy.behind_seconds),
            number("bytes not copied", copy.behind_bytes),
            number("publishes that wait", copy.waiting_publishes),
        )


def _taken_over(node: Node, copy: RemoteCopy, snapshot: Snapshot) -> Iterable[Finding]:
    if not copy.is_adopted or node.start_time is None:
        return
    ago = snapshot.taken_at - node.start_time
    if 0 <= ago < _HOUR:
        before = [it.address for it in snapshot.nodes if it.successor == node.address]
        yield _finding(
            "D30",
            Severity.INFO,
            node,
            f"{node.address} has taken over {copy.name}{' from ' + ', '.join(before) if before else ''}",
            "Find out what happened to the machine before, and start a standby again: this node may have none now.",
            age("ago", ago),
            say("store", copy.store),
            window=_HOUR,
        )


def _aside(node: Node, copy: RemoteCopy) -> Iterable[Finding]:
    if copy.asides:
        yield _finding(
            "D31",
            Severity.WARNING,
            node,
            f"{node.address} has files aside: they may have messages that the store never got",
            "Run nsqd remote aside with its data path to see them, and with --publish-to to publish them again. Then "
            "delete the folders.",
            number("folders", len(copy.asides)),
            say("the newest", copy.asides[-1]),
        )


def _used_twice(node: Node, copy: RemoteCopy, snapshot: Snapshot) -> Iterable[Finding]:
    """Find a node with the name of another one. It is about the one that started first: the other has fenced it."""
    for other in snapshot.nodes:
        if _is_after(other, node) and other.remote is not None and other.remote.key == copy.key:
            found = _finding(
                "D32",
                Severity.PROBLEM,
                node,
                f"{copy.name} is in use by {node.address} and by {other.address}",
                f"{other.address} has taken it over. {node.address} is cut off from the store, or ends within seconds; "
                "if it stays, stop it: what it accepts goes aside. If they are meant to be two nodes, give each a "
                "--remote-name of its own.",
                say("store", copy.store),
            )
            yield replace(found, others=(other.address,))


def _unwatched(node: Node, copy: RemoteCopy, snapshot: Snapshot) -> Iterable[Finding]:
    """Find a node without a standby, although it should have one. Without --standby, others may start it elsewhere."""
    if not copy.wants_standby or copy.standbys or not copy.is_owned:
        return
    if node.start_time is None or snapshot.taken_at - node.start_time < _SETTLED:
        return
    yield _finding(
        "D33",
        Severity.WARNING,
        node,
        f"No standby waits for {node.address}: if its machine is lost, nothing takes {copy.name} over",
        f"Start nsqd with --standby and --remote-name={copy.name} on another machine. If it runs there, its log says what "
        "it waits for: it may not reach this address, or the store.",
        say("store", copy.store),
    )


def _is_after(other: Node, node: Node) -> bool:
    if other.address == node.address or not other.is_reachable:
        return False
    if node.remote is None or other.remote is None or not (node.remote.is_owned and other.remote.is_owned):
        return False
    return (other.start_time or 0.0, other.address) > (node.start_time or 0.0, node.address)


def _finding(
    rule: str, severity: Severity, node: Node, verdict: str, advice: str, *evidence: Evidence, window: float = 0.0
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        verdict=verdict,
        advice=advice,
        node=node.address,
        evidence=tuple(row for row in evidence if row.value),
        window=window,
    )
