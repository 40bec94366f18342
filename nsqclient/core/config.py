"""The settings of consumers and producers: frozen, checked, in seconds, with NSQ's names and texts for them.

`OPTIONS` is the one table: names, bounds, and how text is read. `Config.from_options` reads the `--consumer-opt` and
`--producer-opt` flags of the tools.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Final, Literal, Self

from nsqclient.core.errors import ConfigError
from nsqcommon.durations import HOUR, MILLISECOND, MINUTE, SECOND, format_duration, parse_long_duration
from nsqcommon.recipients import Recipients

BackoffStrategy = Literal["exponential", "full_jitter", "none"] | Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of a consumer or producer. Times are in seconds; names are NSQ's if NSQ has the setting.

    Raises ConfigError for a value out of range.
    """

    # The connection
    dial_timeout: float = 1.0
    read_timeout: float = 60.0  # after this silence, nsqd counts as gone
    write_timeout: float = 1.0  # and after a write without progress for this long
    local_addr: str | None = None  # host:0 to dial from
    heartbeat_interval: float | None = 30.0  # None: no heartbeats (producers only)
    tls: Literal["off", "require", "prefer"] = "off"
    ssl_context: ssl.SSLContext | None = None
    server_hostname: str | None = None  # the name in nsqd's certificate; None: the host that we dial
    compression: Literal["none", "snappy", "deflate"] = "none"
    deflate_level: int = 6
    auth_secret: str | None = field(default=None, repr=False)
    auth_to: tuple[str, ...] = ()  # networks and names of nsqds that may get auth_secret; empty: all
    output_buffer_size: int = 16384  # nsqd's output buffer, in bytes
    output_buffer_timeout: float | None = 0.25  # how long nsqd may buffer; None: no buffering
    max_msg_size: int = 17 << 20  # largest accepted frame: nsqd's default message size plus 16 MiB; 0: no limit
    reconnect_delay: Literal["growing", "fixed"] = "growing"  # "fixed": lookupd_poll_interval, as in NSQ

    # How the client introduces itself to nsqd
    client_id: str | None = None
    hostname: str | None = None
    user_agent: str | None = None
    topology_region: str = ""
    topology_zone: str = ""

    # Consuming
    max_in_flight: int | None = None  # messages of all nsqds and topics together; None: one for each nsqd and topic
    msg_timeout: float | None = None  # None: the server's default
    max_attempts: int = 5  # deliveries before we give up on a message; 0: no limit
    default_requeue_delay: float = 90.0  # times the number of attempts
    max_requeue_delay: float = 900.0
    sample_rate: int = 0  # percent of the messages to receive; the others are lost to this channel; 0: all
    backoff: BackoffStrategy = "exponential"
    backoff_multiplier: float = 1.0  # seconds; a pause is this times 2 to the power of the level
    max_backoff_duration: float = 120.0  # 0: no backoff
    # With more nsqds than max_in_flight, they take turns of up to a second, or with the policy "even" as in NSQ: an
    # nsqd that sends nothing loses its turn after low_rdy_idle_timeout, any other after low_rdy_timeout.
    low_rdy_idle_timeout: float = 10.0
    low_rdy_timeout: float = 30.0
    rdy_redistribute_interval: float = 5.0  # between two checks of the turns
    rdy_policy: Literal["even", "adaptive"] = "adaptive"  # busy nsqds get more than idle ones; turns are short
    drain_timeout: float = 30.0  # grace period for messages and publishes after a stop

    # Discovery
    lookupd_poll_interval: float = 60.0
    lookupd_poll_jitter: float = 0.3  # random extra of the first pause, as a part of the interval
    lookupd_poll_timeout: float = 60.0
    lookupd_strategy: Literal["all", "rotate"] = "all"  # "rotate": one after another, for very large fleets
    lookupd_wait: bool = True  # use long polls if nsqlookupd supports them
    lookupd_authorization: bool = True  # send auth_secret to nsqlookupd

    def __post_init__(self) -> None:
        for option in OPTIONS.values():
            option.check(getattr(self, option.field))
        for name, words in _WORDS.items():
            if (value := getattr(self, name)) not in words and not (name == "backoff" and callable(value)):
                raise ConfigError(name, value, f"invalid {name} ! {value!r} is none of {', '.join(words)}")
        try:
            Recipients(self.auth_to)
        except ValueError as error:
            raise ConfigError("auth_to", self.auth_to, f"invalid auth_to ! {error}") from error
        if self.drain_timeout < 0 or not isfinite(self.drain_timeout):
            raise ConfigError("drain_timeout", self.drain_timeout, f"invalid drain_timeout ! {self.drain_timeout} < 0")
        if self.heartbeat_interval is not None and self.heartbeat_interval > self.read_timeout:
            raise ConfigError(
                "heartbeat_interval",
                self.heartbeat_interval,
                f"HeartbeatInterval {_shown(self.heartbeat_interval)} must be less than "
                f"ReadTimeout {_shown(self.read_timeout)}",
            )

    @classmethod
    def from_options(cls, options: Mapping[str, object], **defaults: Any) -> Self:
        """Return the configuration from NSQ's option names and texts. `defaults` applies to missing options.

        Names may have `-` or `_`. Raises ConfigError with NSQ's words.
        """
        values: dict[str, Any] = dict(defaults)
        given: dict[str, Any] = {}
        for written, value in options.items():
            name = written.replace("-", "_")
            if name == "tls_config":
                raise ConfigError(written, value, "failed to coerce option tls_config - it can only be given in code")
            option = OPTIONS.get(name)
            if option is None:
                raise ConfigError(written, value, f"invalid option {written}")
            given[name] = option.read(written, value)
            option.check(given[name])
        for name, value in given.items():
            if OPTIONS[name].field not in _COMPUTED:
                values[OPTIONS[name].field] = value
        _combine(given, values)
        return cls(**values)


