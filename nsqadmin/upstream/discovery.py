"""Finds existing nodes and topics in answers of nsqlookupd and nsqd, and merges the answers of several nsqlookupds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.cluster.node_stats import stats_in_slices
from nsqadmin.cluster.sane import NotUnderstood
from nsqcommon.wire.lookup import STATES

if TYPE_CHECKING:
    from nsqadmin.upstream.slices import Slices

Json = Mapping[str, Any]

_NO_REMOTE: Final = "N/A"
_NAMES_AT_ONCE: Final = 5_000  # names to check before other tasks run
MOST_NAMES: Final = 50_000  # topics to accept from one nsqlookupd; each costs time at every sample
_MOST_MISSING: Final = 10_000  # nodes that have left; our nsqlookupd remembers 1,000
_MOST_REMOTES: Final = 100  # registrations of one node to keep
_LONGEST_REASON: Final = 300  # characters
_NO_REASON: Final = "it does not say why"
_LONGEST_TEXT: Final = 4096  # characters of each text in a node's description of itself


@dataclass(slots=True)
class Announced:
    """An nsqd as listed by nsqlookupds, or as described by itself."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = ""
    region: str = ""
    zone: str = ""
    remote_address: str = ""  # where the first nsqlookupd sees it connect from
    remote_addresses: list[str] = field(default_factory=list)  # of all of them: "<nsqlookupd>/<remote address>"
    sources: list[str] = field(default_factory=list)  # the nsqlookupds that list it
    topics: dict[str, bool] = field(default_factory=dict)  # its topics; True: a tombstone hides the node there
    state: str = ""  # one of STATES: it should get no messages
    unreachable: str = ""  # why the first nsqlookupd can't reach it
    problems: list[str] = field(default_factory=list)  # of all of them: "<nsqlookupd>: <why>"

    @property
    def address(self) -> str:
        """The name of the node everywhere in nsqadmin, and the address of its HTTP API."""
        return _joined(self.broadcast_address, self.http_port)

    @property
    def tcp_key(self) -> str:
        return _joined(self.broadcast_address, self.tcp_port)


def read_producer(raw: Json) -> Announced:
    """Parse an element of `producers` in /nodes or /lookup. Its list of tombstones may be too short."""
    topics = [str(topic) for topic in raw.get("topics") or ()]
    tombstones = list(raw.get("tombstones") or ())
    return Announced(
        hostname=_text(raw.get("hostname")),
        broadcast_address=_text(raw.get("broadcast_address") or raw.get("address")),
        tcp_port=int(raw.get("tcp_port") or 0),
        http_port=int(raw.get("http_port") or 0),
        version=_text(raw.get("version")),
        region=_text(raw.get("topology_region")),
        zone=_text(raw.get("topology_zone")),
        remote_address=_text(raw.get("remote_address")),
        state=_state(raw.get("state")),
        unreachable=_problem(raw.get("unreachable")) if raw.get("reachable") is False else "",
        topics={topic: bool(tombstones[at]) if at < len(tombstones) else False for at, topic in enumerate(topics)},
    )


def read_info(raw: Json, configured: str) -> Announced:
    """Parse an nsqd's /info. Missing fields come from its configured address."""
    host, _, port = configured.rpartition(":")
    host = host.strip("[]")
    return Announced(
        hostname=_text(raw.get("hostname") or host),
        broadcast_address=_text(raw.get("broadcast_address") or host),
        tcp_port=int(raw.get("tcp_port") or 0),
        http_port=int(raw.get("http_port") or port) if raw.get("broadcast_address") else int(port),
        version=_text(raw.get("version")),
        region=_text(raw.get("topology_region")),
        zone=_text(raw.get("topology_zone")),
    )


def _state(value: Any) -> str:
    return value if isinstance(value, str) and value in STATES else ""


def _problem(value: Any) -> str:
    return _text(value)[:_LONGEST_REASON] or _NO_REASON


def _text(value: Any) -> str:
    return str(value or "")[:_LONGEST_TEXT]


def unwrapped(document: object) -> Json:
    """Return the document, without the envelope of NSQ before 1.0 if it has one. Raise NotUnderstood."""
    if not isinstance(document, dict):
        raise NotUnderstood(f"expected an object, got {type(document).__name__}")
    data = document.get("data")
    return data if isinstance(data, dict) and "status_code" in document else document


