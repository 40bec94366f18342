"""Which nodes may receive a secret."""

from __future__ import annotations

import pytest

from nsqcommon.recipients import Recipients, is_loopback, is_name


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("nsqd1", "nsqd1"),
        ("nsqd1", "NSQD1"),
        ("nsqd1", "nsqd1."),
        ("NSQD1.Example.", "nsqd1.example"),
        ("nsqd*", "nsqd12"),
        ("nsqd-?.example.com", "nsqd-7.example.com"),
        ("*.example.com", "a.example.com"),
        ("nsqd1:4151", "nsqd1"),
    ],
)
def test_a_name_on_the_list_is_recognised(entry: str, host: str) -> None:
    assert Recipients([entry]).has_name(host, 4151)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("nsqd1*", "nsqd1.evil.example"),
        ("nsqd1", "nsqd1.evil.example"),
        ("*.example.com", "example.com"),
        ("*.example.com", "a.b.example.com"),
        ("*.example.com", "aexample.com"),
        ("*.example.com", ".example.com"),
        ("nsqd1", "nsqd1@evil"),
        ("nsqd*", "nsqd1@evil"),
        ("nsqd*", "nsqd1/x"),
        ("nsqd*", "nsqd1#"),
        ("nsqd*", "nsqd1?"),
        ("nsqd*", "nsqd1:80"),
        ("nsqd*", "nsqd1\n"),
        ("nsqd*", "nsqd1\\evil"),
        ("nsqd*", "nsqd1%00"),
        ("*", "10.0.0.1"),
        ("*", "2130706433"),
        ("*", "0x7f000001"),
        ("*.*", "127.1"),
        ("*.*", "127.0x1"),
        ("*", "::1"),
        ("*", ""),
        ("nsqd1:4151", "nsqd2"),
    ],
)
def test_what_only_looks_like_a_name_on_the_list_is_not_on_it(entry: str, host: str) -> None:
    assert not Recipients([entry]).has_name(host, 4151)


def test_an_entry_with_a_port_is_that_port_only() -> None:
    by_name, by_network = Recipients(["nsqd1:4151"]), Recipients(["[fd00::/8]:4151", "10.0.0.1:4151"])
    assert not by_name.has_name("nsqd1", 6666)
    assert by_network.has_address("fd00::1", 4151)
    assert not by_network.has_address("fd00::1", 6666)
    assert by_network.has_address("10.0.0.1", 4151)
    assert not by_network.has_address("10.0.0.1", 4152)


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.0.0.5/8", "10.1.2.3"),
        ("10.0.0.5", "10.0.0.5"),
        ("10.0.0.0/8", "::ffff:10.1.2.3"),
        ("::1", "::1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::/10", "fe80::1%eth0"),
        ("fd00::/8", "[fd00::1]"),
    ],
)
def test_an_address_within_a_network_is_recognised(network: str, address: str) -> None:
    assert Recipients([network]).has_address(address, 4151)


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("10.0.0.0/8", "11.0.0.1"),
        ("10.0.0.0/8", "10.0.0.1.evil.example"),
        ("0.0.0.0/0", "::1"),
        ("0.0.0.0/0", "167772161"),
        ("nsqd1", "10.0.0.1"),
        ("10.0.0.0/8", ""),
    ],
)
def test_no_other_address_is_within_it(network: str, address: str) -> None:
    assert not Recipients([network]).has_address(address, 4151)


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.*", "10.0.0.0/33", "http://nsqd1", "user@nsqd1", "nsqd1/x", "a..b", "nsqd1:port", "1.2.3"]
)
def test_an_entry_that_cannot_be_read_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match="is neither a network"):
        Recipients(["nsqd1", entry])


def test_an_empty_list_has_nobody() -> None:
    nobody = Recipients()
    assert not nobody
    assert not nobody.has_name("nsqd1", 1)
    assert not nobody.has_address("127.0.0.1", 1)


def test_loopback_is_told_from_what_looks_like_it() -> None:
    assert is_loopback("127.8.9.1")
    assert is_loopback("::1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("localhost")
    assert not is_loopback("127.0.0.1.example")
    assert is_name("localhost")
