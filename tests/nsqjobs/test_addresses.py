from __future__ import annotations

import pytest

from nsqclient import ConfigError
from nsqjobs.addresses import parse_url


@pytest.mark.parametrize(
    ("url", "nsqd", "lookupd"),
    [
        ("nsq://", ("127.0.0.1:4150",), ()),
        ("nsq://broker", ("broker:4150",), ()),
        ("nsq://a:1,b:2/", ("a:1", "b:2"), ()),
        ("nsq://[::1]:4150,[::2]", ("[::1]:4150", "[::2]:4150"), ()),
        ("nsq+lookupd://a,b:5161", (), ("a:4161", "b:5161")),
    ],
)
def test_addresses(url: str, nsqd: tuple[str, ...], lookupd: tuple[str, ...]) -> None:
    endpoint = parse_url(url)
    assert (endpoint.nsqd, endpoint.lookupd) == (nsqd, lookupd)


def test_secret_and_options() -> None:
    config = parse_url("nsq://:s%40crt@a:1?tls_v1=true&dial_timeout=3s", max_in_flight=7).config
    assert (config.auth_secret, config.tls, config.dial_timeout, config.max_in_flight) == ("s@crt", "require", 3, 7)


@pytest.mark.parametrize("url", ["redis://a", "a:4150", "nsq://a:1,,b:2", "nsq://a:x", "nsq://a/vhost", "nsq://a?x"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|unknown port|bad query field"):
        parse_url(url)


def test_an_unknown_option() -> None:
    with pytest.raises(ConfigError, match="invalid option nothing"):
        parse_url("nsq://a?nothing=1")
