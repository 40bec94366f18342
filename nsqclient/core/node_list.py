"""Validates nsqlookupd's answers to `/nodes`, for a producer.

An answer that isn't a list of nodes, or has more than MOST_NODES, counts as a failed query. A node with an impossible
address is left out, and the reason is logged once per address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import quote

from nsqclient.core.events import Event, NodeIgnored
from nsqclient.core.listings import BadAnswer, LookupdAddress
from nsqclient.core.membership import MOST_NODES, Membership, NodeEntry

_OK: Final = 200
_MOST_PORT: Final = 0xFFFF
_MOST_WORD: Final = 64  # characters of a state, zone or region
_MOST_IGNORED: Final = 100  # reported addresses to remember
_is_host_name: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?", re.ASCII).fullmatch

NODES: Final = "/nodes"
_LOOKUP: Final = "/lookup"


class Ignored(Exception):
    """Why a node in an answer is left out."""


class NodeList:
    """Asks for the nodes and hands the answers to a Membership. Implements `LookupQuery`."""

    def __init__(self, membership: Membership, *, clock: Callable[[], float], emit: Callable[[Event], None]) -> None:
        self._membership = membership
        self._clock = clock
        self._emit = emit
        self._reasons: dict[LookupdAddress, str] = {}  # of the failing ones
        self._ignored: set[str] = set()

    @property
    def has_begun(self) -> bool:
        return self._membership.has_begun

    @property
    def found(self) -> int:
        return len(self._membership.members)

    @property
    def failures(self) -> int:
        return self._membership.failures

    def target(self, lookupd: LookupdAddress, *, wait: float = 0.0, index: str = "") -> str:
        return nodes_target(lookupd, wait=wait, index=index)

    def take(self, lookupd: LookupdAddress, status: int, body: bytes) -> bool:
        before = set(self._membership.members), self.failures
        entries, ignored = read_nodes(status, body)
        self._reasons.pop(lookupd, None)
        self._membership.answered(lookupd, entries, self._clock())
        if self._membership.left_out:
            ignored["more nodes"] = f"only {MOST_NODES} nodes are used"
        for address, reason in ignored.items():
            if address not in self._ignored and len(self._ignored) < _MOST_IGNORED:
                self._ignored.add(address)
                self._emit(NodeIgnored(address, str(lookupd), reason))
        return (set(self._membership.members), self.failures) != before

    def record_failure(self, lookupd: LookupdAddress, reason: str) -> bool:
        is_news = self._reasons.get(lookupd) != reason
        self._reasons[lookupd] = reason
        self._membership.failed(lookupd, self._clock())
        return is_news


def nodes_target(lookupd: LookupdAddress, *, wait: float = 0.0, index: str = "") -> str:
    """Return the target of a query for nodes. It replaces the path of a proxy's `/lookup`."""
    path, question, query = lookupd.target.partition("?")
    if path.endswith(_LOOKUP):
        path = path.removesuffix(_LOOKUP) + NODES
    target = f"{path}{question}{query}"
    if not wait:
        return target
    return f"{target}{'&' if question else '?'}wait={wait:g}s&index={quote(index, safe='')}"


def read_nodes(status: int, body: bytes) -> tuple[Sequence[NodeEntry], dict[str, str]]:
    """Return the nodes in an answer, and by address the reasons for ignoring others. Raise BadAnswer."""
    if status != _OK:
        raise BadAnswer(f"got response {status} {body[:200].decode('utf-8', 'replace')!r}")
    try:
        said: Any = json.loads(body)
        producers = said["producers"] if "producers" in said else said["data"]["producers"]
        if not isinstance(producers, list):
            raise TypeError("producers are no list")
        if len(producers) > MOST_NODES:
            raise BadAnswer(f"{len(producers)} nodes, which is more than {MOST_NODES}")
        entries: list[NodeEntry] = []
        ignored: dict[str, str] = {}
        for producer in producers:
            try:
                entries.append(_entry(producer))
            except Ignored as reason:
                ignored[_shown_address(producer)] = str(reason)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadAnswer(f"malformed answer: {type(error).__name__} {error}") from error
    return entries, ignored


def _entry(producer: Mapping[str, Any]) -> NodeEntry:
    host, port = producer["broadcast_address"], producer["tcp_port"]
    if type(port) is not int or not 0 < port <= _MOST_PORT:
        raise Ignored("no TCP port")
    return NodeEntry(
        f"[{host}]:{port}" if _is_ipv6(_checked_host(host)) else f"{host}:{port}",
        state=_word(producer.get("state")),
        is_reachable=producer.get("reachable") is not False,
        zone=_word(producer.get("topology_zone")),
        region=_word(producer.get("topology_region")),
    )


def _checked_host(host: object) -> IPv4Address | IPv6Address | None:
    """Return an IP address, or None for a host name. Raise Ignored if no nsqd can have it."""
    if not isinstance(host, str):
        raise Ignored("no broadcast address")
    try:
        address = ip_address(host)
        if "%" in host:  # a zone is local to one machine, and may contain any characters
            raise Ignored("an address with a zone")
    except ValueError:
        if not _is_host_name(host):
            raise Ignored("a broadcast address that is not a host name") from None
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    kind = mapped or address
    if kind.is_link_local or kind.is_multicast or kind.is_unspecified or kind == IPv4Address("255.255.255.255"):
        raise Ignored("an address that no nsqd can have: link-local, multicast or unspecified")
    return address


def _is_ipv6(address: IPv4Address | IPv6Address | None) -> bool:
    return isinstance(address, IPv6Address)


def _word(value: object) -> str:
    """Return a state, zone or region that is safe to log; anything else counts as absent."""
    return value if isinstance(value, str) and len(value) <= _MOST_WORD and value.isprintable() else ""


def _shown_address(producer: Mapping[str, Any]) -> str:
    return ascii(f"{producer['broadcast_address']}:{producer['tcp_port']}")[1 : 1 + _MOST_WORD]
