"""The IDENTIFY command: a client describes itself and asks for settings and upgrades, and the server replies.

This takes three steps, because NSQ reports errors in this order: `decode_identify` reads the request, `apply_identify`
checks it against the server's limits and returns the connection's new settings, and `negotiate` decides on upgrades and
writes the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nsqcommon.nsq_json import Fields, JsonError, dumps, read
from nsqcommon.wire.extensions import HTTP, granted
from nsqcommon.wire.faults import Fault, ProtocolError

_MIN_HEARTBEAT_INTERVAL_MS: Final = 1000
_MIN_OUTPUT_BUFFER_SIZE: Final = 64
_MAX_SAMPLE_RATE: Final = 99
_MIN_MSG_TIMEOUT_MS: Final = 1000
_DEFAULT_DEFLATE_LEVEL: Final = 6

_OFF: Final = -1  # a value that switches a feature off


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifyRequest:
    """The received document, with its own field names and units (milliseconds, bytes, percent)."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    heartbeat_interval: int = 0
    output_buffer_timeout: int = 0
    output_buffer_size: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    extensions: tuple[str, ...] | None = None  # None: the client didn't ask, so the reply doesn't mention them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """A connection's current settings. A client that never identifies itself gets the defaults."""

    output_buffer_timeout_ms: int  # 0: never flushed by time
    msg_timeout_ms: int
    heartbeat_interval_ms: int = 30_000  # 0: no heartbeats
    output_buffer_size: int = 16384
    sample_rate: int = 0
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint:
    """Where a connection's nsqd serves HTTP, for a client with the extension `http`."""

    port: int  # 0: none
    https_port: int  # 0: none
    node: str  # the id of the data path; name it in a request so that no other nsqd answers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """The features that the server offers, and the limits for a client's choices."""

    max_rdy_count: int
    version: str
    max_msg_timeout_ms: int
    max_heartbeat_interval_ms: int
    max_output_buffer_size: int
    min_output_buffer_timeout_ms: int
    max_output_buffer_timeout_ms: int
    max_deflate_level: int
    tls: bool
    snappy: bool
    deflate: bool
    auth_required: bool
    topology_region: str
    topology_zone: str
    extensions: tuple[str, ...]
    http: HttpEndpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Negotiation:
    """The upgrades to perform after the reply, and the granted extensions. `reply` is None for a plain OK."""

    tls: bool
    snappy: bool
    deflate: bool
    deflate_level: int
    reply: bytes | None
    extensions: tuple[str, ...] = ()

    @property
    def upgrades(self) -> bool:
        """Whether to encrypt or compress the stream after the reply."""
        return self.tls or self.snappy or self.deflate


def decode_identify(body: bytes) -> IdentifyRequest:
    """Decode the body of IDENTIFY. Raises ProtocolError if it is malformed."""
    try:
        fields = Fields(read(body))
        return IdentifyRequest(
            client_id=fields.text("client_id"),
            hostname=fields.text("hostname"),
            user_agent=fields.text("user_agent"),
            topology_region=fields.text("topology_region"),
            topology_zone=fields.text("topology_zone"),
            heartbeat_interval=fields.integer("heartbeat_interval"),
            output_buffer_timeout=fields.integer("output_buffer_timeout"),
            output_buffer_size=fields.integer("output_buffer_size"),
            sample_rate=fields.integer("sample_rate", bits=32),
            msg_timeout=fields.integer("msg_timeout"),
            feature_negotiation=fields.flag("feature_negotiation"),
            tls_v1=fields.flag("tls_v1"),
            snappy=fields.flag("snappy"),
            deflate=fields.flag("deflate"),
            deflate_level=fields.integer("deflate_level"),
            extensions=fields.texts("extensions"),
        )
    except JsonError as error:
        raise ProtocolError(Fault.BAD_BODY, "IDENTIFY failed to decode JSON body") from error


