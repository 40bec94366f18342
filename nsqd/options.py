"""The settings of nsqd: NSQ's, under their own names and with their own defaults, and some of our own.

The help text of a setting that NSQ has and that has no effect here says so.
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
from nsqd.log_options import LogOptions

MAX_NODE_ID: Final = 1024  # ten bits of every message id

MAX_WORKERS: Final = 64  # a bound for mistakes; the last one listens 6300 ports above the first

TOPOLOGY_AWARE: Final = "topology-aware-consumption"


class TlsRequired(IntEnum):
    """The connections that must use TLS. The numbers are those that `/config/tls_required` answers."""

    NO = 0
    EXCEPT_HTTP = 1  # "tcp-https": plain HTTP stays allowed
    YES = 2

    @property
    def word(self) -> str:
        return ("false", "tcp-https", "true")[self]


class TlsVersion(IntEnum):
    """A TLS version. The numbers are those on the wire, and those that `/config/tls_min_version` answers."""

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
    """Derive the node id from the hostname as NSQ does, so that a node keeps its id when it migrates from NSQ."""
    return crc32(md5(platform.node().encode(), usedforsecurity=False).digest()) % MAX_NODE_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(LogOptions):
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
        "address to listen on for HTTPS clients, once --tls-cert is given: host:port; empty: no HTTPS",
    )
    http_allowed_host: tuple[str, ...] = option(
        (),
        "host name by which browsers may call this nsqd over HTTP, besides localhost, any IP address, the machine's name "
        "and --broadcast-address; *: any name; programs may use any",
        toml="http_allowed_hosts",
    )
    http_same_site: bool = option(
        False,
        "refuse to publish for web pages of other sites; everything else that changes something is always refused",
    )
    http_cors_origin: tuple[str, ...] = option(
        (),
        "site whose pages may consume over HTTP, as https://page.example; they may do nothing else",
        toml="http_cors_origins",
    )
    broadcast_address: str = computed_option(
        str,
        "chosen at the start",
        "address that is registered with nsqlookupd; if it is not given, the hostname, or if that resolves to nothing or "
        "to loopback, the address from which the first nsqlookupd is reached; or the only address in --tcp-address",
    )
    broadcast_tcp_port: int = option(0, "TCP port that is registered with nsqlookupd; 0: the port listened on")
    broadcast_http_port: int = option(0, "HTTP port that is registered with nsqlookupd; 0: the port listened on")
    lookupd_tcp_address: tuple[str, ...] = option(
        (),
        "TCP address of an nsqlookupd to register with",
        toml="nsqlookupd_tcp_addresses",
        at_run_time=True,
    )
    http_client_connect_timeout: Nanoseconds = option(
        2 * SECOND,
        "how long to wait for an HTTP connection to nsqlookupd or the authorization server",
        kind=DURATION,
    )
    http_client_request_timeout: Nanoseconds = option(
        5 * SECOND,
        "how long to wait for an HTTP answer of nsqlookupd or the authorization server",
        kind=DURATION,
    )
    lookupd_tls: bool = option(False, "speak TLS with nsqlookupd, to its TCP and its HTTP side")
    lookupd_tls_root_ca_file: str = option(
        "", "path to the CA certificates that verify nsqlookupd; empty: those of the system"
    )
    lookupd_tls_cert: str = option("", "path to the certificate to show to nsqlookupd")
    lookupd_tls_key: str = option("", "path to the key of this certificate; empty: it is in the same file")
    topology_region: str = option("", "region that this nsqd is in; consumers of the same one are told so")
    topology_zone: str = option("", "zone that this nsqd is in; consumers of the same one are told so")

    # the node, its data and its log
    node_id: int = computed_option(
        default_node_id,
        "from the hostname",
        "unique part of this node's message ids",
        toml="id",
        at_least=0,
        below=MAX_NODE_ID,
    )
    data_path: str = option("", "folder for messages; empty: the current one")
    workers: int = option(
        0,
        "how many nsqd processes to run here under one supervisor, each in a folder of its own in --data-path and a "
        "hundred ports above the one before; 0: one nsqd without a supervisor",
        at_least=0,
        at_most=MAX_WORKERS,
    )
    worker: int = option(
        -1,
        "which of the --workers to be, from 0, without a supervisor; the supervisor starts its workers with it",
        at_least=-1,
    )
    take_over: bool = option(
        False,
        "start even though an nsqd on another machine is using the data path, which ends that one; only if it cannot be stopped",
    )
    import_go: bool = option(
        True, "at start, take over the messages of a Go nsqd in the data path (nsqd.dat and its queues), once"
    )
    log_prefix: str = option("[nsqd] ", "what each line of the log begins with")
    drain_timeout: Nanoseconds = option(
        5 * SECOND, "how long clients may take to end after a signal to stop", kind=DURATION, at_least=0
    )

    drain_deadline: Nanoseconds = option(
        MINUTE, "how long a drain (SIGUSR1 or POST /drain) may take to deliver what waits", kind=DURATION, at_least=0
    )
    drain_stay: Nanoseconds = option(
        0,
        "how long a node that has drained stays, so that its history can be read to the end; POST /drain?stay= overrides it",
        kind=DURATION,
        at_least=0,
    )

    # memory and disk: more in LogOptions
    queue_scan_worker_pool_max: int = option(4, "no effect: deadlines are kept exactly, not found by scanning")
    queue_scan_selection_count: int = option(20, "no effect: deadlines are kept exactly, not found by scanning")

    # messages
    msg_timeout: Nanoseconds = option(
        MINUTE, "time a consumer has to finish a message before it comes back", kind=DURATION
    )
    max_msg_timeout: Nanoseconds = option(15 * MINUTE, "longest time that a consumer may ask for", kind=DURATION)
    max_msg_size: int = option(1_048_576, "largest message, in bytes", at_least=1)
    max_req_timeout: Nanoseconds = option(HOUR, "longest delay of a requeue", kind=DURATION)
    max_defer_timeout: Nanoseconds = option(
        0, "longest delay of a deferred publish; 0: as --max-req-timeout", kind=DURATION, at_least=0
    )
    max_body_size: int = option(5_242_880, "largest command body, in bytes", at_least=1)
    max_identify_size: int = option(
        65_536, "largest body of IDENTIFY and AUTH, in bytes; at most --max-body-size", at_least=1
    )
    max_unfinished_bytes: int = option(
        134_217_728,
        "bytes of incomplete bodies, over all connections; beyond it the body that began first is dropped",
        at_least=1,
    )

    # clients
    max_heartbeat_interval: Nanoseconds = option(
        MINUTE, "longest time between heartbeats that a client may ask for", kind=DURATION
    )
    max_rdy_count: int = option(2500, "highest RDY of a client")
    max_output_buffer_size: int = option(65_536, "largest output buffer that a client may ask for, in bytes")
    max_output_buffer_timeout: Nanoseconds = option(
        30 * SECOND, "longest time between flushes that a client may ask for", kind=DURATION
    )
    min_output_buffer_timeout: Nanoseconds = option(
        25 * MILLISECOND, "shortest time between flushes that a client may ask for", kind=DURATION
    )
    output_buffer_timeout: Nanoseconds = option(
        250 * MILLISECOND, "default of the time between flushes that clients are told", kind=DURATION, at_least=1
    )
    max_channel_consumers: int = option(0, "most consumers on one channel; 0: no limit")
    max_channel_leases: int = option(
        100_000, "most messages of one channel that consumers over HTTP hold at a time", at_least=1
    )
    max_holder_leases: int = option(
        10_000,
        "most messages that one consumer over HTTP holds at a time: one name of the rights file, or one address",
        at_least=1,
    )
    max_waiting_subs: int = option(
        1_000, "most requests that wait for messages over HTTP at a time, streams included", at_least=1
    )
    busy_poll: Nanoseconds = option(
        100 * MICROSECOND,
        "how long to poll for work before going to sleep, as waking up takes longer; 0: sleep at once",
        kind=DURATION,
        at_least=0,
    )

    # statsd
    statsd_address: str = option("", "UDP host:port of a statsd daemon to push metrics to")
    statsd_prefix: str = option("nsq.%s", "what each metric's name begins with; %s is this host and port")
    statsd_interval: Nanoseconds = option(MINUTE, "time between pushes to statsd", kind=DURATION, at_least=1)
    statsd_mem_stats: bool = option(True, "push metrics of memory and garbage collection too")
    statsd_udp_packet_size: int = option(508, "largest packet for statsd, in bytes")
    statsd_exclude_ephemeral: bool = option(False, "leave out ephemeral topics and channels")

    # end to end latency
    e2e_processing_latency_percentile: tuple[float, ...] = option(
        (),
        "percentile of the time from publish to finish to keep track of, above 0 and up to 1, also comma separated",
        kind=FLOATS,
        toml="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time: Nanoseconds = option(
        10 * MINUTE, "how far back these percentiles look", kind=DURATION
    )

    # TLS, compression, authorization
    tls_cert: str = option("", "path to the certificate file")
    tls_key: str = option("", "path to the key file")
    tls_client_auth_policy: str = option(
        "",
        "whether clients need a certificate: require (any), or require-verify (one that --tls-root-ca-file vouches for)",
    )
    tls_root_ca_file: str = option("", "path to the CA certificates that verify clients and authorization servers")
    tls_required: TlsRequired = option(
        TlsRequired.NO,
        "whether clients must use TLS: true, false, or tcp-https (all but plain HTTP)",
        kind=TLS_REQUIRED,
    )
    tls_min_version: TlsVersion = option(
        TlsVersion.TLS_1_2, "lowest TLS version: tls1.0, tls1.1, tls1.2, or tls1.3", kind=TLS_VERSION
    )
    deflate: bool = option(True, "let clients ask for deflate compression")
    max_deflate_level: int = option(
        6,
        "highest deflate level that a client may ask for; each level costs more CPU",
        at_least=1,
        at_most=9,
    )
    snappy: bool = option(True, "let clients ask for snappy compression")
    auth_http_address: tuple[str, ...] = option(
        (),
        "host:port or URL of an authorization server; clients then have to AUTH",
        toml="auth_http_addresses",
    )
    auth_http_request_method: str = option("get", "how to ask the authorization server: get or post")

    rights_file: str = option(
        "",
        "path to a TOML file that says who may do what, by token or certificate; empty: everybody may do everything",
    )

    policy_file: str = option(
        "",
        "path to a TOML file with bounds and policies for topics and channels, watched for changes; empty: all is as in NSQ",
    )

    enable_experiment: tuple[str, ...] = option(
        (), "experiment to switch on: topology-aware-consumption; unknown names are ignored"
    )

    # accepted, without effect
    verbose: bool = option(False, "use --log-level=debug", deprecated=True)
    worker_id: bool = option(False, "use --node-id", deprecated=True)

    def checked(self) -> Options:
        """Return the options after NSQ's own checks, worded as in NSQ, with options set that follow from others."""
        check_hosts("http-allowed-host", self.http_allowed_host)
        check_origins("http-cors-origin", self.http_cors_origin)
        # To NSQ, any policy, even an unknown one, implies that TLS is required.
        is_raised = bool(self.tls_client_auth_policy) and self.tls_required is TlsRequired.NO
        options = replace(self, tls_required=TlsRequired.YES) if is_raised else self
        # With only one of the two, setting up TLS will fail later and say why.
        if options.tls_required is not TlsRequired.NO and not (options.tls_cert or options.tls_key):
            raise StartupError("cannot require TLS client connections without TLS key and cert")
        if not self.lookupd_tls and (self.lookupd_tls_root_ca_file or self.lookupd_tls_cert or self.lookupd_tls_key):
            raise StartupError("certificates for nsqlookupd need --lookupd-tls")
        if self.auth_http_request_method not in ("get", "post"):
            raise StartupError("--auth-http-request-method must be post or get")
        if self.worker >= self.workers and self.worker >= 0:
            raise StartupError(f"--worker must be [0,{self.workers}), as --workers={self.workers}")
        for percentile in self.e2e_processing_latency_percentile:
            if not 0 < percentile <= 1:
                raise StartupError(f"invalid E2E processing latency percentile: {percentile:f}")
        return options

    @property
    def prefers_near_consumers(self) -> bool:
        return TOPOLOGY_AWARE in self.enable_experiment

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of the protocol that clients may have."""
        return tuple(name for name in EXTENSIONS if name != KEYS or self.idempotence_window)

    @property
    def defer_limit(self) -> Nanoseconds:
        """The longest delay of a deferred publish."""
        return self.max_defer_timeout or self.max_req_timeout
