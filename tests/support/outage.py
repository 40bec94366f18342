"""A cluster in a partial outage, as a picture: 310 topics, a node that hangs, unattended tenants, a bad release."""

from __future__ import annotations

from nsqadmin.cluster.model import Channel, Client, Finding, Health, Rates, Severity, Snapshot, Topic, TopicNode
from tests.support.picture import NOW, channel, channel_node, client, node, snapshot, topic

HUNG = "n2:4151"
NODES = ("n1:4151", HUNG, "n3:4151")
NEW, OLD = "shop-worker/1.5-rc1", "shop-worker/1.4"
TENANTS = 38
SHOPS = ("mail", "invoices", "parcels")
PARTLY = 112  # channels that are on the hung node, too


def outage(*, unattended: int = TENANTS) -> Snapshot:
    tenants = [_tenant(number) for number in range(1, unattended + 1)]
    shops = [_shop(name) for name in SHOPS]
    others = [_other(number) for number in range(310 - unattended - len(SHOPS) - 1)]
    paused = topic(
        channel(channel_node(depth=400, paused=True), topic="archive", name="cold"), name="archive", nodes=_rows(1)
    )
    findings = [
        _finding("D16", f"{HUNG} does not answer", node=HUNG, facet="reach", weight=60.0),
        *(_finding("D3", "No consumer is connected", it, weight=35.0) for it in tenants),
        *(_finding("D7", "Handlers hang: messages time out and nothing is finished", it, weight=36.5) for it in shops),
        *(
            _finding("D4", "1 of 2 nodes has no consumer, and messages wait there", it, weight=32.0)
            for it in others[:PARTLY]
        ),
        _finding("D1", "Paused: nothing is delivered", paused, severity=Severity.WARNING, weight=16.6),
        *(
            _finding("D16", f"{name} is older than the others", node=name, facet="version", severity=Severity.INFO)
            for name in (NODES[0], NODES[2])
        ),
        _finding("D10", "120 messages wait for their delay", others[-1], severity=Severity.INFO),
    ]
    return snapshot(
        *sorted((*tenants, *shops, *others, paused), key=lambda it: it.name),
        nodes=tuple(node(name, health=Health.DOWN if name == HUNG else Health.OK, depth=38_989) for name in NODES),
        findings=tuple(findings),
    )


def _finding(
    rule: str,
    verdict: str,
    about: Topic | None = None,
    *,
    severity: Severity = Severity.PROBLEM,
    weight: float = 0.0,
    node: str = "",
    facet: str = "",
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        verdict=verdict,
        advice="Look at it.",
        topic=about.name if about else "",
        channel=about.channels[0].name if about else "",
        node=node,
        facet=facet,
        since=NOW - 300,
        weight=weight,
    )


def _tenant(number: int) -> Topic:
    name = f"tenant_{number:03}.events"
    return topic(channel(channel_node(depth=30), topic=name, name="indexer"), name=name, nodes=_rows(1))


def _shop(name: str) -> Topic:
    stuck = _client(f"{name}-01", NEW, 0.0)
    fine = _client(f"{name}-02", OLD, 12.0)
    return topic(
        channel(channel_node(depth=90, in_flight_count=10, clients=(stuck, fine)), topic=name, name="send"),
        name=name,
        nodes=_rows(1),
    )


def _client(host: str, agent: str, rate: float) -> Client:
    return client(client_id=host, hostname=host, user_agent=agent, ready_count=5, in_flight_count=5, finish_rate=rate)


def _other(number: int) -> Topic:
    name = f"{'abcdefghijklmnopqrstuvwxyz'[number % 26]}{'abcdefghijklmnopqrstuvwxyz'[number // 26]}.changes"
    fine = client(user_agent=OLD, hostname=f"worker-{number}", ready_count=5, finish_rate=1.0)
    it: Channel = channel(
        channel_node(clients=(fine,)),
        channel_node(HUNG, depth=3),
        topic=name,
        name="sync",
        rates=Rates(incoming=1.0, finished=1.0),
    )
    return topic(it, name=name, nodes=_rows(2))


def _rows(count: int) -> tuple[TopicNode, ...]:
    return tuple(TopicNode(node=name) for name in NODES[:count])
