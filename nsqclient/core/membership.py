"""Which nsqds a producer publishes to, decided from nsqlookupd's answers and the state of connections.

A node joins as soon as one nsqlookupd lists it. It leaves only when it can't be needed any more:

    listed        in the last non-empty answer of at least one nsqlookupd
    unlisted      every nsqlookupd that listed it has since given a non-empty answer without it
    gone          unlisted, and either it has no connection, or CONFIRM_AFTER seconds later an answer still lacks it

An nsqlookupd that fails or lists no node says nothing about any node: it may have just started, or be cut off. So its
last non-empty answer still counts, and the last member never leaves. We wait CONFIRM_AFTER seconds because nodes
register one after another when an nsqlookupd starts.

A node with a state (draining, full, unhealthy) stays a member. `preferred` leaves it out while there are better ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

MOST_NODES: Final = 1000  # of all nsqlookupds together
CONFIRM_AFTER: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """An nsqd in an answer of nsqlookupd to `/nodes`."""

    address: str
    state: str = ""  # draining, full or unhealthy; empty if it accepts publishes
    is_reachable: bool = True  # False if nsqlookupd couldn't connect to it
    zone: str = ""
    region: str = ""


class Membership:
    """The nsqds that a producer knows. The `given` ones never leave."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        self.members = {address: NodeEntry(address) for address in given}
        self.has_begun = False  # at least one nsqlookupd has answered
        self.left_out = 0  # nodes in the last answers beyond the limit
        self._given = frozenset(self.members)
        self._listings: dict[Hashable, Mapping[str, NodeEntry]] = {}  # the last non-empty answers, by nsqlookupd
        self._failed: set[Hashable] = set()
        self._connected: set[str] = set()
        self._unlisted: dict[str, float] = {}  # since when

    @property
    def failures(self) -> int:
        """The number of nsqlookupds whose last query failed."""
        return len(self._failed)

    def answered(self, lookupd: Hashable, entries: Iterable[NodeEntry], now: float) -> None:
        """Process an nsqlookupd's answer."""
        self.has_begun = True
        self._failed.discard(lookupd)
        listing = {entry.address: entry for entry in entries}
        if listing:
            self._listings[lookupd] = listing
        self._update(now, is_answer=bool(listing))

    def failed(self, lookupd: Hashable, now: float) -> None:
        """Record a failed query."""
        self._failed.add(lookupd)
        self._update(now)

    def connected(self, address: str) -> None:
        """Record an open connection."""
        self._connected.add(address)

    def disconnected(self, address: str, now: float) -> None:
        """Record a closed connection."""
        self._connected.discard(address)
        self._update(now)

    def dropped(self, address: str) -> None:
        """Record that we dropped the connection to a node that has left. If it comes back, it has to connect first."""
        self._connected.discard(address)

    def preferred(self, *, connected_first: bool = True) -> list[str]:
        """Return the addresses to publish to: all members of the best available kind.

        Without `connected_first`, unconnected nsqds are as good as connected ones.
        """
        kinds: list[list[str]] = [[], [], [], []]
        for address, entry in self.members.items():
            if address in self._connected and connected_first:
                kinds[1 if entry.state else 0].append(address)
            else:
                kinds[3 if entry.state or not entry.is_reachable else 2].append(address)
        return next(filter(None, kinds), [])

    def _update(self, now: float, *, is_answer: bool = False) -> None:
        listed = self._listed()
        self._unlisted = {
            address: self._unlisted.get(address, now)
            for address in self.members
            if address not in listed and address not in self._given and listed
        }
        for address, since in self._unlisted.items():
            if address not in self._connected or (is_answer and now - since >= CONFIRM_AFTER):
                del self.members[address]
        self.left_out = 0
        for address, entry in listed.items():
            if address in self.members or len(self.members) < MOST_NODES:
                self.members[address] = entry
            else:
                self.left_out += 1
        self._unlisted = {address: since for address, since in self._unlisted.items() if address in self.members}

    def _listed(self) -> dict[str, NodeEntry]:
        """Return all listed nodes. The answer of a working nsqlookupd overrides an older one of a failing one."""
        said: dict[str, NodeEntry] = {}
        for is_failed in (True, False):
            answers = [nodes for lookupd, nodes in self._listings.items() if (lookupd in self._failed) is is_failed]
            together: dict[str, NodeEntry] = {}
            for nodes in answers:
                for address, entry in nodes.items():
                    together[address] = _joined(together[address], entry) if address in together else entry
            said |= together
        return said


def _joined(one: NodeEntry, other: NodeEntry) -> NodeEntry:
    """Merge two nsqlookupds' entries. NSQ's own reports no states, so a state in either entry counts."""
    return replace(other, state=other.state or one.state, is_reachable=one.is_reachable and other.is_reachable)