def options_of_flags(flags: Iterable[str]) -> dict[str, str]:
    """Parse repeated `--consumer-opt=key,value` flags.

    A `key` alone means `true`, and the last value of a key wins.
    """
    pairs = (flag.partition(",") for flag in flags)
    return {key: value if comma else "true" for key, comma, value in pairs}


# --- the table

Kind = Literal["duration", "int", "float", "bool", "string", "strings"]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """One of NSQ's options. Bounds are in the unit of the field: seconds for durations."""

    name: str
    kind: Kind
    field: str  # of Config; one of _COMPUTED if it follows from several options
    least: float | None = None
    most: float | None = None
    none_for: float | None = None  # NSQ's value for None
    help: str = ""

    def read(self, written: str, value: object) -> Any:
        """Parse the value of the field. Raise ConfigError for an invalid text."""
        try:
            read = _READERS[self.kind](value)
        except ValueError as error:
            raise ConfigError(written, value, f"failed to coerce option {written} ({value}) - {error}") from None
        return None if self.none_for is not None and read == self.none_for else read

    def check(self, value: Any) -> None:
        """Raise ConfigError if the value is out of bounds."""
        if value is None or self.kind not in ("duration", "int", "float"):
            return
        show = _shown if self.kind == "duration" else str
        if not isfinite(value):
            raise ConfigError(self.name, value, f"invalid {self.name} ! {value}")
        if self.least is not None and value < self.least:
            raise ConfigError(self.name, value, f"invalid {self.name} ! {show(value)} < {show(self.least)}")
        if self.most is not None and value > self.most:
            raise ConfigError(self.name, value, f"invalid {self.name} ! {show(value)} > {show(self.most)}")


_MINUTE: Final = MINUTE / SECOND
_HOUR: Final = HOUR / SECOND
_OFF: Final = -0.001  # NSQ's -1, in milliseconds
_COMPUTED: Final = frozenset(("tls", "ssl_context", "compression"))


def _table(*options: ConfigOption) -> Mapping[str, ConfigOption]:
    return {option.name: option for option in options}


