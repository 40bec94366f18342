"""A producer without its waiting: the publishes on one connection, and their receipts in the order of the commands.

nsqd answers commands in order and doesn't name them, so an answer belongs to the oldest pending receipt. So a receipt
stays in the queue even if its caller no longer waits.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from operator import add
from secrets import token_bytes
from struct import Struct
from typing import TYPE_CHECKING, Final

from nsqclient.core.connection import IdentifyDefaults, NsqdConnection
from nsqclient.core.errors import (
    Disconnected,
    OutcomeUnknown,
    PublishError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
)
from nsqclient.core.events import Connected, LatePublish
from nsqcommon.durations import whole_milliseconds
from nsqcommon.wire.extensions import HEADERS, KEYS, is_valid_key
from nsqcommon.wire.frames import OK_FRAME
from nsqcommon.wire.groups import GROUP, checked_group
from nsqcommon.wire.headers import encode_headers
from nsqcommon.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.errors import ProtocolError
    from nsqclient.core.events import Event
    from nsqcommon.streams.tls import SecureLayer

Headers = Mapping[str, bytes | str]  # names are lower case; text is encoded as UTF-8
Group = str | bytes

MOST_PENDING_BYTES: Final = 8 << 20
MOST_AT_ONCE: Final = 5 << 20  # bytes of an MPUB: nsqd's --max-body-size

_HEADED: Final = b"H"  # the first word of commands with headers begins with it
_SIZE: Final = 4
_OK: Final = b"OK"
_OK_SIZE: Final = len(OK_FRAME)
_OF_BODIES: Final = ("E_BAD_MESSAGE", "E_BAD_BODY")
_CUT_OFF: Final = " failed to read "  # in nsqd's errors about incomplete bodies
_LENGTH_OF_NAME: Final = 10
_MOST_SHORT_NUMBERS: Final = 1 << 24
_pack_size: Final = Struct(">i").pack
_pack_sizes: Final = Struct(">ii").pack


class Outcome:
    """The outcome of one publish. `error` is None until it has failed."""

    __slots__ = ("_waiters", "count", "done", "error", "is_abandoned", "key", "size", "topic")

    def __init__(self, topic: str, *, count: int, size: int, key: bytes = b"") -> None:
        self.topic = topic
        self.key = key  # the key it was sent with; empty if the nsqd knows no keys
        self.count = count  # messages
        self.size = size  # bytes
        self.done = False
        self.error: Exception | None = None
        self.is_abandoned = False  # the caller no longer waits for it
        self._waiters: list[Callable[[], object]] = []

    def settle(self, error: Exception | None) -> None:
        """Set the outcome and wake its waiters."""
        self.done = True
        self.error = error
        for wake in self._waiters:
            wake()

    def when_done(self, wake: Callable[[], object]) -> None:
        """Call `wake` once the outcome is known. Don't call this if it is already `done`."""
        self._waiters.append(wake)

    def remove_waiter(self, wake: Callable[[], object]) -> None:
        """Undo `when_done`."""
        self._waiters.remove(wake)


