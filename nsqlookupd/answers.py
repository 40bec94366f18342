"""What the HTTP API says, as JSON: the registry's picture in NSQ's words.

Parts are kept where they stay true for long: a peer's entry for ever, its node's until its topics change, a topic's answer
until its producers or channels do. So an answer with 500 producers is a join of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from common.nsq_json import dumps
from nsqlookupd.registry import NEVER, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqlookupd.missing import Missing
    from nsqlookupd.registry import Lookup, Peer, Registry, Tombstone, Topic

_MOST_KEPT: Final = 2000  # names in a node's part of /nodes or a topic's channels that are written in one step
_IN_PIECE: Final = 1000  # elements


def lookup_json(answer: Lookup) -> Iterator[bytes]:
    """In pieces where there are very many channels, of which all but the last are empty: it is kept whole."""
    if answer.rendered is None:
        names: list[bytes] = []
        for piece in _names_in_order(answer.channels):
            if piece:
                names.append(piece)
            yield b""
        entries = b",".join([b"{%b}" % _lookup_entry(peer) for peer in answer.producers])
        answer.rendered = b'{"channels":[%b],"producers":[%b]}' % (b"".join(names), entries)
    yield answer.rendered


def channels_json(names: Sequence[str]) -> Iterator[bytes]:
    """In pieces where there are very many."""
    yield b'{"channels":['
    yield from _names_in_order(names)
    yield b"]}"


def nodes_json(registry: Registry, *, with_missing: bool = False) -> Iterator[bytes]:
    """In pieces, as after a change of all it takes a while; each node as it is when its piece is taken."""
    yield b'{"producers":['
    comma = b""
    for peer in registry.active_peers():
        yield comma
        comma = b","
        if peer.node_entry or len(peer.topics) <= _MOST_KEPT:
            yield _node_entry(peer)
        else:
            yield from _large_node_entry(peer)
    yield b"]"
    if with_missing:
        yield b',"missing":['
        yield from _in_pieces([_missing_entry(it) for it in registry.missing()])
        yield b"]"
    yield b"}"


def debug_json(registry: Registry) -> Iterator[bytes]:
    """In pieces, for there can be hundreds of thousands of entries; each row as it is when its piece is taken."""
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
        yield b"%b%b:[%b]" % (comma, dumps(":".join(row)), b",".join([entry(*it) for it in peers]))
        comma = b","
    yield b"}"


def _lookup_entry(peer: Peer) -> bytes:
    """Without its braces, as /nodes says more."""
    if not peer.lookup_entry:
        it = peer.identity
        entry = dumps(
            {
                "remote_address": peer.id,
                "hostname": it.hostname,
                "broadcast_address": it.broadcast_address,
                "tcp_port": it.tcp_port,
                "http_port": it.http_port,
                "version": it.version,
                "topology_zone": it.topology_zone,
                "topology_region": it.topology_region,
            }
        )
        peer.lookup_entry = entry[1:-1]
    return peer.lookup_entry


def _node_entry(peer: Peer) -> bytes:
    if not peer.node_entry:
        node = peer.node()
        peer.node_entry = b'{%b,"tombstones":%b,"topics":%b}' % (
            _lookup_entry(peer),
            dumps(node.tombstones),
            dumps(node.topics),
        )
    return peer.node_entry


def _large_node_entry(peer: Peer) -> Iterator[bytes]:
    """Yield the entry of a node with very many topics, in pieces: the topics that it has when the entry is begun."""
    topics: list[Topic] = []
    for topic in peer.topics_in_order():
        if topic is not None:
            topics.append(topic)
        yield b""
    yield b'{%b,"tombstones":[' % _lookup_entry(peer)
    yield from _in_pieces([topic.is_hidden(peer) for topic in topics])
    yield b'],"topics":['
    yield from _in_pieces([topic.name for topic in topics])
    yield b"]}"


def _missing_entry(missing: Missing) -> dict[str, object]:
    it = missing.identity
    return {
        "broadcast_address": it.broadcast_address,
        "hostname": it.hostname,
        "tcp_port": it.tcp_port,
        "http_port": it.http_port,
        "version": it.version,
        "node": it.node,
        "since": missing.timestamp,
        "drained": missing.has_drained,
        "retired": missing.is_retired,
        "topics": missing.topics,
    }


def topics_json(registry: Registry) -> Iterator[bytes]:
    """Yield the names of all topics, in pieces."""
    names: list[str] = []
    for name in registry.names_in_order():
        if name is not None:
            names.append(name)
        yield b""
    yield b'{"topics":['
    yield from _in_pieces(names)
    yield b"]}"


def _names_in_order(names: Sequence[str]) -> Iterator[bytes]:
    """Yield the elements of a JSON array, without its brackets."""
    if len(names) <= _MOST_KEPT:
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
    it = peer.identity
    return {
        "broadcast_address": it.broadcast_address,
        "hostname": it.hostname,
        "http_port": it.http_port,
        "id": peer.id,
        "last_update": peer.last_update,
        "tcp_port": it.tcp_port,
        "tombstoned": tombstone is not None,
        "tombstoned_at": tombstone.timestamp if tombstone is not None else NEVER,
        "topology_region": it.topology_region,
        "topology_zone": it.topology_zone,
        "version": it.version,
    }
