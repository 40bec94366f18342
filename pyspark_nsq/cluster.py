"""Which lanes there are: nsqd are asked for their logs, and nsqlookupd, if given, which nsqd there are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyspark_nsq.errors import NsqError, Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane
from pyspark_nsq.options import SourceOptions, Topics, Where

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a topic may be."""

    address: str
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} at {self.address}"


@dataclass(frozen=True, slots=True)
class Nothing:
    """What a node has that has no such topic, or one that is not wanted."""

    node: str


class Cluster:
    def __init__(self, options: SourceOptions, http: Http) -> None:
        self._options = options
        self._http = http

    def heads(self) -> dict[Lane, Head]:
        """All lanes, as they are now. Raises when a node cannot be asked, or when there is nothing to read at all."""
        heads = [head for place in self.places() if isinstance(head := self.head(place), Head)]
        self.check_kept(heads)
        self.check_found(heads)
        return {head.lane: head for head in heads}

    @property
    def knows_all_nodes(self) -> bool:
        """Also those that are down: nsqlookupd knows only who is registered."""
        return bool(self._options.where.nsqd)

    def _wants(self, lane: Lane) -> bool:
        """Whether the option `lanes` lets it be read; each is a lane, or as much of one as `<node>` or `<node>/<topic>`."""
        wanted = self._options.lanes
        return not wanted or any(f"{lane}/".startswith(f"{start.rstrip('/')}/") for start in wanted)

    def check_found(self, heads: Iterable[Head]) -> None:
        """Raises when a topic is not there, or nothing at all."""
        found = {head.lane.topic for head in heads}
        asked = ", ".join(self._options.where.lookupd + self._options.where.nsqd)
        if self._options.lanes:
            asked += f" in the lanes {', '.join(self._options.lanes)}"
        missing = [name for name in self._options.topics.names if name not in found]
        if missing:
            raise NsqError(f"there is no topic {', '.join(missing)} at {asked}")
        if not found:
            raise NsqError(f"no topic at {asked} matches {', '.join(self._options.topics.patterns)}")

    def check_kept(self, heads: Iterable[Head]) -> None:
        """Raises when messages may be gone before they are read, and nobody has said that this is as it should be."""
        if self._options.require_retention:
            for head in heads:
                if not head.kept:
                    raise NsqError(not_kept(head))

    def places(self, *, left_out: list[Unreachable] | None = None) -> list[Place]:
        """Where to look for lanes. Raises when nobody can say; nsqd that do not answer are put into `left_out`, if given."""
        topics = self._options.topics
        places: list[Place] = []
        for address, present in nodes(self._options.where, self._http, topics, left_out=left_out).items():
            names = topics.names if present is None else topics.among(present)
            places += [Place(address, name) for name in sorted(names)]
        return places

    def head(self, place: Place, *, known: Head | None = None, wait: float = 0) -> Head | Nothing:
        """The log of a topic at a node. With `known`, as soon as it differs from that."""
        target = f"/topic/log?topic={quote(place.topic)}"
        if known is not None:
            target += f"&log={known.lane.log}&next={known.next}&closed={str(known.closed).lower()}&wait={wait:g}s"
        try:
            answer = self._http.json(place.address, target, timeout=self._options.access.timeout + wait)
        except Refused as refused:
            if refused.status == 404 and refused.code == "TOPIC_NOT_FOUND":
                return Nothing(str(refused.details.get("node", "")))
            if refused.status == 404:
                raise NsqError(
                    f"{place.address} has no /topic/log: it is no nsqd, or one that keeps no history"
                ) from None
            raise
        try:
            head = self._head_in(place, answer)
        except (KeyError, TypeError):
            raise NsqError(f"{place.address} answers /topic/log with something that is no log") from None
        return head if self._wants(head.lane) else Nothing(head.lane.node)

    def _head_in(self, place: Place, answer: Mapping[str, Any]) -> Head:
        lane = Lane(answer["node"], answer["topic"], answer["log"])
        kept = bool(answer["retention_time"] or answer["retention_bytes"])
        closed = bool(answer.get("closed", False))
        return Head(lane, self._http.final(place.address), answer["first"], answer["next"], kept, closed)

    def sequence_at(self, head: Head, time: str) -> int:
        """The first message of a lane that was published at this time or later."""
        target = f"/topic/read?topic={quote(head.lane.topic)}&log={head.lane.log}&from={quote(time)}&limit=0"
        with self._http.request("GET", head.address, target, accept="application/x-ndjson") as response:
            lines = response.read().split(b"\n")
        return int(json.loads(lines[-2])["next"])


def nodes(
    where: Where, http: Http, topics: Topics | None, *, left_out: list[Unreachable] | None = None
) -> dict[str, Iterable[str] | None]:
    """The HTTP address of each nsqd, and the topics it is known to have; None: it is asked for each name.

    Of several nsqlookupd those that answer count, but one has to. Of nsqd all have to, unless there is a list `left_out`.
    """
    if where.nsqd:
        if topics is None or not topics.patterns:
            return dict.fromkeys(where.nsqd)
        return _topics_of_each(http, where.nsqd, left_out)
    found: dict[str, set[str]] = {}
    failures: list[NsqError] = []
    for lookupd in where.lookupd:
        try:
            producers = http.json(lookupd, "/nodes", is_lookupd=True)["producers"]
        except (Unreachable, Refused) as error:
            failures.append(error)
            continue
        for producer in producers:
            host = producer["broadcast_address"]
            address = f"[{host}]:{producer['http_port']}" if ":" in host else f"{host}:{producer['http_port']}"
            hidden = producer["tombstones"]
            found.setdefault(address, set()).update(
                topic for topic, is_hidden in zip(producer["topics"], hidden, strict=True) if not is_hidden
            )
    if len(failures) == len(where.lookupd):
        raise failures[0]
    for failure in failures:
        log.warning("one nsqlookupd is left out: %s", failure)
    return dict(found)


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


def _topics_of(http: Http, address: str) -> list[str]:
    stats = http.json(address, "/stats?format=json&include_clients=false&include_mem=false")
    return [topic["topic_name"] for topic in stats["topics"] or ()]


def not_kept(head: Head) -> str:
    return (
        f"retention is off for topic {head.lane.topic} at {head.address}: messages go as soon as its channels have finished "
        "them, read here or not. Start nsqd with --retention-time or --retention-bytes; or set requireRetention=false"
    )
