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
import os
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import quote_plus

import trio

from common.http_client import HttpClient, HttpFailed, HttpTimeout, https_port_in
from common.net import AddressError, join_host_port, parse_address
from common.options import SECOND
from common.startup import StartupError
from common.turn import Turn, in_turn
from common.version import NSQ_VERSION
from common.wakeup import Wakeup
from common.wire.lookup import (
    LEAVING,
    MAGIC,
    RETIRED,
    BadReply,
    PeerAddress,
    ReplyReader,
    encode_command,
    identify_body,
)
from nsqd.lookup.registration import Refused, Registration, Words, channels_in, identified

if TYPE_CHECKING:
    from common.wire.http_exchange import Answer
    from nsqd.broker.broker import Broker
    from nsqd.broker.topic import Topic
    from nsqd.options import Options

log = logging.getLogger(__name__)

PING_INTERVAL: Final = 15.0  # all times in seconds
IO_LIMIT: Final = 1.0  # for connecting, each write, and the wait for each reply
RESOLVE_INTERVAL: Final = 15.0  # seconds between two look-ups of a name
FIRST_TRY_LIMIT: Final = 2.0  # how long new topics wait for a peer that has not answered yet
SHORTEST_BACKOFF: Final = 0.25
LONGEST_BACKOFF: Final = 8.0  # a peer that is back is complete within one PING_INTERVAL, resolving and resync included
_SILENCE: Final = 15.0  # how long a peer whose HTTP side timed out is not asked again

# Commands sent without waiting for a reply. Waiting for each would make a resync of many topics cost a round trip per
# topic. nsqlookupd answers pipelined commands in order.
_AT_ONCE: Final = 256
_MOST_LOGGED: Final = 32  # commands sent together; a longer run, such as a resync, is one line
_QUESTIONS_AT_ONCE: Final = 32
_KEPT_OPEN: Final = 5.0  # how long idle HTTP connections are kept for the next new topic
_READ_SIZE: Final = 64 * 1024
_MOST_ANSWERED: Final = 1 << 20  # bytes of an HTTP answer, which lists the channels of one topic

_ACCEPT: Final = (("Accept", "application/vnd.nsq; version=1.0"),)

Place = tuple[str, int]  # an IP address and a port
Dial = Callable[[Place, str], Awaitable[trio.abc.Stream]]  # the text is the host name for the certificate
Resolve = Callable[[str, int], Awaitable[list[Place]]]


# Peers


