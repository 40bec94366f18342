"""TLS handshakes of a server, in step with each other: a crowd that connects at once must not stop everyone else.

The server's signature is the costly step, so whoever has asked for one waits in a queue, and those who are there already are
served in between:

    connected ── ClientHello is whole ──► in the queue ── its turn ──► signed ── the client's answer ──► done

Most of what may come to an open port is no client. What cannot be a ClientHello is refused at once and takes no place in the
queue; a peer that goes while it waits gives its place back. A client that has guessed the wrong group of keys is asked for a
second ClientHello; the signature is made for that one, so it waits for a turn as well. A peer that stays and says nothing
costs a descriptor and, once it has been answered, some tens of kilobytes. So only so many handshakes may be under way, and the one in which nothing has
happened for the longest time makes room for a new one: a client needs a few round trips, a flood has no patience.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from common.streams.layer import StreamError

if TYPE_CHECKING:
    from common.streams.tls import SecureLayer

MOST_UNDER_WAY: Final = 1000  # handshakes, of some tens of kilobytes each
_FIRST: Final = 5  # bytes: a record's head, by which TLS itself decides
_MOST_EARLY: Final = 32 * 1024  # bytes before the first answer; a ClientHello has a few hundred, or some thousands
# Clients send one or two. Every byte of a hello that trickles in makes us look at all of its records again.
_MOST_RECORDS: Final = 16
# In the place of a ServerHello's random bytes this asks for another ClientHello (RFC 8446, 4.1.3).
_HELLO_RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM: Final = slice(11, 43)  # of a ServerHello, behind the heads of record and message, and the version

_RECORD_HEAD: Final = 5
_MESSAGE_HEAD: Final = 4
_LONGEST_RECORD: Final = 16 * 1024
_HANDSHAKE_RECORD: Final = 22
_CLIENT_HELLO: Final = 1


class Beginning(Enum):
    """What the first bytes of a peer are."""

    GARBAGE = auto()
    PART = auto()  # of a ClientHello
    CLIENT_HELLO = auto()


def beginning(data: bytes) -> Beginning:
    """Look at heads and lengths only; what is in a ClientHello is for TLS to judge."""
    if data[:1] and data[0] & 0x80:
        return _old_beginning(data)
    message = b""
    at = records = 0
    while at < len(data):
        records += 1
        if records > _MOST_RECORDS:
            return Beginning.GARBAGE
        head = data[at : at + _RECORD_HEAD]
        length = int.from_bytes(head[3:5], "big")
        if head[0] != _HANDSHAKE_RECORD or head[1:2] not in (b"", b"\x03"):
            return Beginning.GARBAGE
        if len(head) == _RECORD_HEAD and not 0 < length <= _LONGEST_RECORD:
            return Beginning.GARBAGE
        message += data[at + _RECORD_HEAD : at + _RECORD_HEAD + length]
        if message and message[0] != _CLIENT_HELLO:
            return Beginning.GARBAGE
        if len(message) >= _MESSAGE_HEAD:
            whole = _MESSAGE_HEAD + int.from_bytes(message[1:4], "big")
            if whole > _MOST_EARLY:
                return Beginning.GARBAGE
            if len(message) >= whole:
                return Beginning.CLIENT_HELLO
        at += _RECORD_HEAD + length
    return Beginning.PART


def _old_beginning(data: bytes) -> Beginning:
    """Look for a ClientHello in the form of SSL 2: clients that spoke both began with it, and OpenSSL still takes it."""
    if data[2:3] not in (b"", b"\x01"):
        return Beginning.GARBAGE
    whole = 2 + ((data[0] & 0x7F) << 8 | data[1]) if len(data) > 1 else inf
    return Beginning.CLIENT_HELLO if len(data) >= whole else Beginning.PART


class SigningQueue:
    """Whose turn it is to be signed for: the first in it, when its time has come."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: OrderedDict[Handshake, None] = OrderedDict()
        self._free_at = 0.0

    def join(self, handshake: Handshake) -> None:
        self._waiting[handshake] = None

    def slot_of(self, handshake: Handshake) -> float:
        """Return when its turn is; inf while others come first: it is woken when they have been served or have gone."""
        return self._free_at if next(iter(self._waiting)) is handshake else inf

    @contextmanager
    def slot(self, handshake: Handshake) -> Iterator[None]:
        """Surround the costly step of the first in the queue: afterwards everybody else has as much time as it took."""
        self.leave(handshake)
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._free_at = ended + (ended - began)

    def leave(self, handshake: Handshake) -> None:
        was_first = next(iter(self._waiting), None) is handshake
        self._waiting.pop(handshake, None)
        if was_first and self._waiting:
            next(iter(self._waiting)).wake()


