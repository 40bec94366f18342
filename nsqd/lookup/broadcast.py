"""The address under which others reach this node, if --broadcast-address does not say it.

The host name is what people expect to see, so it is taken where it means something. In a container or on a fresh
machine it often does not resolve, or resolves to loopback: consumers would find the node and could not connect to it.
Then it is the address from which this machine talks to its first nsqlookupd, which others there can reach as well.
A node that listens on one address only can be reached at no other.

The choice is made once, at the start. The address is part of the node's name in nsqadmin, in statsd and in
nsqlookupd's list of missing nodes, so it must not change while the node runs. If the machine's address changes,
nsqlookupd notices that it cannot connect to the old one (nsqlookupd/dial_back.py), and says so.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import trio

from nsqcommon.net import AddressError, parse_address
from nsqd.lookup.dial import host_and_port, resolve

_RESOLVE_LIMIT: Final = 1.0  # seconds; the start should not hang because a name server does
# Where the way to anywhere begins: addresses for documentation, to which nothing is sent.
_ANYWHERE: Final = ("192.0.2.1", "2001:db8::1")
_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")  # compared with, not bound to
_DISCARD: Final = 9  # any port will do


class ChosenAddress(NamedTuple):
    address: str
    why: str


class SourceAddress(NamedTuple):
    """The address from which this machine talks to an nsqlookupd. Empty texts: there is no such way."""

    source: str = ""
    to: str = ""


_NO_ROUTE: Final = SourceAddress()


def choose(
    hostname: str, *, addresses: Collection[str], only: str = "", route: SourceAddress = _NO_ROUTE, default: str = ""
) -> ChosenAddress:
    """Return the address that others can reach.

    `addresses` are those of the host name, `only` is the one address that the node listens on (empty: all), and
    `default` is the source address of the default route.
    """
    if only:
        if only in addresses:
            return ChosenAddress(hostname, f"the host name, which resolves to {only}, the only address listened on")
        return ChosenAddress(only, "the only address listened on")
    if others := [it for it in addresses if is_reachable_by_others(it)]:
        return ChosenAddress(hostname, f"the host name, which resolves to {others[0]}")
    problem = f"the host name {hostname} {'resolves to ' + min(addresses) if addresses else 'does not resolve'}"
    if is_reachable_by_others(route.source):
        return ChosenAddress(
            route.source, f"{problem}; this is the address from which nsqlookupd {route.to} is reached"
        )
    if is_reachable_by_others(default):
        return ChosenAddress(default, f"{problem}; this is the address of this machine's default route")
    return ChosenAddress(hostname, f"{problem}, and this machine has no other address than loopback")


def is_reachable_by_others(address: str) -> bool:
    """Return whether an IP address may mean something on another machine."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


async def choose_address(hostname: str, *, tcp_address: str, lookupds: Iterable[str]) -> ChosenAddress:
    """Ask the system what `choose` has to know, and return its choice.

    `tcp_address` is the one listened on, and `lookupds` are the TCP addresses of nsqlookupds.
    """
    only = _only_address(tcp_address)
    addresses = await _addresses_of(hostname)
    if only or any(map(is_reachable_by_others, addresses)):
        return choose(hostname, addresses=addresses, only=only)
    route = await _first_route(lookupds)
    default = next((source for it in _ANYWHERE if (source := _source_towards(it))), "")
    return choose(hostname, addresses=addresses, route=route, default=default)


def _only_address(tcp_address: str) -> str:
    try:
        host = parse_address(tcp_address).host
    except AddressError:  # opening the listener will say so
        return ""
    return "" if host in _ALL_ADDRESSES else host


async def _first_route(lookupds: Iterable[str]) -> SourceAddress:
    with trio.move_on_after(_RESOLVE_LIMIT):
        for text in lookupds:
            try:
                host, port = host_and_port(text)
                found = await resolve(host, port)
            except (AddressError, OSError):
                continue
            for ip, _ in found:
                if is_reachable_by_others(source := _source_towards(ip)):
                    return SourceAddress(source, text)
    return SourceAddress()


async def _addresses_of(hostname: str) -> list[str]:
    with trio.move_on_after(_RESOLVE_LIMIT):
        try:
            return [ip for ip, _ in await resolve(hostname, 0)]
        except OSError:
            return []
    return []


def _source_towards(ip: str) -> str:
    """Return the address from which packets to this one leave; nothing is sent. Empty: there is no way to it."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((ip, _DISCARD))
            return str(sock.getsockname()[0])
    except OSError:
        return ""
