"""What the pages of topics, channels, nodes, consumers and the directory show in addition to the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
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
from nsqadmin.diagnosis.clients import Condition, judged
from nsqadmin.diagnosis.policy import DIFFERING_FILES
from nsqadmin.pages.policy import lines_of_channel, lines_of_topic
from nsqadmin.pages.status import State

if TYPE_CHECKING:
    from nsqadmin.diagnosis.clients import Judged
    from nsqadmin.pages.links import Links
    from nsqadmin.pages.policy import CauseLine
    from nsqadmin.pages.status import Standing

MOST_ROWS: Final = 500
_FEW_ROWS: Final = 2  # of one cause; more become one row
_KINDS: Final = {
    Condition.STUCK: "problem",
    Condition.NOT_READY: "problem",
    Condition.FAILING: "warning",
    Condition.SLOW: "warning",
    Condition.IDLE: "muted",
    Condition.UNKNOWN: "muted",
    Condition.NEW: "muted",
    Condition.OK: "ok",
}


# Consumers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    client: Client
    topic: str
    channel: str
    state: State
    rank: tuple[object, ...]  # orders consumers, the worst first


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGroup:
    host: str
    state: State  # of its worst connection
    rank: tuple[object, ...]
    connections: int
    channels: tuple[tuple[str, str], ...]
    nodes: int
    in_flight: int
    ready: int
    finished: int
    requeued: int
    finish_rate: float | None
    requeue_rate: float | None
    oldest: float | None  # in flight anywhere in the group


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumersPage:
    total: int
    rows: tuple[ClientRow, ...]
    groups: tuple[ClientGroup, ...]


def client_rows(channel: Channel, now: float) -> tuple[ClientRow, ...] | None:
    """Return the channel's consumers, the worst first; None if they were not asked for yet.

    If only some nodes have been asked, it is at least the clients there.
    """
    found = judged(channel, now)
    if not found and channel.client_count and channel.clients is None:
        return None
    return tuple(sorted((_client_row(channel, it) for it in found), key=lambda row: row.rank))


def _client_row(channel: Channel, found: Judged) -> ClientRow:
    client, word = found.client, found.word
    return ClientRow(
        client=client,
        topic=channel.topic,
        channel=channel.name,
        state=State(word[0].upper() + word[1:], _KINDS[found.condition]),
        rank=(*found.rank, client.hostname, client.client_id, client.node, client.remote_address),
    )


def consumers_page(snapshot: Snapshot, *, wanted: str, group: str) -> ConsumersPage:
    now = snapshot.taken_at
    rows = [row for topic in snapshot.topics for channel in topic.channels for row in client_rows(channel, now) or ()]
    words = wanted.lower().split()
    matching = sorted((row for row in rows if all(word in _text_of(row) for word in words)), key=lambda row: row.rank)
    return ConsumersPage(
        total=sum(channel.client_count for topic in snapshot.topics for channel in topic.channels),
        rows=tuple(matching),
        groups=client_groups(matching, group) if group != "none" else (),
    )


def client_groups(rows: Iterable[ClientRow], by: str) -> tuple[ClientGroup, ...]:
    """Group consumers, the group with the worst one first."""
    groups: dict[str, list[ClientRow]] = {}
    for row in rows:
        key = {"client_id": row.client.client_id, "user_agent": row.client.user_agent}.get(by, row.client.hostname)
        groups.setdefault(key, []).append(row)
    return tuple(sorted((_group(key, members) for key, members in groups.items()), key=lambda group: group.rank))


def _group(key: str, rows: list[ClientRow]) -> ClientGroup:
    clients = [row.client for row in rows]
    worst = min(rows, key=lambda row: row.rank)
    ages = [client.oldest_in_flight for client in clients if client.oldest_in_flight is not None]
    return ClientGroup(
        host=key,
        state=worst.state,
        rank=(*worst.rank[:3], key),
        connections=len(rows),
        channels=tuple(sorted({(row.topic, row.channel) for row in rows})),
        nodes=len({client.node for client in clients}),
        in_flight=sum(client.in_flight_count for client in clients),
        ready=sum(client.ready_count for client in clients),
        finished=sum(client.finish_count for client in clients),
        requeued=sum(client.requeue_count for client in clients),
        finish_rate=_summed(client.finish_rate for client in clients),
        requeue_rate=_summed(client.requeue_rate for client in clients),
        oldest=max(ages, default=None),
    )


def _summed(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _text_of(row: ClientRow) -> str:
    client = row.client
    words = (client.hostname, client.client_id, client.user_agent, client.remote_address, client.node)
    return f"{' '.join(words)} {row.topic}/{row.channel}".lower()


# A topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRow:
    producer: Producer
    count: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class Ack:
    """A topic's --ack on a node that keeps a copy in an object store."""

    word: str

    @property
    def promise(self) -> str:
        return _PROMISES.get(self.word, "not known here")


