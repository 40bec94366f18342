"""Silent nodes on pages: their last known numbers in sums, and the effect of forgetting such a node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nsqadmin.cluster.model import Channel, Node, Silent, Snapshot, Topic


def parts_of(snapshot: Snapshot, of: Topic | Channel) -> tuple[Silent, ...]:
    """Return the silent nodes of a topic or channel, each with its last known number of waiting messages."""
    return tuple(replace(it, depth=waiting_on(of, it.node)) for it in snapshot.silent if it.node in of.silent)


def waiting_on(of: Topic | Channel, address: str) -> int:
    own = sum(row.depth for row in of.nodes if row.node == address)
    return own + sum(waiting_on(channel, address) for channel in of.channels) if isinstance(of, Topic) else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A topic of a silent node."""

    name: str
    depth: int  # messages that waited there, in the topic and in its channels
    is_elsewhere: bool  # another node has the topic, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """The data that nsqadmin loses if it forgets a node."""

    node: Node
    topics: tuple[Forgotten, ...]  # largest first
    is_announced: bool  # it is still registered or configured, and so stays in the list of nodes

    @property
    def depth(self) -> int:
        return sum(topic.depth for topic in self.topics)


def forgetting(snapshot: Snapshot, node: Node) -> Forgetting:
    topics = [
        Forgotten(name=it.name, depth=waiting_on(it, node.address), is_elsewhere=len(it.nodes) > 1)
        for it in snapshot.topics
        if any(row.node == node.address for row in it.nodes)
    ]
    return Forgetting(
        node=node,
        topics=tuple(sorted(topics, key=lambda it: (-it.depth, it.name))),
        is_announced=bool(node.lookupds) or not snapshot.has_lookupds,
    )
