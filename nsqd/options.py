"""nsqd's options: NSQ's, with the same names and defaults, and some of our own.

If an NSQ option has no effect here, its help text says so.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from enum import IntEnum
from hashlib import md5
from typing import Final
from zlib import crc32

from nsqcommon.cors import check_origins
from nsqcommon.options import (
    BOOLEAN,
    DURATION,
    FLOATS,
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    Nanoseconds,
    computed_option,
    option,
    words_kind,
)
from nsqcommon.origin import check_hosts
from nsqcommon.startup import StartupError
from nsqcommon.wire.extensions import EXTENSIONS, KEYS
from nsqd.remote_options import RemoteOptions

MAX_NODE_ID: Final = 1024  # ten bits of every message id

MAX_WORKERS: Final = 64  # to catch typos; worker 63 listens 6300 ports above worker 0

TOPOLOGY_AWARE: Final = "topology-aware-consumption"


class TlsRequired(IntEnum):
    """Which connections must use TLS. `/config/tls_required` returns these numbers."""

    NO = 0
    EXCEPT_HTTP = 1  # "tcp-https": plain HTTP is still allowed
    YES = 2

    @property
    def word(self) -> str:
        return ("false", "tcp-https", "true")[self]


class TlsVersion(IntEnum):
    """TLS versions, by their numbers on the wire. `/config/tls_min_version` returns these numbers."""

    TLS_1_0 = 0x0301
    TLS_1_1 = 0x0302
    TLS_1_2 = 0x0303
    TLS_1_3 = 0x0304

    @property
    def word(self) -> str:
        return f"tls1.{self - TlsVersion.TLS_1_0}"


def _parse_tls_required(text: str) -> TlsRequired:
    if text.lower() == "tcp-https":
        return TlsRequired.EXCEPT_HTTP
    return TlsRequired.YES if BOOLEAN.parse(text.lower()) else TlsRequired.NO


def _parse_tls_version(text: str) -> TlsVersion:
    if not text:
        return TlsVersion.TLS_1_2
    for version in TlsVersion:
        if text.lower() == version.word:
            return version
    raise ValueError(f"unknown tlsVersionOption {text!r}")


TLS_REQUIRED: Final = words_kind(
    "value", _parse_tls_required, show=lambda it: it.word, render=lambda it: str(it.value), is_bare=True
)
TLS_VERSION: Final = words_kind("value", _parse_tls_version, show=lambda it: it.word, render=lambda it: str(it.value))


def default_node_id() -> int:
    """Derive the node id from the hostname the way NSQ does, so a node that migrates from NSQ keeps its id."""
    return _node_id_of(platform.node())


def _node_id_of(name: str) -> int:
    return crc32(md5(name.encode(), usedforsecurity=False).digest()) % MAX_NODE_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(RemoteOptions):
    # addresses
    tcp_address: str = option(
        "0.0.0.0:4150", "address to listen on for TCP clients: host:port, or the path of a unix socket"
    )
    http_address: str = option(
        "0.0.0.0:4151",
        "address to listen on for HTTP clients: host:port, or the path of a unix socket; empty: no HTTP",
    )
    https_address: str = option(
        "0.0.0.0:4152",
        "address to listen on for HTTPS clients, if --tls-cert is given: host:port; empty: no HTTPS",
    )
    http_allowed_host: tuple[str, ...] = option(
        (),
        "host name that browsers may use for this nsqd over HTTP, besides localhost, any IP address, the hostname and "
        "--broadcast-address; *: any name; other programs aren't restricted",
        toml="http_allowed_hosts",
    )
    http_same_site: bool = option(
        False,
        "refuse publishes from web pages of other sites; all other changes from such pages are always refused",
    )
    http_cors_origin: tuple[str, ...] = option(
        (),
        "site whose pages may consume over HTTP, and nothing else, for example https://page.example",
        toml="http_cors_origins",
    )
    broadcast_address: str = computed_option(
        str,
        "chosen at the start",
        "address to register with nsqlookupd; by default the hostname, or if that doesn't resolve or resolves to loopback, "
        "the local address of the connection to the first nsqlookupd; or the only address in --tcp-address",
    )
    broadcast_tcp_port: int = option(0, "TCP port to register with nsqlookupd; 0: the port of --tcp-address")
    broadcast_http_port: int = option(0, "HTTP port to register with nsqlookupd; 0: the port of --http-address")
    lookupd_tcp_address: tuple[str, ...] = option(
        (),
        "TCP address of an nsqlookupd to register with",
        toml="nsqlookupd_tcp_addresses",
        at_run_time=True,
    )
    http_client_connect_timeout: Nanoseconds = option(
        2 * SECOND,
        "timeout for connecting to nsqlookupd or the authorization server over HTTP",
        kind=DURATION,
    )
    http_client_request_timeout: Nanoseconds = option(
        5 * SECOND,
        "timeout for an HTTP response from nsqlookupd or the authorization server",
        kind=DURATION,
    )
    lookupd_tls: bool = option(False, "use TLS with nsqlookupd, for both TCP and HTTP")
    lookupd_tls_root_ca_file: str = option(
        "", "path to the CA certificates for verifying nsqlookupd; empty: the system's"
    )
    lookupd_tls_cert: str = option("", "path to the client certificate for nsqlookupd")
    lookupd_tls_key: str = option("", "path to the key of that certificate; empty: it is in the same file")
    topology_region: str = option("", "region of this nsqd, for region-aware consumers")
    topology_zone: str = option("", "zone of this nsqd, for zone-aware consumers")

    # the node, its data and its log
    node_id: int = computed_option(
        default_node_id,
        "from the hostname",
        "unique part of this node's message ids; with --remote, by default from --remote-name",
        toml="id",
        at_least=0,
        below=MAX_NODE_ID,
    )
    data_path: str = option("", "folder for messages; empty: the current folder")
    workers: int = option(
        0,
        "number of nsqd processes to run under a supervisor, each with its own folder in --data-path and its ports a "
        "hundred above the previous one's; 0: a single nsqd without a supervisor",
        at_least=0,
        at_most=MAX_WORKERS,
    )
    worker: int = option(
        -1,
        "run as this one of the --workers (from 0), without a supervisor; the supervisor starts its workers this way",
        at_least=-1,
    )
    take_over: bool = option(
        False,
        "start even if another machine owns the data path, and make the nsqd there exit; last resort",
    )
    import_go: bool = option(
        True, "at start, import the messages of a Go nsqd found in the data path (nsqd.dat and its queues), once"
    )
    log_prefix: str = option("[nsqd] ", "prefix of each log line")
    drain_timeout: Nanoseconds = option(5 * SECOND, "grace period for clients on shutdown", kind=DURATION, at_least=0)

    drain_deadline: Nanoseconds = option(
        MINUTE,
        "how long a drain (SIGUSR1 or POST /drain) may take to deliver the waiting messages",
        kind=DURATION,
        at_least=0,
    )
    drain_stay: Nanoseconds = option(
        0,
        "how long a drained node stays up so that its history can be read to the end; override it with POST /drain?stay=",
        kind=DURATION,
        at_least=0,
    )

    # memory and disk: more in LogOptions and RemoteOptions
    queue_scan_worker_pool_max: int = option(4, "no effect: nsqd keeps exact deadlines and doesn't scan for them")
    queue_scan_selection_count: int = option(20, "no effect: nsqd keeps exact deadlines and doesn't scan for them")

    # messages
    msg_timeout: Nanoseconds = option(
        MINUTE, "time a consumer has to finish a message before it is delivered again", kind=DURATION
    )
    max_msg_timeout: Nanoseconds = option(15 * MINUTE, "longest message timeout a consumer may ask for", kind=DURATION)
    max_msg_size: int = option(1_048_576, "largest message, in bytes", at_least=1)
    max_req_timeout: Nanoseconds = option(HOUR, "longest delay of a requeue", kind=DURATION)
    max_defer_timeout: Nanoseconds = option(
        0, "longest delay of a deferred publish; 0: same as --max-req-timeout", kind=DURATION, at_least=0
    )
    max_body_size: int = option(5_242_880, "largest command body, in bytes", at_least=1)
    max_identify_size: int = option(
        65_536, "largest body of IDENTIFY and AUTH, in bytes; at most --max-body-size", at_least=1
    )
    max_unfinished_bytes: int = option(
        134_217_728,
        "bytes of incomplete bodies over all connections; above it the oldest incomplete body is dropped",
        at_least=1,
    )

    # clients
    max_heartbeat_interval: Nanoseconds = option(
        MINUTE, "longest heartbeat interval a client may ask for", kind=DURATION
    )
    max_rdy_count: int = option(2500, "highest RDY count of a client")
    max_output_buffer_size: int = option(65_536, "largest output buffer a client may ask for, in bytes")
    max_output_buffer_timeout: Nanoseconds = option(
        30 * SECOND, "longest time between flushes a client may ask for", kind=DURATION
    )
    min_output_buffer_timeout: Nanoseconds = option(
        25 * MILLISECOND, "shortest time between flushes a client may ask for", kind=DURATION
    )
    output_buffer_timeout: Nanoseconds = option(
        250 * MILLISECOND, "default time between flushes, as announced to clients", kind=DURATION, at_least=1
    )
    max_channel_consumers: int = option(0, "most consumers of a channel; 0: no limit")
    max_channel_leases: int = option(
        100_000, "most messages of a channel in flight to HTTP consumers at a time", at_least=1
    )
    max_holder_leases: int = option(
        10_000,
        "most messages in flight to one HTTP consumer at a time: to one name in the rights file, or to one address",
        at_least=1,
    )
    max_waiting_subs: int = option(
        1_000, "most HTTP requests that wait for messages at a time, including streams", at_least=1
    )
    busy_poll: Nanoseconds = option(
        100 * MICROSECOND,
        "how long to poll for work before sleeping, because waking up takes longer; 0: never poll",
        kind=DURATION,
        at_least=0,
    )

    # statsd
    statsd_address: str = option("", "UDP host:port of a statsd daemon to push metrics to")
    statsd_prefix: str = option("nsq.%s", "prefix of the metrics' names; %s is replaced by this host and port")
    statsd_interval: Nanoseconds = option(MINUTE, "time between pushes to statsd", kind=DURATION, at_least=1)
    statsd_mem_stats: bool = option(True, "push memory and garbage collection metrics too")
    statsd_udp_packet_size: int = option(508, "largest UDP packet to statsd, in bytes")
    statsd_exclude_ephemeral: bool = option(False, "don't push metrics of ephemeral topics and channels")

    # end to end latency
    e2e_processing_latency_percentile: tuple[float, ...] = option(
        (),
        "percentile to track of the time from publish to finish, above 0 and up to 1; comma separated for several",
        kind=FLOATS,
        toml="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time: Nanoseconds = option(
        10 * MINUTE, "time window of these percentiles", kind=DURATION
    )

    # TLS, compression, authorization
    tls_cert: str = option("", "path to the certificate file")
    tls_key: str = option("", "path to the key file")
    tls_client_auth_policy: str = option(
        "",
        "whether clients need a certificate: require (any), or require-verify (one signed by a CA in --tls-root-ca-file)",
    )
    tls_root_ca_file: str = option("", "path to the CA certificates for verifying clients and authorization servers")
    tls_required: TlsRequired = option(
        TlsRequired.NO,
        "whether clients must use TLS: true, false, or tcp-https (all but plain HTTP)",
        kind=TLS_REQUIRED,
    )
    tls_min_version: TlsVersion = option(
        TlsVersion.TLS_1_2, "lowest TLS version: tls1.0, tls1.1, tls1.2, or tls1.3", kind=TLS_VERSION
    )
    deflate: bool = option(True, "allow clients to use deflate compression")
    max_deflate_level: int = option(
        6,
        "highest deflate level a client may ask for; higher levels cost more CPU",
        at_least=1,
        at_most=9,
    )
    snappy: bool = option(True, "allow clients to use snappy compression")
    auth_http_address: tuple[str, ...] = option(
        (),
        "host:port or URL of an authorization server; with one, clients must AUTH",
        toml="auth_http_addresses",
    )
    auth_http_request_method: str = option("get", "HTTP method for the authorization server: get or post")

    rights_file: str = option(
        "",
        "path to a TOML file that grants rights to holders of tokens or certificates; empty: anyone may do anything",
    )

    policy_file: str = option(
        "",
        "path to a TOML file with limits and other rules for topics and channels, reloaded when it changes; empty: no "
        "rules, as in NSQ",
    )

    enable_experiment: tuple[str, ...] = option(
        (), "experiment to enable: topology-aware-consumption; unknown names are ignored"
    )

    # accepted, without effect
    verbose: bool = option(False, "use --log-level=debug", deprecated=True)
    worker_id: bool = option(False, "use --node-id", deprecated=True)

    def checked(self) -> Options:
        """Check the options, with NSQ's error messages. Return them with implied ones set. Raises StartupError."""
        check_hosts("http-allowed-host", self.http_allowed_host)
        check_origins("http-cors-origin", self.http_cors_origin)
        # As in NSQ, any client auth policy, even an unknown word, makes TLS mandatory.
        is_raised = bool(self.tls_client_auth_policy) and self.tls_required is TlsRequired.NO
        options = replace(self, tls_required=TlsRequired.YES) if is_raised else self
        # If only one of the two is given, setting up TLS fails later with a better message.
        if options.tls_required is not TlsRequired.NO and not (options.tls_cert or options.tls_key):
            raise StartupError("cannot require TLS client connections without TLS key and cert")
        if not self.lookupd_tls and (self.lookupd_tls_root_ca_file or self.lookupd_tls_cert or self.lookupd_tls_key):
            raise StartupError("certificates for nsqlookupd need --lookupd-tls")
        if self.auth_http_request_method not in ("get", "post"):
            raise StartupError("--auth-http-request-method must be post or get")
        if self.worker >= self.workers and self.worker >= 0:
            raise StartupError(f"--worker must be [0,{self.workers}), as --workers={self.workers}")
        self.check_remote()
        if options.remote and options.node_id == default_node_id():
            # Another machine that goes on with this node has another hostname, and its message ids have to be like ours.
            options = replace(options, node_id=_node_id_of(options.remote_name))
        for percentile in self.e2e_processing_latency_percentile:
            if not 0 < percentile <= 1:
                raise StartupError(f"invalid E2E processing latency percentile: {percentile:f}")
        return options

    @property
    def prefers_near_consumers(self) -> bool:
        return TOPOLOGY_AWARE in self.enable_experiment

    @property
    def extensions(self) -> tuple[str, ...]:
        """The protocol extensions that we offer to clients."""
        return tuple(name for name in EXTENSIONS if name != KEYS or self.idempotence_window)

    @property
    def defer_limit(self) -> Nanoseconds:
        """The longest delay of a deferred publish."""
        return self.max_defer_timeout or self.max_req_timeout
