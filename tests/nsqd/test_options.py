from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import nsqcommon.streams
from nsqcommon.options import (
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    HelpRequested,
    UsageError,
    format_value,
    parse,
    table_of,
)
from nsqcommon.startup import StartupError
from nsqd.ack_option import Ack
from nsqd.options import Options, TlsRequired, TlsVersion
from nsqd.tls import server_files
from tests.support.certificates import make_certificates


def read(*argv: str) -> Options:
    return parse(Options, argv, {}, "nsqd")


def usage_of_nsqd() -> str:
    with pytest.raises(HelpRequested) as help:
        read("--help")
    return help.value.usage


# NSQ's own flags, their types and what --help shows as their defaults. Only --tls-min-version has another default.
NSQ_FLAGS = """
    version                             bool
    config                              string
    verbose                             bool
    worker-id                           bool
    log-level                           level     info
    log-prefix                          string    "[nsqd] "
    node-id                             int       from the hostname
    tcp-address                         string    "0.0.0.0:4150"
    http-address                        string    "0.0.0.0:4151"
    https-address                       string    "0.0.0.0:4152"
    broadcast-address                   string    chosen at the start
    broadcast-tcp-port                  int       0
    broadcast-http-port                 int       0
    lookupd-tcp-address                 value
    auth-http-address                   value
    auth-http-request-method            string    "get"
    http-client-connect-timeout         duration  2s
    http-client-request-timeout         duration  5s
    topology-region                     string
    topology-zone                       string
    data-path                           string
    mem-queue-size                      int       10000
    max-bytes-per-file                  int       104857600
    sync-every                          int       2500
    sync-timeout                        duration  2s
    queue-scan-worker-pool-max          int       4
    queue-scan-selection-count          int       20
    msg-timeout                         duration  1m0s
    max-msg-timeout                     duration  15m0s
    max-msg-size                        int       1048576
    max-body-size                       int       5242880
    max-req-timeout                     duration  1h0m0s
    max-heartbeat-interval              duration  1m0s
    max-rdy-count                       int       2500
    max-output-buffer-size              int       65536
    max-output-buffer-timeout           duration  30s
    min-output-buffer-timeout           duration  25ms
    output-buffer-timeout               duration  250ms
    max-channel-consumers               int       0
    statsd-address                      string
    statsd-prefix                       string    "nsq.%s"
    statsd-interval                     duration  1m0s
    statsd-mem-stats                    bool      true
    statsd-udp-packet-size              int       508
    statsd-exclude-ephemeral            bool
    e2e-processing-latency-percentile   value
    e2e-processing-latency-window-time  duration  10m0s
    tls-cert                            string
    tls-key                             string
    tls-client-auth-policy              string
    tls-root-ca-file                    string
    tls-required                        value     false
    tls-min-version                     value     tls1.2
    deflate                             bool      true
    snappy                              bool      true
    max-deflate-level                   int       6
    enable-experiment                   value
"""


NSQ_KEYS = {
    "node-id": "id",
    "lookupd-tcp-address": "nsqlookupd_tcp_addresses",
    "auth-http-address": "auth_http_addresses",
    "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles",
}
FLAGS_ONLY = {"version", "config", "verbose", "worker-id"}


def nsq_flags() -> list[str]:
    return [line.split()[0] for line in NSQ_FLAGS.strip().splitlines()]


def test_the_file_has_nsqs_keys() -> None:
    keys = {row.flag: row.key for row in table_of(Options) if not row.is_deprecated}
    for flag in {*nsq_flags()} - FLAGS_ONLY:
        assert keys[flag] == NSQ_KEYS.get(flag, flag.replace("-", "_"))


def test_what_is_deprecated_in_nsq_is_here_too() -> None:
    assert {row.flag for row in table_of(Options) if row.is_deprecated} == {"verbose", "worker-id"}


@pytest.mark.parametrize("line", NSQ_FLAGS.strip().splitlines())
def test_nsqs_flags_are_there_with_their_defaults(line: str) -> None:
    flag, word, *default = line.split(maxsplit=2)
    heading = f"  --{flag}" if word == "bool" else f"  --{flag} {word}"
    lines = usage_of_nsqd().splitlines()
    text = lines[lines.index(heading) + 1]
    if default and default != ["false"]:
        assert f"(default {default[0]})" in text
    elif not default:
        assert "(default" not in text


@pytest.mark.parametrize(
    ("key", "rendered"),
    [
        ("id", "617"),
        ("nsqlookupd_tcp_addresses", "[]"),
        ("auth_http_addresses", "[]"),
        ("e2e_processing_latency_percentiles", "[]"),
        ("enable_experiment", "[]"),
        ("msg_timeout", "60000000000"),
        ("log_level", "2"),
        ("tls_required", "0"),
        ("tls_min_version", "771"),
        ("tls_cert", ""),
        ("snappy", "true"),
        ("ack", "written"),
    ],
)
def test_config_shows_values_as_nsq_does(key: str, rendered: str) -> None:
    assert format_value(Options(node_id=617), key) == rendered


