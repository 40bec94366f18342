"""One nsqd as nsqlookupd sees it, in the lookup protocol V1: bytes in, bytes out, nothing awaited.

    MAGIC ──"  V1"──► COMMAND ◄──► BODY (of an IDENTIFY)        any error: answered, then CLOSED

Every error is fatal. `step` executes one command at a time, so the caller can serve others in between even if a peer
has sent a thousand commands. An UNREGISTER of a topic takes a step for each of its channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from nsqcommon.durations import SECOND, format_duration
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.lookup import (
    DRAINING,
    LEAVING,
    MAGIC,
    OK,
    RETIRED,
    STATES,
    LookupCommandReader,
    PeerAddress,
    decode_identify,
    encode_reply,
    identify_reply,
    unreachable_reply,
)
from nsqcommon.wire.names import decode_name
from nsqcommon.wire.wrong_port import HTTP_REQUESTS
from nsqlookupd.registry import CLIENT, Registration

if TYPE_CHECKING:
    from nsqlookupd.registry import Peer, Registry

_OK: Final = encode_reply(OK)

# Called with a level ("debug", "info", "warning", "error"), a log line with %s in it, and the arguments.
Note = Callable[..., None]


class ProtocolState(Enum):
    MAGIC = auto()
    COMMAND = auto()
    BODY = auto()
    CLOSED = auto()


class LookupProtocol:
    def __init__(self, registry: Registry, *, id: str, address: PeerAddress, note: Note) -> None:
        """`id` is the peer's address as text. `address` is nsqlookupd's own, the answer to IDENTIFY."""
        self.id = id
        self.state = ProtocolState.MAGIC
        self._registry = registry
        self._address = address
        self._note = note
        self._reader = LookupCommandReader()
        self._outgoing: list[bytes] = []
        self._peer: Peer | None = None
        self._unregistering: Iterator[Registration | None] | None = None  # the rest of an UNREGISTER of a whole topic

    @property
    def is_identified(self) -> bool:
        return self._peer is not None

    @property
    def unread(self) -> int:
        """Received bytes that haven't been parsed yet."""
        return self._reader.unread

    def receive(self, data: bytes | bytearray) -> None:
        """Store the bytes for `step`, which executes their commands."""
        if self.state is not ProtocolState.CLOSED:
            self._reader.receive(data)

    def step(self) -> bool:
        """Execute one command, or a part of a long one. Return False after an error, or if none is left."""
        try:
            match self.state:
                case ProtocolState.MAGIC:
                    return self._read_magic()
                case ProtocolState.COMMAND:
                    return self._read_command() if self._unregistering is None else self._unregister_more()
                case ProtocolState.BODY:
                    return self._read_body()
                case ProtocolState.CLOSED:
                    return False
        except ProtocolError as error:
            self._fail(error)
            return False

    def bytes_to_send(self) -> list[bytes]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def end(self) -> None:
        """Handle the end of the peer's stream: close once `step` has executed the last command.

        A last line without a line feed isn't a command, and is dropped.
        """
        if self.state is ProtocolState.BODY:
            self._fail(self._reader.missing_body())
        elif self.state is ProtocolState.MAGIC:
            self._note("info" if self.unread == 0 else "error", "failed to read protocol version - EOF")
            self.state = ProtocolState.CLOSED
        else:
            self.close("EOF")

    def close(self, reason: str) -> None:
        """End the connection and remove the peer's registrations. Idempotent."""
        if self.state is ProtocolState.CLOSED:
            return
        self.state = ProtocolState.CLOSED
        self._note("info", "PROTOCOL(V1): [%s] exiting ioloop", self.id)
        self._note("info", "client(%s) - %s", self.id, reason)
        if self._peer is not None:
            peer, self._peer = self._peer, None
            # NSQ logs a line for each registration: hundreds of lines for one event that we have just logged.
            count = self._registry.disconnect(peer)
            self._note("info", "DB: client(%s) UNREGISTER all its registrations: %d", self.id, count)

    # Reading

    def _read_magic(self) -> bool:
        magic = self._reader.take(len(MAGIC))
        if magic is None:
            return False
        self._note("info", "CLIENT(%s): desired protocol magic '%s'", self.id, _shown(magic))
        if magic != MAGIC:
            self._outgoing.append(encode_reply(Fault.BAD_PROTOCOL.encode()))
            hint = " (an HTTP request: HTTP has another port)" if magic in HTTP_REQUESTS else ""
            self._note("error", "client(%s) bad protocol magic '%s'%s", self.id, _shown(magic), hint)
            self.state = ProtocolState.CLOSED
            return False
        self.state = ProtocolState.COMMAND
        return True

    def _read_command(self) -> bool:
        words = self._reader.next_words()
        if words is None:
            return False
        match words[0]:
            case b"PING":
                self._ping(words)
            case b"REGISTER":
                self._register(words)
            case b"UNREGISTER":
                self._unregister(words)
            case b"IDENTIFY":
                if self._peer is not None:
                    raise ProtocolError(Fault.INVALID, "cannot IDENTIFY again")
                self.state = ProtocolState.BODY
            case word:
                raise ProtocolError(Fault.INVALID, b"invalid command " + word)
        return True

    def _read_body(self) -> bool:
        body = self._reader.next_body()
        if body is None:
            return False
        identity = decode_identify(body)
        self._peer = self._registry.connect(self.id, identity)
        self._note(
            "info",
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self.id,
            identity.broadcast_address,
            identity.tcp_port,
            identity.http_port,
            identity.version,
        )
        self._note_added([CLIENT])
        self._outgoing.append(encode_reply(identify_reply(self._address)))
        self.state = ProtocolState.COMMAND
        return True

    # Commands

    def _ping(self, words: list[bytes]) -> None:
        if self._peer is not None:
            self._hear_state(self._peer, [word.decode("ascii", "replace") for word in words[1:3]])
            silence = self._registry.ping(self._peer)
            self._note("info", "CLIENT(%s): pinged (last ping %s)", self.id, format_duration(round(silence * SECOND)))
            if self._peer.unreachable and self._peer.identity.node:
                self._outgoing.append(unreachable_reply(self._peer.unreachable))
                return
        self._outgoing.append(_OK)

    def _hear_state(self, peer: Peer, said: list[str]) -> None:
        """Record the words after PING, such as `full` or `draining retired`. Unknown words are ignored."""
        word = said[0] if said else ""
        peer.is_retired = word in (RETIRED, DRAINING) and said[-1] == RETIRED
        peer.is_leaving = word in (LEAVING, RETIRED, DRAINING)
        # A node that says goodbye is still draining: it must not look healthy until its connection ends.
        state = DRAINING if peer.is_leaving else word
        if self._registry.set_state(peer, state if state in STATES else ""):
            self._note("info", "client(%s) is %s", self.id, peer.state or "accepting messages again")

    def _register(self, words: list[bytes]) -> None:
        peer, topic, channel = self._names(words)
        self._note_added(self._registry.register(peer, topic, channel))
        self._outgoing.append(_OK)

    def _unregister(self, words: list[bytes]) -> None:
        peer, topic, channel = self._names(words)
        if channel:
            for row in self._registry.unregister_channel(peer, topic, channel):
                self._note_removed(row)
            self._outgoing.append(_OK)
        else:
            self._unregistering = self._registry.unregister_topic(peer, topic)

    def _unregister_more(self) -> bool:
        """Remove the peer from the next channel of the topic, or if no channel is left, from the topic itself."""
        assert self._unregistering is not None
        try:
            row = next(self._unregistering)
        except StopIteration:
            self._unregistering = None
            self._outgoing.append(_OK)
        else:
            if row is not None and row.category == "topic":
                self._note_removed(row)
            elif row is not None:
                # As in NSQ: an nsqd unregisters the channels of a topic before the topic.
                self._note("warning", "client(%s) unexpected UNREGISTER category:%s key:%s subkey:%s", self.id, *row)
        return True

    def _names(self, words: list[bytes]) -> tuple[Peer, str, str]:
        """Return the peer, the topic and the channel ("": none). Refuse bad names, and peers without IDENTIFY."""
        if self._peer is None:
            raise ProtocolError(Fault.INVALID, "client must IDENTIFY")
        command = words[0]
        if len(words) < 2:
            raise ProtocolError(Fault.INVALID, command + b" insufficient number of params")
        topic = decode_name(words[1])
        if topic is None:
            raise ProtocolError(Fault.BAD_TOPIC, b"%b topic name '%b' is not valid" % (command, words[1]))
        if len(words) < 3 or not words[2]:
            return self._peer, topic, ""
        channel = decode_name(words[2])
        if channel is None:
            raise ProtocolError(Fault.BAD_CHANNEL, b"%b channel name '%b' is not valid" % (command, words[2]))
        return self._peer, topic, channel

    def _fail(self, error: ProtocolError) -> None:
        self._outgoing.append(encode_reply(error.data))
        self._note("error", "[%s] - %s", self.id, error)
        self.close("protocol error")

    # Notes

    def _note_added(self, rows: list[Registration]) -> None:
        for row in rows:
            self._note("info", "DB: client(%s) REGISTER category:%s key:%s subkey:%s", self.id, *row)

    def _note_removed(self, row: Registration) -> None:
        self._note("info", "DB: client(%s) UNREGISTER category:%s key:%s subkey:%s", self.id, *row)


def _shown(magic: bytes) -> str:
    return magic.decode("ascii", "backslashreplace")
