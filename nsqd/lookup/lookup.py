"""nsqd's connections to nsqlookupd: a task per peer, and discovery of a new topic's channels on other nodes.

    --lookupd-tcp-address ──► LookupdName (a name) ──► LookupdPeer (one address of it): connect, IDENTIFY, register, PING
                                                    │ address of its HTTP side
    broker.undiscovered ──► ChannelDiscovery ── GET /channels from all of them ──► topic.learned(names)

We announce a new topic before its first publisher gets an answer. `announce` is a step of the turn, and writes as much
as the sockets take without waiting. The peers' tasks send the rest (with TLS, everything), and read the replies.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from nsqcommon.net import AddressError, join_host_port
from nsqcommon.wakeup import Wakeup
from nsqcommon.wire.lookup import DRAINING, LEAVING, RETIRED
from nsqd.lookup.dial import Dial, Place, Resolve, dial, host_and_port, is_ipv6, resolve
from nsqd.lookup.discovery import ChannelDiscovery
from nsqd.lookup.lookupd_name import LookupdName, peers_of
from nsqd.lookup.peer import LookupdPeer
from nsqd.lookup.registration import RegistrationState
from nsqd.lookup.times import IO_LIMIT, RESOLVE_INTERVAL

if TYPE_CHECKING:
    from nsqcommon.turn import Turn
    from nsqd.broker.broker import Broker
    from nsqd.lookup.registration import Words
    from nsqd.lookup.settings import LookupSettings

log = logging.getLogger(__name__)


class Lookup:
    """This node's connections to all nsqlookupds. You may call `configure` at any time, even before `run`."""

    def __init__(
        self,
        broker: Broker,
        settings: LookupSettings,
        *,
        dial_with: Dial | None = None,
        resolve_with: Resolve | None = None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._dial = dial_with or partial(dial, tls=settings.tls)
        self._resolve = resolve_with or resolve
        self._sources: dict[str, LookupdName] = {}
        self._health = ""
        self._draining: Words = ()
        self._configured = Wakeup()
        self._discovery = ChannelDiscovery(broker, settings, self._sources)

    @property
    def peers(self) -> Iterator[LookupdPeer]:
        return peers_of(self._sources.values())

    def configure(self, addresses: Iterable[str]) -> None:
        configured = dict.fromkeys(addresses)
        for text in self._sources.keys() - configured.keys():
            log.info("LOOKUP(%s): removing peer", text)
            self._sources.pop(text).scope.cancel()
        for text in configured:
            if text not in self._sources:
                self._sources[text] = LookupdName(text)
        self._broker.learns = bool(self._sources)
        self._configured.set()

    def set_health(self, state: str) -> None:
        """Send the state of the storage to all nsqlookupds: a word of `STATES`, or "" if all is well."""
        self._health = state
        self._wake_peers()

    def set_draining(self, *, is_draining: bool, for_good: bool = False) -> bool:
        """Report to all nsqlookupds that this node is draining, or no longer is. Returns whether any is connected."""
        self._draining = (DRAINING, *((RETIRED,) if for_good else ())) if is_draining else ()
        self._wake_peers()
        return any(peer.connected for peer in self.peers)

    def _wake_peers(self) -> None:
        for peer in self.peers:
            peer.state_changed()

    def _state(self) -> Words:
        return self._draining or ((self._health,) if self._health else ())

    def _has_connected(self) -> bool:
        """Return whether any nsqlookupd has accepted our IDENTIFY since the start."""
        return any(peer.reachable_at is not None for peer in self.peers)

    async def leave(self, *, for_good: bool) -> None:
        """Say goodbye to all nsqlookupds, because this node has drained. `for_good` means that it won't come back.

        Current versions of nsqlookupd already list the node as draining. Earlier ones only understand the goodbye.
        """
        leaving = [peer for peer in self.peers if peer.connected]
        for source in self._sources.values():
            log.info("LOOKUP(%s): leaving", source.text)
            source.scope.deadline = trio.current_time() + IO_LIMIT
            for peer in source.peers.values():
                peer.leave(RETIRED if for_good else LEAVING)
        self._sources.clear()
        self._broker.learns = False
        with trio.move_on_after(2 * IO_LIMIT):
            for peer in leaving:
                await peer.left.wait()

    def announce(self, topics: Collection[str]) -> None:
        """Send this turn's changes in these topics to all nsqlookupds, before the turn's responses are sent."""
        for peer in self.peers:
            for topic in topics:
                peer.changed(topic)
            peer.announce()
        if self._broker.undiscovered:
            self._discovery.wake()

    async def run(self, turn: Turn) -> None:
        """Run until cancelled. Then close the connections without a goodbye, as NSQ does."""
        started: set[LookupdName] = set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._discovery.run, turn)
                while True:
                    self._configured.clear()
                    started &= {*self._sources.values()}
                    for source in self._sources.values():
                        if source not in started:
                            started.add(source)
                            nursery.start_soon(self._follow, source)
                    await self._configured.wait()
        finally:
            log.info("LOOKUP: closing")

    async def _follow(self, source: LookupdName) -> None:
        """Keep a peer for each address that the name resolves to, until cancelled."""
        try:
            host, port = host_and_port(source.text)
        except AddressError as error:
            log.error("LOOKUP(%s): %s", source.text, error)
            source.resolved.set()
            return
        with source.scope:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        found = await self._resolve(host, port)
                    except OSError as error:
                        level = logging.DEBUG if source.resolved.is_set() else logging.WARNING
                        log.log(level, "LOOKUP(%s): %s", source.text, error)
                        found = [*source.peers]
                    self._update_peers(source, host, found, nursery)
                    source.resolved.set()
                    await trio.sleep(RESOLVE_INTERVAL if found else IO_LIMIT)

    def _update_peers(self, source: LookupdName, host: str, found: list[Place], nursery: trio.Nursery) -> None:
        for place, peer in [*source.peers.items()]:
            # Keep a working connection even if the name server no longer lists its address.
            if place not in found and not peer.connected:
                log.info("LOOKUP(%s): removing peer", peer.name)
                source.peers.pop(place).scope.cancel()
        known = {place for other in (source, *self._sources.values()) for place in other.peers}
        for place in found:
            if place not in known:
                peer = source.peers[place] = self._new_peer(source, host, place)
                log.info("LOOKUP(%s): adding peer", peer.name)
                nursery.start_soon(peer.run)

    def _new_peer(self, source: LookupdName, host: str, place: Place) -> LookupdPeer:
        address = join_host_port(*place)
        return LookupdPeer(
            address if source.text == address else f"{source.text} at {address}",
            RegistrationState(self._broker.topics),
            connect=lambda: self._dial(place, host),
            find_twin=partial(source.connected_at, over_ipv6=not is_ipv6(place)),
            state=self._state,
            has_connected=self._has_connected,
            me=self._settings.me,
            most=self._settings.most,
        )
