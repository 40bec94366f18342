"""One nsqd as a client sees it: bytes in, bytes out, nothing awaited.

    IDENTIFY --> (TLS) --> (snappy or deflate) --> (AUTH) --> open --> closed
             OK after each, through the new layer

The owner of a connection passes the bytes that it has read to `receive`, writes the result of `bytes_to_send` and then
calls `written`, and closes the connection once it is `finished`. An exception is the reason to close the connection.
Consumers and producers have subclasses: `consumption.py`, `publication.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from nsqclient.core.errors import AuthError, Disconnected, HandshakeError, ProtocolError, TLSRefused
from nsqclient.core.events import Limited
from nsqcommon.recipients import Recipients, host_and_port
from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import StreamError
from nsqcommon.streams.snappy import SnappyLayer
from nsqcommon.wire import commands
from nsqcommon.wire.extensions import EXTENSIONS
from nsqcommon.wire.frames import FrameType
from nsqcommon.wire.identify import HttpEndpoint
from nsqcommon.wire.message import HEADER_SIZE, decode_message
from nsqcommon.wire.wrong_port import HTTP_RESPONSE, KIND_OF_NSQLOOKUPD

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.delivery import Delivery
    from nsqclient.core.events import Event
    from nsqcommon.streams.layer import Layer
    from nsqcommon.streams.tls import SecureLayer

HEARTBEAT: Final = b"_heartbeat_"
# Errors about one message that was answered after nsqd had taken it back.
LATE: Final = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED", "E_BURY_FAILED")

_DEFAULT_MAX_RDY: Final = 2500
_DEFAULT_MSG_TIMEOUT_MS: Final = 60_000
_DEFAULT_MAX_MSG_TIMEOUT_MS: Final = 900_000
_DEFAULT_MAX_DEFLATE_LEVEL: Final = 6
_MOST_IN_HANDSHAKE: Final = 64 * 1024
_MOST_EVER: Final = (1 << 31) - 1
_PREFIX_SIZE: Final = 8
_BODY: Final = _PREFIX_SIZE + HEADER_SIZE  # offset of a message's body in its frame

_unpack_prefix: Final = Struct(">ii").unpack_from
_unpack_message: Final = Struct(">qH16s").unpack_from

_RESPONSE: Final = int(FrameType.RESPONSE)
_ERROR: Final = int(FrameType.ERROR)
_MESSAGE: Final = int(FrameType.MESSAGE)
_HEADED_MESSAGE: Final = int(FrameType.HEADED_MESSAGE)


@dataclass(frozen=True, slots=True)
class IdentifyDefaults:
    """Default values of IDENTIFY, which the configuration overrides."""

    hostname: str
    user_agent: str


@dataclass(frozen=True, slots=True)
class Terms:
    """nsqd's answer to IDENTIFY. Times are seconds; the defaults are for an nsqd that only answers OK."""

    version: str = ""
    max_rdy: int = _DEFAULT_MAX_RDY
    msg_timeout: float = _DEFAULT_MSG_TIMEOUT_MS / 1000
    max_msg_timeout: float = _DEFAULT_MAX_MSG_TIMEOUT_MS / 1000
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    max_deflate_level: int = _DEFAULT_MAX_DEFLATE_LEVEL
    auth_required: bool = False
    topology_region: str = ""
    topology_zone: str = ""
    extensions: tuple[str, ...] = ()  # granted; NSQ's own nsqd grants none
    http: HttpEndpoint | None = None  # only with the extension `http`


