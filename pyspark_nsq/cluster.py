"""Finds lanes: queries each nsqd for its logs, and nsqlookupd, if given, for the nsqds first."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from pyspark_nsq.errors import NsqError, Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane, Offsets
from pyspark_nsq.missing import Departed, Presence, Seen, check, in_one_line, presence
from pyspark_nsq.options import SourceOptions, Topics, Where

log = logging.getLogger(__name__)

_PATIENCE_FOR_POINTS: Final = 10.0  # seconds; short, because the other lanes of the batch wait for the answer
GLANCE: Final = 2.0  # seconds for an answer of a node that is probably down
_AT_ONCE: Final = 16  # nodes to query at the same time


@dataclass(frozen=True, slots=True)
class Place:
    """A topic at an nsqd that may have it."""

    address: str
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} at {self.address}"


@dataclass(frozen=True, slots=True)
class NoLog:
    """A node's answer that it doesn't have the topic, or only has a lane that the option `lanes` excludes."""

    node: str  # its id; empty if the answer doesn't name it


class Cluster:
    def __init__(self, options: SourceOptions, http: Http) -> None:
        self._options = options
        self._http = http
        # As of the last call of `places`.
        self.registered: frozenset[str] = frozenset()
        self.departed: tuple[Departed, ...] = ()

    def heads(self, *, for_stream: bool = False) -> dict[Lane, Head]:
        """Return all lanes as they are now. Raises when a node doesn't answer, or when no topic is found.

        A stream may start without nodes that aren't registered any more: it reads them when they are back.
        """
        heads, there = self._look(Offsets({}), left_out=None)
        self.check_nodes(there)
        if there.missing:
            if self._options.lossless and not for_stream:
                raise NsqError(f"{in_one_line(there.missing)}; failOnDataLoss=false reads what the others have")
            log.warning("nodes are left out: %s", in_one_line(there.missing))
        self.check_kept(heads)
        self.check_found(heads, there.missing)
        return {head.lane: head for head in heads}

    def look(self, offsets: Offsets) -> tuple[dict[Lane, Head], Presence]:
        """Return the lanes of all nodes that answer, and which nodes are missing for a query at these offsets.

        Raises when a node is missing that the options require, or when no node has a topic requested by name.
        """
        heads, there = self._look(offsets, left_out=[])
        self.check_nodes(there)
        self.check_found(heads, there.missing)
        return {head.lane: head for head in heads}, there

    def _look(self, offsets: Offsets, left_out: list[Unreachable] | None) -> tuple[list[Head], Presence]:
        """Query every node.

        A registered node that doesn't answer goes into `left_out`, if given, or else raises.
        """
        heads: list[Head] = []
        for place in self.places(left_out=left_out):
            try:
                head = self.head(place)
            except Unreachable as failure:
                if left_out is None:
                    raise
                left_out.append(failure)
                continue
            if isinstance(head, Head):
                heads.append(head)
        silent = {failure.address: str(failure) for failure in left_out or ()}
        for departed, found in self.visit(self.departed):
            if isinstance(found, NsqError):
                silent[departed.address] = str(found)
            else:
                heads += [head for _, head in found if isinstance(head, Head)]
        return heads, presence(self._seen(silent, heads), offsets)

    def missing(self, offsets: Offsets | None = None) -> dict[str, str]:
        """Return the reason for each known node that doesn't answer, by its address.

        Nodes with lanes in the offsets, but without a known address, are included as `node ID`.
        """
        return dict(self.presence(offsets).missing)

    def presence(self, offsets: Offsets | None = None) -> Presence:
        """Return how many nodes are present, and which are missing for a query at these offsets."""
        return self.glance(offsets if offsets is not None else Offsets({}))[1]

    def glance(self, offsets: Offsets) -> tuple[list[Head], Presence]:
        """Ask all known nodes for their logs at the same time, each for `GLANCE` seconds at most.

        Raises when no nsqlookupd answers. Unlike `look`, it doesn't check the options' requirements.
        """
        left_out: list[Unreachable] = []
        places: dict[str, list[Place]] = defaultdict(list)
        for place in self.places(left_out=left_out):
            places[place.address].append(place)
        silent = {failure.address: str(failure) for failure in left_out}
        heads: list[Head] = []
        known = [*self.departed, *(Departed(it, "", tuple(p.topic for p in at), False) for it, at in places.items())]
        for departed, found in self.visit(known):
            if isinstance(found, NsqError):
                silent[departed.address] = str(found)
            else:
                heads += [head for _, head in found if isinstance(head, Head)]
        return heads, presence(self._seen(silent, heads), offsets)

    def visit(
        self, nodes: Iterable[Departed]
    ) -> Iterator[tuple[Departed, list[tuple[Place, Head | NoLog]] | NsqError]]:
        """Ask nodes that are probably down for their logs; some of them answer, because they are only unregistered.

        Only `NoLog` means that a node doesn't have the topic. A node that refuses to answer, or gives a senseless
        answer, counts as silent, like one that is down: it may have messages that we can't see.
        """

        def ask(it: Departed) -> tuple[Departed, list[tuple[Place, Head | NoLog]] | NsqError]:
            # The silence of a retired node means loss, so it has as much time for an answer as any other query.
            timeout = None if it.is_retired else GLANCE
            try:
                places = [Place(it.address, name) for name in self._names_at(it, timeout)]
                return it, [(place, self.head(place, timeout=timeout)) for place in places]
            except NsqError as error:
                return it, error

        wanted = list(nodes)
        if wanted:
            with ThreadPoolExecutor(min(_AT_ONCE, len(wanted))) as pool:
                yield from pool.map(ask, wanted)

    def _names_at(self, it: Departed, timeout: float | None) -> list[str]:
        """Return the topics to ask a node for.

        If its topics are unknown and there is a pattern, ask the node for them.
        """
        topics = self._options.topics
        if it.topics is not None:
            return sorted(topics.among(it.topics))
        if not topics.patterns:
            return list(topics.names)
        return sorted({*topics.names, *topics.among(_topics_of(self._http, it.address, timeout=timeout))})

    def _seen(self, silent: Mapping[str, str], heads: Iterable[Head]) -> Seen:
        lanes: dict[str, list[Lane]] = defaultdict(list)
        for head in heads:
            lanes[head.address].append(head.lane)
        return Seen(registered=self.registered, departed=self.departed, silent=silent, lanes=lanes)

    def check_nodes(self, found: Presence) -> None:
        """Raise when the options require a node that is missing."""
        check(found, require_all=self._options.require_all_nodes, require=self._options.require_nodes)

    @property
    def knows_all_nodes(self) -> bool:
        """True if nodes that are down are known, too: nsqlookupd only lists registered ones."""
        return bool(self._options.where.nsqd)

    def _wants(self, lane: Lane) -> bool:
        """Return True if the option `lanes` includes this lane: it lists lanes, or `<node>`, or `<node>/<topic>`."""
        wanted = self._options.lanes
        return not wanted or any(f"{lane}/".startswith(f"{start.rstrip('/')}/") for start in wanted)

    def check_found(self, heads: Iterable[Head], missing: Mapping[str, str] | None = None) -> None:
        """Raise when no head has a topic requested by name, or when there is no head at all.

        The error names the `missing` nodes, because they may have the topic.
        """
        found = {head.lane.topic for head in heads}
        asked = ", ".join(self._options.where.lookupd + self._options.where.nsqd)
        if self._options.lanes:
            asked += f" in the lanes {', '.join(self._options.lanes)}"
        if missing:
            asked += f", and not all nodes answer: {in_one_line(missing)}"
        absent = [name for name in self._options.topics.names if name not in found]
        if absent:
            raise NsqError(f"there is no topic {', '.join(absent)} at {asked}")
        if not found:
            raise NsqError(f"no topic at {asked} matches {', '.join(self._options.topics.patterns)}")

    def check_kept(self, heads: Iterable[Head]) -> None:
        """Raise when retention is off for a topic, unless the option `requireRetention` is false."""
        if self._options.require_retention:
            for head in heads:
                if not head.kept:
                    raise NsqError(no_retention_text(head))

    def places(self, *, left_out: list[Unreachable] | None = None) -> list[Place]:
        """Return where to look for lanes, and remember `registered` and `departed` nodes.

        Raises when no nsqlookupd answers. An nsqd that doesn't answer goes into `left_out`, if given, or else raises.
        """
        topics = self._options.topics
        places: list[Place] = []
        known = known_nodes(self._options.where, self._http, topics, left_out=left_out)
        self.registered = frozenset(known.registered) | {it.address for it in left_out or ()}
        self.departed = tuple(it for it in known.departed if it.topics is None or topics.among(it.topics))
        for address, present in known.registered.items():
            names = topics.names if present is None else topics.among(present)
            places += [Place(address, name) for name in sorted(names)]
        return places

    def head(
        self, place: Place, *, known: Head | None = None, wait: float = 0, timeout: float | None = None
    ) -> Head | NoLog:
        """Return the log of a topic at a node. With `known`, wait up to `wait` seconds for it to change."""
        target = f"/topic/log?topic={quote(place.topic)}"
        if known is not None:
            target += f"&log={known.lane.log}&next={known.next}&closed={str(known.closed).lower()}&wait={wait:g}s"
        try:
            answer = self._http.json(place.address, target, timeout=(timeout or self._options.access.timeout) + wait)
        except Refused as refused:
            if refused.status == 404 and refused.code == "TOPIC_NOT_FOUND":
                return NoLog(str(refused.details.get("node", "")))
            if refused.status == 404:
                raise NsqError(
                    f"{place.address} has no /topic/log: it is not an nsqd, or one that keeps no history"
                ) from None
            raise
        try:
            head = self._head_in(place, answer)
        except (KeyError, TypeError):
            raise NsqError(f"{place.address} answers /topic/log with something that is not a log") from None
        return head if self._wants(head.lane) else NoLog(head.lane.node)

    def _head_in(self, place: Place, answer: Mapping[str, Any]) -> Head:
        lane = Lane(answer["node"], answer["topic"], answer["log"])
        kept = bool(answer["retention_time"] or answer["retention_bytes"])
        return Head(
            lane,
            self._http.actual_address(place.address),
            answer["first"],
            answer["next"],
            kept,
            closed=bool(answer.get("closed", False)),
            last_time=answer["last_time"],
            bytes=answer["bytes"],
        )

    def sequence_at(self, head: Head, time: str) -> int:
        """Return the sequence of the first message published at this time or later; the end if there is none."""
        target = f"/topic/read?topic={quote(head.lane.topic)}&log={head.lane.log}&from={quote(time)}&limit=0"
        with self._http.request("GET", head.address, target, accept="application/x-ndjson") as response:
            lines = response.read().split(b"\n")
        return int(json.loads(lines[-2])["next"])

    def points(self, head: Head, begin: int, end: int, most: int) -> list[tuple[int, int, int]] | None:
        """Return (sequence, time, bytes since `begin`) of up to `most` messages in [begin, end].

        None: this nsqd can't tell.
        """
        target = f"/topic/log?topic={quote(head.lane.topic)}&log={head.lane.log}&from={begin}&to={end}&points={most}"
        timeout = min(self._options.access.timeout, _PATIENCE_FOR_POINTS)
        points = self._http.json(head.address, target, timeout=timeout).get("points")
        return [tuple(point) for point in points] if isinstance(points, list) else None


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nsqds named in the options, or listed or remembered by nsqlookupd."""

    registered: Mapping[str, Iterable[str] | None]  # the topics at each address; None: to be requested for each name
    departed: Iterable[Departed] = ()
    with_state: frozenset[str] = frozenset()  # nsqds that should get no messages: draining, full or unhealthy


