"""The nsqds of a producer, and which of them gets the next publish.

Without nsqlookupd they never change. With it they come and go as `Membership` decides: we connect to a new node at
once; a node that leaves gets no new publish, and is dropped when its publishes are settled. It stays that long because
a publish with an unknown outcome is repeated at the same nsqd, which comes back under its address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from nsqclient.core.errors import ConnectError
from nsqclient.core.events import NodesChanged
from nsqclient.core.hostpool import ByKey, pool_of

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.events import Event
    from nsqclient.core.hostpool import Strategy
    from nsqclient.core.membership import Membership


class RosterNode(Protocol):
    """One nsqd, as the roster sees and commands it."""

    address: str
    number: int
    users: int  # publishes in progress, with their repeats; counted only if nodes come and go
    log_id: str  # the log with its messages and keys, from its last IDENTIFY answer; "" if unknown

    @property
    def is_connected(self) -> bool: ...

    @property
    def pending(self) -> int:
        """The number of unanswered publishes."""

    def begin(self) -> None:
        """Keep a connection open from now on. Called at the first publish."""

    def hurry(self) -> None:
        """Try to connect at once, if there is no connection."""

    def drop(self) -> None:
        """Close the connection and fail everything that waits for it."""


NodeT = TypeVar("NodeT", bound=RosterNode)


class Roster(Generic[NodeT]):
    """All nodes, and the choice between them."""

    def __init__(
        self,
        targets: Sequence[object],
        make: Callable[[Any, int], NodeT],  # for a target, or an address from nsqlookupd
        membership: Membership | None,
        *,
        strategy: Strategy,
        config: Config,
        random: Random,
        emit: Callable[[Event], None],
    ) -> None:
        self.nodes = [make(target, number) for number, target in enumerate(targets)]
        self._numbered = dict(enumerate(self.nodes))
        self.active = list(self.nodes)  # that get new publishes
        self.membership = membership
        self._make = make
        self._next = len(targets)  # number
        self._by_address = {node.address: node for node in self.nodes}
        self._near = (config.topology_region, config.topology_zone)
        self._emit = emit
        self._fine: set[str] = set()  # members without a state
        self._has_begun = False
        self._pool = pool_of(
            strategy,
            max(len(targets), 1),
            random,
            load=lambda number: self._numbered[number].pending,
            distance=self._distance,
            name=lambda number: self._numbered[number].address,
        )
        # The nsqd of a key (group, topic) must not depend on which nsqds happen to be connected.
        self.goes_by_key = isinstance(self._pool, ByKey)
        # With only one nsqd there is nothing to choose.
        self.only = self.nodes[0] if len(targets) == 1 and membership is None else None

    def begin(self) -> None:
        """Start with the given nodes."""
        self._has_begun = True
        for node in self.nodes:
            node.begin()
        if self.membership is not None:
            self.update()

    def pick(self, now: float, avoid: Sequence[int] = (), key: bytes | None = None) -> NodeT:
        """Return the node for a publish, if possible not one to `avoid`. Raise ConnectError if there is none.

        `key` is what the strategy `by_key`, `by_group` or `by_topic` goes by; None if the publish has no such thing.
        """
        if not self.active:
            raise ConnectError("nsqlookupd lists no nsqd")
        if key is not None and isinstance(self._pool, ByKey):
            return self._numbered[self._pool.pick_for(key, now, avoid)]
        number = self._pool.pick(now)
        # Keys are why `active` may include unconnected nodes; a publish without one goes to a connected node.
        is_free = self.goes_by_key and self.membership is not None
        if number in avoid or (is_free and not self._numbered[number].is_connected):
            others = [node for node in self.active if node.number not in avoid]
            if is_free:
                others = [node for node in others if node.is_connected] or others
            return others[number % len(others)] if others else self._numbered[number]
        return self._numbered[number]

    def successor(self, node: NodeT) -> NodeT:
        """Return the node with this one's messages and keys: another address if another machine has taken over."""
        if node.is_connected or not node.log_id:
            return node
        return next((it for it in self.active if it.is_connected and it.log_id == node.log_id), node)

    def succeeded(self, node: NodeT, seconds: float, now: float) -> None:
        if node.number in self._numbered:  # it may have been the last publish of a node that has left
            self._pool.succeeded(node.number, seconds, now)

    def failed(self, node: NodeT, now: float) -> None:
        if node.number in self._numbered:
            self._pool.failed(node.number, now)

    # Nodes that come and go

    def connection_changed(self, node: RosterNode, *, is_open: bool, now: float) -> None:
        """Record that a connection was opened or closed."""
        if self.membership is not None and self._by_address.get(node.address) is node:
            if is_open:
                self.membership.connected(node.address)
            else:
                self.membership.disconnected(node.address, now)
            self.update()

    def update(self) -> None:
        """Apply a change of the membership."""
        assert self.membership is not None
        members = self.membership.members
        for address in members:
            if address not in self._by_address:
                self._add(address)
        for node in list(self.nodes):
            if node.address not in members:
                self.drop_unless_used(node)
        fine = {address for address, entry in members.items() if not entry.state}
        # Failures from before a node left, or had a state, say nothing about it now.
        self._pool.forget([self._by_address[address].number for address in fine - self._fine])
        for address in fine - self._fine:
            self._by_address[address].hurry()
        self._fine = fine
        active = [
            self._by_address[address] for address in self.membership.preferred(connected_first=not self.goes_by_key)
        ]
        if active != self.active:
            self.active = active
            if active:
                self._pool.choose_among([node.number for node in active])
            self._emit(NodesChanged(tuple(node.address for node in active), len(members)))

    def drop_unless_used(self, node: NodeT) -> None:
        """Drop a node that has left, unless it still has publishes."""
        assert self.membership is not None
        has_left = node.address not in self.membership.members and self._by_address.get(node.address) is node
        if has_left and not node.users and not node.pending:
            self.nodes.remove(node)
            del self._by_address[node.address], self._numbered[node.number]
            self._pool.forget((node.number,))
            self.membership.dropped(node.address)
            node.drop()

    def _add(self, address: str) -> None:
        node = self._make(address, self._next)
        self._next += 1
        self.nodes.append(node)
        self._numbered[node.number] = self._by_address[address] = node
        if self._has_begun:
            node.begin()

    def _distance(self, number: int) -> int:
        """Return 0 for a node in our zone, 1 for one in our region, 2 for any other."""
        if self.membership is None:
            return 2
        entry = self.membership.members.get(self._numbered[number].address)
        region, zone = self._near
        if entry is None or (entry.region, entry.zone) == ("", "") or entry.region != region:
            return 2
        return 0 if entry.zone and entry.zone == zone else 1
