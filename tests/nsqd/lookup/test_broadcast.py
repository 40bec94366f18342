"""Which address a node registers when nobody has said it."""

from __future__ import annotations

import pytest

from nsqd.lookup.broadcast import ChosenAddress, SourceAddress, choose, is_reachable_by_others

LOOKUPD = SourceAddress("10.0.0.5", "lookup1:4160")


@pytest.mark.parametrize(("addresses", "route", "default", "chosen"), [
    (["10.0.0.7"], LOOKUPD, "10.0.0.9", ChosenAddress("web7", "the host name, which resolves to 10.0.0.7")),
    (["127.0.1.1", "10.0.0.7"], LOOKUPD, "", ChosenAddress("web7", "the host name, which resolves to 10.0.0.7")),
    ([], LOOKUPD, "10.0.0.9", ChosenAddress(
        "10.0.0.5",
        "the host name web7 does not resolve; this is the source address of packets to nsqlookupd lookup1:4160",
    )),
    (["127.0.1.1"], LOOKUPD, "10.0.0.9", ChosenAddress(
        "10.0.0.5",
        "the host name web7 resolves to 127.0.1.1; this is the source address of packets to nsqlookupd lookup1:4160",
    )),
    (["::1"], SourceAddress("2001:db8::5", "[2001:db8::1]:4160"), "", ChosenAddress(
        "2001:db8::5",
        "the host name web7 resolves to ::1; this is the source address of packets to nsqlookupd [2001:db8::1]:4160",
    )),
    ([], SourceAddress("127.0.0.1", "127.0.0.1:4160"), "10.0.0.9", ChosenAddress(
        "10.0.0.9", "the host name web7 does not resolve; this is the address of this machine's default route"
    )),
    ([], SourceAddress(), "", ChosenAddress(
        "web7", "the host name web7 does not resolve, and this machine has only loopback addresses"
    )),
    (["fe80::1%eth0"], SourceAddress(), "", ChosenAddress(
        "web7", "the host name web7 resolves to fe80::1%eth0, and this machine has only loopback addresses"
    )),
])  # fmt: skip
def test_the_choice_and_its_reason(
    addresses: list[str], route: SourceAddress, default: str, chosen: ChosenAddress
) -> None:
    assert choose("web7", addresses=addresses, route=route, default=default) == chosen


@pytest.mark.parametrize(("address", "expected"), [
    ("10.0.0.7", True), ("172.17.0.2", True), ("192.168.1.1", True), ("8.8.8.8", True), ("fd00::1", True),
    ("127.0.0.1", False), ("127.0.1.1", False), ("::1", False), ("0.0.0.0", False), ("::", False),
    ("169.254.1.1", False), ("fe80::1", False), ("fe80::1%eth0", False), ("224.0.0.1", False), ("", False), ("web7", False),
])  # fmt: skip
def test_what_others_can_reach(address: str, expected: bool) -> None:
    assert is_reachable_by_others(address) is expected


@pytest.mark.parametrize(("addresses", "only", "chosen"), [
    (["10.0.0.7"], "127.0.0.1", ChosenAddress("127.0.0.1", "the only address listened on")),
    (["127.0.0.1"], "127.0.0.1", ChosenAddress("web7", "the host name, which resolves to 127.0.0.1, the only address listened on")),
    ([], "node1.example", ChosenAddress("node1.example", "the only address listened on")),
])  # fmt: skip
def test_a_node_that_listens_on_one_address_is_reached_there(
    addresses: list[str], only: str, chosen: ChosenAddress
) -> None:
    assert choose("web7", addresses=addresses, only=only, route=LOOKUPD, default="10.0.0.9") == chosen
