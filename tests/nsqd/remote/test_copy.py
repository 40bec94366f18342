"""What the options of a node say about its copy."""

from __future__ import annotations

import platform

import pytest

from nsqcommon.startup import StartupError
from nsqd.options import Options
from nsqd.remote.copy import settings_of
from nsqd.remote.location import StoreScheme

STORE = "s3://bucket/nsq"


def test_durations_are_seconds_and_the_last_option_of_a_name_counts() -> None:
    settings = settings_of(
        Options(remote=STORE, remote_name="orders", remote_option=("region=a", "timeout=9s", "region=b"))
    )
    assert (settings.location.scheme, settings.location.bucket, settings.name) == (StoreScheme.S3, "bucket", "orders")
    assert (settings.interval, settings.delay, settings.timeout) == (0.05, 1.0, 10.0)
    assert settings.options == {"region": "b", "timeout": "9s"}
    assert (settings.rate, settings.is_strict) == (100_000_000, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(remote="gcs://b/p"), "--remote must be .*write gs:// for gcs://"),
        (Options(remote="/mnt/shared"), "--remote must be s3://"),
        (Options(remote=STORE, remote_name="a/b"), "--remote-name must be a name of letters"),
        (Options(remote=STORE, remote_option=("region",)), "--remote-option must be NAME=VALUE"),
    ],
)
def test_what_names_no_store_or_no_node_is_refused(options: Options, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        settings_of(options)


@pytest.mark.parametrize(
    ("options", "address"),
    [
        (Options(remote=STORE), f"{platform.node()}:4151"),
        (Options(remote=STORE, broadcast_address="a.example"), "a.example:4151"),
        (Options(remote=STORE, broadcast_address="a.example", broadcast_http_port=80), "a.example:80"),
        (Options(remote=STORE, http_address="127.0.0.1:0"), ""),
        (Options(remote=STORE, http_address=""), ""),
    ],
)
def test_the_next_owner_asks_for_us_where_our_clients_do(options: Options, address: str) -> None:
    assert settings_of(options).http_address == address
