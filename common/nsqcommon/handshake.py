"""TLS handshakes on a server, paced so that a crowd of new clients doesn't stall the established ones.

The server's signature is the expensive step. A handshake that needs one waits in a queue, and between two signatures we
serve the established connections:

    connected ── ClientHello complete ──► in the queue ── its turn ──► signed ── the client's reply ──► done

Many peers of an open port don't speak TLS. If bytes can't be a ClientHello, we reject them right away, without
queueing. If a peer leaves while it is queued, that frees its place. If a client guessed the wrong key group, TLS asks
it for a second ClientHello. Only that one leads to a signature, so it waits for a turn as well.

A silent peer costs a descriptor and, once we have replied to it, tens of kilobytes, so we limit the number of
handshakes in progress. At the limit, a new handshake replaces the one whose peer has been silent longest, because a
real client needs only a few round trips. The peer of a queued handshake can't help being silent, so we replace one of
these only if all handshakes are queued. To prevent that, a listener whose connections all begin with a handshake stops
accepting while the queue is long (`TlsServer.queue_is_long`). New peers then wait in the kernel's backlog.
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

from nsqcommon.streams.layer import StreamError

if TYPE_CHECKING:
    from nsqcommon.streams.tls import SecureLayer

MOST_UNDER_WAY: Final = 1000  # handshakes, of some tens of kilobytes each
_FIRST: Final = 5  # bytes of a record's head, enough for TLS to recognize a record
_MOST_EARLY: Final = 32 * 1024  # bytes before the first answer; a ClientHello has a few hundred to a few thousand
# Clients send one or two. If a hello trickles in, we parse all of its records again for each byte.
_MOST_RECORDS: Final = 16
# A ServerHello with this value for its random bytes asks for another ClientHello (RFC 8446, 4.1.3).
_HELLO_RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_RANDOM: Final = slice(11, 43)  # bytes of a ServerHello, after the heads of record and message and the version

_RECORD_HEAD: Final = 5
_MESSAGE_HEAD: Final = 4
_LONGEST_RECORD: Final = 16 * 1024
_HANDSHAKE_RECORD: Final = 22
_CLIENT_HELLO: Final = 1


class FirstBytes(Enum):
    """Whether a peer's first bytes are a ClientHello, or may become one."""

    GARBAGE = auto()
    PART = auto()  # of a ClientHello
    CLIENT_HELLO = auto()


def classify_first_bytes(data: bytes) -> FirstBytes:
    """Classify a peer's first bytes by their heads and lengths only. TLS itself checks the content of a ClientHello."""
    if data[:1] and data[0] & 0x80:
        return _classify_old_hello(data)
    message = b""
    at = records = 0
    while at < len(data):
        records += 1
        if records > _MOST_RECORDS:
            return FirstBytes.GARBAGE
        head = data[at : at + _RECORD_HEAD]
        length = int.from_bytes(head[3:5], "big")
        if head[0] != _HANDSHAKE_RECORD or head[1:2] not in (b"", b"\x03"):
            return FirstBytes.GARBAGE
        if len(head) == _RECORD_HEAD and not 0 < length <= _LONGEST_RECORD:
            return FirstBytes.GARBAGE
        message += data[at + _RECORD_HEAD : at + _RECORD_HEAD + length]
        if message and message[0] != _CLIENT_HELLO:
            return FirstBytes.GARBAGE
        if len(message) >= _MESSAGE_HEAD:
            whole = _MESSAGE_HEAD + int.from_bytes(message[1:4], "big")
            if whole > _MOST_EARLY:
                return FirstBytes.GARBAGE
            if len(message) >= whole:
                return FirstBytes.CLIENT_HELLO
        at += _RECORD_HEAD + length
    return FirstBytes.PART


def _classify_old_hello(data: bytes) -> FirstBytes:
    """Classify bytes that may be a ClientHello in the format of SSL 2.

    Clients that also supported newer versions used to send it, and OpenSSL still accepts it.
    """
    if data[2:3] not in (b"", b"\x01"):
        return FirstBytes.GARBAGE
    whole = 2 + ((data[0] & 0x7F) << 8 | data[1]) if len(data) > 1 else inf
    return FirstBytes.CLIENT_HELLO if len(data) >= whole else FirstBytes.PART