def info_in(document: object, configured: str) -> Announced:
    """Parse an nsqd's answer to /info, like `read_info`. Raise NotUnderstood."""
    try:
        return read_info(unwrapped(document), configured)
    except (TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def topics_in(document: object) -> Slices[list[dict[str, Any]]]:
    """Return the topics of an answer to /stats, unchanged. Raise NotUnderstood if `stats_in_slices` refuses them."""
    stats = unwrapped(document)
    yield from stats_in_slices("", stats, at=0.0)
    return list(stats.get("topics") or ())


def topic_names_in(document: object) -> Slices[list[str]]:
    """Return the names of the topics in an answer to /stats. Raise NotUnderstood."""
    return [topic["topic_name"] for topic in (yield from topics_in(document))]


@dataclass(frozen=True, slots=True)
class Listed:
    """The nodes listed by an nsqlookupd."""

    producers: list[Announced]  # a node is here once for each of its registrations
    left_out: int = 0  # number of nodes left out beyond the limit


def producers_in(document: object, *, most: int, known: Container[str] = ()) -> Slices[Listed]:
    """Return at most `most` nodes, and all that are `known`. Raise NotUnderstood."""
    try:
        return (yield from _producers_in(unwrapped(document).get("producers") or (), most, known))
    except (TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def _producers_in(raw: Iterable[Json], most: int, known: Container[str]) -> Slices[Listed]:
    taken: list[Announced] = []
    counts: dict[str, int] = {}  # registrations, by node
    left_out: set[str] = set()
    names = 0
    for raw_producer in raw:
        yield
        producer = read_producer(raw_producer)
        key = producer.tcp_key
        if key not in counts and len(counts) >= most and producer.address not in known:
            left_out.add(key)
        elif counts.get(key, 0) < _MOST_REMOTES:
            counts[key] = counts.get(key, 0) + 1
            names += len(producer.topics)
            if names > 4 * MOST_NAMES:
                producer.topics.clear()  # too many names; each node's own answer has its topics, too
            taken.append(producer)
    return Listed(taken, len(left_out))


def retired_in(document: object) -> frozenset[str]:
    """Return the addresses of nodes that have left for good, from the answer to `/nodes?missing=true`.

    Only our nsqlookupd reports them. Raise NotUnderstood.
    """
    try:
        missing = list(unwrapped(document).get("missing") or ())[:_MOST_MISSING]
        return frozenset(read_producer({**raw, "topics": ()}).address for raw in missing if raw.get("retired") is True)
    except (TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def names_in(document: object, key: str) -> Slices[list[str]]:
    """Return the list of names under `key` in an nsqlookupd's answer. Raise NotUnderstood."""
    names = unwrapped(document).get(key) or []
    if not isinstance(names, list):
        raise NotUnderstood(f"{key}: expected a list of names")
    for at in range(0, len(names), _NAMES_AT_ONCE):
        if not all(isinstance(name, str) for name in names[at : at + _NAMES_AT_ONCE]):
            raise NotUnderstood(f"{key}: expected a list of names")
        yield
    return names


def merged_nodes(answers: Iterable[tuple[str, Iterable[Announced]]]) -> list[Announced]:
    """Merge the descriptions of each node by several nsqlookupds.

    The first nsqlookupd describes the node; the others add themselves, the address from which the node reaches them,
    and their tombstones.
    """
    merged: dict[str, Announced] = {}
    for source, producers in answers:
        for node in producers:
            fresh = replace(node, remote_addresses=[], sources=[], problems=[], topics=dict(node.topics))
            known = merged.setdefault(node.tcp_key, fresh)
            if len(known.sources) < _MOST_REMOTES:
                known.remote_addresses.append(f"{source}/{node.remote_address or _NO_REMOTE}")
                known.sources.append(source)
                known.state = known.state or node.state
                if node.unreachable:
                    known.problems.append(f"{source}: {node.unreachable}")
            for topic, is_tombstoned in node.topics.items():
                known.topics[topic] = known.topics.get(topic, False) or is_tombstoned
    return list(merged.values())


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
