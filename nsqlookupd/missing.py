"""Nodes that were registered and are now gone or silent, until they come back or expire.

This is for clients that have to know whether the registered nodes are all the nodes that exist.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nsqcommon.wire.lookup import NodeIdentity

_MOST_MISSING: Final = 1000  # missing nodes to remember; the oldest are forgotten first

_Address = tuple[str, int, int]  # a node's host, TCP port and HTTP port


class Missing(NamedTuple):
    """A node that was registered and no longer is."""

    identity: NodeIdentity
    topics: tuple[str, ...] | None  # its topics; None: too many to remember
    timestamp: int  # when it was last heard of
    has_drained: bool  # it had announced its shutdown
    is_retired: bool  # it had announced that it wouldn't come back


class MissingNodes:
    """Remembers a node from the end of its last connection until it is back or `lifetime` has passed.

    It knows addresses, but no peers or topics: the registry reports which nodes come and go, and what to remember.
    """

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime  # seconds; 0: remember nothing
        self._connected: Counter[_Address] = Counter()  # connections of each node
        # with the time since when each is missing; the oldest first
        self._missing: OrderedDict[_Address, tuple[float, Missing]] = OrderedDict()

    @property
    def remembers(self) -> bool:
        """True if nodes are remembered at all."""
        return self._lifetime > 0

    @property
    def next_deadline(self) -> float:
        """When the next node is forgotten, unless it comes back before."""
        return next(iter(self._missing.values()))[0] + self._lifetime if self._missing else inf

    def expire(self, now: float) -> None:
        """Forget expired nodes."""
        while now >= self.next_deadline:
            self._missing.popitem(last=False)

    def come(self, identity: NodeIdentity) -> None:
        """Record a new connection of this node. It is no longer missing, not even at an earlier address."""
        self._connected[_address(identity)] += 1
        self._missing.pop(_address(identity), None)
        for address in [at for at, (_, it) in self._missing.items() if it.identity.node == identity.node != ""]:
            del self._missing[address]  # the same node after a move

    def leave(self, identity: NodeIdentity) -> bool:
        """Record the end of a connection of this node. Return True if it was the last one; then call `add`."""
        address = _address(identity)
        self._connected[address] -= 1
        if self._connected[address]:
            return False
        del self._connected[address]
        return self.remembers

    def add(self, node: Missing, now: float) -> None:
        """Remember this node from now on."""
        address = _address(node.identity)
        self._missing[address] = now, node
        self._missing.move_to_end(address)
        if len(self._missing) > _MOST_MISSING:
            self._missing.popitem(last=False)

    def forget(self, topic_name: str, node: str) -> None:
        """Stop expecting the node at this `host:port` to come back with this topic."""
        for address, (since, it) in [*self._missing.items()]:
            if it.topics and topic_name in it.topics and is_at(it.identity, node):
                left = tuple(name for name in it.topics if name != topic_name)
                if left:
                    self._missing[address] = since, it._replace(topics=left)
                else:
                    del self._missing[address]

    def nodes(self) -> list[Missing]:
        """Return all missing nodes, the longest missing first."""
        return [it for _, it in self._missing.values()]


def is_at(identity: NodeIdentity, node: str) -> bool:
    """Return True if `node` is the node's `host:port` for HTTP.

    An IPv6 host may have brackets or not; NSQ compares it without.
    """
    address, port = identity.broadcast_address, identity.http_port
    return node == f"{address}:{port}" or (":" in address and node == f"[{address}]:{port}")


def _address(identity: NodeIdentity) -> _Address:
    return identity.broadcast_address, identity.tcp_port, identity.http_port