class SigningQueue:
    """The handshakes that wait for a signature. Only the first may get it, and not before `_free_at`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: OrderedDict[Handshake, None] = OrderedDict()
        self._free_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, handshake: Handshake) -> None:
        self._waiting[handshake] = None

    def slot_of(self, handshake: Handshake) -> float:
        """Return the time of this handshake's turn, or inf while others are ahead of it.

        Once it becomes the first, the queue calls `handshake.wake`.
        """
        return self._free_at if next(iter(self._waiting)) is handshake else inf

    @contextmanager
    def slot(self, handshake: Handshake) -> Iterator[None]:
        """Remove the first handshake from the queue. Do its expensive step in the `with` block.

        Afterwards, we sign nothing for as long as the step took, so that signing takes at most half of the time.
        """
        self.leave(handshake)
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._free_at = ended + (ended - began)

    def __iter__(self) -> Iterator[Handshake]:
        return iter(self._waiting)

    def leave(self, handshake: Handshake) -> None:
        was_first = next(iter(self._waiting), None) is handshake
        self._waiting.pop(handshake, None)
        if was_first and self._waiting:
            next(iter(self._waiting)).wake()


class TlsServer:
    """The state that all TLS connections of a daemon share."""

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
        self._silent: OrderedDict[Handshake, None] = OrderedDict()  # with a silent peer, the longest silent first
        self._begun = 0
        self._sessions: WeakSet[SecureLayer] = WeakSet()

    def handshake(self, *, ends: float, wake: Callable[[], None]) -> Handshake:
        """Begin a handshake with a client that has just connected or has asked for TLS; `ends` is its deadline.

        We call `wake` when another handshake has made this one's `next_deadline` earlier.
        """
        if self.under_way >= self.most:
            next(iter(self._silent or self._queue)).give_way()
        handshake = Handshake(self._new_layer, self._queue, self._silent, ends=ends, wake=wake)
        self._silent[handshake] = None
        return handshake

    def _new_layer(self) -> SecureLayer:
        tls = self._make_layer()
        self._begun += 1
        self._sessions.add(tls)
        return tls

    @property
    def under_way(self) -> int:
        """The number of handshakes that have begun but not ended."""
        return len(self._silent) + len(self._queue)

    def queue_is_long(self) -> bool:
        """Return whether the queue is so long that new connections should wait in the backlog.

        The threshold is half of the handshakes that may be in progress, so that no queued one has to be replaced.
        """
        return len(self._queue) >= max(1, self.most // 2)

    @property
    def sessions_gone(self) -> int:
        """The number of sessions that have been freed."""
        return self._begun - len(self._sessions)


class Handshake:
    """One handshake. It has no timer of its own: call `receive` with no data at the time in `turn_at`.

    It ends by itself when it's done. If the connection closes before that, call `end`.
    """

    def __init__(
        self,
        make_layer: Callable[[], SecureLayer],
        queue: SigningQueue,
        silent: OrderedDict[Handshake, None],
        *,
        ends: float,
        wake: Callable[[], None],
    ) -> None:
        self.ends = ends  # the deadline; inf once the handshake has ended
        self.first_bytes = b""  # the peer's first bytes, `_FIRST` at most
        self.wake = wake
        self._make_layer = make_layer
        self._queue = queue
        self._silent = silent
        self._tls: SecureLayer | None = None  # created only when we have bytes for it
        self._is_queued = False
        self._is_signed = False  # the remaining steps are cheap and need no turn
        self._raw = b""  # received bytes that TLS hasn't seen
        self._answer = b""  # bytes to send

    def receive(self, data: bytes, now: float) -> bool:
        """Continue with the received bytes and return whether the handshake is done.

        Raises StreamError. Afterwards, even after an error, send the bytes that `pending` returns.
        """
        if self._is_signed:
            return self._step(data)
        self._raw += data
        if not self._is_queued:
            if not self._is_worth_a_turn():
                return False
            self._wait_for_turn()
        if now < self.turn_at:
            if len(self._raw) > 2 * _MOST_EARLY:
                raise StreamError("tls: too much data before our answer to the ClientHello")
            return False
        self._is_queued = False
        self._silent[self] = None
        raw, self._raw = self._raw, b""
        with self._queue.slot(self):
            done = self._step(raw)
        self._answer += self.tls.pending()
        self._is_signed = self._answer[_RANDOM] != _HELLO_RETRY
        return done

    def _is_worth_a_turn(self) -> bool:
        """Return whether the received bytes may lead to a signature. Raises StreamError if they can't."""
        if self._tls is not None:  # TLS has asked for another ClientHello, and checks the reply itself
            return bool(self._raw)
        self.first_bytes = self._raw[:_FIRST]
        begun = classify_first_bytes(self._raw)
        if begun is FirstBytes.GARBAGE:
            # TLS has the best error text for a bad record head. Don't pass it more than that, because it might accept
            # bytes that we call garbage as a ClientHello, and sign out of turn.
            self._step(self.first_bytes)
            raise StreamError("tls: no ClientHello, or one with too many pieces or bytes")
        return begun is FirstBytes.CLIENT_HELLO

    def _step(self, data: bytes) -> bool:
        if self.tls.handshake(data):
            self.end()
            return True
        return False

    def _wait_for_turn(self) -> None:
        self._is_queued = True
        self._silent.pop(self, None)
        self._queue.join(self)

    @property
    def tls(self) -> SecureLayer:
        if self._tls is None:
            self._tls = self._make_layer()
        return self._tls

    def pending(self) -> bytes:
        """Return the bytes to send, and forget them."""
        answer, self._answer = self._answer, b""
        return answer + self._tls.pending() if self._tls is not None else answer

    def end(self) -> None:
        """End the handshake, done or not: remove it from the queue, and clear its deadline and `wake`."""
        self.ends = inf
        self._leave()
        self.wake = _do_nothing  # drop the reference to the connection, so that it needs no garbage collector

    def give_way(self) -> None:
        """Make this handshake time out now, because too many are in progress."""
        self._leave()
        self.ends = 0.0
        self.wake()

    def _leave(self) -> None:
        self._silent.pop(self, None)
        if self._is_queued:
            self._is_queued = False
            self._queue.leave(self)

    @property
    def turn_at(self) -> float:
        """When to process the received bytes, or inf if we need more of them or other handshakes are ahead."""
        return self._queue.slot_of(self) if self._is_queued else inf

    @property
    def next_deadline(self) -> float:
        return min(self.ends, self.turn_at)


def _do_nothing() -> None:
    """Do nothing, because the handshake has ended."""
