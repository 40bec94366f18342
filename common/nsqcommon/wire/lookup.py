"""The lookup protocol V1, in both directions: nsqd registers its topics and channels with nsqlookupd.

After the magic, nsqd sends lines of words. Only IDENTIFY has a body, after its size in 32 bits. The replies come in
order, each as a size of 32 bits and that many bytes; there is no frame type. This module doesn't interpret commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from nsqcommon.nsq_json import Fields, JsonError, dumps, read
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.wrong_port import HTTP_RESPONSE

MAGIC: Final = b"  V1"
OK: Final = b"OK"
# Words after PING; NSQ ignores them. "leaving": the node has drained, so its logs don't grow until it starts again.
# "retired": the same, but it won't start again. "draining retired": it's still draining and will then be retired.
LEAVING: Final = "leaving"
RETIRED: Final = "retired"
# States of a node, as words after PING and in nsqlookupd's responses. A node without a state accepts messages.
DRAINING: Final = "draining"
FULL: Final = "full"  # its disk has no room for more messages
UNHEALTHY: Final = "unhealthy"  # its /ping says NOK for another reason
STATES: Final = frozenset({DRAINING, FULL, UNHEALTHY})
# nsqlookupd replies to PING with this and a reason if it can't reach the nsqd at its address. If there was no `node` in
# the nsqd's IDENTIFY (NSQ's has none), it replies with a plain OK.
UNREACHABLE: Final = b"OK unreachable "
_MOST_REASON: Final = 300  # bytes

# NSQ limits neither. The longest meaningful line has about 140 bytes, but old clients add parameters that we ignore.
# The document of an nsqd has less than 1 kB.
MAX_LINE: Final = 64 * 1024
MAX_BODY: Final = 64 * 1024

_MOST_ECHOED: Final = 64  # bytes that we quote of an endless line
_size: Final = Struct(">i")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The addresses that an nsqlookupd announces. Missing values are empty or 0."""

    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """The addresses that an nsqd announces."""

    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    topology_region: str
    topology_zone: str
    version: str
    node: str = ""  # the id of its data path; empty for NSQ's nsqd
    extensions: tuple[str, ...] = ()  # that it offers to clients


# What nsqd writes


def encode_command(*words: str, body: bytes | None = None) -> bytes:
    """Encode a command such as `encode_command("REGISTER", topic, channel)`; only IDENTIFY has a body."""
    line = " ".join(words).encode() + b"\n"
    return line if body is None else line + encode_reply(body)


def identify_body(
    *,
    broadcast_address: str,
    hostname: str,
    http_port: int,
    tcp_port: int,
    topology_region: str,
    topology_zone: str,
    version: str,
    node: str = "",
    extensions: tuple[str, ...] = (),
) -> bytes:
    return dumps(
        {
            "broadcast_address": broadcast_address,
            "hostname": hostname,
            "http_port": http_port,
            "tcp_port": tcp_port,
            "topology_region": topology_region,
            "topology_zone": topology_zone,
            "version": version,
            **({"node": node} if node else {}),
            **({"extensions": extensions} if extensions else {}),
        }
    )


# What nsqd reads


class BadReply(Exception):
    """A reply has an impossible size: the peer is not an nsqlookupd, or we have lost our place in the stream."""


def reason_in(reply: bytes) -> str:
    """Return why nsqlookupd can't reach this node, according to its reply to PING, or "" if it doesn't report that."""
    if not reply.startswith(UNREACHABLE):
        return ""
    return reply[len(UNREACHABLE) :].decode("ascii", "backslashreplace")


