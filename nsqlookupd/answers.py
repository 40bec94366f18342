"""The answers of the HTTP API as JSON, with NSQ's keys.

Rendered parts are cached while they are valid: a peer's entry in /lookup until its state changes, its entry in /nodes
until its state or topics change, the answer for a topic until its producers or channels change. So an answer with 500
producers is mostly a join of bytes.

Functions that return an iterator yield an answer in pieces, some of them empty, so that others can run in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqcommon.nsq_json import dumps
from nsqlookupd.registry import NEVER, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqlookupd.missing import Missing
    from nsqlookupd.registry import LookupAnswer, Peer, Registry, Tombstone, Topic

_MOST_AT_ONCE: Final = 2000  # topics of a node, or channels of a topic; more are rendered in pieces
_IN_PIECE: Final = 1000  # elements of an array in each piece


def lookup_json(answer: LookupAnswer) -> Iterator[bytes]:
    """Render the answer to /lookup. All pieces but the last are empty, because the answer is cached as one."""
    if answer.rendered is None:
        names: list[bytes] = []
        for piece in _names_in_order(answer.channels):
            if piece:
                names.append(piece)
            yield b""
        entries = b",".join([b"{%b}" % _lookup_entry(peer) for peer in answer.producers])
        answer.rendered = b'{"channels":[%b],"producers":[%b]}' % (b"".join(names), entries)
    yield answer.rendered


def topics_json(registry: Registry) -> Iterator[bytes]:
    """Render the answer to /topics."""
    names: list[str] = []
    for name in registry.names_in_order():
        if name is not None:
            names.append(name)
        yield b""
    yield b'{"topics":['
    yield from _in_pieces(names)
    yield b"]}"


def channels_json(names: Sequence[str]) -> Iterator[bytes]:
    """Render the answer to /channels."""
    yield b'{"channels":['
    yield from _names_in_order(names)
    yield b"]}"


def nodes_json(registry: Registry, *, with_missing: bool = False) -> Iterator[bytes]:
    """Render the answer to /nodes. Each node is current when its piece is taken.

    If all nodes have changed, for example after a restart, this takes a while.
    """
    yield b'{"producers":['
    comma = b""
    for peer in registry.active_peers():
        yield comma
        comma = b","
        if peer.node_entry or len(peer.topics) <= _MOST_AT_ONCE:
            yield _node_entry(peer)
        else:
            yield from _large_node_entry(peer)
    yield b"]"
    if with_missing:
        yield b',"missing":['
        yield from _in_pieces([_missing_entry(missing) for missing in registry.missing()])
        yield b"]"
    yield b"}"


def debug_json(registry: Registry) -> Iterator[bytes]:
    """Render the answer to /debug. Each row is current when its piece is taken.

    There can be hundreds of thousands of entries, so each peer is rendered once.
    """
    entries: dict[Peer, bytes] = {}

    def entry(peer: Peer, tombstone: Tombstone | None) -> bytes:
        if tombstone is not None:
            return dumps(_debug_entry(peer, tombstone))
        if peer not in entries:
            entries[peer] = dumps(_debug_entry(peer, None))
        return entries[peer]

    yield b"{"
    comma = b""
    for found in registry.registrations():
        if found is None:
            yield b""
            continue
        row, peers = found
        yield b"%b%b:[%b]" % (comma, dumps(":".join(row)), b",".join([entry(*producer) for producer in peers]))
        comma = b","
    yield b"}"


def _lookup_entry(peer: Peer) -> bytes:
    """Render without braces, because /nodes adds more keys."""
    if not peer.lookup_entry:
        identity = peer.identity
        entry = dumps(
            {
                "remote_address": peer.id,
                "hostname": identity.hostname,
                "broadcast_address": identity.broadcast_address,
                "tcp_port": identity.tcp_port,
                "http_port": identity.http_port,
                "version": identity.version,
                "topology_zone": identity.topology_zone,
                "topology_region": identity.topology_region,
                **({"state": peer.state} if peer.state else {}),
            }
        )
        peer.lookup_entry = entry[1:-1]
    return peer.lookup_entry


def _node_entry(peer: Peer) -> bytes:
    if not peer.node_entry:
        node = peer.node()
        peer.node_entry = b'{%b,"tombstones":%b,"topics":%b%b}' % (
            _lookup_entry(peer),
            dumps(node.tombstones),
            dumps(node.topics),
            _more(peer),
        )
    return peer.node_entry


def _large_node_entry(peer: Peer) -> Iterator[bytes]:
    """Render the entry of a node with very many topics. The topics are current when the first piece is taken."""
    topics: list[Topic] = []
    for topic in peer.topics_in_order():
        if topic is not None:
            topics.append(topic)
        yield b""
    yield b'{%b,"tombstones":[' % _lookup_entry(peer)
    yield from _in_pieces([topic.is_hidden(peer) for topic in topics])
    yield b'],"topics":['
    yield from _in_pieces([topic.name for topic in topics])
    yield b"]%b}" % _more(peer)


def _more(peer: Peer) -> bytes:
    """Render our own keys at the end of a node's entry. A reachable NSQ node has none of them."""
    extensions, problem = peer.identity.extensions, peer.unreachable
    more = b',"extensions":' + dumps(extensions) if extensions else b""
    return more + b',"reachable":false,"unreachable":' + dumps(problem) if problem else more


def _missing_entry(missing: Missing) -> dict[str, object]:
    identity = missing.identity
    return {
        "broadcast_address": identity.broadcast_address,
        "hostname": identity.hostname,
        "tcp_port": identity.tcp_port,
        "http_port": identity.http_port,
        "version": identity.version,
        "node": identity.node,
        "since": missing.timestamp,
        "drained": missing.has_drained,
        "retired": missing.is_retired,
        "topics": missing.topics,
    }


def _names_in_order(names: Sequence[str]) -> Iterator[bytes]:
    """Yield the elements of a JSON array, without its brackets."""
    if len(names) <= _MOST_AT_ONCE:
        yield dumps(sorted(names))[1:-1]
        return
    ordered: list[str] = []
    for name in in_order(names, key=str):
        if name is not None:
            ordered.append(name)
        yield b""
    yield from _in_pieces(ordered)


def _in_pieces(values: Sequence[object]) -> Iterator[bytes]:
    """Yield the elements of a JSON array, without its brackets."""
    for start in range(0, len(values), _IN_PIECE):
        yield (b"," if start else b"") + dumps(values[start : start + _IN_PIECE])[1:-1]


def _debug_entry(peer: Peer, tombstone: Tombstone | None) -> dict[str, object]:
    identity = peer.identity
    return {
        "broadcast_address": identity.broadcast_address,
        "hostname": identity.hostname,
        "http_port": identity.http_port,
        "id": peer.id,
        "last_update": peer.last_update,
        "tcp_port": identity.tcp_port,
        "tombstoned": tombstone is not None,
        "tombstoned_at": tombstone.timestamp if tombstone is not None else NEVER,
        "topology_region": identity.topology_region,
        "topology_zone": identity.topology_zone,
        "version": identity.version,
    }
