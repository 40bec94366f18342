"""HTTPS on the poller: TLS in front of publishing's short path, and a tunnel to the web server for everything else.

    socket ── TLS ── QuickHttp                       as long as a connection only publishes
    socket ── TLS ── Tunnel end ─ Tunnel end ── socket pair ── web server        from then on

So a handshake keeps in step with all others (HandshakePace), publishing costs what it costs over HTTP plus the encryption, and
the web server needs no TLS of its own: its asyncio could not ask for certificates as `--tls-client-auth-policy` may want it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from common.streams.layer import StreamError

if TYPE_CHECKING:
    from common.poller import Handler
    from common.streams.tls import SecureLayer
    from nsqd.tls import HandshakePace

_HANDSHAKE_TIMEOUT: Final = 10.0  # seconds, as over asyncio
_MOST_QUEUED: Final = 256 * 1024  # bytes in a tunnel before its other end is not read from
# A peer that has mistaken the port is told so in clear, as by Go's server; it decides by as many bytes.
_PLAIN_STARTS: Final = frozenset((b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"))
_PLAIN_ANSWER: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class SecureHttp:
    """Implements `common.poller.Handler` around another one, which speaks HTTP."""

    def __init__(
        self,
        tls: SecureLayer,
        pace: HandshakePace,
        *,
        now: float,
        wake: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self.inner: Handler  # may be replaced at any time
        self._tls = tls
        self._pace = pace
        self._wake = wake
        self._note = note
        self._shaking_hands = True
        self._common_name = ""
        self._handshake_ends = now + _HANDSHAKE_TIMEOUT
        self._may_sign = False  # the handshake's costly step has got its slot
        self._looks_at = inf  # when what has come is looked at; inf: when more comes
        self._raw = b""
        self._out: list[bytes] = []
        self._failed = False
        self._said_goodbye = False
        self.aborted = False

    def receive(self, data: bytes, now: float) -> None:
        self._raw += data
        if self._looks_at == inf and not self._failed:
            self._look(now)

    def _look(self, now: float) -> None:
        self._looks_at = inf
        try:
            if self._shaking_hands:
                self._shake_hands(now)
            if not self._shaking_hands:
                self._decode(now)
        except StreamError as error:
            self._note(str(error))
            self._fail()
        self._wake()

    def _shake_hands(self, now: float) -> None:
        if not self._may_sign:
            self._may_sign = True
            if (slot := self._pace.next_slot(now)) > now:
                self._looks_at = slot
                return
        raw, self._raw = self._raw, b""
        try:
            done = self._tls.handshake(raw)
        except StreamError:
            self._out = [_PLAIN_ANSWER if raw[:5] in _PLAIN_STARTS else self._tls.pending()]
            raise
        self._out.append(self._tls.pending())
        if done:
            self._shaking_hands = False
            self._handshake_ends = inf
            self._common_name = self._tls.peer_common_name

    def _decode(self, now: float) -> None:
        raw, self._raw = self._raw, b""
        data = self._tls.decode(raw)
        if answer := self._tls.pending():
            self._out.append(answer)
        if data:
            self.inner.receive(data, now)
        if self._tls.ended:
            self.inner.end()

    def _fail(self) -> None:
        """Nothing more can be said on this connection but what is to be sent already."""
        self._failed = True
        self._handshake_ends = self._looks_at = inf
        self.inner.abort()

    def common_name(self) -> str:
        """Of the peer's certificate."""
        return self._common_name

    def end(self) -> None:
        if self._shaking_hands:
            self._fail()
            self._wake()
        else:
            self.inner.end()

    def abort(self) -> None:
        self.aborted = True
        self.inner.abort()

    def give_up(self) -> None:
        """Closes the connection without another word."""
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
        if now >= self._handshake_ends:
            self._note("tls: handshake timeout")
            self._fail()
            self._wake()
        elif now >= self._looks_at:
            self._look(now)
        else:
            self.inner.tick(now)

    @property
    def next_deadline(self) -> float:
        return min(self._handshake_ends, self._looks_at, self.inner.next_deadline)

    @property
    def reading(self) -> bool:
        return self._looks_at == inf and self.inner.reading

    @property
    def finished(self) -> bool:
        return not self._out and (self._failed or self._said_goodbye)

    @property
    def write_timeout(self) -> float:
        return self.inner.write_timeout


class TunnelEnd:
    """Implements `common.poller.Handler`: what comes in here goes out at the other end."""

    next_deadline: Final = inf
    write_timeout: Final = inf  # what is unsent is bounded
    aborted: Final = False

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._other = self  # until there is one
        self._out: list[bytes] = []
        self._queued = 0
        self._unsent = 0
        self._closing = False

    def join(self, other: TunnelEnd) -> None:
        self._other, other._other = other, self

    def receive(self, data: bytes, now: float) -> None:
        self._other._put(data)

    def end(self) -> None:
        self._other._close()
        self._close()

    abort = end

    def tick(self, now: float) -> None: ...

    def bytes_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        self._queued = 0
        return out

    def sent(self, unsent: int) -> None:
        was_full, self._unsent = self._is_full, unsent
        if was_full and not self._is_full:
            self._other._wake()  # it may read again

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._queued += len(data)
        self._wake()

    def _close(self) -> None:
        self._closing = True
        self._wake()

    @property
    def _is_full(self) -> bool:
        return self._queued + self._unsent > _MOST_QUEUED

    @property
    def reading(self) -> bool:
        return not self._other._is_full

    @property
    def finished(self) -> bool:
        return self._closing and not self._out
