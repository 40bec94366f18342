"""One `--lookupd-tcp-address`, which may be a name with several IP addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import trio

from nsqd.lookup.dial import is_ipv6
from nsqd.lookup.times import FIRST_TRY_LIMIT

if TYPE_CHECKING:
    from nsqcommon.wire.lookup import PeerAddress
    from nsqd.lookup.dial import Place
    from nsqd.lookup.peer import LookupdPeer


class LookupdName:
    """One `--lookupd-tcp-address`, with a peer for each IP address that its name has."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.resolved = trio.Event()  # set after the first attempt to resolve the name, successful or not
        self.scope = trio.CancelScope()
        self.peers: dict[Place, LookupdPeer] = {}
        self.first_try_deadline = trio.current_time() + FIRST_TRY_LIMIT

    def connected_at(self, address: PeerAddress, *, over_ipv6: bool) -> LookupdPeer | None:
        """Return the peer that is connected over this IP version and has reported `address`, or None.

        If a name has both IPv6 and IPv4 addresses, they often lead to the same machine. If we registered over both,
        nsqlookupd would list this node twice.
        """
        for place, peer in self.peers.items():
            if is_ipv6(place) is over_ipv6 and peer.connected and peer.reachable_at == address:
                return peer
        return None


def peers_of(sources: Iterable[LookupdName]) -> Iterator[LookupdPeer]:
    for source in sources:
        yield from source.peers.values()
