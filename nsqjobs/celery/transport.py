"""The transport: one for each `kombu.Connection`, with a socket for publishing, and a reader for consuming."""

from __future__ import annotations

import os
import re
import selectors
import socket
import sys
import threading
from dataclasses import replace
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from kombu.exceptions import ChannelError
from kombu.transport import base, virtual

from nsqclient import ConnectError, Disconnected, PublishRejected, PublishUnknown, Unsupported
from nsqclient.blocking import BlockingProducer
from nsqcommon.version import suite_version
from nsqjobs.addresses import Endpoint, parse_url
from nsqjobs.celery.channel import Channel, Consuming
from nsqjobs.celery.finished import Finished
from nsqjobs.celery.reader import Reader
from nsqjobs.celery.reporting import OPTION, report_runs
from nsqjobs.delays import DelayLimit

if TYPE_CHECKING:
    from nsqjobs.celery.envelope import Publication

_RETRY_TIMEOUT: Final = 30.0  # how long to repeat a publish, in seconds; `transport_options["retry_timeout"]`
_BATCH: Final = 100  # messages for Celery before its loop does something else
_LONGEST_WAIT: Final = 1.0  # seconds, so that Ctrl-C has a chance
_MAX_MSG_SIZE: Final = 64 << 20

_with_password: Final = re.compile(r"(?P<scheme>.*://)[^/@:]*:(?P<password>[^/@]*)@(?P<rest>.*)").fullmatch

_PARTS_OF_CELERY: Final = {"celery.worker.consumer.mingle": "Mingle", "celery.worker.consumer.gossip": "Gossip"}


class Transport(virtual.Transport):
    """kombu makes it for a URL that begins with `nsq`. Threads may share it as far as kombu allows."""

    Channel = Channel
    can_parse_url = True
    default_port = 4150
    driver_type = "nsq"
    driver_name = "nsqclient"
    connection_errors = (ConnectError, Disconnected, PublishUnknown, ConnectionError, OSError)
    channel_errors = (ChannelError, PublishRejected, Unsupported)
    recoverable_connection_errors = (ConnectError, Disconnected, PublishUnknown, ConnectionError, OSError)
    recoverable_channel_errors = ()
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        _separate_password(client)
        self.endpoint = _endpoint(client)
        self.passing: dict[str, float] = {}  # passing queues declared here, and when; see routing.py
        self.lasting: set[str] = set()  # lasting queues declared here
        self.wants_no_size = False
        self.finished = Finished()
        self.nodes = self.endpoint.nodes()
        self.publisher = BlockingProducer(
            self.nodes,
            config=self.endpoint.config,
            retry_timeout=float(client.transport_options.get("retry_timeout", _RETRY_TIMEOUT)),
        )
        self._reports = bool(client.transport_options.get(OPTION))
        self._limit = DelayLimit()
        self._reader: Reader | None = None
        self._ringing: Bell | None = None
        _let_workers_meet()

    # From start to end

    def establish_connection(self) -> Transport:
        """Connect to an nsqd. Raise ConnectError or Unsupported."""
        if self._reports:
            report_runs(self.endpoint)
        self.publisher.connect()
        super().establish_connection()
        return self

    def verify_connection(self, connection: Transport) -> bool:
        return self._reader is None or self._reader.error is None

    @property
    def connected(self) -> bool:
        return self.verify_connection(self)

    @property
    def reader(self) -> Reader:
        """The reader, started on first use. After a fork the child gets its own reader and bell."""
        if self._reader is not None and self._reader.pid != os.getpid():
            self._reader = self._ringing = None
        if self._reader is None:
            self._reader = Reader(self.endpoint, self._bell.ring)
        return self._reader

    @property
    def _bell(self) -> Bell:
        """The bell, made on first use, because kombu makes transports that it never closes."""
        if self._ringing is None:
            self._ringing = Bell()
        return self._ringing

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self.publisher.close()
        if self._ringing is not None:
            self._ringing.close()

    # Publishing

    def publish_job(self, topic: str, job: Publication) -> None:
        """Publish to a lasting queue. nsqd defers messages that aren't due yet."""
        while True:
            delay = job.eta - time() if job.eta is not None else 0.0
            shortened, headers = self._limit.shorten(delay), self._limit.marked(job.headers, delay)
            key = job.key if shortened is not None else None
            try:
                self.publisher.publish(topic, job.body, delay=shortened, key=key, headers=headers, group=job.group)
                return
            except PublishRejected as error:
                if not self._limit.learn(error, delay):
                    raise

    # Consuming

    def drain_events(self, connection: Transport, timeout: float | None = None, **kwargs: Any) -> None:
        """Hand one message to Celery. Raise TimeoutError if none arrives in time."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._deliver_one():
            if not self.wait(None if deadline is None else deadline - monotonic()):
                raise TimeoutError("timed out waiting for a message")

    def wait(self, timeout: float | None) -> bool:
        """Wait until there may be a message, or a check is due. Return False after `timeout` seconds."""
        if timeout is not None and timeout < 0:
            return False
        self._bell.wait(_LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT))
        return True

    def _deliver_one(self) -> bool:
        while self._reader is not None and (found := self._reader.take()) is not None:
            subscription, delivery = found
            consuming = subscription.owner
            if isinstance(consuming, Consuming) and consuming.channel.connection is not None:
                if consuming.channel.deliver(subscription, delivery, consuming):
                    return True
            else:
                self._reader.give_back(subscription, delivery)
        return False

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        loop.add_reader(self._bell.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Transport, loop: Any) -> None:
        loop.remove_reader(self._bell.fileno())

    def on_readable(self, connection: Transport, loop: Any) -> None:
        self._bell.clear()
        for _ in range(_BATCH):
            if not self._deliver_one():
                return
        self._bell.ring()  # there may be more, after the loop's other work

    # Descriptions

    def driver_version(self) -> str:
        return suite_version()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return _url(self.client, password=None if include_password else mask)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"hostname": "nsq://127.0.0.1:4150"}


class Bell:
    """A socket that becomes readable when another thread rings."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)
        self._has_rung = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._here.fileno()

    def ring(self) -> None:
        """Make the socket readable. You can call it in any thread."""
        with self._lock:
            if self._has_rung:
                return
            self._has_rung = True
        try:
            self._there.send(b"\0")
        except OSError:
            pass  # closed, or full: then it has already rung

    def clear(self) -> None:
        """Reset it. Look for ready messages after this call."""
        try:
            self._here.recv(4096)
        except OSError:
            pass
        with self._lock:
            self._has_rung = False

    def wait(self, timeout: float) -> None:
        if self._here.fileno() < 0:
            sleep(timeout)
            return
        with selectors.DefaultSelector() as selector:  # `select.select` knows only descriptors up to 1,023
            selector.register(self._here, selectors.EVENT_READ)
            selector.select(timeout)
        self.clear()

    def close(self) -> None:
        self._here.close()
        self._there.close()


