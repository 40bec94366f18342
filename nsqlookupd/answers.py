"""What the HTTP API says, as JSON: the registry's picture in NSQ's words.

Parts are kept where they stay true for long: a peer's entry for ever, its node's until its topics change, a topic's answer
until its producers or channels do. So an answer with 500 producers is a join of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.nsq_json import dumps
from nsqlookupd.registry import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqlookupd.registry import Lookup, Peer, Registry, Tombstone


def lookup_json(answer: Lookup) -> bytes:
    if answer.rendered is None:
        entries = b",".join([b"{%b}" % _lookup_entry(peer) for peer in answer.producers])
        answer.rendered = b'{"channels":%b,"producers":[%b]}' % (dumps(answer.channels), entries)
    return answer.rendered


def nodes_json(registry: Registry) -> Iterator[bytes]:
    """In pieces, as after a change of all it takes a while; each node as it is when its piece is taken."""
    yield b'{"producers":['
    comma = b""
    for peer in registry.active_peers():
        yield comma + _node_entry(registry, peer)
        comma = b","
    yield b"]}"


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
    for row, peers in registry.registrations():
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


def _node_entry(registry: Registry, peer: Peer) -> bytes:
    if not peer.node_entry:
        node = registry.node(peer)
        peer.node_entry = b'{%b,"tombstones":%b,"topics":%b}' % (
            _lookup_entry(peer),
            dumps(node.tombstones),
            dumps(node.topics),
        )
    return peer.node_entry


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
