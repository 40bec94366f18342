"""Chooses the broadcast address if --broadcast-address isn't set.

People expect to see the host name, so we use it if others can resolve it. In a container or on a new machine, it often
doesn't resolve, or resolves to loopback: consumers would find the node and fail to connect. In that case, we use the
source address of packets to the first nsqlookupd, because other machines there can reach it too. If the node listens on
only one address, we choose that one, or the host name if it resolves to it.

We choose once, at startup. The address is part of the node's name in nsqadmin, in statsd and in nsqlookupd's list of
missing nodes, so it must not change while the node runs. If the machine's address changes, nsqlookupd fails to connect
to the old one (nsqlookupd/dial_back.py), and reports that.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import trio

from nsqcommon.net import AddressError, parse_address
from nsqd.lookup.dial import host_and_port, resolve

_RESOLVE_LIMIT: Final = 1.0  # seconds; a name server that hangs must not block the start
# Documentation addresses. We send nothing to them; the route to them is the default route.
_ANYWHERE: Final = ("192.0.2.1", "2001:db8::1")
_ALL_ADDRESSES: Final = ("", "0.0.0.0", "::")
_DISCARD: Final = 9  # any port will do


class ChosenAddress(NamedTuple):
    address: str
    why: str


class SourceAddress(NamedTuple):
    """The source address of packets to an nsqlookupd. Empty strings if there is no route."""

    source: str = ""
    to: str = ""


_NO_ROUTE: Final = SourceAddress()


def choose(
    hostname: str, *, addresses: Collection[str], only: str = "", route: SourceAddress = _NO_ROUTE, default: str = ""
) -> ChosenAddress:
    """Choose an address that others can reach.

    `addresses` are the IP addresses of the host name. `only` is the only address that the node listens on, or "" if it
    listens on all. `default` is the source address of the default route.
    """
    if only:
        if only in addresses:
            return ChosenAddress(hostname, f"the host name, which resolves to {only}, the only address listened on")
        return ChosenAddress(only, "the only address listened on")
    if others := [it for it in addresses if is_reachable_by_others(it)]:
        return ChosenAddress(hostname, f"the host name, which resolves to {others[0]}")
    problem = f"the host name {hostname} {'resolves to ' + min(addresses) if addresses else 'does not resolve'}"
    if is_reachable_by_others(route.source):
        return ChosenAddress(route.source, f"{problem}; this is the source address of packets to nsqlookupd {route.to}")
    if is_reachable_by_others(default):
        return ChosenAddress(default, f"{problem}; this is the address of this machine's default route")
    return ChosenAddress(hostname, f"{problem}, and this machine has only loopback addresses")


def is_reachable_by_others(address: str) -> bool:
    """Return whether other machines may be able to reach this IP address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


async def choose_address(hostname: str, *, tcp_address: str, lookupds: Iterable[str]) -> ChosenAddress:
    """Collect the facts for `choose`, and return its choice.

    `tcp_address` is the one we listen on; `lookupds` are the TCP addresses of nsqlookupds.
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
    except AddressError:  # opening the listener will report it
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
    """Return the source address of packets to `ip`, or "" if there is no route. Sends nothing."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((ip, _DISCARD))
            return str(sock.getsockname()[0])
    except OSError:
        return ""