_PROMISES: Final = {
    "memory": "it is in memory; a crash of nsqd loses what was not written yet, a lost machine what was not copied",
    "written": "it survives a crash of nsqd; a lost machine loses what was not copied, usually the last second",
    "synced": "it survives a power cut; a lost machine loses what was not copied, usually the last second",
    "remote": "the store has it, so it survives the loss of the machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    topic: Topic
    findings: tuple[Finding, ...]
    producers: tuple[ProducerRow, ...] | None
    history_nodes: tuple[str, ...]
    no_history: str
    curls: tuple[tuple[str, str], ...]
    policy: tuple[CauseLine, ...]
    acks: tuple[tuple[Ack, tuple[str, ...]], ...]  # each with its nodes

    def channels_on(self, address: str) -> int:
        return sum(row.node == address for channel in self.topic.channels for row in channel.nodes)


def topic_details(snapshot: Snapshot, topic: Topic) -> TopicDetails:
    own = [finding for finding in snapshot.findings if finding.topic == topic.name]
    return TopicDetails(
        topic=topic,
        findings=tuple(own),
        producers=_producers(snapshot, topic.name),
        history_nodes=history_nodes(topic),
        no_history=no_history(topic),
        curls=_curls((row.node for row in topic.nodes), topic.name),
        policy=lines_of_topic(topic),
        acks=acks_of(topic),
    )


def acks_of(topic: Topic) -> tuple[tuple[Ack, tuple[str, ...]], ...]:
    nodes: dict[str, list[str]] = {}
    for row in topic.nodes if not topic.is_ephemeral else ():
        if row.ack:
            nodes.setdefault(row.ack, []).append(row.node)
    return tuple((Ack(word), tuple(nodes[word])) for word in sorted(nodes))


def history_nodes(topic: Topic) -> tuple[str, ...]:
    return tuple(row.node for row in topic.nodes if row.has_log)


def no_history(topic: Topic) -> str:
    """Return why the topic's messages cannot be read again; "" if they can."""
    if topic.is_ephemeral:
        return "an ephemeral topic is in memory only and keeps no history"
    if topic.is_inactive:
        return "no node has this topic"
    return "" if history_nodes(topic) else "its nodes keep no history: only a Python nsqd does, not Go's"


def _producers(snapshot: Snapshot, topic: str) -> tuple[ProducerRow, ...] | None:
    if snapshot.producers is None:
        return None
    rows = [
        ProducerRow(producer=producer, count=count, rate=rate)
        for producer in snapshot.producers
        for name, count, rate in producer.counts
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
    calm: str  # the text to show if there are no findings
    clients: tuple[ClientRow, ...] | None
    hosts: tuple[ClientGroup, ...]
    no_history: str
    curls: tuple[tuple[str, str], ...]
    delivery: str  # how many messages go to the same zone and region; empty if clients announce neither
    policy: tuple[CauseLine, ...]


def channel_details(topic: Topic, channel: Channel, standing: Standing, now: float) -> ChannelDetails:
    clients = client_rows(channel, now)
    return ChannelDetails(
        findings=(*standing.about(topic.name, channel.name), *standing.about(topic.name)),
        calm=_calm(channel),
        clients=clients,
        hosts=client_groups(clients or (), "host"),
        no_history=no_history(topic),
        curls=_curls((row.node for row in channel.nodes), topic.name, channel.name),
        delivery=_delivery(channel),
        policy=lines_of_channel(channel),
    )


def _calm(channel: Channel) -> str:
    if not channel.client_count and not channel.depth:
        return "No messages wait here, and no consumer is connected."
    if not channel.depth:
        return "This channel keeps up: no messages wait."
    if channel.drain_time is not None:
        return f"This channel keeps up: its backlog is gone in {numbers.duration(channel.drain_time)}."
    return "The numbers show no problem."


def _delivery(channel: Channel) -> str:
    near = sum(row.zone_local_count for row in channel.nodes)
    region = sum(row.region_local_count for row in channel.nodes)
    far = sum(row.global_count for row in channel.nodes)
    total = near + region + far
    if not near + region:
        return ""  # no client announces its zone or region
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
            channels=tuple(
                (channel.name, row) for channel in topic.channels for row in channel.nodes if row.node == node.address
            ),
        )
        for topic in snapshot.topics
        for on in topic.nodes
        if on.node == node.address
    ]
    clients = tuple(
        row
        for topic in snapshot.topics
        for channel in topic.channels
        for row in client_rows(channel, snapshot.taken_at) or ()
        if row.client.node == node.address
    )
    return NodeDetails(
        findings=snapshot.findings_about(node=node.address),
        topics=tuple(topics[:MOST_ROWS]),
        left_out=max(0, len(topics) - MOST_ROWS),
        clients=tuple(sorted(clients, key=lambda row: row.rank)[:MOST_ROWS]),
    )