class NsqdConnection(ABC):
    """The handshake, the layers and the frames of one connection. Subclasses interpret the frames."""

    def __init__(
        self,
        address: str,
        config: Config,
        identity: IdentifyDefaults,
        *,
        make_tls: Callable[[], SecureLayer] | None,
        wake: Callable[[], None],
        emit: Callable[[Event], None],
    ) -> None:
        self.address = address
        self.peer = ""  # the IP address of the other end of the socket
        self.terms = Terms()
        self.is_open = False  # the handshake is done
        self.opened_at = 0.0  # when the handshake was done, on the loop's clock
        self.is_closed = False  # nothing more to send or receive
        self._config = config
        self._make_tls = make_tls  # None: TLS is off
        self._wake = wake  # called when there are bytes to send, or the connection is finished
        self._emit = emit
        self._max_size = _MOST_IN_HANDSHAKE  # of a frame
        self._outgoing: list[bytes] = [commands.MAGIC, commands.identify(identify_body(config, identity))]
        self._raw = b""  # bytes of TLS itself, which bypass all layers
        self._layers: list[Layer] = []  # from the socket inwards: TLS first
        self._tls: SecureLayer | None = None
        self._shaking_hands = False  # the TLS handshake is running
        self._upgrades: list[str] = []  # layers that nsqd hasn't confirmed yet
        # Handles the next frame: the current step of the handshake, or `_open_frame` and the like afterwards.
        self._handle_frame: Callable[[int, bytes, float], None] = self._identified
        self._half = bytearray()  # the beginning of an incomplete frame
        self._needed = 0  # size of `_half` at which parsing can go on

    # For the owner, which reads and writes

    def receive(self, data: bytes, now: float) -> None:
        """Process received bytes. Raise NSQError if the connection has to be closed."""
        if self._shaking_hands:
            data = self._shake_hands(data)
        if self._layers:
            self._receive_through_layers(data, now)
        elif data:
            self._cut(data, now)

    def bytes_to_send(self) -> bytes:
        """Return the bytes to write now. Call `written` when the socket has taken them."""
        raw, self._raw = self._raw, b""
        outgoing = self._outgoing
        if not outgoing or self._shaking_hands:
            return raw
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        try:
            for layer in reversed(self._layers):
                data = layer.encode(data)
        except StreamError as error:
            raise Disconnected(str(error)) from error
        return raw + data if raw else data

    def written(self, now: float) -> None:  # noqa: B027  # only consumers need to know
        """Confirm that the socket has taken all bytes from `bytes_to_send`."""

    @property
    def finished(self) -> bool:
        """True if there is nothing more to send or receive; the owner then closes the connection."""
        return self.is_closed

    def goodbye(self) -> bytes:
        """Return TLS's close_notify, or nothing."""
        return self._tls.goodbye() if self._tls is not None and not self._shaking_hands else b""

    @property
    def is_secure(self) -> bool:
        """True if the connection uses TLS."""
        return self._tls is not None

    def probe(self) -> None:
        """Send a NOP, to notice a broken connection."""
        self._send(commands.nop())

    def _send(self, command: bytes) -> None:
        outgoing = self._outgoing
        if not outgoing:
            self._wake()
        outgoing.append(command)

    # Layers

    def _shake_hands(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            if self._tls.handshake(data):
                self._shaking_hands = False
                self._layers.insert(0, self._tls)
        except StreamError as error:
            raise TLSRefused(str(error)) from error
        finally:
            if pending := self._tls.pending():
                self._raw += pending
                self._wake()
        return b""  # the bytes are with the TLS layer

    def _receive_through_layers(self, data: bytes, now: float, *, first: int = 0) -> None:
        """Decode and process bytes that the layers before `first` have already decoded."""
        again = True
        while again:
            try:
                for layer in self._layers[first:]:
                    data = layer.decode(data)
            except StreamError as error:
                raise Disconnected(str(error)) from error
            if data:
                self._cut(data, now)
            again = any(layer.has_more for layer in self._layers)
            data, first = b"", 0
        if self._tls is not None and (pending := self._tls.pending()):
            self._raw += pending
            self._wake()
        if self._tls is not None and self._tls.ended and not self.finished:
            raise Disconnected("connection closed by nsqd")  # its socket may still be open

    def _receive_through_next_layer(self, data: bytes, now: float, *, first: int) -> None:
        """Process the bytes after the frame that added a layer. They belong to the new layer."""
        if self._shaking_hands:
            self.receive(data, now)
        elif data:
            self._receive_through_layers(data, now, first=first)

    # Frames

    def _cut(self, data: bytes, now: float) -> None:
        """Split the bytes into frames and handle each. Consecutive messages are handled together."""
        half = self._half
        if half:
            half += data
            if len(half) < self._needed:
                return
            data = bytes(half)
            half.clear()
        at, end = 0, len(data)
        messages: list[Delivery] = []
        while end - at >= _PREFIX_SIZE:
            size, kind = _unpack_prefix(data, at)
            stop = at + 4 + size
            if not 4 <= size <= self._max_size:
                raise self._bad_size(size)
            if stop > end:
                self._needed = 4 + size
                break
            if kind == _MESSAGE:
                if size < 4 + HEADER_SIZE:
                    raise Disconnected("not enough data to decode valid message")
                timestamp, attempts, message_id = _unpack_message(data, at + _PREFIX_SIZE)
                messages.append(self._delivery(timestamp, attempts, message_id, data[at + _BODY : stop], now))
                at = stop
                continue
            if kind == _HEADED_MESSAGE:
                messages.append(self._delivery_with_headers(data[at + _PREFIX_SIZE : stop], now))
                at = stop
                continue
            if messages:
                self._messages(messages, now)
                messages = []
            content = data[at + _PREFIX_SIZE : stop]
            at = stop
            layers = len(self._layers)
            self._process(kind, content, now)
            if self._shaking_hands or len(self._layers) > layers:
                self._receive_through_next_layer(data[at:], now, first=layers)
                return
        else:
            self._needed = _PREFIX_SIZE
        if messages:
            self._messages(messages, now)
        if at < end:
            half += memoryview(data)[at:]

    def _process(self, kind: int, content: bytes, now: float) -> None:
        """Process a frame that isn't a message."""
        if content == HEARTBEAT and kind == _RESPONSE:
            self._send(commands.nop())
            self._heartbeat(now)
        else:
            self._handle_frame(kind, content, now)

    def _bad_size(self, size: int) -> Exception:
        if size == HTTP_RESPONSE:
            return HandshakeError("unexpected HTTP response, a nsqd TCP endpoint is required")
        if size < 0:
            return Disconnected(f"response msg size is negative: {size}")
        if size < 4:
            return Disconnected("length of response is too small")
        return Disconnected(f"response msg size {size} exceeds configured maximum ({self._max_size})")

    # The handshake, frame by frame

    def _identified(self, kind: int, content: bytes, now: float) -> None:
        if kind == KIND_OF_NSQLOOKUPD:
            raise HandshakeError("unexpected nsqlookupd response, a nsqd TCP endpoint is required")
        if kind != _RESPONSE:
            raise HandshakeError(f"failed to IDENTIFY - {_text(content)}")
        self.terms = terms = read_terms(content)
        config = self._config
        if config.tls != "off":
            if terms.tls:
                self._upgrades.append("TLS")
            elif config.tls == "require":
                raise TLSRefused("TLS is required, and nsqd does not grant it")
            else:
                self._emit(Limited(self.address, "TLS was requested and not granted, continuing in plain text"))
        for name, is_granted in (("snappy", terms.snappy), ("deflate", terms.deflate)):
            if config.compression == name:
                if is_granted:
                    self._upgrades.append(name.capitalize())
                else:
                    self._emit(Limited(self.address, f"{name} was requested and not granted"))
        self._continue_handshake(now)

    def _continue_handshake(self, now: float) -> None:
        """Continue with the next upgrade, then AUTH, then open the connection."""
        if self._upgrades:
            self._handle_frame = self._upgraded
            self._upgrade(self._upgrades[0])
        elif self.terms.auth_required:
            secret = self._config.auth_secret
            if not secret:
                raise AuthError("Auth Required")
            if not self._may_have_secret():
                raise AuthError(f"{self.address} is not in auth_to, so auth_secret is not sent to it")
            self._handle_frame = self._authenticated
            self._send(commands.auth(secret.encode()))
        else:
            self._open(now)

    def _may_have_secret(self) -> bool:
        allowed = Recipients(self._config.auth_to)
        if not allowed:
            return True
        if ":" not in self.address:  # a unix socket, which can't be registered with nsqlookupd
            return True
        host, port = host_and_port(self.address)
        return allowed.has_name(host, port) or allowed.has_address(self.peer, port)

    def _upgrade(self, name: str) -> None:
        match name:
            case "TLS":
                assert self._make_tls is not None
                self._tls = self._make_tls()
                self._shaking_hands = True
                self._shake_hands(b"")
            case "Snappy":
                self._layers.append(SnappyLayer())
            case "Deflate":
                self._layers.append(DeflateLayer(min(self._config.deflate_level, self.terms.max_deflate_level)))

    def _upgraded(self, kind: int, content: bytes, now: float) -> None:
        name = self._upgrades.pop(0)
        if kind != _RESPONSE or content != b"OK":
            raise HandshakeError(f"invalid response from {name} upgrade")
        self._continue_handshake(now)

    def _authenticated(self, kind: int, content: bytes, now: float) -> None:
        if kind != _RESPONSE:
            raise AuthError(f"Error authenticating {_text(content)}")
        self._open(now)

    def _open(self, now: float) -> None:
        self.is_open = True
        self.opened_at = now
        self._max_size = self._config.max_msg_size or _MOST_EVER
        self._handle_frame = self._frame_received
        self._opened(now)

    def _frame_received(self, kind: int, content: bytes, now: float) -> None:
        if kind == _RESPONSE:
            self._response(content, now)
        elif kind == _ERROR:
            self._error(error_of(content), now)
        else:
            raise Disconnected(f"unexpected frame of type {kind}")

    # Implemented by consumers and producers

    @abstractmethod
    def _opened(self, now: float) -> None: ...

    @abstractmethod
    def _response(self, content: bytes, now: float) -> None: ...

    @abstractmethod
    def _error(self, error: ProtocolError, now: float) -> None: ...

    def _heartbeat(self, now: float) -> None:  # noqa: B027  # only producers need to know
        """Handle a heartbeat."""

    def _delivery(
        self, timestamp: int, attempts: int, id: bytes, body: bytes, now: float, headers: bytes = b""
    ) -> Delivery:
        raise Disconnected("unexpected message")

    def _delivery_with_headers(self, data: bytes, now: float) -> Delivery:
        try:
            found = decode_message(data, is_headed=True)
        except ValueError as error:
            raise Disconnected(f"not enough data to decode valid message: {error}") from None
        return self._delivery(found.timestamp, found.attempts, found.id, found.body, now, found.headers)

    def _messages(self, messages: Sequence[Delivery], now: float) -> None:  # noqa: B027  # only consumers get any
        """Process messages that `_delivery` has accepted."""


def identify_body(config: Config, identity: IdentifyDefaults) -> bytes:
    """Return the body of IDENTIFY."""
    hostname = config.hostname if config.hostname is not None else identity.hostname
    wait, timeout, heartbeat = config.output_buffer_timeout, config.msg_timeout, config.heartbeat_interval
    return json.dumps(
        {
            "client_id": config.client_id if config.client_id is not None else hostname.partition(".")[0],
            "hostname": hostname,
            "user_agent": config.user_agent if config.user_agent is not None else identity.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": _milliseconds(heartbeat) if heartbeat is not None else -1,
            "msg_timeout": _milliseconds(timeout) if timeout is not None else 0,
            "output_buffer_size": config.output_buffer_size,
            "output_buffer_timeout": _milliseconds(wait) if wait is not None else -1,
            "sample_rate": config.sample_rate,
            "tls_v1": config.tls != "off",
            "snappy": config.compression == "snappy",
            "deflate": config.compression == "deflate",
            "deflate_level": config.deflate_level,
            "topology_region": config.topology_region,
            "topology_zone": config.topology_zone,
            "extensions": EXTENSIONS,
        }
    ).encode()


def read_terms(content: bytes) -> Terms:
    """Parse nsqd's answer to IDENTIFY. Raise HandshakeError for invalid JSON or values."""
    if not content.startswith(b"{"):
        return Terms()
    try:
        said: dict[str, Any] = json.loads(content)
        return Terms(
            version=str(said.get("version", "")),
            max_rdy=_count(said.get("max_rdy_count", _DEFAULT_MAX_RDY)),
            msg_timeout=_count(said.get("msg_timeout") or _DEFAULT_MSG_TIMEOUT_MS) / 1000,
            max_msg_timeout=_count(said.get("max_msg_timeout") or _DEFAULT_MAX_MSG_TIMEOUT_MS) / 1000,
            tls=bool(said.get("tls_v1")),
            snappy=bool(said.get("snappy")),
            deflate=bool(said.get("deflate")),
            max_deflate_level=_count(said.get("max_deflate_level") or _DEFAULT_MAX_DEFLATE_LEVEL),
            auth_required=bool(said.get("auth_required")),
            topology_region=str(said.get("topology_region", "")),
            topology_zone=str(said.get("topology_zone", "")),
            extensions=tuple(str(name) for name in said.get("extensions") or ()),
            http=_http_place(said.get("http")),
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise HandshakeError(f"failed to IDENTIFY - {error}") from error


def _http_place(told: Any) -> HttpEndpoint | None:
    if not isinstance(told, dict):
        return None
    return HttpEndpoint(
        port=_count(told.get("port", 0)), https_port=_count(told.get("https_port", 0)), node=str(told.get("node", ""))
    )


def _count(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(f"{number} < 0")
    return number


def error_of(content: bytes) -> ProtocolError:
    """Parse an error frame."""
    text = _text(content)
    code = text.partition(" ")[0]
    return ProtocolError(code, text, fatal=code not in LATE)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