class ProducerConnection(NsqdConnection):
    """A connection that publishes."""

    def __init__(
        self,
        address: str,
        config: Config,
        identity: IdentifyDefaults,
        *,
        max_pending: int,
        make_tls: Callable[[], SecureLayer] | None,
        wake: Callable[[], None],
        emit: Callable[[Event], None],
        on_open: Callable[[], None],
        on_room: Callable[[], object],
        on_heartbeat: Callable[[], object],
    ) -> None:
        super().__init__(address, config, identity, make_tls=make_tls, wake=wake, emit=emit)
        self.pending: deque[Outcome] = deque()
        self.pending_bytes = 0
        self.published = 0  # messages
        self.failed = 0  # messages
        self._max_pending = max_pending
        self._on_open = on_open
        self._on_room = on_room
        self._on_heartbeat = on_heartbeat
        self._unsent = 0  # how many of the newest in `pending` haven't left this object yet

    @property
    def takes_keys(self) -> bool:
        return KEYS in self.terms.extensions

    @property
    def takes_headers(self) -> bool:
        return HEADERS in self.terms.extensions

    @property
    def log_id(self) -> str:
        """The id of the log with this nsqd's messages and keys; "" if it doesn't say."""
        return self.terms.http.node if self.terms.http is not None else ""

    @property
    def has_room(self) -> bool:
        """True if another publish may be queued; otherwise wait for `on_room`."""
        return len(self.pending) < self._max_pending and self.pending_bytes < MOST_PENDING_BYTES

    def publish(self, command: bytes, outcome: Outcome) -> None:
        """Queue a command. nsqd's answer will settle `outcome`."""
        self.pending.append(outcome)
        self.pending_bytes += outcome.size
        self._unsent += 1
        outgoing = self._outgoing
        if not outgoing:
            self._wake()
        outgoing.append(command)

    def lost(self, error: Exception | None) -> None:
        """Settle all pending publishes as failed, because the connection is gone."""
        self.is_closed = True
        sent = len(self.pending) - self._unsent
        reason = str(error or "closed")
        for number, outcome in enumerate(self.pending):
            self._settle(outcome, _lost(outcome, f"not connected: {reason}", is_sent=number < sent))
        self.pending.clear()
        self.pending_bytes = self._unsent = 0
        self._on_room()

    def bytes_to_send(self) -> bytes:
        if self.is_open:
            self._unsent = 0
        return super().bytes_to_send()

    def _cut(self, data: bytes, now: float) -> None:
        count = len(data) // _OK_SIZE
        if self.is_open and not self._half and count <= len(self.pending) and data == OK_FRAME * count:
            for _ in range(count):  # the usual case, without parsing frames
                self._succeeded()
        else:
            super()._cut(data, now)

    def _opened(self, now: float) -> None:
        self._emit(Connected(self.address, self.terms.version))
        self._on_open()

    def _response(self, content: bytes, now: float) -> None:
        if content != _OK or not self.pending:
            raise Disconnected(f"unexpected response len={len(content)} data[:32]={content[:32]!r}")
        self._succeeded()

    def _succeeded(self) -> None:
        pending = self.pending
        outcome = pending.popleft()
        was_full = self.pending_bytes >= MOST_PENDING_BYTES or len(pending) + 1 >= self._max_pending
        self.pending_bytes -= outcome.size
        self._settle(outcome, None)
        if was_full:
            self._on_room()

    def _error(self, error: ProtocolError, now: float) -> None:
        if not self.pending:
            raise error
        outcome = self.pending.popleft()
        self.pending_bytes -= outcome.size
        self.is_closed = True  # nsqd is about to close the connection, so publish nothing more on it
        self._settle(outcome, _failure_of(error))
        raise error

    def _settle(self, outcome: Outcome, error: Exception | None) -> None:
        if error is None:
            self.published += outcome.count
        else:
            self.failed += outcome.count
        outcome.settle(error)
        if outcome.is_abandoned:
            self._emit(LatePublish(outcome.topic, error))

    def _heartbeat(self, now: float) -> None:
        self._on_heartbeat()


def _lost(outcome: Outcome, text: str, *, is_sent: bool) -> PublishError:
    if not is_sent:
        return PublishUnsent(text)
    return OutcomeUnknown(text, outcome.key.decode()) if outcome.key else PublishUnknown(text)


def _failure_of(error: ProtocolError) -> PublishError:
    """Translate nsqd's error into the error of the publish.

    If a connection stalls in the middle of a body, nsqd gives up and answers with an error. Then the message itself was
    fine.
    """
    if error.code in _OF_BODIES and _CUT_OFF in error.text:
        return PublishUnsent(f"cut off on its way: {error.text}")
    return PublishRejected(error.code, error.text)


# Commands. They raise ValueError where nsqd would refuse the command and close the connection, which others share.


@lru_cache(maxsize=1024)
def _named(word: bytes, topic: str) -> bytes:
    if not is_valid_name(topic):
        raise ValueError(f"invalid topic name {topic!r}")
    return b"%b %b" % (word, topic.encode())


def pub_command(topic: str, body: bytes, delay: float | None, headers: Headers | None = None) -> bytes:
    """Return a PUB, or a DPUB with a `delay` in seconds; for a message with headers an HPUB or HDPUB."""
    if not body:
        raise ValueError("an empty message")
    prefix = b""
    if headers:
        body = encode_headers(headers) + body
        prefix = _HEADED
    if delay is None:
        return b"%b\n%b%b" % (_named(prefix + b"PUB", topic), _pack_size(len(body)), body)
    if not 0 <= delay < float("inf"):
        raise ValueError(f"a delay of {delay} seconds")
    word = _named(prefix + b"DPUB", topic)
    return b"%b %d\n%b%b" % (word, whole_milliseconds(delay), _pack_size(len(body)), body)


def with_group(headers: Headers | None, group: Group | None) -> Headers | None:
    """Return a message's headers, including its group. Raise ValueError if the group is given twice or invalid."""
    return None if headers is None and group is None else _grouped(headers or {}, group)


