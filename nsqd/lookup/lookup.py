"""nsqd's side of nsqlookupd: one task for each peer, and the search for the channels that a new topic has elsewhere.

    --lookupd-tcp-address ──► _Source (a name) ──► Peer (one address of it): connect, IDENTIFY, register, PING
                                                     │ address of its HTTP side
    broker.undiscovered ──► learn_channels ── GET /channels from all of them ──► topic.learned(names)

NSQ has one loop for all peers: a peer that does not answer delays the others by a second for each command, and a broken
connection is noticed only by its next command. Here each peer's task also reads, and reconnects by itself.

A new topic is announced before its first publisher gets an answer: `announce` is a step of the turn, and hands the
commands to the sockets at once, as far as these accept them. The peers' tasks read the replies later, and send what TLS
or a full socket could not take at once.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

import trio

from common.http_client import HttpClient, HttpFailed, HttpTimeout, https_port_in
from common.net import AddressError, join_host_port
from common.turn import Turn, in_turn
from common.wakeup import Wakeup
from common.wire.lookup import LEAVING, RETIRED
from nsqd.lookup.dial import Dial, Place, Resolve, dial, host_and_port, is_ipv6, resolve
from nsqd.lookup.peer import Peer
from nsqd.lookup.registration import Refused, Registration, channels_in
from nsqd.lookup.source import Source
from nsqd.lookup.times import IO_LIMIT, RESOLVE_INTERVAL

if TYPE_CHECKING:
    from common.wire.http_exchange import Answer
    from common.wire.lookup import PeerAddress
    from nsqd.broker.broker import Broker
    from nsqd.broker.topic import Topic
    from nsqd.lookup.settings import Settings

log = logging.getLogger(__name__)

_SILENCE: Final = 15.0  # how long a peer whose HTTP side timed out is not asked again
_QUESTIONS_AT_ONCE: Final = 32
_KEPT_OPEN: Final = 5.0  # how long idle HTTP connections are kept for the next new topic
_MOST_ANSWERED: Final = 1 << 20  # bytes of an HTTP answer, which lists the channels of one topic

_ACCEPT: Final = (("Accept", "application/vnd.nsq; version=1.0"),)


class Lookup:
    """All nsqlookupds of this node. `configure` may be called before `run`, and at any time after."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        *,
        dial_with: Dial | None = None,
        resolve_with: Resolve | None = None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._dial = dial_with or partial(dial, tls=settings.tls)
        self._resolve = resolve_with or resolve
        self._http = HttpClient(
            connect_timeout=settings.connect_timeout, timeout=settings.request_timeout, most=_MOST_ANSWERED
        )
        self._sources: dict[str, Source] = {}
        self._configured = Wakeup()
        self._asked_for = Wakeup()  # a topic is in broker.undiscovered

    @property
    def peers(self) -> Iterator[Peer]:
        for source in self._sources.values():
            yield from source.peers.values()

    def configure(self, addresses: Iterable[str]) -> None:
        wanted = dict.fromkeys(addresses)
        for text in self._sources.keys() - wanted.keys():
            log.info("LOOKUP(%s): removing peer", text)
            self._sources.pop(text).scope.cancel()
        for text in wanted:
            if text not in self._sources:
                self._sources[text] = Source(text)
        self._broker.learns = bool(self._sources)
        self._configured.set()

    def leave(self, *, for_good: bool) -> None:
        """Say goodbye to all nsqlookupds because this node drains. With `for_good`, they need not expect it back."""
        for source in self._sources.values():
            log.info("LOOKUP(%s): leaving", source.text)
            source.scope.deadline = trio.current_time() + IO_LIMIT
            for peer in source.peers.values():
                peer.leave(RETIRED if for_good else LEAVING)
        self._sources = {}
        self._broker.learns = False

    def announce(self, topics: Collection[str]) -> None:
        """Tell every nsqlookupd what this turn has changed in these topics, before the turn's answers leave."""
        for peer in self.peers:
            for topic in topics:
                peer.changed(topic)
            peer.announce()
        if self._broker.undiscovered:
            self._asked_for.set()

    async def run(self, turn: Turn) -> None:
        """Serve until cancelled. Connections are then closed without a goodbye, as in NSQ."""
        started: set[Source] = set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._learn_channels, turn)
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

    async def _follow(self, source: Source) -> None:
        """Keep a peer for each address that the name has now."""
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
                    self._adjust(source, host, found, nursery)
                    source.resolved.set()
                    await trio.sleep(RESOLVE_INTERVAL if found else IO_LIMIT)

    def _adjust(self, source: Source, host: str, found: list[Place], nursery: trio.Nursery) -> None:
        for place, peer in [*source.peers.items()]:
            # A connection that works counts for more than the current answer of the name server.
            if place not in found and not peer.connected:
                log.info("LOOKUP(%s): removing peer", peer.name)
                source.peers.pop(place).scope.cancel()
        known = {place for other in (source, *self._sources.values()) for place in other.peers}
        for place in found:
            if place not in known:
                peer = source.peers[place] = self._peer(source, host, place)
                log.info("LOOKUP(%s): adding peer", peer.name)
                nursery.start_soon(peer.run)

    def _peer(self, source: Source, host: str, place: Place) -> Peer:
        address = join_host_port(*place)
        return Peer(
            address if source.text == address else f"{source.text} at {address}",
            Registration(self._broker.topics),
            connect=lambda: self._dial(place, host),
            find_twin=partial(source.connected_at, over_ipv6=not is_ipv6(place)),
            me=self._settings.me,
            most=self._settings.most,
        )

    async def _learn_channels(self, turn: Turn) -> None:
        broker = self._broker
        slots = trio.Semaphore(_QUESTIONS_AT_ONCE)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._asked_for.clear()
                    topics, broker.undiscovered = broker.undiscovered, {}
                    for topic in topics:
                        await slots.acquire()
                        nursery.start_soon(self._learn_channels_of, topic, turn, slots)
                    if not broker.undiscovered:
                        await self._wait_for_topics()
        finally:
            await self._http.close_idle()

    async def _wait_for_topics(self) -> None:
        with trio.move_on_after(_KEPT_OPEN):
            await self._asked_for.wait()
            return
        await self._http.close_idle()
        await self._asked_for.wait()

    async def _learn_channels_of(self, topic: Topic, turn: Turn, slots: trio.Semaphore) -> None:
        try:
            names = set() if topic.closing else await self._ask_all(topic.name)
        finally:
            slots.release()
        with in_turn(turn):
            if not topic.closing:
                topic.learned(names)

    async def _ask_all(self, topic_name: str) -> set[str]:
        """Return the union of the answers of all reachable peers. Failures are logged."""
        await self._wait_until_tried()
        peers = {it.reachable_at: it for it in self.peers if it.reachable_at and it.reachable_at.broadcast_address}
        if not peers and self._sources:
            log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic_name)
        names: set[str] = set()
        failures: list[str] = []

        async def ask(peer: Peer, address: PeerAddress) -> None:
            try:
                names.update(await self._ask(peer, address, topic_name))
            except (HttpFailed, Refused) as error:
                failures.append(f"{peer.name}: {error}")

        async with trio.open_nursery() as nursery:
            for address, peer in peers.items():
                nursery.start_soon(ask, peer, address)
        if failures:
            why = ", ".join(failures)
            log.warning("failed to query nsqlookupd for channels to pre-create for topic %s - %s", topic_name, why)
        return names

    async def _wait_until_tried(self) -> None:
        """Wait until each peer has been tried once.

        Just after the start, or after a change of the settings, peers may not have told yet how their HTTP side can be
        reached.
        """
        for source in [*self._sources.values()]:
            if not source.resolved.is_set():
                with trio.move_on_at(source.first_try_ends):
                    await source.resolved.wait()
        for peer in [*self.peers]:
            if not peer.tried.is_set():
                with trio.move_on_at(peer.first_try_ends):
                    await peer.tried.wait()

    async def _ask(self, peer: Peer, address: PeerAddress, topic_name: str) -> set[str]:
        if trio.current_time() < peer.silent_until:
            raise Refused("has not answered lately")
        tls, port = self._settings.tls, address.http_port
        try:
            answer = await self._get(address.broadcast_address, port, topic_name, tls)
            if answer.status == 403 and (https_port := https_port_in(answer.body)):
                tls = tls or self._public_tls
                answer = await self._get(address.broadcast_address, https_port, topic_name, tls)
        except HttpTimeout:
            # Thousands of topics may wait for an answer, as after a start.
            peer.silent_until = trio.current_time() + _SILENCE
            raise
        if answer.status != 200:
            raise Refused(f"answered with status {answer.status}")
        return channels_in(answer.body)

    @cached_property
    def _public_tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()  # which reads all the certificates that the system has

    async def _get(self, host: str, port: int, topic_name: str, tls: ssl.SSLContext | None) -> Answer:
        target = f"/channels?topic={quote_plus(topic_name)}"
        log.info("CI: querying nsqlookupd http%s://%s%s", "s" if tls else "", join_host_port(host, port), target)
        return await self._http.get(host, port, target, tls=tls, headers=_ACCEPT)