def _separate_password(client: Any) -> None:
    """Move the password out of a kombu.Connection's URL, because `celery inspect stats` would show it to everyone."""
    found = _with_password(client.hostname or "")
    if found is not None:
        client.password = unquote(found["password"])
        client.hostname = f"{found['scheme']}{found['rest']}"


def _url(client: Any, *, password: str | None = None) -> str:
    """Return a kombu.Connection's URL. If given, `password` replaces the URL's password.

    kombu splits a URL that is one of several alternatives, and removes the part before a plus.
    """
    hostname = client.hostname or ""
    scheme, separator, rest = hostname.rpartition("://")
    if client.uri_prefix:
        scheme = f"{client.uri_prefix}+{scheme}"
    elif not separator:
        scheme, rest = "nsq", f"{hostname}{f':{client.port}' if client.port else ''}"
    login = ""
    if client.password:
        login = f":{password if password is not None else quote(client.password, safe='')}@"
    return f"{scheme}://{login}{rest}"


def _endpoint(client: Any) -> Endpoint:
    endpoint = parse_url(_url(client), backoff="none", max_attempts=0, max_msg_size=_MAX_MSG_SIZE)
    if client.ssl and endpoint.config.tls == "off":
        endpoint = replace(endpoint, config=replace(endpoint.config, tls="require"))
    return endpoint


def _let_workers_meet() -> None:
    """Enable Celery's mingle (workers sync when they start) and gossip (workers see each other come and go).

    Celery does both only for transports in a list of its own. In a process that isn't a worker these modules aren't
    loaded, and there is nothing to do.
    """
    for module, name in _PARTS_OF_CELERY.items():
        if module in sys.modules:
            getattr(sys.modules[module], name).compatible_transports.add(Transport.driver_type)