@pytest.mark.parametrize("key", ["node_id", "lookupd_tcp_address", "version", "config", "verbose", "worker_id"])
def test_flag_spellings_are_no_config_keys(key: str) -> None:
    with pytest.raises(KeyError):
        format_value(Options(), key)


def test_the_node_id_comes_from_the_hostname(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "vm")
    options = read()
    assert options.node_id == 617
    assert options.broadcast_address == "", "it is chosen at the start"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-deflate-level=10"], "--max-deflate-level must be [1,9]"),
        (["--node-id=1024"], "--node-id must be [0,1024)"),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-required=tcp-https"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=any"], "cannot require TLS client connections without TLS key and cert"),
        (["--auth-http-request-method=GET"], "--auth-http-request-method must be post or get"),
        (["--e2e-processing-latency-percentile=0"], "invalid E2E processing latency percentile: 0.000000"),
        (["--e2e-processing-latency-percentile=1.5"], "invalid E2E processing latency percentile: 1.500000"),
        (["--mem-queue-size=-1"], "--mem-queue-size must be >= 0"),
        (["--sync-timeout=0"], "--sync-timeout must be > 0"),
        (["--output-buffer-timeout=0"], "--output-buffer-timeout must be > 0"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(argv: list[str], message: str) -> None:
    with pytest.raises(StartupError) as refused:
        read(*argv)
    assert str(refused.value) == f"failed to instantiate nsqd - {message}"


def test_any_certificate_needs_pyopenssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_certificates(tmp_path)
    options = read(f"--tls-cert={made.certificate}", f"--tls-key={made.key}", "--tls-client-auth-policy=require")
    assert server_files(options) is not None
    monkeypatch.delitem(sys.modules, "nsqcommon.streams.any_certificate", raising=False)
    monkeypatch.setattr(nsqcommon.streams, "any_certificate", None, raising=False)
    monkeypatch.delattr(nsqcommon.streams, "any_certificate")
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    with pytest.raises(
        StartupError, match=r"needs pyOpenSSL: pip install '\.\[any-client-certificate\]', in a checkout of nsq-suite$"
    ):
        server_files(options)


def test_a_percentile_that_is_no_number_is_refused() -> None:
    with pytest.raises(StartupError, match=r"^Could not parse: x$"):
        read("--e2e-processing-latency-percentile=x")


@pytest.mark.parametrize(
    ("text", "version"),
    [("tls1.3", TlsVersion.TLS_1_3), ("TLS1.2", TlsVersion.TLS_1_2), ("", TlsVersion.TLS_1_2)],
)
def test_tls_versions_are_read_in_any_case(text: str, version: TlsVersion) -> None:
    assert read(f"--tls-min-version={text}").tls_min_version == version


@pytest.mark.parametrize(("word", "value"), [("False", TlsRequired.NO), ("f", TlsRequired.NO), ("0", TlsRequired.NO)])
def test_tls_required_takes_boolean_words(word: str, value: TlsRequired) -> None:
    assert read(f"--tls-required={word}").tls_required == value


def test_the_acknowledgement_can_differ_by_topic() -> None:
    options = read("--ack=memory", "--topic-ack=orders=synced", "--topic-ack=a=written", "--topic-ack=a=synced")
    assert options.ack == Ack.MEMORY
    assert options.topic_acks == {"orders": Ack.SYNCED, "a": Ack.SYNCED}


def test_a_publisher_hears_after_the_write_unless_told_otherwise() -> None:
    assert (read().ack, read().topic_acks) == (Ack.WRITTEN, {})


def test_deferral_is_bounded_like_requeueing_unless_told_otherwise() -> None:
    assert read().defer_limit == HOUR
    assert read("--max-defer-timeout=48h").defer_limit == 48 * HOUR


def test_durations_are_nanoseconds() -> None:
    options = read("--sync-timeout=1.5s")
    assert options.sync_timeout == 1500 * MILLISECOND
    assert options.drain_timeout == 5 * SECOND
    assert options.msg_timeout == MINUTE


@pytest.mark.parametrize(
    ("word", "size"), [("0", 0), ("1500", 1500), ("2kB", 2000), ("10GB", 10_000_000_000), ("1GiB", 1 << 30)]
)
def test_sizes_may_have_units(word: str, size: int) -> None:
    assert read(f"--retention-bytes={word}").retention_bytes == size


@pytest.mark.parametrize("word", ["", "GB", "-1", "1.5GB", "10gb", "10 GB"])
def test_other_sizes_are_refused(word: str) -> None:
    with pytest.raises(UsageError):
        read(f"--retention-bytes={word}")


def test_retention_can_differ_by_topic() -> None:
    options = read("--topic-retention=a=24h", "--topic-retention=a=10GB", "--topic-retention=b=0")
    assert options.topic_retentions == {"a": (24 * HOUR, 10_000_000_000), "b": (0, 0)}


@pytest.mark.parametrize("entry", ["24h", "=24h", "a=", "a=1day", "a=-1h"])
def test_other_retentions_are_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="must be TOPIC=DURATION or TOPIC=SIZE"):
        read(f"--topic-retention={entry}")
