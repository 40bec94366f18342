"""The daemon's listening sockets for TCP, HTTP and HTTPS, and the handlers of their connections."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqcommon.net import (
    AddressError,
    ListenError,
    begin_listening,
    bind,
    close_listener,
    format_listener,
    listening_port,
    parse_address,
)
from nsqcommon.polled_transport import ProtocolHandler
from nsqcommon.web import serve
from nsqd.http import QuickHttp, QuickRoutes, SecureHandler, refuse_plain

if TYPE_CHECKING:
    import trio

    from nsqcommon.budget import Budget
    from nsqcommon.handshake import TlsServer
    from nsqcommon.poller import Connection, Handler, MakeHandler, Poller
    from nsqcommon.web import Web
    from nsqd.options import Options

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenListeners:
    """The open sockets, and their actual ports. If an option has port 0, the system has chosen the port."""

    tcp: socket.socket
    http: socket.socket | None
    https: socket.socket | None = None

    @property
    def http_port(self) -> int:
        return listening_port(self.http) if self.http is not None else 0

    @property
    def https_port(self) -> int:
        return listening_port(self.https) if self.https is not None else 0

    def begin(self) -> None:
        """Listen for TCP and HTTPS as well, after `listening_on` without `serves`. Raises ListenError."""
        begin_listening(self.tcp)
        if self.https is not None:
            begin_listening(self.https)


@contextmanager
def listening_on(options: Options, *, serves: bool = True) -> Iterator[OpenListeners]:
    """Open the listeners that the options name.

    Without `serves` only that for HTTP listens. The others only keep their addresses, where connections are refused, so
    that a standby learns at its start that another process has one of them, and not when it has to take over.
    """
    with ExitStack() as opened:

        def listen(address: str, *, listens: bool = serves) -> socket.socket:
            listener = bind(address, listens=listens)
            opened.callback(close_listener, listener)
            return listener

        yield OpenListeners(
            tcp=listen(options.tcp_address),
            http=listen(options.http_address, listens=True) if options.http_address else None,
            https=listen(_tcp_only(options.https_address)) if options.https_address and options.tls_cert else None,
        )


def _tcp_only(address: str) -> str:
    """Return the address, or refuse it if it is a Unix socket. NSQ serves HTTP on one, but not HTTPS."""
    with suppress(AddressError):  # `bind` reports any other error in the address
        if parse_address(address).is_unix:
            raise ListenError(f"listen ({address}) failed - listen tcp: address {address}: missing port in address")
    return address


def log_closing(listening: OpenListeners) -> None:
    """Log the lines that NSQ logs on shutdown, because scripts may wait for them."""
    for name, listener in (("TCP", listening.tcp), ("HTTP", listening.http), ("HTTPS", listening.https)):
        if listener is not None:
            log.info("%s: closing %s", name, format_listener(listener))
    log.info("NSQ: closing topics")
    log.info("NSQ: stopping subsystems")


@dataclass(frozen=True, slots=True)
class Budgets:
    """The limits on each listener's file descriptors, so that a crowd on one can't lock out the others."""

    tcp: Budget
    http: Budget
    https: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptors:
    """The listeners, and the services that handle their connections."""

    listening: OpenListeners
    budgets: Budgets
    poller: Poller[Any]
    web: Web
    routes: QuickRoutes
    make_client: MakeHandler
    tls: TlsServer | None
    serves_plain_http: bool
    now: Callable[[], float]

    async def start(self, nursery: trio.Nursery) -> None:
        """Start to accept connections on all listeners, in tasks of `nursery`."""
        tcp, http, https = self.listening.tcp, self.listening.http, self.listening.https
        nursery.start_soon(self.poller.accept, tcp, self.make_client, self.budgets.tcp)
        log.info("TCP: listening on %s", format_listener(tcp))
        if http is not None:
            if self.serves_plain_http:
                # Plain HTTP has no handshakes to finish first, so accept all waiting connections in one go.
                accept = partial(self.poller.accept, at_once=True)
                nursery.start_soon(accept, http, self._make_http, self.budgets.http)
            else:
                await nursery.start(
                    partial(serve, refuse_plain(self.listening.https_port), [http], budget=self.budgets.http)
                )
            log.info("HTTP: listening on %s", format_listener(http))
        if https is not None and self.tls is not None:
            accept = partial(self.poller.accept, is_crowded=self.tls.queue_is_long)
            nursery.start_soon(accept, https, partial(self._make_https, self.tls), self.budgets.https)
            log.info("HTTPS: listening on %s", format_listener(https))

    def _make_http(self, connection: Connection, wake: Callable[[], None]) -> Handler:
        """Create the handler of an HTTP connection.

        It only serves publishing and pings. The first other request moves the connection to the web server for good.
        """

        def hand_off(received: bytes) -> None:
            self.web.take_over(connection, wake, received)

        return QuickHttp(self.routes, hand_off=hand_off, wake=wake)

    def _make_https(self, tls: TlsServer, connection: Connection, wake: Callable[[], None]) -> Handler:
        """Create the handler of an HTTPS connection: like `_make_http`, but over TLS."""
        note = partial(log.info, "[%s] HTTPS - %s", connection.peer)
        secure = SecureHandler(tls, now=self.now(), wake=wake, note=note)

        def hand_off(received: bytes) -> None:
            self.web.take_over(connection, wake, received, secure=secure)

        secure.inner = QuickHttp(self.routes, hand_off=hand_off, wake=wake, common_name=secure.common_name)
        return secure


def is_of_web(handler: Handler) -> bool:
    """Return whether the web server serves this handler's connection."""
    return isinstance(handler.inner if isinstance(handler, SecureHandler) else handler, ProtocolHandler)