OPTIONS: Final = _table(
    ConfigOption("dial_timeout", "duration", "dial_timeout", 0.0, help="timeout for a TCP connect"),
    ConfigOption(
        "read_timeout",
        "duration",
        "read_timeout",
        0.1,
        5 * _MINUTE,
        help="silence after which nsqd counts as gone",
    ),
    ConfigOption(
        "write_timeout",
        "duration",
        "write_timeout",
        0.1,
        5 * _MINUTE,
        help="time without progress in a write after which nsqd counts as gone",
    ),
    ConfigOption("local_addr", "string", "local_addr", help="the local address to dial from: `host:0`"),
    ConfigOption(
        "lookupd_poll_interval",
        "duration",
        "lookupd_poll_interval",
        0.01,
        5 * _MINUTE,
        help="how often to poll nsqlookupd, unless it supports long polls",
    ),
    ConfigOption(
        "lookupd_poll_jitter",
        "float",
        "lookupd_poll_jitter",
        0,
        1,
        help="random extra of the first pause, as a part of the interval",
    ),
    ConfigOption(
        "lookupd_poll_timeout",
        "duration",
        "lookupd_poll_timeout",
        0.0,
        help="timeout for requests to nsqlookupd",
    ),
    ConfigOption("max_requeue_delay", "duration", "max_requeue_delay", 0.0, _HOUR, help="maximum computed delay"),
    ConfigOption(
        "default_requeue_delay",
        "duration",
        "default_requeue_delay",
        0.0,
        _HOUR,
        help="delay of a requeue without a delay of its own, multiplied by the number of attempts",
    ),
    ConfigOption(
        "backoff_strategy",
        "string",
        "backoff",
        help="`exponential`, `full_jitter`, or `none`; in code also a function of the level",
    ),
    ConfigOption(
        "max_backoff_duration", "duration", "max_backoff_duration", 0.0, _HOUR, help="maximum pause; 0: no backoff"
    ),
    ConfigOption("backoff_multiplier", "duration", "backoff_multiplier", 0.0, _HOUR, help="unit of backoff pauses"),
    ConfigOption(
        "max_attempts",
        "int",
        "max_attempts",
        0,
        65535,
        help="deliveries before a message becomes a dead letter, or is buried or finished; 0: no limit",
    ),
    ConfigOption(
        "low_rdy_idle_timeout",
        "duration",
        "low_rdy_idle_timeout",
        1.0,
        5 * _MINUTE,
        help="with more nsqds than `max_in_flight`, how long an nsqd that sends nothing keeps its turn; only with the "
        "`rdy_policy` `even`",
    ),
    ConfigOption(
        "low_rdy_timeout",
        "duration",
        "low_rdy_timeout",
        1.0,
        5 * _MINUTE,
        help="maximum turn of an nsqd that sends messages; only with the `rdy_policy` `even`",
    ),
    ConfigOption(
        "rdy_redistribute_interval",
        "duration",
        "rdy_redistribute_interval",
        0.001,
        5.0,
        help="how often to check turns",
    ),
    ConfigOption("client_id", "string", "client_id", help="default: first label of the host name"),
    ConfigOption("hostname", "string", "hostname", help="default: host name"),
    ConfigOption("user_agent", "string", "user_agent", help="default: `nsqclient/` and the version"),
    ConfigOption(
        "topology_region",
        "string",
        "topology_region",
        help="region of this client, for nsqds that prefer nearby clients, and for the strategy `near` of producers",
    ),
    ConfigOption("topology_zone", "string", "topology_zone", help="zone within the region"),
    ConfigOption(
        "heartbeat_interval",
        "duration",
        "heartbeat_interval",
        0.0,
        none_for=_OFF,
        help="at most `read_timeout`; -1 (None): no heartbeats, for producers only",
    ),
    ConfigOption(
        "sample_rate",
        "int",
        "sample_rate",
        0,
        99,
        help="percentage of messages to deliver; the channel loses the others; 0: all",
    ),
    ConfigOption("tls_v1", "bool", "tls", help="require TLS; in code also `prefer`"),
    ConfigOption(
        "tls_root_ca_file", "string", "ssl_context", help="certificates to trust (PEM) instead of the system's"
    ),
    ConfigOption("tls_cert", "string", "ssl_context", help="client certificate (PEM), used with `tls_key`"),
    ConfigOption("tls_key", "string", "ssl_context", help="key for `tls_cert` (PEM)"),
    ConfigOption("tls_insecure_skip_verify", "bool", "ssl_context", help="accept any certificate"),
    ConfigOption(
        "tls_min_version", "string", "ssl_context", help="minimum version: `ssl3.0`, `tls1.0`, `tls1.1`, or `tls1.2`"
    ),
    ConfigOption("deflate", "bool", "compression", help="compress with deflate"),
    ConfigOption("deflate_level", "int", "deflate_level", 1, 9, help="compression level of deflate"),
    ConfigOption("snappy", "bool", "compression", help="compress with snappy, which is faster"),
    ConfigOption("output_buffer_size", "int", "output_buffer_size", -1, help="nsqd's output buffer in bytes"),
    ConfigOption(
        "output_buffer_timeout",
        "duration",
        "output_buffer_timeout",
        0.0,
        none_for=_OFF,
        help="how long nsqd may buffer; -1 (None): no buffering",
    ),
    ConfigOption(
        "max_in_flight",
        "int",
        "max_in_flight",
        0,
        help="maximum number of unanswered messages of all nsqds and topics together; default (None): one per nsqd and "
        "topic",
    ),
    ConfigOption(
        "msg_timeout",
        "duration",
        "msg_timeout",
        0.0,
        none_for=0.0,
        help="time before nsqd redelivers an unanswered message; 0 (None): nsqd's default",
    ),
    ConfigOption(
        "max_msg_size",
        "int",
        "max_msg_size",
        0,
        (1 << 31) - 1,
        help="maximum frame size in bytes; default: 17 MiB; 0: no limit",
    ),
    ConfigOption("auth_secret", "string", "auth_secret", help="secret to send with AUTH"),
    ConfigOption(
        "auth_to",
        "strings",
        "auth_to",
        help="networks (`10.0.0.0/8`) and names (`nsqd-*.example.com`) of the nsqds that may get `auth_secret`, "
        "separated by commas; empty: every nsqd that asks for it",
    ),
    ConfigOption(
        "skip_lookupd_authorization",
        "bool",
        "lookupd_authorization",
        help="true sends the secret to nsqlookupd, in spite of NSQ's name for it",
    ),
)

