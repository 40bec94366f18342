"""A producer on plain blocking sockets: no loop, no thread, and nothing runs between two calls.

    producer = BlockingProducer(given_nodes(["127.0.0.1:4150"]))
    producer.publish("clicks", b"hello")

A publish takes one write and one read, where `nsqclient.sync` passes each call to its thread and back. Use it in
libraries that publish from plain functions. It survives a fork, because the child makes its own connections and names.

It uses one nsqd at a time, and switches to another if that fails. A message with a group goes to the group's nsqd, as
with the strategy `by_group` of `open_producer`. Heartbeats are off, because nothing would answer them. If a connection
breaks between two calls, the next publish notices and is repeated.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from random import Random
from threading import Lock
from typing import Final
from weakref import WeakSet

from nsqclient.core.config import Config
from nsqclient.core.errors import (
    ConfigError,
    ConnectError,
    Disconnected,
    NSQError,
    OutcomeUnknown,
    PublishError,
    PublishRejected,
    PublishUnsent,
    Unsupported,
)
from nsqclient.core.hostpool import weight_of
from nsqclient.core.listings import BadAnswer, LookupdAddress, parse_lookupd
from nsqclient.core.node_list import NODES, nodes_target, read_nodes
from nsqclient.core.publication import (
    Group,
    Headers,
    Names,
    Outcome,
    ProducerConnection,
    checked_key,
    group_in,
    keyed,
    pub_command,
    with_group,
)
from nsqclient.core.recall import ACCEPT, RecallTarget, check_support, place_of
from nsqclient.core.reconnect import Reconnect
from nsqclient.shell.identity import our_identity
from nsqclient.shell.targets import check_target, host_of, local_host, peer_of
from nsqclient.shell.tls import context_of, tls_maker
from nsqcommon.blocking_http import BlockingHttp
from nsqcommon.net import AddressError, parse_address

__all__ = ["BlockingProducer", "Nodes", "given_nodes", "listed_nodes"]

_READ_SIZE: Final = 64 * 1024
_FIRST_PAUSE: Final = 0.05  # seconds
_LONGEST_PAUSE: Final = 1.0
_HTTP_TIMEOUT: Final = 10.0  # seconds
_GOODBYE: Final = 0.5  # seconds
_REST: Final = 30.0  # seconds that groups avoid an nsqd that has failed
_PUB_FAILED: Final = "PUB_FAILED"  # E_ and E_D: nsqd could not store the message, so another one may

Nodes = Callable[[], Mapping[str, str]]  # the state of each nsqd by address; empty if it accepts publishes

# Producers to reset in a child. Python can't unregister a function that runs after a fork, so one call serves all.
_producers: Final[WeakSet[BlockingProducer]] = WeakSet()


class BlockingProducer:
    """Publishes to one of several nsqds. Threads may share it; they publish one at a time.

    `nodes` returns the states of all nsqds by address; it is called for each new connection. A publish with an unknown
    outcome is repeated at the same nsqd, with a key by which that recognizes it, for `retry_timeout` seconds; at
    another address if another machine has taken over. It waits as long for an nsqd that was connected before, and not
    at all for one that never was.
    """

    def __init__(self, nodes: Nodes, *, config: Config = Config(), retry_timeout: float = 30.0) -> None:
        self._nodes = nodes
        self._config = replace(config, heartbeat_interval=None)
        self._retry_timeout = retry_timeout
        self._random = Random()
        self._begin()
        _producers.add(self)

    def _begin(self) -> None:
        self._lock = Lock()
        self._names = Names()  # with the same name in two processes, nsqd would take their publishes for repeats
        self._links: dict[str, _Link] = {}
        self._current: _Link | None = None
        self._had_one = False  # we have been connected before
        self._states: Mapping[str, str] = {}  # what `nodes` has returned, for groups
        self._states_end = 0.0  # when to call it again

    def _begin_in_child(self) -> None:
        """Drop the parent's state, and close its sockets here without sending nsqd anything."""
        for link in self._links.values():
            link.abandon()
        self._begin()

    def connect(self) -> None:
        """Connect to an nsqd, unless there is a connection. Raise ConnectError if none can be reached."""
        with self._lock:
            self._connected()

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        group: Group | None = None,
    ) -> None:
        """Publish a message and return when nsqd has accepted it. Arguments and errors: see `Producer.publish`."""
        headers = with_group(headers, group)
        command = pub_command(topic, body, delay, headers)
        given = checked_key(key) if key is not None else None
        until = time.monotonic() + self._retry_timeout  # includes the wait for other threads, or the waits would add up
        with self._lock:
            self._publish(topic, command, given if given is not None else self._names.next(), group_in(headers), until)

    def close(self) -> None:
        """Close all connections. A later publish opens a new one."""
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()
            self._current = None

    # Publishing

    def _publish(self, topic: str, command: bytes, key: bytes, group: bytes | None, until: float) -> None:
        pauses = Reconnect(self._config, self._random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        refused: set[str] = set()  # nsqds that couldn't store it
        unknown: PublishError | None = None
        only: _Link | None = None  # with an unknown outcome, it may be stored there and nowhere else
        while True:
            error: NSQError
            try:
                link = self._connected_to(only) if only is not None else self._link_for(group, refused)
                link.publish(topic, command, key)
                return
            except OutcomeUnknown as caught:
                error = unknown = caught
                only = link
            except PublishRejected as caught:
                # nsqd looks up the key before it tries to store, but after it has validated the command.
                if not caught.code.endswith(_PUB_FAILED):
                    raise
                error = unknown or caught
                if unknown is None:
                    refused.add(link.address)
                    self._has_failed(link)
                    if refused >= set(self._nodes()):
                        raise
                    continue
            except (ConnectError, PublishUnsent) as caught:
                error = unknown or caught
            if not self._had_one or time.monotonic() >= until:
                raise error
            time.sleep(min(pauses.pause(), max(until - time.monotonic(), 0.0)))

    def _has_failed(self, link: _Link) -> None:
        """Use another nsqd for the next publishes."""
        if self._current is link:
            self._current = None
        link.rests_until = time.monotonic() + _REST
        self._states_end = 0.0  # it may be gone

    # Connections

    def _link_for(self, group: bytes | None, without: Set[str]) -> _Link:
        """Return an open connection for a message of this group, or for one without a group."""
        if group is None:
            return self._connected(without=without)
        error: NSQError = ConnectError("no nsqd is known")
        for address in self._in_order_of(group, without):
            link = self._link(address)
            try:
                link.open()
            except NSQError as caught:
                error = caught
                self._has_failed(link)
                continue
            self._had_one = True
            return link
        raise error

    def _in_order_of(self, group: bytes, without: Set[str]) -> Sequence[str]:
        """Return the addresses in the order in which this group uses them; failed and full ones come last."""
        now = time.monotonic()
        if now >= self._states_end:
            self._states = self._nodes()
            self._states_end = now + self._config.lookupd_poll_interval
        states = self._states
        addresses = [address for address in states if address not in without]
        addresses.sort(key=lambda address: weight_of(address, group), reverse=True)
        resting = {address for address, link in self._links.items() if link.rests_until > now}
        return sorted(addresses, key=lambda address: (bool(states[address]), address in resting))

    def _connected(self, *, without: Set[str] = frozenset()) -> _Link:
        """Return an open connection to any nsqd that isn't excluded."""
        current = self._current
        if current is not None and current.address not in without and current.is_open:
            return current
        error: NSQError = ConnectError("no nsqd is known")
        for address in self._shuffled(without):
            link = self._link(address)
            try:
                link.open()
            except NSQError as caught:
                error = caught
                continue
            self._current, self._had_one = link, True
            return link
        raise error

    def _connected_to(self, link: _Link) -> _Link:
        """Return an open connection to this nsqd: at another address if another machine has taken over."""
        try:
            link.open()
        except ConnectError:
            found = self._successor(link)
            if found is None:
                raise
            if self._current is link:
                self._current = found
            return found
        return link

    def _successor(self, link: _Link) -> _Link | None:
        """Return the connection to the nsqd that has taken over this one's messages and keys, if there is one."""
        for address in self._shuffled({link.address}) if link.log_id else ():
            other = self._link(address)
            with suppress(NSQError):
                other.open()
                if other.log_id == link.log_id:
                    return other
        return None

    def _shuffled(self, without: Set[str]) -> Sequence[str]:
        states = self._nodes()
        addresses = [address for address in states if address not in without]
        self._random.shuffle(addresses)
        return sorted(addresses, key=lambda address: bool(states[address]))  # draining and full ones come last

    def _link(self, address: str) -> _Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(address, self._config)
        return link

    # HTTP of the same nsqds

    def ask_all(self, method: str, target: str) -> dict[str, tuple[int, bytes] | NSQError]:
        """Send an HTTP request to each nsqd, and return status and body of each answer, or the error, by address.

        The request goes to the HTTP address in nsqd's answer to IDENTIFY, and names its nsqd, so no other one answers.
        Raises ConnectError if no nsqd is known, because an empty result would look like "nothing found".
        """
        with self._lock:
            addresses = self._nodes()
            if not addresses:
                raise ConnectError("no nsqd is known")
            return {address: self._ask(address, method, target) for address in addresses}

    def _ask(self, address: str, method: str, target: str) -> tuple[int, bytes] | NSQError:
        try:
            place = self._link(address).place()
            return request(place, method, f"{target}&node={place.node}", self._config)
        except NSQError as error:
            return error


class _Link:
    """The connection to one nsqd, opened on demand and reopened after a loss."""

    def __init__(self, address: str, config: Config) -> None:
        check_target(address)
        self.address = address
        self.log_id = ""  # the log with its messages and keys, from its last IDENTIFY answer; "" if unknown
        self.rests_until = 0.0  # groups avoid it until then
        self._config = config
        self._socket: socket.socket | None = None
        self._connection: ProducerConnection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed

    def open(self) -> ProducerConnection:
        """Return the open connection. Raise ConnectError."""
        if self._connection is not None and not self._connection.is_closed:
            return self._connection
        self._lose(None)
        connection = ProducerConnection(
            self.address,
            self._config,
            our_identity(),
            max_pending=2,
            make_tls=tls_maker(self.address, self._config),
            wake=_nothing,
            emit=lambda event: None,
            on_open=_nothing,
            on_room=_nothing,
            on_heartbeat=_nothing,
        )
        self._socket, self._connection = self._dial(), connection
        connection.peer = peer_of(self._socket)
        try:
            while not connection.is_open:
                self._exchange(connection)
        except NSQError as error:
            self._lose(error)
            raise error if isinstance(error, ConnectError) else ConnectError(f"{self.address}: {error}") from error
        if not connection.takes_keys or not connection.takes_headers:
            self._lose(None)
            raise Unsupported(f"nsqd {self.address} does not grant the extensions `keys` and `headers`")
        self.log_id = connection.log_id
        return connection

    def publish(self, topic: str, command: bytes, key: bytes) -> None:
        connection = self.open()
        outcome = Outcome(topic, count=1, size=len(command), key=key)
        connection.publish(keyed(command, key), outcome)
        try:
            while not outcome.done:
                self._exchange(connection)
        except NSQError as error:
            self._lose(error)
        except BaseException as error:  # Ctrl-C or a timeout: the answer is no longer wanted
            self._lose(Disconnected(repr(error)))
            raise
        if outcome.error is not None:
            raise outcome.error

    def place(self) -> RecallTarget:
        connection = self.open()
        check_support(connection)
        return place_of(connection, self._config.server_hostname or host_of(self.address), self._config)

    def _exchange(self, connection: ProducerConnection) -> None:
        """Send the pending bytes, and process nsqd's next answer."""
        assert self._socket is not None
        try:
            if data := connection.bytes_to_send():
                self._socket.sendall(data)
            received = self._socket.recv(_READ_SIZE)
        except OSError as error:
            raise Disconnected(str(error)) from error
        if not received:
            raise Disconnected("connection closed by nsqd")
        connection.receive(received, time.monotonic())

    def _dial(self) -> socket.socket:
        try:
            where = parse_address(self.address)
            if where.is_unix:
                connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connected.settimeout(self._config.dial_timeout)
                connected.connect(where.path)
            else:
                local = local_host(self._config)
                connected = socket.create_connection(
                    (where.host, where.port), self._config.dial_timeout, (local, 0) if local else None
                )
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, AddressError) as error:
            raise ConnectError(f"dial {self.address}: {error}") from error
        connected.settimeout(self._config.read_timeout)
        return connected

    def _lose(self, error: NSQError | None) -> None:
        connection, self._connection = self._connection, None
        self.abandon()
        if connection is not None:
            connection.lost(error)

    def close(self) -> None:
        """Close the connection, with a close_notify if it uses TLS."""
        if self._socket is not None and self._connection is not None and (goodbye := self._connection.goodbye()):
            with suppress(OSError):
                self._socket.settimeout(_GOODBYE)
                self._socket.sendall(goodbye)
        self._lose(None)

    def abandon(self) -> None:
        """Close this process's copy of the socket, which another process may share."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def request(place: RecallTarget, method: str, target: str, config: Config) -> tuple[int, bytes]:
    """Send an HTTP request and return status and body of the answer. Raise ConnectError."""
    tls = context_of(config) if place.is_secure else None
    try:
        with BlockingHttp(place.host, place.port, timeout=_HTTP_TIMEOUT, tls=tls) as http:
            return http.request(method, target, headers=place.headers)
    except OSError as error:
        raise ConnectError(f"HTTP port {place.port}: {error}") from error


def given_nodes(addresses: Sequence[str]) -> Nodes:
    """Return `nodes` for a BlockingProducer with fixed nsqds. Raise ConfigError."""
    if not addresses:
        raise ConfigError("addresses", addresses, "no nsqd to publish to")
    for address in addresses:
        check_target(address)
    known = dict.fromkeys(addresses, "")
    return lambda: known


def listed_nodes(lookupd: Sequence[str], config: Config) -> Nodes:
    """Return `nodes` for a BlockingProducer that finds its nsqds with these nsqlookupds. Raise ConfigError.

    A listed nsqd is dropped only if every nsqlookupd has answered, and at least one nsqd is listed.
    """
    lookupds = [parse_lookupd(text, NODES) for text in lookupd]
    if not lookupds:
        raise ConfigError("lookupd", lookupd, "no nsqlookupd to ask")
    known: dict[str, str] = {}

    def nodes() -> Mapping[str, str]:
        nonlocal known
        found: dict[str, str] = {}
        is_complete = True
        for asked in lookupds:
            try:
                status, body = request(_lookupd_place(asked, config), "GET", nodes_target(asked), config)
                found.update((entry.address, entry.state) for entry in read_nodes(status, body)[0])
            except (ConnectError, BadAnswer):
                is_complete = False
        known = found if is_complete and found else known | found
        return known

    return nodes


def _lookupd_place(lookupd: LookupdAddress, config: Config) -> RecallTarget:
    headers = [ACCEPT]
    if config.auth_secret and config.lookupd_authorization:
        headers.append(("Authorization", f"Bearer {config.auth_secret}"))
    return RecallTarget(lookupd.host, lookupd.host, lookupd.port, lookupd.scheme == "https", "", headers)


def _begin_in_child() -> None:
    """Reset all producers, before the child has a second thread that could use one."""
    for producer in _producers:
        producer._begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


def _nothing() -> None: ...
