"""Rules about one nsqd or nsqlookupd: D16, D27. Each rule is checked.

D25, and D26 about all nodes, are in `policy.py`; D28 to D33, about a node's copy in an object store, are in `remote.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from nsqadmin import numbers
from nsqadmin.cluster.merge import version_key
from nsqadmin.cluster.model import Evidence, Finding, Health, Lookupd, Node, Severity, Snapshot
from nsqadmin.diagnosis import policy
from nsqadmin.diagnosis.remote import about_copy
from nsqadmin.diagnosis.words import TOO_MANY_NODES, number, say

_RULE: Final = "D16"
_UNREACHABLE: Final = "D27"
_MOST_PROBLEMS: Final = 3  # nsqlookupds to quote
_SKEW: Final = 10.0  # seconds
_REACH: Final = "reach"

_VERDICTS: Final[Mapping[Health, str]] = {
    Health.DOWN: "does not answer",
    Health.NEVER: "has never answered",
    Health.SLOW: "is slow to answer",
}


def about_node(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    if node.successor:
        yield _succeeded(node)
    elif node.health in _VERDICTS:
        verdict = f"{node.address} {_verdict(node)}"
        known = [number("messages there, last known", node.depth)] if not node.is_reachable and node.answered_at else []
        yield _finding(node, _REACH, _severity(node.health), verdict, node.explanation + _from_its_copy(node), *known)
    yield from _without_token(node, snapshot)
    yield from _unreachable(node)
    if node.is_reachable:
        for rule in _OF_THE_REACHABLE:
            yield from rule(node, snapshot)


def _from_its_copy(node: Node) -> str:
    if node.is_reachable or node.remote is None or node.is_standby:
        return ""
    return (
        f" Its messages are in {node.remote.store}, too: a standby takes over by itself; without one, start nsqd on "
        f"another machine with --remote-name={node.remote.name}."
    )


def _succeeded(node: Node) -> Finding:
    return _finding(
        node,
        _REACH,
        Severity.WARNING,
        f"{node.address} does not answer; {node.successor} has taken over its name",
        f"Its messages are on {node.successor} now. Find out what happened to its machine. If it comes back, start nsqd "
        "there with --standby.",
    )


def about_lookupd(lookupd: Lookupd) -> Iterator[Finding]:
    if lookupd.health in _VERDICTS:
        yield Finding(
            rule=_RULE,
            facet=_REACH,
            severity=_severity(lookupd.health),
            verdict=f"nsqlookupd {lookupd.address} {_verdict(lookupd)}",
            advice=lookupd.explanation,
            node=lookupd.address,
            evidence=(say("error", lookupd.error),) if lookupd.error else (),
            since=lookupd.since,
        )

    if lookupd.nodes_left_out or lookupd.topics_left_out:
        yield Finding(
            rule=_RULE,
            facet="bounds",
            severity=Severity.WARNING,
            verdict=f"nsqlookupd {lookupd.address} lists more than is shown",
            advice=TOO_MANY_NODES,
            node=lookupd.address,
            evidence=(
                number("nodes left out", lookupd.nodes_left_out),
                number("topics left out", lookupd.topics_left_out),
            ),
        )


def _verdict(asked: Node | Lookupd) -> str:
    return f"is not read: {asked.not_read}" if asked.not_read else _VERDICTS[asked.health]


def _severity(health: Health) -> Severity:
    return Severity.WARNING if health is Health.SLOW else Severity.PROBLEM


def _without_token(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    if node.token_withheld:
        yield _finding(
            node,
            "token",
            Severity.WARNING,
            f"{node.address} is asked without the token",
            "If the node is yours, add it to --nsqd-token-to and enable HTTPS on it; if it isn't, find out who "
            "registers it with nsqlookupd.",
            say("why", node.token_withheld),
        )


def _unreachable(node: Node) -> Iterator[Finding]:
    """Find a node to which clients can't connect, because the address that it announces means nothing to others."""
    if not node.unreachable:
        return
    where = f"TCP port {node.tcp_port} of {node.broadcast_address}"
    if node.is_reachable:
        seen = f"nsqadmin reaches its HTTP port from here, but nsqlookupd cannot connect to {where}; clients there cannot either."
    else:
        seen = f"It is registered, so it runs, but neither nsqlookupd nor nsqadmin can connect to {node.broadcast_address}."
    remote = _remote_host(node)
    here = f" (it connects from {remote})" if remote else ""
    yield replace(
        _finding(
            node,
            "",
            Severity.WARNING if node.is_reachable else Severity.PROBLEM,
            f"{node.address} cannot be reached by clients, says nsqlookupd",
            f"{seen} Start it with --broadcast-address=<a name or address that clients can reach>{here}, and with "
            "--broadcast-tcp-port and --broadcast-http-port where ports are mapped.",
            *(say("nsqlookupd says", problem) for problem in node.unreachable[:_MOST_PROBLEMS]),
        ),
        rule=_UNREACHABLE,
        others=tuple(problem.partition(": ")[0] for problem in node.unreachable),
    )


