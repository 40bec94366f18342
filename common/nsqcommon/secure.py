"""TLS on the poller, around another handler: nsqd's fast path for publishing, the web server, or nsqlookupd's protocol.

    socket ── TLS ── QuickHttp                                    as long as a connection only publishes
    socket ── TLS ── ProtocolHandler ── uvicorn's protocol        from then on (polled_transport.py)
    socket ── TLS ── LookupClient                                 nsqlookupd over TCP

asyncio's own TLS can't replace it:

- It can't request a certificate without checking it, as `--tls-client-auth-policy=require` does with pyOpenSSL.
- It can't take over a connection whose handshake is done, so there could be no fast path over TLS.
- It signs for all new clients at once. Here, the handshakes of all ports share one queue (handshake.py), which
  tests/nsqd/whole/test_tls_flood.py checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqcommon.streams.layer import StreamError

if TYPE_CHECKING:
    from nsqcommon.handshake import TlsServer
    from nsqcommon.poller import Handler
    from nsqcommon.streams.tls import SecureLayer

_HANDSHAKE_TIMEOUT: Final = 10.0  # seconds
# If a peer sends plain HTTP to this port, we answer in plain text. Go's server decides by the same first bytes.
_PLAIN_STARTS: Final = frozenset((b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"))
_PLAIN_ANSWER: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class SecureHandler:
    """Implements `nsqcommon.poller.Handler` with TLS around another handler."""

    lingers: Final = False

    def __init__(
        self,
        server: TlsServer,
        *,
        now: float,
        wake: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.inner: Handler  # may be replaced at any time
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
        # The inner handler may finish during the handshake, for example at a shutdown.
        is_done = self.inner.finished if self._shaking_hands else self._said_goodbye
        return not self._out and (self._failed or is_done)

    @property
    def aborted(self) -> bool:
        return self._aborted or self.inner.aborted

    @property
    def write_timeout(self) -> float:
        return self.inner.write_timeout
