"""HTTPS on the poller: TLS around the fast path for publishing, and a tunnel to the web server for the rest.

    socket ── TLS ── QuickHttp                       as long as a connection only publishes
    socket ── TLS ── Tunnel end ─ Tunnel end ── socket pair ── web server        from then on

This way, all handshakes share one queue (see handshake.py), and publishing costs as much as over HTTP, plus the
encryption. We keep TLS out of the web server, because asyncio can't request certificates in the way that
`--tls-client-auth-policy` may require.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.streams.layer import StreamError

if TYPE_CHECKING:
    from nsqcommon.budget import Budget
    from nsqcommon.handshake import TlsServer
    from nsqcommon.poller import Connection, Handler, MakeHandler, Poller
    from nsqcommon.streams.tls import SecureLayer
    from nsqcommon.web import Web

log = logging.getLogger(__name__)

_TUNNEL: Final = 2  # descriptors of the socket pair between a connection and the web server
_HANDSHAKE_TIMEOUT: Final = 10.0  # seconds, as over asyncio
_MOST_QUEUED: Final = 256 * 1024  # bytes in a tunnel; above that we don't read from its other end
# If a peer sends plain HTTP to this port, we answer in plain text. Go's server decides by the same first bytes.
_PLAIN_STARTS: Final = frozenset((b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"))
_PLAIN_ANSWER: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class SecureHandler:
    """Implements `nsqcommon.poller.Handler` with TLS around another handler, which speaks HTTP."""

    lingers: Final = False

    def __init__(
        self,
        server: TlsServer,
        *,
        now: float,
        wake: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.inner: Handler  # speaks HTTP; a tunnel may replace it at any time
        self._handshake = server.handshake(ends=now + _HANDSHAKE_TIMEOUT, wake=wake)
        self._tls: SecureLayer  # set once the handshake is done
        self._shaking_hands = True
        self._wake = wake
        self._note = note
        self._common_name = ""
        self._out: list[bytes] = []
        self._failed = False
        self._said_goodbye = False
        self._aborted = False

    def receive(self, data: bytes, now: float) -> None:
        if self._failed:
            return
        try:
            if self._shaking_hands:
                self._shake_hands(data, now)
            else:
                self._decode(data, now)
        except StreamError as error:
            self._note(str(error))
            self._fail()
        self._wake()

    def _shake_hands(self, data: bytes, now: float) -> None:
        try:
            done = self._handshake.receive(data, now)
        except StreamError:
            mistaken = self._handshake.first_bytes in _PLAIN_STARTS
            self._out = [_PLAIN_ANSWER if mistaken else self._handshake.pending()]
            raise
        if answer := self._handshake.pending():
            self._out.append(answer)
        if done:
            self._shaking_hands = False
            self._tls = self._handshake.tls
            self._common_name = self._tls.peer_common_name
            self._decode(b"", now)  # the data that follows the handshake

    def _decode(self, raw: bytes, now: float) -> None:
        data = self._tls.decode(raw)
        if answer := self._tls.pending():
            self._out.append(answer)
        if data:
            self.inner.receive(data, now)
        if self._tls.ended:
            self.inner.end()

    def _fail(self) -> None:
        """End the handshake and the inner handler. From now on, send only the bytes that are already queued."""
        self._failed = True
        self._handshake.end()
        self.inner.abort()

    @property
    def has_ended(self) -> bool:
        """Whether the peer has ended its side of the stream."""
        return self._tls.ended

    def common_name(self) -> str:
        """Return the common name in the peer's certificate, or "" if there is none."""
        return self._common_name

    def end(self) -> None:
        if self._shaking_hands:
            self._fail()
            self._wake()
        else:
            self.inner.end()

    def abort(self) -> None:
        self._aborted = True
        self._handshake.end()
        self.inner.abort()

    def give_up(self) -> None:
        """Close the connection without sending anything more."""
        self.abort()
        self._wake()

    def bytes_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        if self._failed or self._shaking_hands:
            return out
        if pieces := self.inner.bytes_to_send():
            out.append(self._tls.encode(b"".join(pieces)))
        if self.inner.finished and not self._said_goodbye:
            self._said_goodbye = True
            out.append(self._tls.goodbye())
        return out

    def sent(self, unsent: int) -> None:
        self.inner.sent(unsent)

    def tick(self, now: float) -> None:
        if now >= self._handshake.ends:
            self._note("tls: handshake timeout")
            self._fail()
            self._wake()
        elif now >= self._handshake.turn_at:
            self.receive(b"", now)
        else:
            self.inner.tick(now)

    @property
    def next_deadline(self) -> float:
        return min(self._handshake.next_deadline, self.inner.next_deadline)

    @property
    def reading(self) -> bool:
        # Also while the handshake waits for its turn, because only reading shows that the peer has left.
        return self._shaking_hands or self.inner.reading

    @property
    def finished(self) -> bool:
        return not self._out and (self._failed or self._said_goodbye)

    @property
    def aborted(self) -> bool:
        return self._aborted or self.inner.aborted

    @property
    def write_timeout(self) -> float:
        return self.inner.write_timeout