def _remote_host(node: Node) -> str:
    """Return the IP address from which the node registers."""
    remote = node.remote_addresses[0].partition("/")[2] if node.remote_addresses else ""
    return remote.rpartition(":")[0].strip("[]")


def _sick(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    is_store = node.remote is not None and node.remote.is_down and node.remote.refusal in node.own_health  # D28 says it
    if node.own_health not in ("", "OK") and not is_store:
        yield _finding(
            node,
            "health",
            Severity.PROBLEM,
            f"{node.address} reports that it is not well",
            "Look at its log; most often it cannot write to its disk.",
            say("it says", node.own_health),
        )


def _not_everywhere(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    missing = [
        lookupd.address
        for lookupd in snapshot.lookupds
        if lookupd.is_reachable and lookupd.address not in node.lookupds
    ]
    if snapshot.has_lookupds and missing and not node.draining:  # an earlier version deregisters then
        yield _finding(
            node,
            "registration",
            Severity.WARNING,
            f"{node.address} is not registered with {', '.join(missing)}",
            "Consumers that ask there do not find it: check that its --lookupd-tcp-address names that nsqlookupd, and that it can reach it.",
            say("registered with", ", ".join(node.lookupds) or "none"),
            others=tuple(missing),
        )


def _draining(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    if node.draining:
        yield _finding(
            node,
            "draining",
            Severity.INFO,
            f"{node.address} is draining: it accepts no messages, and delivers its waiting ones",
            "Its page shows what is left, and when it is safe to stop it.",
            number("messages there", node.depth),
        )


def _old(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    if node.out_of_date:
        newest = max((other.version for other in snapshot.nodes), key=version_key, default="")
        yield _finding(
            node,
            "version",
            Severity.INFO,
            f"{node.address} is older than the others",
            "Upgrade it when convenient.",
            say("version", node.version),
            say("newest", newest),
        )


def _twice(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    twins = [other.hostname for other in snapshot.nodes if _is_twin(other, node)]
    if twins:
        yield _finding(
            node,
            "twin",
            Severity.WARNING,
            f"{node.broadcast_address} is announced by {len(twins) + 1} nodes with the same TCP port",
            "nsqadmin can't tell them apart: give each its own --broadcast-address.",
            say("also announced by", ", ".join(twins)),
        )


def _is_twin(other: Node, node: Node) -> bool:
    return (
        other is not node
        and other.broadcast_address == node.broadcast_address
        and other.tcp_port == node.tcp_port
        and other.is_reachable
    )


def _wrong_clock(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    if node.clock_skew is not None and abs(node.clock_skew) > _SKEW:
        yield _finding(
            node,
            "clock",
            Severity.WARNING,
            f"The clock of {node.address} is {numbers.duration(abs(node.clock_skew))} {'ahead' if node.clock_skew > 0 else 'behind'}",
            "Ages and latencies are wrong until the clocks agree: check that NTP is running.",
            say("ahead of ours by", numbers.duration(node.clock_skew)),
        )


_OF_THE_REACHABLE: Final[tuple[Callable[[Node, Snapshot], Iterable[Finding]], ...]] = (
    _sick,
    _draining,
    _not_everywhere,
    _old,
    _twice,
    _wrong_clock,
    policy.refuses_its_file,
    about_copy,
)


def _finding(
    node: Node,
    facet: str,
    severity: Severity,
    verdict: str,
    advice: str,
    *evidence: Evidence,
    others: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        rule=_RULE,
        facet=facet,
        others=others,
        severity=severity,
        verdict=verdict,
        advice=advice,
        node=node.address,
        evidence=tuple(row for row in evidence if row.value),
        since=node.since if facet == _REACH and not node.is_reachable else 0.0,
    )