def nodes(where: Where, http: Http, topics: Topics | None = None) -> list[str]:
    """Return the address of each nsqd named in the options or listed by nsqlookupd."""
    return list(known_nodes(where, http, topics).registered)


def nodes_to_publish_to(where: Where, http: Http) -> list[str]:
    """Return the address of each nsqd named in the options or listed by nsqlookupd.

    Nsqds listed with a state are left out, unless there are no others.
    """
    known = known_nodes(where, http, None)
    return [address for address in known.registered if address not in known.with_state] or list(known.registered)


def known_nodes(
    where: Where, http: Http, topics: Topics | None, *, left_out: list[Unreachable] | None = None
) -> KnownNodes:
    """Find all nsqds, by the address of their HTTP API.

    Of several nsqlookupds, one has to answer. Every nsqd that we ask for its topics has to answer, unless there is a
    list `left_out` for it.
    """
    if where.nsqd:
        if topics is None or not topics.patterns:
            return KnownNodes(dict.fromkeys(where.nsqd))
        return KnownNodes(_topics_of_each(http, where.nsqd, left_out))
    found: dict[str, set[str]] = {}
    departed: dict[str, Departed] = {}
    with_state: set[str] = set()
    failures: list[NsqError] = []
    for lookupd in where.lookupd:
        try:
            # NSQ's own nsqlookupd ignores the argument, and doesn't remember nodes that have left.
            answer = http.json(lookupd, "/nodes?missing=true", is_lookupd=True)
        except (Unreachable, Refused) as error:
            failures.append(error)
            continue
        for producer in answer["producers"]:
            address = _address_of(producer)
            if producer.get("state"):
                with_state.add(address)
            hidden = producer["tombstones"]
            found.setdefault(address, set()).update(
                topic for topic, is_hidden in zip(producer["topics"], hidden, strict=True) if not is_hidden
            )
        for gone in answer.get("missing") or ():
            topics_then = tuple(gone["topics"]) if gone["topics"] is not None else None
            it = Departed(_address_of(gone), gone["node"], topics_then, gone["drained"], gone["retired"])
            departed.setdefault(it.address, it)
    if len(failures) == len(where.lookupd):
        raise failures[0]
    for failure in failures:
        log.warning("one nsqlookupd is left out: %s", failure)
    gone = [it for it in departed.values() if it.address not in found]
    return KnownNodes(found, gone, frozenset(with_state))


def _address_of(producer: Mapping[str, Any]) -> str:
    host, port = producer["broadcast_address"], producer["http_port"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _topics_of_each(
    http: Http, addresses: Iterable[str], left_out: list[Unreachable] | None
) -> dict[str, Iterable[str] | None]:
    found: dict[str, Iterable[str] | None] = {}
    for address in addresses:
        try:
            found[address] = _topics_of(http, address)
        except Unreachable as failure:
            if left_out is None:
                raise
            left_out.append(failure)
    return found


def _topics_of(http: Http, address: str, *, timeout: float | None = None) -> list[str]:
    stats = http.json(address, "/stats?format=json&include_clients=false&include_mem=false", timeout=timeout)
    return [topic["topic_name"] for topic in stats["topics"] or ()]


def no_retention_text(head: Head) -> str:
    """Say that messages of this topic may be removed before they are read, and how to prevent that."""
    return (
        f"retention is off for topic {head.lane.topic} at {head.address}: messages go as soon as its channels have finished "
        "them, read here or not. Start nsqd with --retention-time or --retention-bytes; or set requireRetention=false"
    )