def is_tunnel(handler: Handler) -> bool:
    """Return whether the web server serves this handler's connection."""
    return isinstance(handler.inner if isinstance(handler, SecureHandler) else handler, TunnelEnd)


class TunnelEnd:
    """Implements `nsqcommon.poller.Handler`: bytes received at this end are sent at the other end."""

    next_deadline: Final = inf
    write_timeout: Final = inf  # not needed, because the amount of unsent data is limited
    aborted: Final = False
    lingers: Final = False

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._other = self  # replaced by `join`
        self._out: list[bytes] = []
        self._queued = 0
        self._unsent = 0
        self._closing = False

    def join(self, other: TunnelEnd) -> None:
        self._other, other._other = other, self

    def receive(self, data: bytes, now: float) -> None:
        self._other.put(data)

    def end(self) -> None:
        self._other.close()
        self.close()

    abort = end

    def tick(self, now: float) -> None: ...

    def bytes_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        self._queued = 0
        return out

    def sent(self, unsent: int) -> None:
        was_full, self._unsent = self.is_full, unsent
        if was_full and not self.is_full:
            self._other.read_again()

    def put(self, data: bytes) -> None:
        """Queue bytes to send at this end."""
        self._out.append(data)
        self._queued += len(data)
        self._wake()

    def read_again(self) -> None:
        """Resume reading at this end, because the other end has room again."""
        self._wake()

    def close(self) -> None:
        """Close this end once everything has been sent."""
        self._closing = True
        self._wake()

    @property
    def is_full(self) -> bool:
        """Whether the other end has to stop reading."""
        return self._queued + self._unsent > _MOST_QUEUED

    @property
    def reading(self) -> bool:
        return not self._other.is_full

    @property
    def finished(self) -> bool:
        return self._closing and not self._out


class Tunnels:
    """Opens tunnels from TLS connections to the web server.

    Their descriptors count towards the budget of the listening address.
    """

    def __init__(self, poller: Poller[Any], web: Web, budget: Budget) -> None:
        self._poller = poller
        self._web = web
        self._budget = budget

    def open_tunnel(self, secure: SecureHandler, peer: str, wake: Callable[[], None], received: bytes) -> None:
        """Tunnel this connection to the web server from now on, starting with the `received` bytes."""
        near = TunnelEnd(wake)
        try:
            if not self._budget.has_room(_TUNNEL):
                raise OSError("no descriptors left for it")
            ours, theirs = socket.socketpair()
        except OSError as error:
            log.warning("[%s] HTTPS - %s", peer, error)
            secure.give_up()
            return
        for _ in range(_TUNNEL):
            self._budget.take()
        secure.inner = near

        def make_far(_: Connection, wake: Callable[[], None]) -> Handler:
            end = TunnelEnd(wake)
            end.join(near)
            return end

        try:
            self._poller.add(ours, peer, make_far, on_closed=self._budget.give_back)
        except OSError as error:
            log.warning("[%s] HTTPS - %s", peer, error)
            for end in (ours, theirs):
                end.close()
                self._budget.give_back()
            secure.give_up()
            return
        theirs.setblocking(False)
        host, _, port = peer.rpartition(":")
        self._web.adopt(
            theirs,
            received,
            client=(host.strip("[]"), int(port)) if host else None,  # a unix socket has no address
            common_name=secure.common_name(),
            on_closed=self._budget.give_back,
        )
        if secure.has_ended:
            # The peer ended its side before there was a tunnel, so pass that on. It gets no response from the web
            # server, just as after a TCP EOF through a tunnel.
            near.end()

    def handler_maker(self, tls: TlsServer) -> MakeHandler:
        """Return a function that creates handlers for TLS connections that the web server serves entirely."""

        def make(connection: Connection, wake: Callable[[], None]) -> Handler:
            note = partial(log.info, "[%s] HTTPS - %s", connection.peer)
            secure = SecureHandler(tls, now=monotonic(), wake=wake, note=note)
            secure.inner = _BeforeTunnel(partial(self.open_tunnel, secure, connection.peer, wake))
            return secure

        return make


class _BeforeTunnel:
    """Implements `nsqcommon.poller.Handler` until the first bytes arrive and open the tunnel."""

    next_deadline: Final = inf
    write_timeout: Final = inf
    reading: Final = True
    aborted: Final = False
    lingers: Final = False

    def __init__(self, open_tunnel: Callable[[bytes], None]) -> None:
        self._open_tunnel = open_tunnel
        self.finished = False

    def receive(self, data: bytes, now: float) -> None:
        self._open_tunnel(data)

    def end(self) -> None:
        self.finished = True

    def abort(self) -> None:
        self._open_tunnel = _open_nothing  # drop the reference to the connection

    def tick(self, now: float) -> None: ...

    def bytes_to_send(self) -> list[bytes]:
        return []

    def sent(self, unsent: int) -> None: ...


def _open_nothing(received: bytes) -> None:
    """Do nothing, because the connection has gone."""
