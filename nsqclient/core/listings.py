"""Queries to nsqlookupd, their answers, and the union of the answers of several.

The consumer (`_apply`) decides what to do with it, for example with an nsqd that is no longer listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from nsqclient.core.errors import ConfigError

if TYPE_CHECKING:
    from nsqclient.core.config import Config

_OK: Final = 200
_NOT_FOUND: Final = 404
_FIRST_RETRY: Final = 1.0  # seconds
_MOST_DOUBLINGS: Final = 16  # more than any interval needs
_LONGEST_BLIND: Final = 1.0  # seconds
_AT_ONCE: Final = 0.1  # seconds; a shorter long poll didn't really wait
_MOST_AT_ONCE: Final = 3  # such answers in a row, for example when several nodes start together
_SHORTEST_REST: Final = 0.1  # seconds
_LONGEST_REST: Final = 1.0
_VARIES: Final = 0.1  # random part of an interval, so that a fleet doesn't query in step

ACCEPT: Final = ("Accept", "application/vnd.nsq; version=1.0")
WAIT: Final = 60.0  # seconds, of a long poll
TRIES: Final = 3  # queries in a round of the strategy "rotate"


class BadAnswer(Exception):
    """The answer of an nsqlookupd is unusable."""


class LookupQuery(Protocol):
    """A question to nsqlookupds, which also collects the answers."""

    @property
    def found(self) -> int:
        """The number of nsqds in the answers."""

    @property
    def failures(self) -> int:
        """The number of nsqlookupds whose last query failed."""

    def target(self, lookupd: LookupdAddress, *, wait: float = 0.0, index: str = "") -> str:
        """Return the target of a query, or of a long poll of `wait` seconds for a newer index."""

    def take(self, lookupd: LookupdAddress, status: int, body: bytes) -> bool:
        """Process an answer. Return True if the nsqds or the number of failures have changed. Raise BadAnswer."""

    def record_failure(self, lookupd: LookupdAddress, reason: str) -> bool:
        """Record a failed query. Return True if the query before had succeeded."""


@dataclass(frozen=True, slots=True)
class ListedNsqd:
    """An nsqd's entry in nsqlookupd."""

    address: str
    hostname: str = ""
    remote_address: str = ""


@dataclass(frozen=True, slots=True)
class LookupdAddress:
    """The address of an nsqlookupd."""

    scheme: str
    host: str
    port: int
    target: str  # path and query, without the topic

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.target}"

    def query_target(self, topic: str, *, wait: float = 0.0, index: str = "") -> str:
        """Return the target of a query.

        With `wait` it is a long poll: nsqlookupd answers when its index differs from `index`, or after `wait` seconds.
        """
        target = f"{self.target}{'&' if '?' in self.target else '?'}topic={quote(topic, safe='')}"
        return f"{target}&wait={wait:g}s&index={quote(index, safe='')}" if wait else target


def parse_lookupd(text: str, default_path: str = "/lookup") -> LookupdAddress:
    """Read `host:port` or a URL, whose path is `default_path` unless it has one. Raise ConfigError."""
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
    path = parts.path if parts.path not in ("", "/") else default_path
    return LookupdAddress(parts.scheme, host, port, f"{path}?{parts.query}" if parts.query else path)


def groups_of(lookupds: Sequence[LookupdAddress], config: Config) -> list[list[LookupdAddress]]:
    """Return groups of nsqlookupds. Groups are asked in parallel, the members of a group in turn."""
    places = list(dict.fromkeys(lookupds))
    return [places] if config.lookupd_strategy == "rotate" else [[place] for place in places]


def headers_of(config: Config) -> list[tuple[str, str]]:
    """Return the headers of every query."""
    secret = config.auth_secret if config.lookupd_authorization else None
    return [ACCEPT, ("Authorization", f"Bearer {secret}")] if secret else [ACCEPT]


def read_answer(status: int, body: bytes) -> tuple[ListedNsqd, ...]:
    """Return the nsqds in an answer; none if nsqlookupd doesn't know the topic. Raise BadAnswer."""
    if status == _NOT_FOUND:
        return ()
    if status != _OK:
        raise BadAnswer(f"got response {status} {body[:200].decode('utf-8', 'replace')!r}")
    try:
        said: Any = json.loads(body or b"{}")
        # Some proxies drop the header that distinguishes the two forms, so we look at the document.
        producers = said["producers"] if "producers" in said else (said.get("data") or {}).get("producers")
        return tuple(_listed(producer) for producer in producers or ())
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadAnswer(f"malformed answer: {error}") from error