class Peer:
    """One nsqlookupd at one address."""

    def __init__(
        self,
        name: str,
        registration: Registration,
        *,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        find_twin: Callable[[PeerAddress], Peer | None],
        me: bytes,
        most: int,
    ) -> None:
        self.name = name
        self.reachable_at: PeerAddress | None = None  # kept after a disconnect
        self.silent_until = -inf
        self.connected = False
        self.left = trio.Event()  # set when its connection has ended
        self.tried = trio.Event()  # the first attempt to connect has ended
        self.first_try_ends = trio.current_time() + FIRST_TRY_LIMIT
        self.scope = trio.CancelScope()
        self._registration = registration
        self._connect = connect
        self._find_twin = find_twin
        self._me = me
        self._most = most  # bytes of a reply
        self._news = Wakeup()
        self._failures = 0
        self._conversation: _Conversation | None = None  # while topics can be registered
        self._goodbye = ""  # the word to say, once asked to leave

    def changed(self, topic_name: str) -> None:
        self._registration.changed(topic_name)
        self._news.set()

    def leave(self, goodbye: str) -> None:
        """Make `run` say goodbye and end. `Lookup.leave` gives it IO_LIMIT seconds."""
        self._goodbye = goodbye
        self._news.set()

    def announce(self) -> None:
        """Send what is new, within the limit for unanswered commands.

        The task sends the rest, and reads the replies.
        """
        conversation = self._conversation
        if conversation is not None and (commands := self._registration.next_commands(conversation.room)):
            self._log_commands(commands)
            conversation.tell([encode_command(*words) for words in commands])

    async def run(self) -> None:
        """Connect, register and reconnect until the scope is cancelled or goodbye is said."""
        with self.scope:
            while not self._goodbye:
                twin: Peer | None = None
                try:
                    twin = await self._visit()
                # A bare stream error of trio and an exception group of the nursery are both caught here.
                except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, BadReply, Refused) as group:
                    self._failed(_first_cause(group))
                finally:
                    self.connected = False
                    self._conversation = None
                    self.left.set()
                    self._registration.disconnected()
                    self.tried.set()
                if twin is not None:
                    log.info("LOOKUPD(%s): is the same as %s, and is told only there", self.name, twin.name)
                    await twin.left.wait()
                await trio.sleep(self._backoff())

    def _failed(self, error: BaseException) -> None:
        # Log an outage once, not for each attempt.
        level = logging.DEBUG if self._failures else logging.WARNING
        self._failures += 1
        log.log(level, "LOOKUPD(%s): %s", self.name, error)

    def _backoff(self) -> float:
        longest = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2.0 ** min(self._failures - 1, 10))
        # Jitter: not all nodes should return at once after a restart of nsqlookupd.
        return longest * random.uniform(0.5, 1.0)

    async def _visit(self) -> Peer | None:
        """Hold one connection until it breaks, which raises, or until goodbye is said (None).

        Returns another peer if that one turns out to be the same nsqlookupd.
        """
        log.log(logging.DEBUG if self._failures else logging.INFO, "LOOKUP connecting to %s", self.name)
        stream = await self._connect()
        try:
            async with trio.open_nursery() as nursery:
                conversation = _Conversation(stream, self._most)
                nursery.start_soon(conversation.listen)
                address = await self._introduce(conversation)
                twin = self._find_twin(address)
                if twin is None:
                    await self._register(conversation)
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(stream)
        return twin

    async def _introduce(self, conversation: _Conversation) -> PeerAddress:
        (reply,) = await conversation.ask(encode_command("IDENTIFY", body=self._me), before=MAGIC)
        address = self.reachable_at = identified(reply)
        self.tried.set()
        log.info(
            "LOOKUPD(%s): connected http=%s", self.name, join_host_port(address.broadcast_address, address.http_port)
        )
        if not address.broadcast_address:
            log.error("LOOKUPD(%s): no broadcast address", self.name)
        return address

    async def _register(self, conversation: _Conversation) -> None:
        """Register everything, then each change, with a PING in between. Return after saying goodbye."""
        self.connected = True
        self.left = trio.Event()
        self._registration.connected()
        self._conversation = conversation
        next_ping = trio.current_time() + PING_INTERVAL
        while not self._goodbye:
            self._news.clear()
            if trio.current_time() >= next_ping:
                next_ping = trio.current_time() + PING_INTERVAL
                self._judge(await conversation.ask(encode_command("PING")))
            if commands := self._registration.next_commands(_AT_ONCE):
                self._log_commands(commands)
                self._judge(await conversation.ask(*(encode_command(*words) for words in commands)))
                continue
            if conversation.was_told:
                self._judge(await conversation.ask())
                continue
            self._failures = 0
            with trio.move_on_at(next_ping):
                await self._news.wait()
        self._judge(await conversation.ask(encode_command("PING", self._goodbye)))

    def _log_commands(self, commands: list[Words]) -> None:
        if len(commands) > _MOST_LOGGED:
            log.info("LOOKUPD(%s): %d commands, the first is %s", self.name, len(commands), " ".join(commands[0]))
            return
        for words in commands:
            log.info("LOOKUPD(%s): %s %s", self.name, "channel" if len(words) == 3 else "topic", " ".join(words))

    def _judge(self, replies: list[bytes]) -> None:
        """Log errors. There is nothing else to do: after an error, nsqlookupd closes the connection."""
        for reply in replies:
            if reply.startswith(b"E_"):
                log.warning("LOOKUPD(%s): %s", self.name, reply[:200].decode("utf-8", "backslashreplace"))


