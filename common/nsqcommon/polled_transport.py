"""An asyncio transport whose bytes the poller moves, so that an asyncio protocol can serve a connection of the poller.

    socket ── poller ── TLS, or nothing ── ProtocolHandler ──► asyncio protocol ──► PolledTransport ──► the handler

So the web server can take over a connection from the fast path, with or without TLS (secure.py). Requests are cheaper
than over asyncio's transports, too, because trio-asyncio has a task for each socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from contextvars import Context

_MOST_WAITING: Final = 64 * 1024  # bytes to send, above which the protocol has to pause; as in asyncio
_FEW_WAITING: Final = _MOST_WAITING // 4  # at which it may continue
_LONGEST_CLOSING: Final = 60.0  # seconds without progress, after which a peer doesn't get our last bytes


class LoopNeighbor(Protocol):
    """A poller that shares its thread with the asyncio loop."""

    def take_turn_soon(self) -> None:
        """Take a turn, because a handler has bytes to send."""

    def let_others_run(self) -> None:
        """Let the asyncio loop run before polling again, because it has a request to answer."""


class ProtocolHandler:
    """Implements `nsqcommon.poller.Handler` for an asyncio protocol.

    `wake()` marks this handler for the poller's next turn. The protocol may write at any time, so we also ask the
    `poller` to take one soon. `context` has the variables of the asyncio loop.
    """

    next_deadline: Final = inf
    lingers: Final = False

    def __init__(
        self,
        protocol: asyncio.Protocol,
        *,
        context: Context,
        wake: Callable[[], None],
        poller: LoopNeighbor,
        half_close: Callable[[], object] | None = None,
        **facts: object,
    ) -> None:
        """Connect the protocol. Its transport gives it the `facts` as extra information.

        `half_close` ends our direction of the socket. TLS has no such thing.
        """
        self._protocol = protocol
        self._context = context
        self._wake = wake
        self._poller = poller
        self.half_close = half_close
        self._wants_half_close = False  # once everything has been sent
        self._out: list[bytes] = []
        self._waiting = 0  # bytes in `_out`
        self._unsent = 0  # bytes that the poller has taken, but the peer hasn't
        self._is_full = False  # the protocol has paused
        self._may_read = True
        self.is_closing = False
        self.aborted = False
        self._is_lost = False
        protocol.connection_made(PolledTransport(self, facts))

    # For the poller

    def receive(self, data: bytes, now: float) -> None:
        if not self.is_closing:
            self._context.run(self._protocol.data_received, data)
            self._poller.let_others_run()

    def end(self) -> None:
        if not self.is_closing and not self._context.run(self._protocol.eof_received):
            self.close()

    def abort(self) -> None:
        self._is_lost = self.is_closing = True
        self._out.clear()
        self.half_close = None
        protocol, self._protocol = self._protocol, asyncio.Protocol()  # no cycle, so that its memory is freed now
        protocol.connection_lost(None)

    def bytes_to_send(self) -> list[bytes]:
        out, self._out = self._out, []
        self._unsent += self._waiting  # while the socket is full, the poller keeps them and doesn't call `sent`
        self._waiting = 0
        return out

    def sent(self, unsent: int) -> None:
        self._unsent = unsent
        self._half_close_if_wanted()
        if self._is_full and self._unsent + self._waiting <= _FEW_WAITING:
            self._is_full = False
            self._protocol.resume_writing()
        if self.finished:
            self._wake()

    def tick(self, now: float) -> None: ...

    @property
    def reading(self) -> bool:
        return self._may_read and not self.is_closing

    @property
    def finished(self) -> bool:
        # Not before the peer has everything, because the poller has little patience with a finished handler. That would
        # cut a response short for a slow peer.
        return self.is_closing and not self._out and not self._unsent

    @property
    def write_timeout(self) -> float:
        return _LONGEST_CLOSING if self.is_closing else inf  # otherwise the protocol pauses

    # For the transport

    def write(self, data: bytes) -> None:
        if self.is_closing or not data:
            return
        self._out.append(data)
        self._waiting += len(data)
        self._ask_for_turn()
        if not self._is_full and self._unsent + self._waiting > _MOST_WAITING:
            self._is_full = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        """Half-close the connection once the last bytes have been sent."""
        self._wants_half_close = True
        self._half_close_if_wanted()

    def _half_close_if_wanted(self) -> None:
        if self._wants_half_close and not self._unsent and not self._out and self.half_close is not None:
            self._wants_half_close = False
            self.half_close()

    def set_reading(self, *, reading: bool) -> None:
        if reading != self._may_read:
            self._may_read = reading
            self._ask_for_turn()

    def close(self) -> None:
        """Close the connection once everything has been sent."""
        if not self.is_closing:
            self.is_closing = True
            self._ask_for_turn()

    def drop(self) -> None:
        """Close the connection without sending the rest."""
        if not self._is_lost:
            self.aborted = self.is_closing = True
            self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        self._wake()
        self._poller.take_turn_soon()


class PolledTransport(asyncio.Transport):
    """The protocol's side of a `ProtocolHandler`."""

    def __init__(self, handler: ProtocolHandler, facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self._handler = handler

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._handler.write(bytes(data))

    def pause_reading(self) -> None:
        self._handler.set_reading(reading=False)

    def resume_reading(self) -> None:
        self._handler.set_reading(reading=True)

    def is_closing(self) -> bool:
        return self._handler.is_closing

    def close(self) -> None:
        self._handler.close()

    def abort(self) -> None:
        self._handler.drop()

    def can_write_eof(self) -> bool:
        return self._handler.half_close is not None

    def write_eof(self) -> None:
        self._handler.write_eof()