def apply_identify(current: ClientSettings, request: IdentifyRequest, server: ServerFeatures) -> ClientSettings:
    """Return the current settings with the request's changes. Raises ProtocolError for the first invalid value."""
    # We report only the first failure, so check in NSQ's order.
    heartbeat_interval_ms = _new_setting(
        request.heartbeat_interval,
        current.heartbeat_interval_ms,
        off=0,
        allowed=range(_MIN_HEARTBEAT_INTERVAL_MS, server.max_heartbeat_interval_ms + 1),
        name="heartbeat interval",
    )
    output_buffer_timeout_ms = _new_setting(
        request.output_buffer_timeout,
        current.output_buffer_timeout_ms,
        off=0,
        allowed=range(server.min_output_buffer_timeout_ms, server.max_output_buffer_timeout_ms + 1),
        name="output buffer timeout",
    )
    output_buffer_size = _new_setting(
        request.output_buffer_size,
        current.output_buffer_size,
        off=1,
        allowed=range(_MIN_OUTPUT_BUFFER_SIZE, server.max_output_buffer_size + 1),
        name="output buffer size",
    )
    if request.output_buffer_size == _OFF:
        output_buffer_timeout_ms = 0  # nothing is ever buffered, so there is nothing to flush by time
    if not 0 <= request.sample_rate <= _MAX_SAMPLE_RATE:
        raise _invalid("sample rate", request.sample_rate)
    msg_timeout_ms = _new_setting(
        request.msg_timeout,
        current.msg_timeout_ms,
        off=None,
        allowed=range(_MIN_MSG_TIMEOUT_MS, server.max_msg_timeout_ms + 1),
        name="msg timeout",
    )
    return replace(
        current,
        heartbeat_interval_ms=heartbeat_interval_ms,
        output_buffer_timeout_ms=output_buffer_timeout_ms,
        output_buffer_size=output_buffer_size,
        sample_rate=request.sample_rate,
        msg_timeout_ms=msg_timeout_ms,
        # Replace these even if they are absent: the old values may only be guesses from the client's address.
        client_id=request.client_id,
        hostname=request.hostname,
        user_agent=request.user_agent,
        topology_region=request.topology_region,
        topology_zone=request.topology_zone,
    )


def negotiate(request: IdentifyRequest, settings: ClientSettings, server: ServerFeatures) -> Negotiation:
    """Decide on upgrades and extensions. `settings` already include the changes that the request asks for.

    Raises ProtocolError if the client wants both compressions.
    """
    if not request.feature_negotiation:
        return Negotiation(tls=False, snappy=False, deflate=False, deflate_level=0, reply=None)
    tls = server.tls and request.tls_v1
    snappy = server.snappy and request.snappy
    deflate = server.deflate and request.deflate
    if deflate and snappy:
        raise ProtocolError(Fault.IDENTIFY_FAILED, "cannot enable both deflate and snappy compression")
    level = request.deflate_level if deflate and request.deflate_level > 0 else _DEFAULT_DEFLATE_LEVEL
    level = min(level, server.max_deflate_level)
    extensions = granted(request.extensions, server.extensions)
    reply = dumps(
        {
            "max_rdy_count": server.max_rdy_count,
            "version": server.version,
            "max_msg_timeout": server.max_msg_timeout_ms,
            "msg_timeout": settings.msg_timeout_ms,
            "tls_v1": tls,
            "deflate": deflate,
            "deflate_level": level,
            "max_deflate_level": server.max_deflate_level,
            "snappy": snappy,
            "sample_rate": settings.sample_rate,
            "auth_required": server.auth_required,
            "output_buffer_size": settings.output_buffer_size,
            "output_buffer_timeout": settings.output_buffer_timeout_ms,
            "topology_region": server.topology_region,
            "topology_zone": server.topology_zone,
            **({"extensions": extensions} if request.extensions is not None else {}),
            **(_http_field(server.http) if server.http is not None and HTTP in extensions else {}),
        }
    )
    return Negotiation(tls=tls, snappy=snappy, deflate=deflate, deflate_level=level, reply=reply, extensions=extensions)


def _http_field(http: HttpEndpoint) -> dict[str, object]:
    return {"http": {"port": http.port, "https_port": http.https_port, "node": http.node}}


def _new_setting(requested: int, current: int, *, off: int | None, allowed: range, name: str) -> int:
    """Return the new value: 0 keeps the current one, -1 switches off if possible, anything else must be allowed."""
    if requested == 0:
        return current
    if requested == _OFF and off is not None:
        return off
    if requested not in allowed:
        raise _invalid(name, requested)
    return requested


def _invalid(name: str, value: int) -> ProtocolError:
    return ProtocolError(Fault.BAD_BODY, f"IDENTIFY {name} ({value}) is invalid")
