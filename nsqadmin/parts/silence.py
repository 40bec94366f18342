"""Silent nodes on pages: their last known numbers in sums, what can't be said while they are, and the effect of forgetting one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nsqadmin import numbers
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


# Sentences that say "nothing"


def unless_unknown(snapshot: Snapshot, sentence: str, of: Topic | Channel | None = None) -> str:
    """Return a sentence that says "nothing" or "none" if it is known to be true, and otherwise what isn't known.

    It is about everything, or about one topic or channel. While a node doesn't answer, we can't know what it has.
    """
    return unknown_part(snapshot, of) or sentence


def unknown_part(snapshot: Snapshot, of: Topic | Channel | None = None) -> str:
    """Say which part is unknown, such as "Unknown: 2 of 5 nodes are silent."; empty if every node has answered."""
    if not snapshot.index:
        return "Unknown: no node has answered yet."
    if snapshot.has_lookupds and not any(it.is_reachable for it in snapshot.lookupds):
        return "Unknown: no nsqlookupd answers, and only they know all nodes."
    silent = {it.address for it in snapshot.nodes if not it.is_reachable and not it.successor}
    total = len(snapshot.nodes)
    if of is not None:
        # The last answer of a silent node shows if it has this; a node that has never answered may have it, too.
        own = {row.node for row in of.nodes}
        silent = {it for it in silent if it in own or not _has_answered(snapshot, it)} | set(of.silent)
        total = len(own | silent)
    if not silent:
        return ""
    if len(silent) == total:
        return f"Unknown: {'the only node is' if total == 1 else f'all {total} nodes are'} silent."
    return f"Unknown: {len(silent)} of {total} nodes {'is' if len(silent) == 1 else 'are'} silent."


def tally(snapshot: Snapshot, number: int, one: str, many: str = "") -> str:
    """Write a count with its noun: "2 topics"; and "topics unknown" instead of "no topics" if there may be some."""
    is_unknown = not number and unknown_part(snapshot)
    return f"{many or one + 's'} unknown" if is_unknown else numbers.several(number, one, many)


def _has_answered(snapshot: Snapshot, address: str) -> bool:
    node = snapshot.node(address)
    return node is not None and node.is_known


def is_all_unknown(snapshot: Snapshot) -> bool:
    """Return True if no node answers now, so that every number is a last known one, or missing."""
    return bool(snapshot.nodes) and not any(it.is_reachable for it in snapshot.nodes)
