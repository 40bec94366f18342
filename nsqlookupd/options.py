"""The settings of nsqlookupd: NSQ's, with NSQ's names and defaults, and a few of ours."""

from __future__ import annotations

import ipaddress
import platform
from dataclasses import dataclass
from typing import Final

from nsqcommon.options import DURATION, HOUR, MINUTE, SECOND, BaseOptions, Nanoseconds, computed_option, one_of, option
from nsqcommon.origin import check_hosts
from nsqcommon.startup import StartupError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CLIENT_AUTH: Final = one_of("", "require-verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    log_prefix: str = option("[nsqlookupd] ", "prefix of each log line")

    # addresses
    tcp_address: str = option("0.0.0.0:4160", "address to listen on for nsqd: host:port, or the path of a unix socket")
    http_address: str = option(
        "0.0.0.0:4161", "address to listen on for HTTP clients: host:port, or the path of a unix socket"
    )
    http_allowed_host: tuple[str, ...] = option(
        (),
        "host name that browsers may use for nsqlookupd, besides localhost, IP addresses, the machine's name "
        "and --broadcast-address; *: any name; other programs may use any",
        toml="http_allowed_hosts",
    )
    broadcast_address: str = computed_option(
        platform.node, "the hostname", "address announced to nsqd, where it asks for channels over HTTP"
    )

    # producers
    inactive_producer_timeout: Nanoseconds = option(
        5 * MINUTE, "how long after its last ping a producer still counts as active", kind=DURATION
    )
    tombstone_lifetime: Nanoseconds = option(
        45 * SECOND, "how long a tombstone hides a producer of one topic", kind=DURATION
    )
    missing_lifetime: Nanoseconds = option(
        24 * HOUR,
        "how long /nodes?missing=true lists a missing producer; 0: never",
        kind=DURATION,
        at_least=0,
    )
    max_lookup_wait: Nanoseconds = option(
        5 * MINUTE, "maximum of wait= in /lookup and /nodes, which wait for a change", kind=DURATION, at_least=0
    )

    # connecting back
    dial_back: bool = option(
        True,
        "connect once to the broadcast address of each nsqd that registers, and report unreachable ones in /nodes",
    )
    dial_back_to: tuple[str, ...] = option(
        (),
        "network (CIDR) where nsqlookupd may connect back to any nsqd; elsewhere only to an nsqd's own address",
    )

    # TLS
    tls_cert: str = option("", "path to the certificate file; if given, both listeners accept TLS only")
    tls_key: str = option("", "path to the key file; empty: the key is in the certificate file")
    tls_client_auth_policy: str = option(
        "",
        "require-verify: clients need a certificate from an authority in --tls-root-ca-file; empty: they need none",
        kind=CLIENT_AUTH,
    )
    tls_root_ca_file: str = option("", "path to the CA certificates for client certificates")

    # accepted without effect
    verbose: bool = option(False, "use --log-level=debug", deprecated=True)

    @property
    def networks(self) -> list[Network]:
        """Parse --dial-back-to. Raise StartupError for an invalid network."""
        try:
            return [ipaddress.ip_network(text, strict=False) for text in self.dial_back_to]
        except ValueError as error:
            raise StartupError(f"--dial-back-to: {error}") from error

    def checked(self) -> Options:
        _ = self.networks
        check_hosts("http-allowed-host", self.http_allowed_host)
        if not self.tls_cert and (self.tls_key or self.tls_client_auth_policy or self.tls_root_ca_file):
            raise StartupError("TLS options need --tls-cert")
        if self.tls_client_auth_policy and not self.tls_root_ca_file:
            raise StartupError("--tls-client-auth-policy needs --tls-root-ca-file")
        return self