def findings_of_nodes(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return what needs attention, without D26: the page says once for all nodes which policy files there are."""
    return tuple(
        found
        for found in snapshot.findings
        if found.node and found.severity is not Severity.INFO and found.rule != DIFFERING_FILES
    )


def differing_files(snapshot: Snapshot) -> tuple[Finding, ...]:
    return tuple(found for found in snapshot.findings if found.rule == DIFFERING_FILES)


# The directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A topic or node that some nsqlookupds know and others do not, or several with one cause."""

    name: str
    kind: str
    link: str
    known: tuple[bool, ...]  # whether each nsqlookupd that answers knows it
    node: str = ""  # the node because of which it is not known everywhere
    members: tuple[Disagreement, ...] = ()  # further names with the same cause


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPage:
    lookupds: tuple[str, ...]  # those that answer
    disagreements: tuple[Disagreement, ...]
    left_out: int
    inactive: tuple[Topic, ...]
    tombstones: tuple[tuple[str, str], ...]  # topic, node


def lookup_page(snapshot: Snapshot, links: Links) -> LookupPage:
    seen = {topic.name for topic in snapshot.topics}
    found = _by_cause(_disagreements(snapshot, links, seen))
    return LookupPage(
        lookupds=tuple(lookupd.address for lookupd in snapshot.lookupds if lookupd.is_reachable),
        disagreements=tuple(found[:MOST_ROWS]),
        left_out=max(0, len(found) - MOST_ROWS),
        inactive=tuple(topic for topic in snapshot.topics if topic.is_inactive),
        tombstones=tuple(
            (topic, node.address) for node in snapshot.nodes for topic in node.tombstones if topic in seen
        ),
    )


def _disagreements(snapshot: Snapshot, links: Links, seen: set[str]) -> Iterator[Disagreement]:
    answering = [lookupd for lookupd in snapshot.lookupds if lookupd.is_reachable]
    nodes = [frozenset(lookupd.nodes) for lookupd in answering]
    for name, known in _not_known_to_all(nodes):
        yield Disagreement(name=name, kind="node", link=links.node(name), known=known, node=name)
    for name, known in _not_known_to_all([frozenset(lookupd.topics) & seen for lookupd in answering]):
        topic = snapshot.topic(name)
        missing = [there for there, is_known in zip(nodes, known, strict=True) if not is_known]
        on = {row.node for row in topic.nodes} if topic is not None else set()
        is_nodes_fault = len(on) == 1 and all(on.isdisjoint(there) for there in missing)
        yield Disagreement(
            name=name, kind="topic", link=links.topic(name), known=known, node=min(on) if is_nodes_fault else ""
        )


def _not_known_to_all(sets: Sequence[frozenset[str]]) -> Iterator[tuple[str, tuple[bool, ...]]]:
    common = frozenset.intersection(*sets) if sets else frozenset()
    for name in sorted(frozenset().union(*sets) - common):
        yield name, tuple(name in known for known in sets)


def _by_cause(found: Iterable[Disagreement]) -> list[Disagreement]:
    """Join names that the same nsqlookupds lack for the same reason: a node, or one that nobody knows."""
    groups: dict[tuple[str, tuple[bool, ...]], list[Disagreement]] = {}
    for it in found:
        groups.setdefault((it.node, it.known), []).append(it)
    return [
        row
        for group in groups.values()
        for row in ([replace(group[0], members=tuple(group[1:]))] if len(group) > _FEW_ROWS else group)
    ]
