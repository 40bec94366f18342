"""The names in one snapshot, and their ranking: the best match comes first, and among equal ones the one in trouble.

A keystroke has to be answered at once, also with 25,000 names. So nothing is sorted then: the index keeps all places in
the order in which equal ones that are well are shown, and a search only puts those in trouble before them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Severity
from nsqadmin.palette.query import Kind

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, Node, Snapshot, Topic
    from nsqadmin.diagnosis.incident import Open

SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1}
_BORDERS: Final = re.compile(r"[._ :-]+")
_LEAST_TO_CORRECT: Final = 4  # letters: below, too many words differ by one
# A channel often has consumers with its name, so these come later, unless they have exactly this name.
_LATER: Final = frozenset((Kind.NODE, Kind.CONSUMER))
EQUAL, EQUAL_PART, BEGINS, BEGINS_A_WORD, INSIDE = range(5)
_MOST_LATER: Final = 2 * INSIDE


class Place:
    """One thing that has a page. A plain class, because we make tens of thousands of them."""

    __slots__ = ("channel", "ill", "kind", "name", "of", "path", "target", "topic", "topics")

    def __init__(
        self,
        kind: Kind,
        name: str,
        topic: str = "",
        channel: str = "",
        *,
        target: str = "",
        topics: frozenset[str] = frozenset(),
        ill: tuple[int, float] | None = None,
        of: Topic | Channel | Node | Open | None = None,
    ) -> None:
        """`target` is a page's path, a node's address or an incident's key; `topics` are those that a consumer reads.

        `ill` is its trouble: severity, and impact as a number below 0. `of` is the thing itself.
        """
        self.kind = kind
        self.name = name
        self.path = f"/{name.lower()}/"  # each part of the name is between slashes
        self.topic = topic
        self.channel = channel
        self.target = target
        self.topics = topics
        self.ill = ill
        self.of = of

    def is_seen(self, sees: Callable[[str], bool]) -> bool:
        """Return whether a user may know of it."""
        if self.topic:
            return sees(self.topic)
        return not self.topics or any(map(sees, self.topics))


class Index:
    """All topics, channels, nodes and consumers of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._places = list(_places(snapshot))
        self._parts: dict[int, dict[str, list[Place]]] | None = None  # by length and part; made when it is needed

    def find(
        self,
        words: Sequence[str],
        most: int,
        *,
        also: Iterable[Place] = (),
        kinds: frozenset[Kind] | None = None,
        is_possible: Callable[[Place], bool] | None = None,
        is_wanted: Callable[[Place], bool] = lambda _: True,
    ) -> list[Place]:
        """Return the best matches. `also` are further places, such as incidents, which depend on the user.

        `is_wanted` may be slow, as rights are for a user with many roles: it is asked about the best matches only,
        best first, until there are enough.
        """
        matching: Iterable[Place] = chain(also, self._places)
        for word in words:
            matching = [it for it in matching if word in it.path]
        if kinds is not None:
            matching = [it for it in matching if it.kind in kinds]
        if is_possible is not None:
            matching = [it for it in matching if is_possible(it)]
        found: list[Place] = []
        for places in _by_closeness(matching, words):
            troubled = [it for it in places if it.ill is not None]
            troubled.sort(key=lambda it: it.ill or ())
            for place in chain(troubled, (it for it in places if it.ill is None)):
                if is_wanted(place):
                    found.append(place)
                    if len(found) == most:
                        return found
        return found

    def correction(
        self, word: str, *, also: Iterable[str] = (), is_wanted: Callable[[Place], bool] = lambda _: True
    ) -> str:
        """Return a part of a name that differs from the word by one typing error; "" if there is none."""
        if len(word) < _LEAST_TO_CORRECT:
            return ""
        if near := sorted(it for it in also if differ_by_one(word, it)):
            return near[0]
        if self._parts is None:
            self._parts = {}
            for place in self._places:
                for part in _parts_of(place):
                    self._parts.setdefault(len(part), {}).setdefault(part, []).append(place)
        for length in (len(word), len(word) + 1, len(word) - 1):
            for part, places in self._parts.get(length, {}).items():
                if differ_by_one(word, part) and any(map(is_wanted, places)):
                    return part
        return ""


