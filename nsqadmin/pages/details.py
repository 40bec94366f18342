"""What the pages of one topic, channel or node, of consumers and of the directory show beyond the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Action, Kind, node_target
from nsqadmin.cluster.model import (
    Channel,
    ChannelNode,
    Client,
    Finding,
    Node,
    Producer,
    Severity,
    Snapshot,
    Topic,
    TopicNode,
)
from nsqadmin.pages import numbers

if TYPE_CHECKING:
    from nsqadmin.pages.links import Links
    from nsqadmin.pages.status import Standing

MOST_ROWS: Final = 500
SLOW_SHARE: Final = 0.3  # of what its peers finish, with its hands full


# Consumers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    client: Client
    topic: str
    channel: str
    is_slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGroup:
    host: str
    connections: int
    channels: tuple[tuple[str, str], ...]
    nodes: int
    in_flight: int
    ready: int
    finished: int
    requeued: int
    finish_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumersPage:
    total: int
    rows: tuple[ClientRow, ...]
    groups: tuple[ClientGroup, ...]
    left_out: int


def client_rows(channel: Channel) -> tuple[ClientRow, ...] | None:
    """By host; None where they were not asked for yet."""
    clients = channel.clients
    if clients is None:
        # Some nodes may have been asked already: better these than none.
        known = [client for row in channel.nodes for client in row.clients or ()]
        if not known and channel.client_count:
            return None
        clients = tuple(known)
    slow = _slow_ones(clients)
    rows = [ClientRow(client=it, topic=channel.topic, channel=channel.name, is_slow=id(it) in slow) for it in clients]
    return tuple(
        sorted(
            rows,
            key=lambda row: (row.client.hostname, row.client.client_id, row.client.node, row.client.remote_address),
        )
    )


def _slow_ones(clients: Sequence[Client]) -> frozenset[int]:
    rates = sorted(it.finish_rate for it in clients if it.finish_rate is not None)
    if len(rates) < 3:
        return frozenset()
    usual = rates[len(rates) // 2]
    return frozenset(
        id(it)
        for it in clients
        if it.finish_rate is not None
        and it.finish_rate < SLOW_SHARE * usual
        and it.in_flight_count
        and it.in_flight_count >= it.ready_count
    )


def consumers_page(snapshot: Snapshot, *, wanted: str, group: str) -> ConsumersPage:
    rows = [row for topic in snapshot.topics for channel in topic.channels for row in client_rows(channel) or ()]
    words = wanted.lower().split()
    matching = [row for row in rows if all(word in _text_of(row) for word in words)]
    shown = matching[:MOST_ROWS] if group == "none" else matching
    return ConsumersPage(
        total=sum(channel.client_count for topic in snapshot.topics for channel in topic.channels),
        rows=tuple(shown),
        groups=client_groups(matching, group)[:MOST_ROWS],
        left_out=len(matching) - len(shown),
    )


def client_groups(rows: Iterable[ClientRow], by: str) -> tuple[ClientGroup, ...]:
    groups: dict[str, list[ClientRow]] = {}
    for row in rows:
        key = {"client_id": row.client.client_id, "user_agent": row.client.user_agent}.get(by, row.client.hostname)
        groups.setdefault(key, []).append(row)
    return tuple(_group(key, members) for key, members in sorted(groups.items()))


def _group(key: str, rows: list[ClientRow]) -> ClientGroup:
    clients = [row.client for row in rows]
    rates = [it.finish_rate for it in clients if it.finish_rate is not None]
    return ClientGroup(
        host=key,
        connections=len(rows),
        channels=tuple(sorted({(row.topic, row.channel) for row in rows})),
        nodes=len({it.node for it in clients}),
        in_flight=sum(it.in_flight_count for it in clients),
        ready=sum(it.ready_count for it in clients),
        finished=sum(it.finish_count for it in clients),
        requeued=sum(it.requeue_count for it in clients),
        finish_rate=sum(rates) if rates else None,
    )


def _text_of(row: ClientRow) -> str:
    it = row.client
    return (
        f"{it.hostname} {it.client_id} {it.user_agent} {it.remote_address} {it.node} {row.topic}/{row.channel}".lower()
    )


# A topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRow:
    producer: Producer
    count: int
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    topic: Topic
    findings: tuple[Finding, ...]
    producers: tuple[ProducerRow, ...] | None
    history_nodes: tuple[str, ...]
    no_history: str
    curls: tuple[tuple[str, str], ...]

    def channels_on(self, address: str) -> int:
        return sum(row.node == address for channel in self.topic.channels for row in channel.nodes)


def topic_details(snapshot: Snapshot, topic: Topic) -> TopicDetails:
    own = [it for it in snapshot.findings if it.topic == topic.name]
    return TopicDetails(
        topic=topic,
        findings=tuple(own),
        producers=_producers(snapshot, topic.name),
        history_nodes=history_nodes(topic),
        no_history=no_history(topic),
        curls=_curls((row.node for row in topic.nodes), topic.name),
    )


def history_nodes(topic: Topic) -> tuple[str, ...]:
    return tuple(row.node for row in topic.nodes if row.has_log)


def no_history(topic: Topic) -> str:
    """Why its messages cannot be read again; empty where they can."""
    if topic.is_ephemeral:
        return "an ephemeral topic is in memory only and keeps no history"
    if topic.is_inactive:
        return "no node has this topic"
    return "" if history_nodes(topic) else "its nodes keep no history: only a Python nsqd does, not Go's"


def _producers(snapshot: Snapshot, topic: str) -> tuple[ProducerRow, ...] | None:
    if snapshot.producers is None:
        return None
    rows = [
        ProducerRow(producer=it, count=count, rate=rate)
        for it in snapshot.producers
        for name, count, rate in it.counts
        if name == topic
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.rate or 0.0), -row.count)))


_TOPIC_ACTIONS: Final = (Kind.PAUSE_TOPIC, Kind.UNPAUSE_TOPIC, Kind.EMPTY_TOPIC, Kind.DELETE_TOPIC)
_CHANNEL_ACTIONS: Final = (Kind.PAUSE_CHANNEL, Kind.UNPAUSE_CHANNEL, Kind.EMPTY_CHANNEL, Kind.DELETE_CHANNEL)


def _curls(nodes: Iterable[str], topic: str, channel: str = "") -> tuple[tuple[str, str], ...]:
    addresses = tuple(nodes)
    kinds = _CHANNEL_ACTIONS if channel else _TOPIC_ACTIONS
    return tuple(
        (kind.split("_")[0].capitalize(), curl(Action(kind=kind, topic=topic, channel=channel), addresses))
        for kind in kinds
        if addresses
    )


def curl(action: Action, addresses: Iterable[str]) -> str:
    return "\n".join(f"curl -X POST {quote(f'http://{address}{node_target(action)}')}" for address in addresses)


# A channel


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDetails:
    findings: tuple[Finding, ...]
    calm: str
    clients: tuple[ClientRow, ...] | None
    hosts: tuple[ClientGroup, ...]
    no_history: str
    curls: tuple[tuple[str, str], ...]
    delivery: str  # how near its consumers are, where that is known


def channel_details(topic: Topic, channel: Channel, standing: Standing) -> ChannelDetails:
    clients = client_rows(channel)
    return ChannelDetails(
        findings=(*standing.about(topic.name, channel.name), *standing.about(topic.name)),
        calm=_calm(channel),
        clients=clients,
        hosts=client_groups(clients or (), "host"),
        no_history=no_history(topic),
        curls=_curls((row.node for row in channel.nodes), topic.name, channel.name),
        delivery=_delivery(channel),
    )


def _calm(channel: Channel) -> str:
    if not channel.client_count and not channel.depth:
        return "Nothing waits here, and no consumer is connected."
    if not channel.depth:
        return "This channel keeps up: nothing waits."
    if channel.drain_time is not None:
        return f"This channel keeps up: what waits is gone in {numbers.duration(channel.drain_time)}."
    return "Nothing is wrong as far as the numbers say."


def _delivery(channel: Channel) -> str:
    near = sum(row.zone_local_count for row in channel.nodes)
    region = sum(row.region_local_count for row in channel.nodes)
    far = sum(row.global_count for row in channel.nodes)
    total = near + region + far
    if not near + region:
        return ""  # nobody has said where he is
    return f"Delivered in the same zone {numbers.percent(near / total)}, same region {numbers.percent(region / total)}, elsewhere {numbers.percent(far / total)}"


# A node


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOnNode:
    topic: Topic
    on: TopicNode
    channels: tuple[tuple[str, ChannelNode], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetails:
    findings: tuple[Finding, ...]
    topics: tuple[TopicOnNode, ...]
    left_out: int
    clients: tuple[ClientRow, ...]


def node_details(snapshot: Snapshot, node: Node) -> NodeDetails:
    topics = [
        TopicOnNode(
            topic=topic,
            on=on,
            channels=tuple((it.name, row) for it in topic.channels for row in it.nodes if row.node == node.address),
        )
        for topic in snapshot.topics
        for on in topic.nodes
        if on.node == node.address
    ]
    clients = tuple(
        row
        for topic in snapshot.topics
        for channel in topic.channels
        for row in client_rows(channel) or ()
        if row.client.node == node.address
    )
    return NodeDetails(
        findings=snapshot.findings_about(node=node.address),
        topics=tuple(topics[:MOST_ROWS]),
        left_out=max(0, len(topics) - MOST_ROWS),
        clients=clients[:MOST_ROWS],
    )


def findings_of_nodes(snapshot: Snapshot) -> tuple[Finding, ...]:
    return tuple(it for it in snapshot.findings if it.node and it.severity is not Severity.INFO)


# The directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    name: str
    kind: str
    link: str
    known: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPage:
    lookupds: tuple[str, ...]  # those that answer
    disagreements: tuple[Disagreement, ...]
    left_out: int
    inactive: tuple[Topic, ...]
    tombstones: tuple[tuple[str, str], ...]  # topic, node


def lookup_page(snapshot: Snapshot, links: Links) -> LookupPage:
    answering = [it for it in snapshot.lookupds if it.is_reachable]
    seen = {topic.name for topic in snapshot.topics}
    found = []
    for kind, sets in (
        ("topic", [frozenset(it.topics) & seen for it in answering]),
        ("node", [frozenset(it.nodes) for it in answering]),
    ):
        common = frozenset.intersection(*sets) if sets else frozenset()
        for name in sorted(frozenset().union(*sets) - common):
            link = links.topic(name) if kind == "topic" else links.node(name)
            found.append(Disagreement(name=name, kind=kind, link=link, known=tuple(name in it for it in sets)))
    return LookupPage(
        lookupds=tuple(it.address for it in answering),
        disagreements=tuple(found[:MOST_ROWS]),
        left_out=max(0, len(found) - MOST_ROWS),
        inactive=tuple(it for it in snapshot.topics if it.is_inactive),
        tombstones=tuple((topic, it.address) for it in snapshot.nodes for topic in it.tombstones if topic in seen),
    )
