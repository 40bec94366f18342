"""The settings of nsqadmin: NSQ's, with their names and defaults, and a few of ours."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from posixpath import normpath
from typing import Final
from urllib.parse import urlsplit

from nsqadmin.oidc.urls import why_not_a_url
from nsqcommon.net import AddressError, parse_address
from nsqcommon.option_kinds import SECRET_URLS
from nsqcommon.options import DURATION, HOUR, MINUTE, SECOND, BaseOptions, Nanoseconds, one_of, option
from nsqcommon.origin import check_hosts
from nsqcommon.passwords import mask_url
from nsqcommon.recipients import Recipients
from nsqcommon.startup import StartupError

TLS_1_2: Final = "tls1.2"
TLS_1_3: Final = "tls1.3"
TLS_VERSION: Final = one_of(TLS_1_2, TLS_1_3)
# Parameters of the provider's login page that nsqadmin sets itself, or that would replace those.
_OURS_IN_A_LOGIN: Final = frozenset(
    (
        "client_id",
        "code_challenge",
        "code_challenge_method",
        "nonce",
        "redirect_uri",
        "request",
        "request_uri",
        "response_mode",
        "response_type",
        "scope",
        "state",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BaseOptions):
    log_prefix: str = option("[nsqadmin] ", "prefix of each log line")

    # addresses
    http_address: str = option(
        "0.0.0.0:4171",
        "address to listen on for HTTP clients: host:port, or the path of a unix socket; empty: only HTTPS",
    )
    https_address: str = option(
        "0.0.0.0:4172", "address to listen on for HTTPS clients, if --tls-cert is given: host:port; empty: no HTTPS"
    )
    allowed_host: tuple[str, ...] = option(
        (),
        "host name by which browsers may call nsqadmin, besides localhost, any IP address, the machine's name and those "
        "of --http-address and --https-address; *: any name, for a proxy that checks it",
        toml="allowed_hosts",
    )
    base_path: str = option("/", "path in front of every URL, if a proxy passes it on")
    lookupd_http_address: tuple[str, ...] = option(
        (), "HTTP address of an nsqlookupd", toml="nsqlookupd_http_addresses", at_run_time=True
    )
    nsqd_http_address: tuple[str, ...] = option((), "HTTP address of an nsqd", toml="nsqd_http_addresses")
    snapshot: str = option("", "file to show instead of a cluster, as GET /api/v2/snapshot returns it; read-only")

    # HTTPS
    tls_cert: str = option("", "path to the certificate file for HTTPS; read again when it has been renewed")
    tls_key: str = option("", "path to the key file; empty: the key is in the certificate file")
    tls_min_version: str = option(TLS_1_2, "lowest TLS version: tls1.2 or tls1.3", kind=TLS_VERSION)

    # requests to nsqd and nsqlookupd
    http_client_connect_timeout: Nanoseconds = option(2 * SECOND, "how long to wait for a connection", kind=DURATION)
    http_client_request_timeout: Nanoseconds = option(5 * SECOND, "how long to wait for an answer", kind=DURATION)
    http_client_tls_cert: str = option("", "path to nsqadmin's own certificate")
    http_client_tls_key: str = option("", "path to the key of nsqadmin's own certificate")
    http_client_tls_root_ca_file: str = option("", "path to the certificates of the authorities to trust")
    http_client_tls_insecure_skip_verify: bool = option(False, "accept any certificate")
    nsqd_token_file: str = option("", "file with the token to send to nsqds that have a --rights-file")
    nsqd_token_to: tuple[str, ...] = option(
        (),
        "network (10.0.0.0/8) or name (nsqd-*.example.com) of nsqds to send the token to, "
        "in addition to --nsqd-http-address",
    )
    nsqd_token_over_http: bool = option(
        False, "send the token also over plain HTTP, and where certificates are not verified"
    )
    max_answer_size: int = option(
        16 << 20, "largest answer to read from one node, in bytes once unpacked", at_least=1 << 16
    )
    max_cluster_size: int = option(128 << 20, "largest size of all nodes' answers together, in bytes", at_least=1 << 16)
    max_nodes: int = option(1000, "maximum number of listed nodes to poll", at_least=1)
    sample_interval: Nanoseconds = option(
        5 * SECOND,
        "how often to poll all nodes; less often if that takes too much processor time",
        kind=DURATION,
        at_least=1,
    )
    discovery_interval: Nanoseconds = option(
        15 * SECOND,
        "how often to poll every nsqlookupd for the list of nodes; ours also reports changes at once",
        kind=DURATION,
        at_least=1,
    )
    sample_clients: int = option(
        2000,
        "with up to this many consumers, each sample requests all of them; with more, only where it matters",
        at_least=0,
    )
    history_series: int = option(
        1000, "number of topics and channels, busiest first, with charts of hours and days in memory", at_least=0
    )
    history_file: str = option("", "file that keeps the charts, and the nodes with their last answers, across restarts")

    # access
    acl_http_header: str = option("X-Forwarded-User", "header in which a proxy in front of nsqadmin names the user")
    acl_groups_header: str = option(
        "X-Forwarded-Groups", "header in which that proxy names the user's groups, separated by commas"
    )
    admin_user: tuple[str, ...] = option((), "user who may do everything", toml="admin_users")
    allow_config_from_cidr: str = option("127.0.0.1/8", "network from which /config may be used; empty: any")
    trusted_proxy: tuple[str, ...] = option(
        (),
        "network of proxies whose headers about the user are trusted; without it, any client's headers are",
        toml="trusted_proxies",
    )
    auth_file: str = option("", "file of users and their password hashes; if given, everyone has to log in")
    roles_file: str = option("", "TOML file with roles and their users")
    oidc_issuer: str = option(
        "", "issuer URL of an OpenID Connect provider; if given, people log in there; needs the extra admin-oidc"
    )
    oidc_client_id: str = option("", "id by which the provider knows nsqadmin")
    oidc_client_secret_file: str = option("", "file with the client secret; empty: nsqadmin is a public client")
    oidc_scope: tuple[str, ...] = option(
        ("openid", "profile", "email"),
        "scope to ask the provider for; some send a refresh token only for offline_access, or groups only for groups",
        toml="oidc_scopes",
    )
    oidc_name_claim: str = option("email", "claim with the user's name")
    oidc_groups_claim: str = option("groups", "claim with the user's groups, or a path to it: realm_access.roles")
    oidc_prefix: str = option(
        "", "prefix of the provider's users and groups in --roles-file and --admin-user, such as oidc:"
    )
    oidc_authorization_parameter: tuple[str, ...] = option(
        (),
        "further parameter of the provider's login page, such as access_type=offline",
        toml="oidc_authorization_parameters",
    )
    oidc_ca_file: str = option("", "path to the certificates of the authorities to trust for the provider")
    oidc_max_session: Nanoseconds = option(
        24 * HOUR,
        "longest time between two logins, however long the provider confirms the session",
        kind=DURATION,
        at_least=SECOND,
    )
    session_key_file: str = option(
        "",
        "file of keys for session cookies, which nsqadmins that share sessions have in common; see nsqadmin.session_keys",
    )
    read_only: bool = option(False, "refuse all changes")
    enable_publish: bool = option(False, "let users who have the right publish messages")
    mask: tuple[str, ...] = option(
        (),
        "what to hide in messages from users without the right payload: $.path.to.a.field of JSON, or a regular "
        "expression",
        toml="masks",
    )
    decoders_file: str = option(
        "", "TOML file that says which topics have bodies in Protobuf, Avro, MessagePack or compressed"
    )
    audit_file: str = option("", "file to append each action to, as a line of JSON")

    # other sources and receivers
    pipeline_results: str = option("", "file that nsqpipe aggregate --results writes; shown on the topics' pages")
    graphite_url: str = option("", "URL of graphite")
    proxy_graphite: bool = option(False, "proxy requests for /render to graphite")
    statsd_counter_format: str = option("stats.counters.%s.count", "name that statsd gives to a counter")
    statsd_gauge_format: str = option("stats.gauges.%s", "name that statsd gives to a gauge")
    statsd_interval: Nanoseconds = option(MINUTE, "how often nsqd pushes to statsd", kind=DURATION)
    statsd_prefix: str = option("nsq.%s", "prefix that nsqd puts before each name; %s is the node")
    notification_http_endpoint: str = option("", "URL to post each action to")
    incident_webhook: tuple[str, ...] = option(
        (),
        "URL to post incidents to as JSON when they open, get worse or close",
        kind=SECRET_URLS,
        toml="incident_webhooks",
    )
    external_url: str = option(
        "",
        "URL under which people open nsqadmin, without --base-path, for copied links and links in posts about incidents",
    )

    # for work on the pages themselves
    dev_static_dir: str = option("", "folder to read static files from, at each request")

    # accepted, but without effect
    verbose: bool = option(False, "use --log-level=debug", deprecated=True)

    def checked(self) -> Options:
        self._check_cluster()
        self._check_listeners()
        if self.http_client_tls_cert and not self.http_client_tls_key:
            raise StartupError("--http-client-tls-key must be specified with --http-client-tls-cert")
        if self.http_client_tls_key and not self.http_client_tls_cert:
            raise StartupError("--http-client-tls-cert must be specified with --http-client-tls-key")
        for flag, addresses in (
            ("lookupd-http-address", self.lookupd_http_address),
            ("nsqd-http-address", self.nsqd_http_address),
        ):
            for address in addresses:
                _check_address(flag, address)
        _check_recipients("nsqd-token-to", self.nsqd_token_to)
        check_hosts("allowed-host", self.allowed_host)
        if self.proxy_graphite:
            _check_url("graphite-url", self.graphite_url)
        for url in self.incident_webhook:
            _check_url("incident-webhook", url, shown=mask_url(url))
        if self.external_url:
            _check_url("external-url", self.external_url)
        self._check_oidc()
        if self.allow_config_from_cidr:
            _check_network("allow-config-from-cidr", self.allow_config_from_cidr)
        for network in self.trusted_proxy:
            _check_network("trusted-proxy", network)
        return replace(self, base_path=clean_base_path(self.base_path))

    def _check_cluster(self) -> None:
        if self.snapshot:
            if self.lookupd_http_address or self.nsqd_http_address:
                raise StartupError("use --snapshot or addresses of a cluster, not both")
        elif not self.lookupd_http_address and not self.nsqd_http_address:
            raise StartupError("--nsqd-http-address or --lookupd-http-address required")
        elif self.lookupd_http_address and self.nsqd_http_address:
            raise StartupError("use --nsqd-http-address or --lookupd-http-address not both")

    def _check_listeners(self) -> None:
        if not self.tls_cert and self.tls_key:
            raise StartupError("--tls-key needs --tls-cert")
        if not self.http_address and not self.serves_https:
            raise StartupError("without --http-address nsqadmin needs --tls-cert and --https-address")

    def _check_oidc(self) -> None:
        if not self.oidc_issuer:
            for flag, value in (
                ("oidc-client-id", self.oidc_client_id),
                ("oidc-client-secret-file", self.oidc_client_secret_file),
                ("session-key-file", self.session_key_file),
            ):
                if value:
                    raise StartupError(f"--{flag} needs --oidc-issuer")
            return
        for flag, value, why in (
            ("oidc-client-id", self.oidc_client_id, ""),
            ("external-url", self.external_url, ": the provider leads users back there"),
            ("roles-file", self.roles_file, ": otherwise everyone with an account there could do everything"),
        ):
            if not value:
                raise StartupError(f"--oidc-issuer needs --{flag}{why}")
        if reason := why_not_a_url(self.oidc_issuer):
            raise StartupError(f"failed to parse --oidc-issuer ({self.oidc_issuer}) - {reason}")
        parts = urlsplit(self.external_url)
        if parts.path.rstrip("/") or parts.query or parts.fragment or parts.username is not None:
            raise StartupError(f"--external-url ({self.external_url}) must be https://host; the path is --base-path")
        for text in self.oidc_authorization_parameter:
            name, sign, _ = text.partition("=")
            if not sign or not name or name in _OURS_IN_A_LOGIN:
                raise StartupError(
                    f"failed to parse --oidc-authorization-parameter ({text}) - expected NAME=VALUE, with a name that nsqadmin does not set itself"
                )
        if "openid" not in self.oidc_scope:
            raise StartupError("--oidc-scope needs openid, too")

    @property
    def serves_https(self) -> bool:
        return bool(self.tls_cert and self.https_address)

    @property
    def prefix(self) -> str:
        """The path before each route: the base path, or "" if that is "/"."""
        return "" if self.base_path == "/" else self.base_path


def clean_base_path(path: str) -> str:
    """Write the path with a leading and without a trailing slash: `nsqadmin/` becomes `/nsqadmin`."""
    return "/" + normpath("/" + path).lstrip("/")


def _check_address(flag: str, address: str) -> None:
    try:
        where = parse_address(address)
    except AddressError as error:
        raise StartupError(f"failed to resolve --{flag} ({address}) - {error}") from error
    if where.is_unix:
        raise StartupError(f"failed to resolve --{flag} ({address}) - address {address}: missing port in address")


def _check_recipients(flag: str, entries: tuple[str, ...]) -> None:
    try:
        Recipients(entries)
    except ValueError as error:
        raise StartupError(f"failed to parse --{flag} - {error}") from error


def _check_url(flag: str, url: str, shown: str = "") -> None:
    """Raise StartupError unless this is the URL of a web server. The error shows `shown`, by default the URL."""
    try:
        parts = urlsplit(url)
        reason = "" if parts.scheme in ("http", "https") and parts.hostname else "expected http://host or https://host"
    except ValueError as error:
        reason = str(error)
    if reason:
        raise StartupError(f"failed to parse --{flag} ({shown or url}) - {reason}")


def _check_network(flag: str, text: str) -> None:
    try:
        if "/" not in text:
            raise ValueError(f"invalid CIDR address: {text}")
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise StartupError(f"failed to parse --{flag} ({text}) - {error}") from error