def _by_closeness(places: Iterable[Place], words: Sequence[str]) -> Iterator[list[Place]]:
    """Yield the places in groups of equally close ones, the closest first."""
    if not words:
        yield list(places)
        return
    closeness = Closeness(words)
    groups: list[list[Place]] = [[] for _ in range(_MOST_LATER + 1)]
    for place in places:
        close = closeness.of(place.path)
        if close > EQUAL_PART and place.kind in _LATER:
            close += INSIDE
        groups[close].append(place)
    yield from groups


class Closeness:
    """How closely names match some words, all of which they contain. Lower is closer."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple((f"/{it}/", f"/{it}", re.compile(f"[._ :-]{re.escape(it)}").search) for it in words)

    def of(self, path: str) -> int:
        """Return the closeness of the word that matches least."""
        worst = EQUAL
        for whole, start, begins_a_word in self._words:
            if start not in path:
                close = BEGINS_A_WORD if begins_a_word(path) else INSIDE
            elif whole not in path:
                close = BEGINS
            else:
                close = EQUAL if path == whole else EQUAL_PART
            if close > worst:
                worst = close
        return worst


def differ_by_one(one: str, other: str) -> bool:
    """Return whether one typing error turns one word into the other: a letter more, less or wrong, or two swapped."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    start, least = 0, min(len(one), len(other))
    while start < least and one[start] == other[start]:
        start += 1
    rest, its = one[start:], other[start:]
    if len(one) == len(other):
        return rest[1:] == its[1:] or (rest[2:] == its[2:] and rest[:2] == its[1::-1])
    return rest[1:] == its or rest == its[1:]


def _parts_of(place: Place) -> Iterator[str]:
    """Yield the parts of a name that a word may be meant to be, such as "orders" in `shop.orders/billing`."""
    name = (place.channel if place.kind is Kind.CHANNEL else place.name).lower()
    yield name
    yield from _BORDERS.split(name)


def _places(snapshot: Snapshot) -> Iterator[Place]:
    """Yield all places: by kind, and short names first, because a short name matches a word more closely."""
    ill = _ill(snapshot)
    topics, channels = [], []
    hosts: dict[str, set[str]] = {}
    for topic in snapshot.topics:
        name = topic.name
        its = ill.get((name, ""), _NO_TROUBLE)
        topics.append(Place(Kind.TOPIC, name, name, ill=its.get(""), of=topic))
        for channel in topic.channels:
            own = channel.name
            channels.append(Place(Kind.CHANNEL, f"{name}/{own}", name, own, ill=its.get(own), of=channel))
            for row in channel.nodes:
                for client in row.clients or ():
                    for host in _names_of(client.hostname, client.client_id):
                        hosts.setdefault(host, set()).add(name)
    nodes = [
        Place(Kind.NODE, it.address, target=it.address, ill=ill.get(("", it.address), _NO_TROUBLE).get(""), of=it)
        for it in snapshot.nodes
    ]
    consumers = [Place(Kind.CONSUMER, host, topics=frozenset(hosts[host])) for host in sorted(hosts)]
    for places in (topics, channels, nodes, consumers):
        yield from sorted(places, key=_length)


def _length(place: Place) -> int:
    return len(place.name)


def _names_of(hostname: str, client_id: str) -> Iterator[str]:
    """Yield the host of a consumer, and its id unless that is the start of the host's name, as with most libraries."""
    if hostname:
        yield hostname
    if client_id and not hostname.startswith(client_id):
        yield client_id


_Troubles = dict[str, tuple[int, float]]
_NO_TROUBLE: Final[_Troubles] = {}


def _ill(snapshot: Snapshot) -> dict[tuple[str, str], _Troubles]:
    """Return the troubles of each topic or node, by channel; "" is itself, which is as bad as the worst of its parts."""
    ill: dict[tuple[str, str], _Troubles] = {}
    for finding in snapshot.findings:
        severity = SEVERITIES.get(finding.severity)
        if severity is None:
            continue
        troubles = ill.setdefault((finding.topic, "" if finding.topic else finding.node), {})
        bad = severity, -finding.weight
        for part in {finding.channel, ""}:
            troubles[part] = min(troubles.get(part, bad), bad)
    return ill