class TlsServer:
    """What all TLS connections of the daemon share."""

    def __init__(
        self,
        make_layer: Callable[[], SecureLayer],
        *,
        most: int = MOST_UNDER_WAY,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.most = most  # handshakes under way
        self._make_layer = make_layer
        self._queue = SigningQueue(clock)
        self._under_way: OrderedDict[Handshake, None] = OrderedDict()  # where nothing has happened for long comes first
        self._begun = 0
        self._sessions: WeakSet[SecureLayer] = WeakSet()

    def handshake(self, *, ends: float, wake: Callable[[], None]) -> Handshake:
        """Begin one with a client that has just connected, or has asked for it. `ends` is when it must be done.

        `wake` is called when `next_deadline` has come closer by what happened to other handshakes.
        """
        if len(self._under_way) >= self.most:
            next(iter(self._under_way)).give_way()
        handshake = Handshake(self._new_layer, self._queue, self._under_way, ends=ends, wake=wake)
        self._under_way[handshake] = None
        return handshake

    def _new_layer(self) -> SecureLayer:
        tls = self._make_layer()
        self._begun += 1
        self._sessions.add(tls)
        return tls

    @property
    def under_way(self) -> int:
        """Return the number of handshakes that have begun and not ended."""
        return len(self._under_way)

    @property
    def sessions_gone(self) -> int:
        """Return how many sessions have been made and are gone."""
        return self._begun - len(self._sessions)


class Handshake:
    """One handshake. Nothing waits here: when `looks_at` has come, `receive` has to be called again, with nothing.

    Its owner calls `end` when the connection is over, or goes on without it.
    """

    def __init__(
        self,
        make_layer: Callable[[], SecureLayer],
        queue: SigningQueue,
        under_way: OrderedDict[Handshake, None],
        *,
        ends: float,
        wake: Callable[[], None],
    ) -> None:
        self.ends = ends  # inf: it has, one way or the other
        self.first_bytes = b""  # what the peer began with
        self.wake = wake
        self._make_layer = make_layer
        self._queue = queue
        self._under_way = under_way
        self._tls: SecureLayer | None = None  # not before there is something for it
        self._is_queued = False
        self._is_signed = False  # what follows costs little, and is done as it comes
        self._raw = b""
        self._answer = b""  # to be sent

    def receive(self, data: bytes, now: float) -> bool:
        """Go on with what came; return whether it is done. Raises StreamError. What to send is `pending()`."""
        if self._is_signed:
            return self._step(data)
        self._raw += data
        if not self._is_queued:
            if not self._is_worth_a_turn():
                return False
            self._is_queued = True
            self._queue.join(self)
            self._has_moved()
        if now < self.looks_at:
            if len(self._raw) > 2 * _MOST_EARLY:
                raise StreamError("tls: more than a ClientHello before the answer to it")
            return False
        self._is_queued = False
        self._has_moved()
        raw, self._raw = self._raw, b""
        with self._queue.slot(self):
            done = self._step(raw)
        self._answer += self.tls.pending()
        self._is_signed = self._answer[_RANDOM] != _HELLO_RETRY
        return done

    def _is_worth_a_turn(self) -> bool:
        """Whether what came so far may make TLS sign. Raises StreamError for what never will."""
        if self._tls is not None:  # TLS has asked for another ClientHello, and judges what comes instead
            return bool(self._raw)
        self.first_bytes = self._raw[:_FIRST]
        begun = beginning(self._raw)
        if begun is Beginning.GARBAGE:
            # TLS says best what is wrong with the head of a record. It must not see more: what is garbage to us might be
            # a ClientHello to it, and would be signed out of turn.
            self._step(self.first_bytes)
            raise StreamError("tls: no ClientHello, or one of too many pieces or bytes")
        return begun is Beginning.CLIENT_HELLO

    def _step(self, data: bytes) -> bool:
        if self.tls.handshake(data):
            self.end()
            return True
        return False

    def _has_moved(self) -> None:
        if self in self._under_way:
            self._under_way.move_to_end(self)

    @property
    def tls(self) -> SecureLayer:
        if self._tls is None:
            self._tls = self._make_layer()
        return self._tls

    def pending(self) -> bytes:
        """Return what the handshake has to send."""
        answer, self._answer = self._answer, b""
        return answer + self._tls.pending() if self._tls is not None else answer

    def end(self) -> None:
        """End it, done or not: it takes no place and no time any more, and wakes nobody."""
        self.ends = inf
        self._under_way.pop(self, None)
        if self._is_queued:
            self._is_queued = False
            self._queue.leave(self)
        self.wake = _wake_nobody  # it leads to the connection, which must not wait for the garbage collector

    def give_way(self) -> None:
        """End its time at once: there are too many, and here nothing has happened for the longest time."""
        self._under_way.pop(self, None)
        self.ends = 0.0
        self.wake()

    @property
    def looks_at(self) -> float:
        """Return when what has come is looked at; inf: when more comes, or others have been served."""
        return self._queue.slot_of(self) if self._is_queued else inf

    @property
    def next_deadline(self) -> float:
        return min(self.ends, self.looks_at)


def _wake_nobody() -> None:
    """Do nothing: the connection is past its handshake, or has gone."""
