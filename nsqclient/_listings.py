"""What several nsqlookupd say of a topic, as one picture; how they are asked, and how their answers read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from nsqclient._errors import ConfigError

_OK: Final = 200
_NOT_FOUND: Final = 404


class BadAnswer(Exception):
    """An nsqlookupd has answered what is no use."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An nsqd, as some nsqlookupd knows it."""

    address: str
    hostname: str = ""
    remote_address: str = ""


@dataclass(frozen=True, slots=True)
class Lookupd:
    """Where to ask."""

    scheme: str
    host: str
    port: int
    target: str  # path and query, without the topic

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.target}"

    def asking(self, topic: str, *, wait: float = 0.0, index: str = "") -> str:
        """The target of the question. With `wait` the answer may take so many seconds, unless it is new at once."""
        target = f"{self.target}{'&' if '?' in self.target else '?'}topic={quote(topic, safe='')}"
        return f"{target}&wait={wait:g}s&index={quote(index, safe='')}" if wait else target


def parse_lookupd(text: str) -> Lookupd:
    """`host:port`, or a URL. Raises ConfigError."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts: SplitResult = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("lookupd", text, f"{text}: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("lookupd", text, f"{text} is no address of an nsqlookupd")
    if port is None:
        raise ConfigError("lookupd", text, "missing port")
    path = parts.path if parts.path not in ("", "/") else "/lookup"
    return Lookupd(parts.scheme, host, port, f"{path}?{parts.query}" if parts.query else path)


def read_answer(status: int, body: bytes) -> tuple[Listed, ...]:
    """The nsqds that it names; none where nsqlookupd knows no such topic. Raises BadAnswer."""
    if status == _NOT_FOUND:
        return ()
    if status != _OK:
        raise BadAnswer(f"got response {status} {body[:200].decode('utf-8', 'replace')!r}")
    try:
        said: Any = json.loads(body or b"{}")
        # Some proxies drop the header that says which of the two forms it is, so the document itself is asked.
        producers = said["producers"] if "producers" in said else (said.get("data") or {}).get("producers")
        return tuple(_listed(producer) for producer in producers or ())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadAnswer(f"it makes no sense: {error}") from error


def _listed(producer: Mapping[str, Any]) -> Listed:
    host, port = str(producer["broadcast_address"]), int(producer["tcp_port"])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Listed(address, str(producer.get("hostname", "")), str(producer.get("remote_address", "")))


class Listings:
    """The union of the last good answers: one nsqlookupd that fails takes nothing away."""

    def __init__(self) -> None:
        self._by_lookupd: dict[Lookupd, Sequence[Listed]] = {}
        self._failed: set[Lookupd] = set()
        self.has_begun = False  # somebody has answered

    def answered(self, lookupd: Lookupd, listed: Sequence[Listed]) -> bool:
        """Says whether the picture has changed."""
        before = self.nsqds.keys(), len(self._failed)
        self.has_begun = True
        self._failed.discard(lookupd)
        self._by_lookupd[lookupd] = listed
        return (self.nsqds.keys(), len(self._failed)) != before

    def failed(self, lookupd: Lookupd) -> None:
        self._failed.add(lookupd)

    @property
    def failures(self) -> int:
        """How many did not answer, the last time they were asked."""
        return len(self._failed)

    @property
    def nsqds(self) -> dict[str, Listed]:
        """By address."""
        return {listed.address: listed for some in self._by_lookupd.values() for listed in some}
