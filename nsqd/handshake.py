"""TLS handshakes of clients, in step with each other: a crowd that connects at once must not stop everyone else.

The server's signature is the costly step. Each handshake waits for its slot before it, with what has come; see `HandshakePace`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from common.streams.tls import SecureLayer

_SHARE: Final = 0.002  # seconds from one costly step to the next, whoever's they are
_FIRST: Final = 5  # bytes: a record's head, by which TLS itself decides


class HandshakePace:
    """Whose turn it is to sign."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def next_slot(self, now: float) -> float:
        slot = max(now, self._free_at)
        self._free_at = slot + _SHARE
        return slot


class TlsServer:
    """What all TLS connections of the daemon share."""

    def __init__(self, make_layer: Callable[[], SecureLayer]) -> None:
        self._make_layer = make_layer
        self._pace = HandshakePace()
        self._begun = 0
        self._sessions: WeakSet[SecureLayer] = WeakSet()

    def handshake(self, *, ends: float) -> Handshake:
        """With a client that has just connected, or asked for it. `ends` is when it must be done."""
        tls = self._make_layer()
        self._begun += 1
        self._sessions.add(tls)
        return Handshake(tls, self._pace, ends=ends)

    @property
    def sessions_gone(self) -> int:
        """How many there were that are no more."""
        return self._begun - len(self._sessions)


class Handshake:
    """One of them. Nothing waits here: when `looks_at` has come, `receive` wants to be called again, with nothing."""

    def __init__(self, tls: SecureLayer, pace: HandshakePace, *, ends: float) -> None:
        self.tls = tls
        self.ends = ends  # inf: it has, one way or the other
        self.looks_at = inf  # when what has come is looked at; inf: when more comes
        self.first_bytes = b""  # what the peer began with
        self._pace = pace
        self._has_slot = False
        self._raw = b""

    def receive(self, data: bytes, now: float) -> bool:
        """Goes on with what came; says whether it is done. Raises StreamError. What to send is `tls.pending()`."""
        self._raw += data
        self.first_bytes = (self.first_bytes + data)[:_FIRST]
        if not self._has_slot:
            self._has_slot = True
            self.looks_at = self._pace.next_slot(now)
        if self.looks_at != inf and now < self.looks_at:
            return False
        self.looks_at = inf
        raw, self._raw = self._raw, b""
        if self.tls.handshake(raw):
            self.end()
            return True
        return False

    def end(self) -> None:
        """It is over: nothing is looked at any more, and no time is kept."""
        self.ends = self.looks_at = inf

    @property
    def next_deadline(self) -> float:
        return min(self.ends, self.looks_at)