def _listed(producer: Mapping[str, Any]) -> ListedNsqd:
    host, port = str(producer["broadcast_address"]), int(producer["tcp_port"])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ListedNsqd(address, str(producer.get("hostname", "")), str(producer.get("remote_address", "")))


class PollInterval:
    """How long to wait before asking nsqlookupd again."""

    def __init__(self, config: Config, random: Random) -> None:
        self._interval = config.lookupd_poll_interval
        self._jitter = config.lookupd_poll_jitter
        self._random = random
        self._rounds = 0
        self._failures = 0  # in a row
        self._hasty = 0  # immediate answers to long polls, in a row

    def record_query(self, *, has_answered: bool) -> None:
        """Record the result of a query."""
        self._rounds += 1
        self._failures = 0 if has_answered else self._failures + 1

    def rest(self, waited: float) -> float:
        """Return the pause before the next long poll, after one that took `waited` seconds.

        Without it we would ask an nsqlookupd that never waits, such as ours with --max-lookup-wait=0, in a tight loop.
        """
        self._hasty = self._hasty + 1 if waited < _AT_ONCE else 0
        if self._hasty <= _MOST_AT_ONCE:
            return 0.0
        return min(_LONGEST_REST, _SHORTEST_REST * 2.0 ** min(self._hasty - _MOST_AT_ONCE - 1, _MOST_DOUBLINGS))

    def pause(self, *, is_blind: bool = False) -> float:
        """Return the seconds until the next query. `is_blind`: no nsqlookupd can be reached.

        While another nsqlookupd answers, a failing one can wait, because the other one lists the same nsqds. Without
        any answer, the client sees no new nsqd until an nsqlookupd is back. So it asks once or twice a second, however
        long the outage lasts: each query costs one refused connection. The pauses vary, so that a whole fleet doesn't
        query in the moment when the nsqlookupd starts.
        """
        if self._failures:
            pause = min(self._interval, _FIRST_RETRY * 2.0 ** min(self._failures - 1, _MOST_DOUBLINGS))
            return min(pause, _LONGEST_BLIND) * (1 + self._random.random()) / 2 if is_blind else pause
        if self._rounds == 1:
            return self._interval * (1 + self._jitter * self._random.random())
        return self._interval * (1 - _VARIES + 2 * _VARIES * self._random.random())


class Silence:
    """The nsqlookupds that didn't answer their last query.

    An error is an answer, because asking an overloaded nsqlookupd more often wouldn't help it.
    """

    def __init__(self, lookupds: Iterable[LookupdAddress]) -> None:
        self._all = frozenset(lookupds)
        self._silent: set[LookupdAddress] = set()

    def record(self, lookupd: LookupdAddress, *, has_answered: bool) -> bool:
        """Record a query. Return True if now, and not before, all are silent."""
        was_total = self.is_total
        if has_answered:
            self._silent.discard(lookupd)
        else:
            self._silent.add(lookupd)
        return self.is_total and not was_total

    @property
    def is_total(self) -> bool:
        """True if all are silent."""
        return self._silent >= self._all


class Listings:
    """The union of the last good answers: a failing nsqlookupd removes nothing. Implements `LookupQuery`."""

    def __init__(self, topic: str = "") -> None:
        self._topic = topic
        self._by_lookupd: dict[LookupdAddress, Sequence[ListedNsqd]] = {}
        self._failed: set[LookupdAddress] = set()
        self.has_begun = False  # at least one has answered

    def target(self, lookupd: LookupdAddress, *, wait: float = 0.0, index: str = "") -> str:
        return lookupd.query_target(self._topic, wait=wait, index=index)

    def take(self, lookupd: LookupdAddress, status: int, body: bytes) -> bool:
        return self.record_answer(lookupd, read_answer(status, body))

    def record_answer(self, lookupd: LookupdAddress, listed: Sequence[ListedNsqd]) -> bool:
        """Replace an nsqlookupd's answer. Return True if the nsqds or the number of failures have changed."""
        before = self.nsqds.keys(), len(self._failed)
        self.has_begun = True
        self._failed.discard(lookupd)
        self._by_lookupd[lookupd] = listed
        return (self.nsqds.keys(), len(self._failed)) != before

    def record_failure(self, lookupd: LookupdAddress, reason: str = "") -> bool:
        self._failed.add(lookupd)
        return True

    @property
    def found(self) -> int:
        """The number of nsqds."""
        return len(self.nsqds)

    @property
    def failures(self) -> int:
        """The number of nsqlookupds whose last query failed."""
        return len(self._failed)

    @property
    def nsqds(self) -> dict[str, ListedNsqd]:
        """All listed nsqds by address."""
        return {listed.address: listed for some in self._by_lookupd.values() for listed in some}