_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "tls": ("off", "require", "prefer"),
    "compression": ("none", "snappy", "deflate"),
    "reconnect_delay": ("growing", "fixed"),
    "backoff": ("exponential", "full_jitter", "none"),
    "rdy_policy": ("even", "adaptive"),
    "lookupd_strategy": ("all", "rotate"),
}


def _combine(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Compute the fields that depend on several options."""
    if given.get("snappy") and given.get("deflate"):
        raise ConfigError("snappy", True, "cannot enable both deflate and snappy compression")
    if "snappy" in given or "deflate" in given:
        values["compression"] = "snappy" if given.get("snappy") else "deflate" if given.get("deflate") else "none"
    if "tls_v1" in given:
        values["tls"] = "require" if given["tls_v1"] else "off"
    about_tls = {name: value for name, value in given.items() if OPTIONS[name].field == "ssl_context"}
    if about_tls:
        values["ssl_context"] = _ssl_context(about_tls)


_TLS_VERSIONS: Final = {
    "ssl3.0": ssl.TLSVersion.SSLv3,
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
}


def _ssl_context(given: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given.get("tls_root_ca_file") or None)
        if given.get("tls_insecure_skip_verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = given.get("tls_cert"), given.get("tls_key")
        if certificate and key:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # includes ssl's own errors
        where = given.get("tls_root_ca_file") or given.get("tls_cert")
        raise ConfigError("tls_v1", where, f"failed to load TLS files - {error}") from error
    version = given.get("tls_min_version")
    if version is not None:
        if version not in _TLS_VERSIONS:
            words = ", ".join(_TLS_VERSIONS)
            raise ConfigError("tls_min_version", version, f"invalid tls_min_version ! {version!r} is none of {words}")
        if _TLS_VERSIONS[version] > ssl.TLSVersion.TLSv1_1:  # OpenSSL itself no longer offers older versions
            context.minimum_version = _TLS_VERSIONS[version]
    return context


# --- reading


def _read_duration(value: object) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value * MILLISECOND / SECOND
    text = _text(value)
    if text == "-1":  # the usual way to write "off"
        return _OFF
    try:
        return parse_long_duration(text) / SECOND
    except ValueError:
        number = text.removeprefix("-").removeprefix("+").replace(".", "", 1)
        what = "missing unit in" if number.isascii() and number.isdigit() else "invalid"
        raise ValueError(f'time: {what} duration "{text}"') from None


def _read_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _text(value)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _read_float(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = _text(value)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'strconv.ParseFloat: parsing "{text}": invalid syntax') from None


def _read_bool(value: object) -> bool:
    if isinstance(value, int):
        return value != 0
    text = _text(value)
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise ValueError(f'strconv.ParseBool: parsing "{text}": invalid syntax')


def _read_strings(value: object) -> tuple[str, ...]:
    return tuple(word for word in (part.strip() for part in _text(value).split(",")) if word)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"invalid value type {type(value).__name__}")
    return value


_READERS: Final[Mapping[Kind, Callable[[object], Any]]] = {
    "duration": _read_duration,
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "string": _text,
    "strings": _read_strings,
}


def _shown(value: float) -> str:
    return format_duration(round(value * SECOND))


assert {option.field for option in OPTIONS.values()} <= {row.name for row in fields(Config)}
