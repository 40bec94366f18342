"""The directory: the nsqlookupds' registrations and disagreements, and a form to create topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.http.app import Route
from nsqadmin.parts.tables import MOST_ROWS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Snapshot, Topic
    from nsqadmin.parts.links import Links
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_FEW_ROWS: Final = 2  # with one cause; more become one row


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        found = lookup_page(snapshot, painter.links)
        return painter.page(request, "lookup.html", snapshot, current="Lookup", scope="lookup", page=found, given=None)

    return [Route("GET", "/lookup", painter.cached(page))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A topic or node that some nsqlookupds know and others don't, or several with the same cause."""

    name: str
    kind: str
    link: str
    known: tuple[bool, ...]  # for each nsqlookupd that answers, True if it knows it
    node: str = ""  # the node that causes the difference
    members: tuple[Disagreement, ...] = ()  # further names with the same cause


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPage:
    lookupds: tuple[str, ...]  # the ones that answer
    disagreements: tuple[Disagreement, ...]
    left_out: int
    inactive: tuple[Topic, ...]
    tombstones: tuple[tuple[str, str], ...]  # topic, node


def lookup_page(snapshot: Snapshot, links: Links) -> LookupPage:
    seen = {topic.name for topic in snapshot.topics}
    found = _by_cause(_disagreements(snapshot, links, seen))
    return LookupPage(
        lookupds=tuple(lookupd.address for lookupd in snapshot.lookupds if lookupd.is_reachable),
        disagreements=tuple(found[:MOST_ROWS]),
        left_out=max(0, len(found) - MOST_ROWS),
        inactive=tuple(topic for topic in snapshot.topics if topic.is_inactive),
        tombstones=tuple(
            (topic, node.address) for node in snapshot.nodes for topic in node.tombstones if topic in seen
        ),
    )


def _disagreements(snapshot: Snapshot, links: Links, seen: set[str]) -> Iterator[Disagreement]:
    answering = [lookupd for lookupd in snapshot.lookupds if lookupd.is_reachable]
    nodes = [frozenset(lookupd.nodes) for lookupd in answering]
    for name, known in _not_known_to_all(nodes):
        yield Disagreement(name=name, kind="node", link=links.node(name), known=known, node=name)
    for name, known in _not_known_to_all([frozenset(lookupd.topics) & seen for lookupd in answering]):
        topic = snapshot.topic(name)
        missing = [there for there, is_known in zip(nodes, known, strict=True) if not is_known]
        on = {row.node for row in topic.nodes} if topic is not None else set()
        is_nodes_fault = len(on) == 1 and all(on.isdisjoint(there) for there in missing)
        yield Disagreement(
            name=name, kind="topic", link=links.topic(name), known=known, node=min(on) if is_nodes_fault else ""
        )


def _not_known_to_all(sets: Sequence[frozenset[str]]) -> Iterator[tuple[str, tuple[bool, ...]]]:
    common = frozenset.intersection(*sets) if sets else frozenset()
    for name in sorted(frozenset().union(*sets) - common):
        yield name, tuple(name in known for known in sets)


def _by_cause(found: Iterable[Disagreement]) -> list[Disagreement]:
    """Join names that the same nsqlookupds lack for the same reason: a node, or an unknown one."""
    groups: dict[tuple[str, tuple[bool, ...]], list[Disagreement]] = {}
    for it in found:
        groups.setdefault((it.node, it.known), []).append(it)
    return [
        row
        for group in groups.values()
        for row in ([replace(group[0], members=tuple(group[1:]))] if len(group) > _FEW_ROWS else group)
    ]
