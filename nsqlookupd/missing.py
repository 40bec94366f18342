"""Nodes that were here, and are not: for those who must not take what is registered for all that there is."""

from __future__ import annotations

from collections import Counter, OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from common.wire.lookup import Identity

_MOST_MISSING: Final = 1000  # nodes that are remembered; the oldest go first

_Address = tuple[str, int, int]  # where a node can be reached: the host, its ports for TCP and HTTP


class Missing(NamedTuple):
    """A node that was here, and is not; `topics` are those that it had, None: too many to remember."""

    identity: Identity
    topics: tuple[str, ...] | None
    timestamp: int  # when it was heard of for the last time
    has_drained: bool  # it said goodbye
    is_retired: bool  # and that it is not meant to come back


class MissingNodes:
    """Remembers nodes from their last connection's end until they are back or `lifetime` is over.

    Knows addresses, and neither peers nor topics: the registry says who comes and goes, and what is to be remembered.
    """

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime  # seconds; 0: nothing is remembered
        self._connected: Counter[_Address] = Counter()  # connections of each node
        self._missing: OrderedDict[_Address, tuple[float, Missing]] = OrderedDict()  # since when, the oldest first

    @property
    def remembers(self) -> bool:
        """Whether nodes are remembered at all."""
        return self._lifetime > 0

    @property
    def next_deadline(self) -> float:
        """When the next one is forgotten if nothing happens before."""
        return next(iter(self._missing.values()))[0] + self._lifetime if self._missing else inf

    def expire(self, now: float) -> None:
        """Forget those whose time is over."""
        while now >= self.next_deadline:
            self._missing.popitem(last=False)

    def come(self, identity: Identity) -> None:
        """Note that a connection of this node has begun: it is not missing, also where it was known at another address."""
        self._connected[_address(identity)] += 1
        self._missing.pop(_address(identity), None)
        for address in [at for at, (_, it) in self._missing.items() if it.identity.node == identity.node != ""]:
            del self._missing[address]  # it has moved

    def leave(self, identity: Identity) -> bool:
        """Note that a connection of this node has ended. Return whether `add` is to be called: it was the last one."""
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
        """Do not wait for the node at this `host:port` any more, as far as this topic goes."""
        for address, (since, it) in [*self._missing.items()]:
            if it.topics and topic_name in it.topics and is_at(it.identity, node):
                left = tuple(name for name in it.topics if name != topic_name)
                if left:
                    self._missing[address] = since, it._replace(topics=left)
                else:
                    del self._missing[address]

    def nodes(self) -> list[Missing]:
        """Return them all, those that have been missing for longest first."""
        return [it for _, it in self._missing.values()]


def is_at(identity: Identity, node: str) -> bool:
    """Return whether `node` is its `host:port` for HTTP; an IPv6 host with brackets or, as NSQ compares it, without."""
    address, port = identity.broadcast_address, identity.http_port
    return node == f"{address}:{port}" or (":" in address and node == f"[{address}]:{port}")


def _address(identity: Identity) -> _Address:
    return identity.broadcast_address, identity.tcp_port, identity.http_port
