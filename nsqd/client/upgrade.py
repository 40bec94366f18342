"""A client with TLS or compression: the bytes pass through layers between the socket and the protocol.

A plain connection needs none of this. When IDENTIFY has granted an upgrade, an UpgradedClient replaces the protocol as
the connection's handler, and the upgrade follows NSQ's order:

    the JSON reply, plain | TLS handshake, then an encrypted OK | snappy or deflate, then a compressed OK

If the client sends more bytes right after its IDENTIFY, without waiting for the reply, we treat them as the beginning
of the new stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import Layer, StreamError
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import OK_FRAME, error_frame
from nsqd.client.profile import ConnectionLayers

if TYPE_CHECKING:
    from nsqcommon.handshake import Handshake, TlsServer
    from nsqcommon.streams.tls import SecureLayer
    from nsqcommon.wire.frames import Piece
    from nsqcommon.wire.identify import Negotiation
    from nsqd.client.protocol import ClientProtocol

HANDSHAKE_TIMEOUT: Final = 5.0  # seconds, as in NSQ
_DECODE_PAUSE: Final = 0.001  # seconds for other clients before we decode more of the received bytes


class UpgradedClient:
    """Implements `nsqcommon.poller.Handler` for a protocol behind TLS or compression."""

    def __init__(
        self,
        client: ClientProtocol,
        granted: Negotiation,
        tls_server: TlsServer | None,
        *,
        early: bytes,
        now: float,
        wake: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._client = client
        self._granted = granted
        self._tls_server = tls_server
        self._wake = wake
        self._note = note
        self._layers: list[Layer] = []  # from the socket inwards
        self._handshake: Handshake | None = None  # set during the handshake
        self._tls: SecureLayer | None = None  # set once the handshake is done
        self._said_goodbye = False
        self._started = False  # the upgrade has started: the plain reply is on its way
        self._now = now
        self._raw = early  # received, but not decoded yet
        self._decode_at = inf  # when to decode more; inf: when more arrives
        self._out: list[bytes] = []  # for the socket, before anything from the protocol
        self._failed = False
        self._ended = False  # the peer will send nothing more

    # Incoming data

    def receive(self, data: bytes, now: float) -> None:
        self._now = now
        self._raw += data
        if self._started and self._decode_at == inf:
            self._process(now)

    def _process(self, now: float) -> None:
        self._decode_at = inf
        try:
            if self._handshake is not None:
                self._shake_hands(self._handshake, now)
            if self._handshake is None and not self._failed:
                self._decode(now)
        except StreamError as error:
            self._give_up(error)
        if self._ended and self._decode_at == inf:
            self._end()
        self._wake()

    def _shake_hands(self, handshake: Handshake, now: float) -> None:
        data, self._raw = self._raw, b""
        try:
            done = handshake.receive(data, now)
        except StreamError as error:
            self._refuse(str(error))
            return
        if answer := handshake.pending():
            self._out.append(answer)
        if not done:
            return
        tls = handshake.tls
        self._handshake = None
        self._tls = tls
        self._layers.append(tls)
        self._client.profile.transport = ConnectionLayers(
            tls=True, tls_version=tls.version, cipher_suite=tls.cipher_suite, common_name=tls.peer_common_name
        )
        self._say_ok()
        self._compress()

    def _decode(self, now: float) -> None:
        data, self._raw = self._raw, b""
        for layer in self._layers:
            data = layer.decode(data)
        if (tls := self._tls) is not None:
            if answer := tls.pending():
                self._out.append(answer)
            self._ended = self._ended or tls.ended
        if any(layer.has_more for layer in self._layers):
            self._decode_at = now + _DECODE_PAUSE
        if data:
            self._client.receive(data, now)

    def end(self) -> None:
        """Handle the end of the stream. We still send the reply to IDENTIFY and the result of the upgrade."""
        self._ended = True
        if self._started and self._decode_at == inf:
            self._end()
        self._wake()

    def _end(self) -> None:
        """Act on the end of the stream, after everything before it has been decoded."""
        if self._handshake is not None:
            self._refuse("EOF")
        else:
            self._client.end()

    # The steps of the upgrade

    def _start(self) -> None:
        self._started = True
        if self._granted.tls and self._tls_server is not None:
            self._handshake = self._tls_server.handshake(ends=self._now + HANDSHAKE_TIMEOUT, wake=self._wake)
        else:
            self._compress()
        if self._raw:
            self._decode_at = 0.0  # in the next `tick`
        elif self._ended:
            self._end()

    def _compress(self) -> None:
        granted, profile = self._granted, self._client.profile
        if granted.snappy:
            self._layers.append(SnappyLayer())
        elif granted.deflate:
            self._layers.append(DeflateLayer(granted.deflate_level))
        else:
            return
        profile.transport = profile.transport.compressed(snappy=granted.snappy)
        self._say_ok()

    def _say_ok(self) -> None:
        self._out.append(self._encode([OK_FRAME]))

    def _refuse(self, reason: str) -> None:
        """Respond with an unencrypted error, as NSQ does, because after a failed handshake the peer can't decrypt."""
        error = ProtocolError(Fault.IDENTIFY_FAILED, f"IDENTIFY failed {reason}")
        self._note(str(error))
        self._out.append(error_frame(error))
        self._failed = True
        self._end_handshake()
        self._client.close()

    def _give_up(self, error: StreamError) -> None:
        self._note(str(error))
        self._client.abort()

    # Outgoing data

    def bytes_to_send(self) -> Sequence[Piece]:
        pieces = self._client.bytes_to_send()
        if not self._started:
            if not self._client.owes_answers and not self._client.finished:
                self._start()  # `pieces` ends with the reply to IDENTIFY, which is the last to go out plain
                pieces += self._out
                self._out = []
            return pieces
        out, self._out = self._out, []
        if pieces and not self._failed:
            out.append(self._encode(pieces))
        if self._tls is not None and self._client.finished and not self._said_goodbye:
            self._said_goodbye = True
            out.append(self._tls.goodbye())
        return out

    def _encode(self, pieces: Sequence[Piece]) -> bytes:
        data = b"".join(pieces)
        for layer in reversed(self._layers):
            data = layer.encode(data)
        return data

    def sent(self, unsent: int) -> None:
        self._client.sent(unsent)

    # The rest of the handler's interface

    def tick(self, now: float) -> None:
        self._now = now
        if self._handshake is not None and now >= self._handshake.ends:
            self._refuse("i/o timeout")
            self._wake()
        elif now >= self._next_decode or (self._handshake is not None and now >= self._handshake.turn_at):
            self._process(now)
        elif self._is_open:
            self._client.tick(now)

    def abort(self) -> None:
        self._end_handshake()
        self._client.abort()

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.end()
            self._handshake = None

    @property
    def _is_open(self) -> bool:
        """Whether the protocol may send. Between the reply to IDENTIFY and the last OK, there must be no heartbeat."""
        return self._started and self._handshake is None

    @property
    def _next_decode(self) -> float:
        """When to decode more: never while reading is paused, because well-compressed data would pile up."""
        return self._decode_at if self._client.reading else inf

    @property
    def next_deadline(self) -> float:
        own = self._next_decode
        if self._handshake is not None:
            own = min(own, self._handshake.next_deadline)
        return min(own, self._client.next_deadline) if self._is_open else own

    @property
    def reading(self) -> bool:
        return self._decode_at == inf and (not self._is_open or self._client.reading)

    @property
    def finished(self) -> bool:
        return self._client.finished

    @property
    def lingers(self) -> bool:
        return self._client.lingers

    @property
    def aborted(self) -> bool:
        return self._client.aborted

    @property
    def write_timeout(self) -> float:
        return self._client.write_timeout
