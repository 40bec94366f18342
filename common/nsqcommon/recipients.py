"""A list of networks and names: we send secrets only to the nodes on it.

A node chooses its own address when it registers with nsqlookupd, so an address from there proves nothing. We compare
each entry with the peer that we actually connect to:

- a network, `10.0.0.0/8` or a single address: with the address at the other end of the connection;
- a name, `nsqd-*.example.com`: with the name that we dialled. A certificate proves it. Without TLS, you can trust it
  only as far as the resolver that looked up its address.

`*` and `?` stand for characters within one label, as in certificates: for example, `nsqd1*` doesn't match
`nsqd1.evil.example`. Either kind of entry may end in a port. Case and a trailing dot don't matter in names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

IPAddress = IPv4Address | IPv6Address

_is_host: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?", re.ASCII).fullmatch
_is_pattern: Final = re.compile(r"[A-Za-z0-9_*?-]+(?:\.[A-Za-z0-9_*?-]+)*\.?", re.ASCII).fullmatch
# The C library reads 127.1, 0x7f.1 and 2130706433 as addresses, so a host name must not end like them.
_looks_like_an_address: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)", re.ASCII).fullmatch
_is_pattern_of_addresses: Final = re.compile(r"[*?.]*[0-9][0-9*?.]*", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class _Entry:
    network: IPv4Network | IPv6Network | None
    labels: tuple[str, ...]  # of a name; empty for a network
    port: int | None  # None: any


class Recipients:
    """The parsed list. If an entry can't be parsed, the constructor raises a ValueError that quotes it."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._entries = tuple(_read_entry(it.strip()) for it in entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def has_networks(self) -> bool:
        return any(it.network is not None for it in self._entries)

    def has_name(self, host: str, port: int) -> bool:
        """Return whether the list allows this host name. False if `host` is an IP address."""
        if not is_name(host):
            return False
        labels = _labels(host)
        return any(it.labels and _same_port(it, port) and _same_labels(it.labels, labels) for it in self._entries)

    def has_address(self, address: str, port: int) -> bool:
        """Return whether one of the networks contains the address of a connection's peer."""
        ip = read_ip(address)
        return ip is not None and any(
            it.network is not None and ip in it.network and _same_port(it, port) for it in self._entries
        )


def is_name(host: str) -> bool:
    """Return whether this is a host name, and neither an address nor text that URL parsers take for another host."""
    return _is_host(host) is not None and not _looks_like_an_address(host.rstrip("."))


def read_ip(text: str) -> IPAddress | None:
    """Parse an IP address, with or without brackets and zone, or return None. IPv4 within IPv6 becomes IPv4."""
    try:
        ip = ip_address(text.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip


def is_loopback(address: str) -> bool:
    ip = read_ip(address)
    return ip is not None and ip.is_loopback


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port`. The port is 0 if it is missing or not a number."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port) if port.isascii() and port.isdigit() else 0


def _read_entry(text: str) -> _Entry:
    ip_text, port = _split_port(text)
    try:
        return _Entry(ip_network(ip_text, strict=False), (), port)
    except ValueError:
        pass
    name = ip_text.rstrip(".")
    if "/" in ip_text or ":" in ip_text or not _is_pattern(name) or _is_pattern_of_addresses(name):
        raise ValueError(f"{text!r} is neither a network, as in 10.0.0.0/8, nor a name, as in nsqd-*.example.com")
    return _Entry(None, _labels(name), port)


def _split_port(text: str) -> tuple[str, int | None]:
    """Split `host`, `host:port`, `[::1]:port` or `::1` into host and port."""
    if found := re.fullmatch(r"\[([^\]]*)\](?::([0-9]{1,5}))?", text):
        return found[1], int(found[2]) if found[2] else None
    host, colon, port = text.rpartition(":")
    if colon and ":" not in host and re.fullmatch("[0-9]{1,5}", port):
        return host, int(port)
    return text, None


def _labels(host: str) -> tuple[str, ...]:
    return tuple(host.rstrip(".").lower().split("."))


def _same_port(entry: _Entry, port: int) -> bool:
    return entry.port is None or entry.port == port


def _same_labels(patterns: tuple[str, ...], labels: tuple[str, ...]) -> bool:
    return len(patterns) == len(labels) and all(map(fnmatchcase, labels, patterns))
