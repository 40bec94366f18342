"""Asks all nsqlookupds over HTTP for the channels that a new topic has on other nodes."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

import trio

from nsqcommon.http_client import HttpClient, HttpFailed, HttpTimeout, https_port_in
from nsqcommon.net import join_host_port
from nsqcommon.turn import Turn, in_turn
from nsqcommon.wakeup import Wakeup
from nsqd.lookup.lookupd_name import peers_of
from nsqd.lookup.registration import RegistrationRefused, channels_in

if TYPE_CHECKING:
    from nsqcommon.wire.http_exchange import Answer
    from nsqcommon.wire.lookup import PeerAddress
    from nsqd.broker.broker import Broker
    from nsqd.broker.topic import Topic
    from nsqd.lookup.lookupd_name import LookupdName
    from nsqd.lookup.peer import LookupdPeer
    from nsqd.lookup.settings import LookupSettings

log = logging.getLogger(__name__)

_SILENCE: Final = 15.0  # seconds before we ask a peer again whose HTTP side timed out
_QUESTIONS_AT_ONCE: Final = 32
_KEPT_OPEN: Final = 5.0  # seconds to keep idle HTTP connections for the next new topic
_MOST_ANSWERED: Final = 1 << 20  # bytes in an answer, which lists the channels of one topic

_CREATED_AT_ONCE: Final = 50  # channels per turn

_ACCEPT: Final = (("Accept", "application/vnd.nsq; version=1.0"),)


class ChannelDiscovery:
    """Finds the channels of topics in `broker.undiscovered`. `Lookup` owns `sources`, and may change it at any time."""

    def __init__(self, broker: Broker, settings: LookupSettings, sources: Mapping[str, LookupdName]) -> None:
        self._broker = broker
        self._tls = settings.tls
        self._sources = sources
        self._http = HttpClient(
            connect_timeout=settings.connect_timeout, timeout=settings.request_timeout, most=_MOST_ANSWERED
        )
        self._wakeup = Wakeup()  # a topic is in broker.undiscovered

    def wake(self) -> None:
        """Wake `run`, because there are undiscovered topics."""
        self._wakeup.set()

    async def run(self, turn: Turn) -> None:
        """Add the channels of undiscovered topics, until cancelled."""
        broker = self._broker
        slots = trio.Semaphore(_QUESTIONS_AT_ONCE)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._wakeup.clear()
                    topics, broker.undiscovered = broker.undiscovered, {}
                    for topic in topics:
                        await slots.acquire()
                        nursery.start_soon(self._learn, topic, turn, slots)
                    if not broker.undiscovered:
                        await self._wait_for_topics()
        finally:
            await self._http.close_idle()

    async def _wait_for_topics(self) -> None:
        with trio.move_on_after(_KEPT_OPEN):
            await self._wakeup.wait()
            return
        await self._http.close_idle()
        await self._wakeup.wait()

    async def _learn(self, topic: Topic, turn: Turn, slots: trio.Semaphore) -> None:
        try:
            names = set() if topic.closing else await self._ask_all(topic.name)
        finally:
            slots.release()
        await add_channels(topic, names, turn)

    async def _ask_all(self, topic_name: str) -> set[str]:
        """Return the channels that any of the reachable peers lists. Logs failures."""
        await self._wait_for_first_tries()
        peers = {
            it.reachable_at: it
            for it in peers_of(self._sources.values())
            if it.reachable_at and it.reachable_at.broadcast_address
        }
        if not peers and self._sources:
            log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic_name)
        names: set[str] = set()
        failures: list[str] = []

        async def ask(peer: LookupdPeer, address: PeerAddress) -> None:
            try:
                names.update(await self._ask(peer, address, topic_name))
            except (HttpFailed, RegistrationRefused) as error:
                failures.append(f"{peer.name}: {error}")

        async with trio.open_nursery() as nursery:
            for address, peer in peers.items():
                nursery.start_soon(ask, peer, address)
        if failures:
            why = ", ".join(failures)
            log.warning("failed to query nsqlookupd for channels to pre-create for topic %s - %s", topic_name, why)
        return names

    async def _wait_for_first_tries(self) -> None:
        """Wait until we have tried to connect to each peer once, or until a deadline.

        We get a peer's HTTP address from its reply to IDENTIFY. Just after startup, or after a change of the options,
        we may not have it yet.
        """
        for source in [*self._sources.values()]:
            if not source.resolved.is_set():
                with trio.move_on_at(source.first_try_deadline):
                    await source.resolved.wait()
        for peer in [*peers_of(self._sources.values())]:
            if not peer.first_try_over.is_set():
                with trio.move_on_at(peer.first_try_deadline):
                    await peer.first_try_over.wait()

    async def _ask(self, peer: LookupdPeer, address: PeerAddress, topic_name: str) -> set[str]:
        if trio.current_time() < peer.silent_until:
            raise RegistrationRefused("timed out recently")
        tls, port = self._tls, address.http_port
        try:
            answer = await self._get(address.broadcast_address, port, topic_name, tls)
            if answer.status == 403 and (https_port := https_port_in(answer.body)):  # it requires TLS
                tls = tls or self._public_tls
                answer = await self._get(address.broadcast_address, https_port, topic_name, tls)
        except HttpTimeout:
            # For example, thousands of topics may be waiting after a start. They must not all run into the timeout.
            peer.silent_until = trio.current_time() + _SILENCE
            raise
        if answer.status != 200:
            raise RegistrationRefused(f"answered with status {answer.status}")
        return channels_in(answer.body)

    @cached_property
    def _public_tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()  # slow, because it reads all of the system's certificates

    async def _get(self, host: str, port: int, topic_name: str, tls: ssl.SSLContext | None) -> Answer:
        target = f"/channels?topic={quote_plus(topic_name)}"
        log.info("CI: querying nsqlookupd http%s://%s%s", "s" if tls else "", join_host_port(host, port), target)
        return await self._http.get(host, port, target, tls=tls, headers=_ACCEPT)


async def add_channels(topic: Topic, names: Collection[str], turn: Turn) -> None:
    """Create these channels, a few in each turn. Then release the topic's messages to its channels."""
    ascending = sorted(names)
    for start in range(0, len(ascending), _CREATED_AT_ONCE):
        with in_turn(turn):
            for name in ascending[start : start + _CREATED_AT_ONCE]:
                if not topic.closing:
                    topic.channel(name)
        await trio.lowlevel.checkpoint()
    with in_turn(turn):
        if not topic.closing:
            topic.learned(())
