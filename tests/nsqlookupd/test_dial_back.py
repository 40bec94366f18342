"""To which addresses nsqlookupd connects, of those that a registration leads to."""

from __future__ import annotations

import ipaddress

import pytest

from nsqlookupd.dial_back import DialBackRules, is_ours

OURS = "10.0.0.1"


@pytest.mark.parametrize(("peer", "found", "permitted"), [
    ("10.0.0.5", ["10.0.0.5"], ["10.0.0.5"]),
    ("10.0.0.5", ["10.0.0.6"], []),
    ("10.0.0.5", ["10.0.0.6", "10.0.0.5", "127.0.0.1"], ["10.0.0.5"]),
    ("10.0.0.5", ["127.0.0.1"], []),
    ("10.0.0.5", [OURS], []),
    ("10.0.0.5", ["::ffff:10.0.0.5"], ["::ffff:10.0.0.5"]),
    ("2001:db8::5", ["2001:db8:0::5"], ["2001:db8:0::5"]),
    ("2001:db8::5", ["10.0.0.5", "2001:db8::6"], []),
    ("127.0.0.1", ["127.0.1.1"], ["127.0.1.1"]),
    ("127.0.0.1", [OURS], [OURS]),
    ("127.0.0.1", ["10.0.0.6"], []),
    ("::1", ["127.0.0.1"], ["127.0.0.1"]),
    ("10.0.0.5", ["172.18.0.4"], ["172.18.0.4"]),
    ("@", ["127.0.0.1"], []),
    ("@", ["172.18.0.4"], ["172.18.0.4"]),
    ("10.0.0.5", ["not an address"], []),
    ("10.0.0.5", [], []),
])  # fmt: skip
def test_only_the_address_of_the_peer_itself_or_a_permitted_one(
    peer: str, found: list[str], permitted: list[str]
) -> None:
    rules = DialBackRules([ipaddress.ip_network("172.18.0.0/16")], is_ours=lambda ip: ip == OURS)
    assert rules.permitted(found, peer) == permitted


@pytest.mark.parametrize(("ip", "expected"), [("127.0.0.1", True), ("198.51.100.7", False), ("2001:db8::7", False)])
def test_only_an_address_of_this_machine_is_ours(ip: str, expected: bool) -> None:
    assert is_ours(ip) is expected