def with_group_in_all(headers: Iterable[Headers] | None, group: Group | None, count: int) -> list[Headers] | None:
    """Return the headers of `count` messages, including the group of all of them. Raises the errors of `with_group`."""
    if headers is None:
        return None if group is None else [_grouped({}, group)] * count
    return [_grouped(it, group) for it in headers]


def _grouped(headers: Headers, group: Group | None) -> Headers:
    if GROUP in headers:
        if group is not None:
            raise ValueError(f"the group is given twice: as group= and as the header {GROUP}")
        checked_group(headers[GROUP])
    return headers if group is None else {**headers, GROUP: checked_group(group)}


def group_in(headers: Headers | None) -> bytes | None:
    """Return the encoded group in headers that `with_group` has checked."""
    group = headers.get(GROUP) if headers else None
    return group.encode() if isinstance(group, str) else group


def only_group_in(headers: Sequence[Headers] | None) -> bytes | None:
    """Return the group of messages that are published together. Raise ValueError if they have several."""
    groups = set(map(group_in, headers or ()))
    if len(groups) > 1:
        raise ValueError(
            "messages of several groups, which may belong to different nsqds: publish each group by itself"
        )
    return groups.pop() if groups else None


def has_headers(command: bytes) -> bool:
    """Return True if only an nsqd with headers knows this command."""
    return command.startswith(_HEADED)


def keyed(command: bytes, key: bytes) -> bytes:
    """Return the command with a key, for an nsqd that knows keys."""
    end = command.index(b"\n")
    return b"%b %b%b" % (command[:end], key, command[end:])


def checked_key(key: str) -> bytes:
    """Check a caller's key. Raise ValueError if nsqd would refuse it."""
    encoded = key.encode()
    if not is_valid_key(encoded):
        raise ValueError(f"invalid key {key!r}: 1 to 64 printable characters of ASCII without space")
    return encoded


def check_one_key(key: str | None, commands: Sequence[object]) -> None:
    if key is not None and len(commands) > 1:
        raise ValueError("one key for more than 5 MiB, which take more than one command")


class Names:
    """A producer's own keys: its random name and a number.

    If two producers had the same name, nsqd would take one's publishes for repeats of the other's. A name has 60 bits,
    so that won't happen. A key has 15 characters for the first 16 million publishes, because nsqd stores longer ones as
    a hash.
    """

    def __init__(self) -> None:
        self._name = b2a_base64(token_bytes(9), newline=False)[:_LENGTH_OF_NAME]
        self._numbers = count()

    def next(self) -> bytes:
        number = next(self._numbers)
        size = 3 if number < _MOST_SHORT_NUMBERS else 6
        return b"%b:%b" % (self._name, b2a_base64(number.to_bytes(size, "big"), newline=False))


def mpub_commands(
    topic: str, bodies: Iterable[bytes], headers: Iterable[Headers] | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the fewest MPUBs that hold the messages, each with the number of its messages.

    With `headers`, one for each message, they are HMPUBs.
    """
    name = _named(b"MPUB" if headers is None else b"HMPUB", topic)
    left = bodies if isinstance(bodies, list) else list(bodies)
    sizes = list(map(len, left))
    if 0 in sizes:
        raise ValueError("an empty message")
    if headers is not None:
        encoded = list(map(encode_headers, headers))
        if len(encoded) != len(left):
            raise ValueError(f"headers of {len(encoded)} messages for {len(left)} messages")
        left = list(map(add, encoded, left))
        sizes = list(map(len, left))
    at = 0
    while at < len(left):
        end = _end_of_mpub(sizes, at)
        chosen = sizes[at:end]
        size = _SIZE * (1 + len(chosen)) + sum(chosen)
        pieces = [b"%b\n%b" % (name, _pack_sizes(size, len(chosen)))] * (2 * len(chosen) + 1)
        pieces[1::2] = map(_pack_size, chosen)
        pieces[2::2] = left[at:end]
        yield b"".join(pieces), len(chosen)
        at = end


def _end_of_mpub(sizes: list[int], at: int) -> int:
    """Return the end of the messages from `at` that fit into one MPUB; at least one."""
    room = MOST_AT_ONCE - _SIZE
    if sum(sizes) + _SIZE * len(sizes) <= room:
        return len(sizes)
    end = at
    while end < len(sizes) and (end == at or sizes[end] + _SIZE <= room):
        room -= sizes[end] + _SIZE
        end += 1
    return end