class _Conversation:
    """Commands and their replies on one connection. Raises Refused when the peer is too slow or has gone."""

    def __init__(self, stream: trio.abc.Stream, most: int) -> None:
        self._stream = stream
        self._reader = ReplyReader(most)
        self._replies: deque[bytes] = deque()
        self._arrived = Wakeup()
        self._awaited = 0  # replies still to come
        self._told = 0  # commands sent by `tell` whose replies no `ask` has read yet
        self._unsent = b""
        self._sending = False

    @property
    def room(self) -> int:
        """The number of commands that may be sent now."""
        return max(0, _AT_ONCE - self._awaited)

    @property
    def was_told(self) -> bool:
        """Whether replies to `tell` are still to be read. The next `ask` reads them."""
        return self._told > 0

    async def listen(self) -> NoReturn:
        while data := await self._stream.receive_some(_READ_SIZE):
            self._reader.receive(data)
            while (reply := self._reader.next_reply()) is not None:
                self._replies.append(reply)
            self._arrived.set()
            if len(self._replies) > self._awaited + _AT_ONCE:
                raise Refused("says more than it is asked")
        raise Refused("connection closed by peer")

    def tell(self, commands: list[bytes]) -> None:
        """Hand the socket what it accepts without waiting. The next `ask` sends the rest and reads the replies."""
        self._told += len(commands)
        self._awaited += len(commands)
        self._unsent += b"".join(commands)
        if not self._sending:
            self._unsent = self._unsent[_send_now(self._stream, self._unsent) :]

    async def ask(self, *commands: bytes, before: bytes = b"") -> list[bytes]:
        """Return all replies in order, beginning with those to commands that `tell` has sent."""
        count, self._told = self._told + len(commands), 0
        self._awaited += len(commands)
        self._unsent += before + b"".join(commands)
        try:
            await self._send()
            return [await self._next_reply() for _ in range(count)]
        except trio.TooSlowError as error:
            raise Refused(f"no answer within {IO_LIMIT:g} s") from error

    async def _send(self) -> None:
        """Send everything, including what `tell` adds meanwhile."""
        self._sending = True
        try:
            with trio.fail_after(IO_LIMIT):
                while self._unsent:
                    data, self._unsent = self._unsent, b""
                    await self._stream.send_all(data)
        finally:
            self._sending = False

    async def _next_reply(self) -> bytes:
        if not self._replies:
            with trio.fail_after(IO_LIMIT):
                while not self._replies:
                    await self._arrived.wait()
        self._awaited -= 1
        return self._replies.popleft()


def _send_now(stream: trio.abc.Stream, data: bytes) -> int:
    """Return how many bytes the stream has accepted at once: 0 if it can only be awaited, as with TLS."""
    if not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:  # the socket is full, or broken, which the task will notice
        return 0


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.__cause__ if isinstance(error, trio.BrokenResourceError) and error.__cause__ else error


# From names to peers


class _Source:
    """One `--lookupd-tcp-address`: a peer for each address of its name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.resolved = trio.Event()  # the name has been resolved, or that has failed once
        self.scope = trio.CancelScope()
        self.peers: dict[Place, Peer] = {}
        self.first_try_ends = trio.current_time() + FIRST_TRY_LIMIT

    def connected_at(self, address: PeerAddress, *, is_ipv6: bool) -> Peer | None:
        """Return the connected peer that calls itself `address`, reached over IPv6 or IPv4 as `is_ipv6` says, or None.

        If a name has addresses of both families, two of them often lead to the same machine. A node that registers over
        both would be listed twice.
        """
        for place, peer in self.peers.items():
            if _is_ipv6(place) is is_ipv6 and peer.connected and peer.reachable_at == address:
                return peer
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that do not change at run time."""

    me: bytes  # the body of IDENTIFY
    most: int  # bytes of a reply
    connect_timeout: float  # of HTTP
    request_timeout: float
    tls: ssl.SSLContext | None