class ReplyReader:
    """Turns an nsqlookupd's stream into replies, however the network splits it."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._data = bytearray()

    def receive(self, data: bytes | bytearray) -> None:
        self._data += data

    def next_reply(self) -> bytes | None:
        """Return the next reply, or None if more bytes are needed.

        Raises BadReply. You can't read anything more after that.
        """
        if len(self._data) < _size.size:
            return None
        (size,) = _size.unpack_from(self._data)
        if not 0 <= size <= self._max_size:
            if size == HTTP_RESPONSE:
                raise BadReply("unexpected HTTP response, a nsqlookupd TCP endpoint is required")
            raise BadReply(f"response of {size} bytes, expected 0 to {self._max_size}")
        end = _size.size + size
        if len(self._data) < end:
            return None
        reply = bytes(self._data[_size.size : end])
        del self._data[:end]
        return reply


def decode_identify_reply(data: bytes) -> PeerAddress | None:
    """Decode the reply to IDENTIFY, or return None if it is something else, such as the text of an error."""
    try:
        fields = Fields(read(data))
        return PeerAddress(
            broadcast_address=fields.text("broadcast_address"),
            hostname=fields.text("hostname"),
            http_port=fields.integer("http_port"),
            tcp_port=fields.integer("tcp_port"),
            version=fields.text("version"),
        )
    except JsonError:
        return None


# What nsqlookupd reads


class LookupCommandReader:
    """Turns an nsqd's stream into lines and bodies, however the network splits it.

    It reads a body only when you call `next_body`, so you can first check whether IDENTIFY is allowed.
    """

    def __init__(self, *, max_line: int = MAX_LINE, max_body: int = MAX_BODY) -> None:
        self._max_line = max_line
        self._max_body = max_body
        self._data = bytearray()
        self._at = 0

    @property
    def unread(self) -> int:
        """The number of received bytes that you haven't taken yet."""
        return len(self._data) - self._at

    def receive(self, data: bytes | bytearray) -> None:
        del self._data[: self._at]
        self._at = 0
        self._data += data

    def take(self, size: int) -> bytes | None:
        """Return the next `size` bytes unchanged, or None if more are needed."""
        end = self._at + size
        if len(self._data) < end:
            return None
        taken = bytes(self._data[self._at : end])
        self._at = end
        return taken

    def next_words(self) -> list[bytes] | None:
        """Return a line, stripped of white space and split at each space, or None if more bytes are needed.

        Raises ProtocolError if the line is longer than `max_line`.
        """
        end = self._data.find(b"\n", self._at, self._at + self._max_line + 1)
        if end < 0:
            if self.unread > self._max_line:
                word = bytes(self._data[self._at : self._at + _MOST_ECHOED]).strip().split(b" ")[0]
                raise ProtocolError(Fault.INVALID, b"invalid command " + word)
            return None
        line = bytes(self._data[self._at : end])
        self._at = end + 1
        return line.strip().split(b" ")

    def next_body(self) -> bytes | None:
        """Return the next body, or None if more bytes are needed.

        Raises ProtocolError for a size that is negative or above `max_body`.
        """
        if self.unread < _size.size:
            return None
        (size,) = _size.unpack_from(self._data, self._at)
        if size < 0:  # NSQ itself crashes on this
            raise ProtocolError(Fault.BAD_BODY, "IDENTIFY failed to read body size")
        if size > self._max_body:
            raise ProtocolError(Fault.BAD_BODY, "IDENTIFY failed to read body")
        if self.unread < _size.size + size:
            return None
        self._at += _size.size
        return self.take(size)

    def missing_body(self) -> ProtocolError:
        """Return the error for a stream that ends before its body is complete."""
        has_size = self.unread >= _size.size
        return ProtocolError(Fault.BAD_BODY, f"IDENTIFY failed to read body{'' if has_size else ' size'}")


def decode_identify(body: bytes) -> NodeIdentity:
    """Decode the body of IDENTIFY.

    Raises ProtocolError if it is malformed or lacks a field that every nsqd must announce.
    """
    try:
        fields = Fields(read(body))
        identity = NodeIdentity(
            broadcast_address=fields.text("broadcast_address"),
            hostname=fields.text("hostname"),
            http_port=fields.integer("http_port"),
            tcp_port=fields.integer("tcp_port"),
            topology_region=fields.text("topology_region"),
            topology_zone=fields.text("topology_zone"),
            version=fields.text("version"),
            node=fields.text("node"),
            extensions=fields.texts("extensions") or (),
        )
    except JsonError as error:
        raise ProtocolError(Fault.BAD_BODY, "IDENTIFY failed to decode JSON body") from error
    if not (identity.broadcast_address and identity.tcp_port and identity.http_port and identity.version):
        raise ProtocolError(Fault.BAD_BODY, "IDENTIFY missing fields")
    return identity


# What nsqlookupd writes


def encode_reply(data: bytes) -> bytes:
    return _size.pack(len(data)) + data


def unreachable_reply(reason: str) -> bytes:
    return encode_reply(UNREACHABLE + reason.encode("ascii", "backslashreplace")[:_MOST_REASON])


def identify_reply(address: PeerAddress) -> bytes:
    return dumps(
        {
            "broadcast_address": address.broadcast_address,
            "hostname": address.hostname,
            "http_port": address.http_port,
            "tcp_port": address.tcp_port,
            "version": address.version,
        }
    )
