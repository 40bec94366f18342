"""What several nsqlookupd say of a topic, as one picture; how they are asked, and how their answers read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from nsqclient._errors import ConfigError

if TYPE_CHECKING:
    from nsqclient._config import Config

_OK: Final = 200
_NOT_FOUND: Final = 404
_FIRST_RETRY: Final = 1.0  # seconds
_MOST_DOUBLINGS: Final = 16  # beyond any interval
_VARIES: Final = 0.1  # an interval by so much, so that a fleet does not ask in step

ACCEPT: Final = ("Accept", "application/vnd.nsq; version=1.0")
WAIT: Final = 60.0  # seconds, of a question that waits
TRIES: Final = 3  # in a round, where one nsqlookupd is asked after the other


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


def groups_of(texts: Sequence[str], config: Config) -> list[list[Lookupd]]:
    """Those that are asked side by side; those of one group one after the other."""
    places = list(dict.fromkeys(map(parse_lookupd, texts)))
    return [places] if config.lookupd_strategy == "rotate" else [[place] for place in places]


def headers_of(config: Config) -> list[tuple[str, str]]:
    """What every question says of who asks."""
    secret = config.auth_secret if config.lookupd_authorization else None
    return [ACCEPT, ("Authorization", f"Bearer {secret}")] if secret else [ACCEPT]


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
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadAnswer(f"it makes no sense: {error}") from error


def _listed(producer: Mapping[str, Any]) -> Listed:
    host, port = str(producer["broadcast_address"]), int(producer["tcp_port"])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Listed(address, str(producer.get("hostname", "")), str(producer.get("remote_address", "")))


class Pace:
    """How long to wait until nsqlookupd is asked again."""

    def __init__(self, config: Config, random: Random) -> None:
        self._interval = config.lookupd_poll_interval
        self._jitter = config.lookupd_poll_jitter
        self._random = random
        self._rounds = 0
        self._failures = 0  # in a row

    def asked(self, *, has_answered: bool) -> None:
        self._rounds += 1
        self._failures = 0 if has_answered else self._failures + 1

    def pause(self) -> float:
        if self._failures:
            return min(self._interval, _FIRST_RETRY * 2.0 ** min(self._failures - 1, _MOST_DOUBLINGS))
        if self._rounds == 1:
            return self._interval * (1 + self._jitter * self._random.random())
        return self._interval * (1 - _VARIES + 2 * _VARIES * self._random.random())


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