class Lookup:
    """All nsqlookupds of this node. `configure` may be called before `run`, and at any time after."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        *,
        dial: Dial | None = None,
        resolve_with: Resolve | None = None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._dial = dial or self._connect
        self._resolve = resolve_with or resolve
        self._http = HttpClient(
            connect_timeout=settings.connect_timeout, timeout=settings.request_timeout, most=_MOST_ANSWERED
        )
        self._sources: dict[str, _Source] = {}
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
                self._sources[text] = _Source(text)
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
        started: set[_Source] = set()
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

    async def _follow(self, source: _Source) -> None:
        """Keep a peer for each address that the name has now."""
        try:
            host, port = _host_and_port(source.text)
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

    def _adjust(self, source: _Source, host: str, found: list[Place], nursery: trio.Nursery) -> None:
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

    def _peer(self, source: _Source, host: str, place: Place) -> Peer:
        address = join_host_port(*place)
        return Peer(
            address if source.text == address else f"{source.text} at {address}",
            Registration(self._broker.topics),
            connect=lambda: self._dial(place, host),
            find_twin=partial(source.connected_at, is_ipv6=not _is_ipv6(place)),
            me=self._settings.me,
            most=self._settings.most,
        )

    async def _connect(self, place: Place, name: str) -> trio.abc.Stream:
        tls = self._settings.tls
        connection = trio.socket.socket(trio.socket.AF_INET6 if _is_ipv6(place) else trio.socket.AF_INET)
        try:
            with trio.move_on_after(IO_LIMIT) as limit:
                await connection.connect(place)
            if limit.cancelled_caught:
                raise TimeoutError(f"dial {join_host_port(*place)}: i/o timeout")
            stream = trio.SocketStream(connection)
            return stream if tls is None else trio.SSLStream(stream, tls, server_hostname=name)
        except ValueError as error:  # from ssl: no certificate could have this name
            connection.close()
            raise OSError(str(error)) from error
        except BaseException:
            connection.close()
            raise

    # Learning

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


def settings_of(options: Options, *, hostname: str, node: str) -> Settings:
    """Return the settings. `node` is the node id of the data path, and `options` has the ports actually listened on.

    Raises StartupError when the TLS files cannot be used.
    """
    me = identify_body(
        broadcast_address=options.broadcast_address,
        hostname=hostname,
        http_port=options.broadcast_http_port,
        tcp_port=options.broadcast_tcp_port,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
        version=NSQ_VERSION,
        node=node,
    )
    return Settings(
        me=me,
        most=min(options.max_body_size, options.max_identify_size),
        connect_timeout=options.http_client_connect_timeout / SECOND or inf,
        request_timeout=options.http_client_request_timeout / SECOND or inf,
        tls=_tls_of(options),
    )


def _tls_of(options: Options) -> ssl.SSLContext | None:
    if not options.lookupd_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.lookupd_tls_root_ca_file or None)
        if options.lookupd_tls_cert:
            context.load_cert_chain(options.lookupd_tls_cert, options.lookupd_tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"failed to build client TLS config - {error}") from error
    return context


def _host_and_port(text: str) -> Place:
    address = parse_address(text)
    if address.is_unix:
        raise AddressError("expected host:port")
    return address.host or "localhost", address.port


async def resolve(host: str, port: int) -> list[Place]:
    """Return all addresses of a name. Raises OSError if it has none."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except UnicodeError as error:  # a label is empty or too long, or has a letter that no name may have
        raise OSError(f"no such host: {error}") from error
    return list(dict.fromkeys((str(name[0]), int(name[1])) for _, _, _, _, name in found))


def _is_ipv6(place: Place) -> bool:
    return ":" in place[0]
