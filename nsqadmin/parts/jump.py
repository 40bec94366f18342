"""The command palette's search: finds pages, topics, channels, tasks, jobs, nodes and consumers' hosts, best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.links import Links
    from nsqcommon.job_reports import JobEvent

MOST: Final = 30
_KINDS_LAST: Final = {"nsqd": 1, "consumer": 2}
_PAGES: Final = (
    ("Overview", "/"),
    ("Topics", "/topics"),
    ("Consumers", "/consumers"),
    ("Jobs", "/jobs"),
    ("Nodes", "/nodes"),
    ("Lookup", "/lookup"),
    ("Activity", "/activity"),
    ("Counter", "/counter"),
    ("Help", "/help"),
)


@dataclass(frozen=True, slots=True)
class JumpTarget:
    name: str
    kind: str
    href: str


def find(
    snapshot: Snapshot, links: Links, text: str, *, tasks: Iterable[str] = (), jobs: Iterable[JobEvent] = ()
) -> tuple[JumpTarget, ...]:
    """Return the best matches. `tasks` and `jobs` are those that the user may see; these jobs match already."""
    words = text.lower().split()
    places = chain(_places(snapshot, links), _tasks(links, tasks), _jobs(links, jobs))
    matching = [place for place in places if all(word in place.name.lower() for word in words)]
    start = words[0] if words else ""
    if start:
        matching.sort(key=lambda place: _rank(place, start))
    return tuple(matching[:MOST])


def _rank(place: JumpTarget, start: str) -> tuple[int, int, int]:
    """Return the sort key of a result.

    Topics and channels come before nodes, and nodes before consumers, because a channel often has consumers with its
    name. Topics that begin with the first word come before channels that do, then all others, and short names first.
    """
    name = place.name.lower()
    begins = 0 if name.startswith(start) else 1 if f"/{start}" in name else 2
    return _KINDS_LAST.get(place.kind, 0), begins, len(name)


def _places(snapshot: Snapshot, links: Links) -> Iterator[JumpTarget]:
    for name, path in _PAGES:
        yield JumpTarget(name, "page", links.to(path))
    for topic in snapshot.topics:
        yield JumpTarget(topic.name, "topic", links.topic(topic.name))
        for channel in topic.channels:
            yield JumpTarget(f"{topic.name}/{channel.name}", "channel", links.channel(topic.name, channel.name))
    for node in snapshot.nodes:
        yield JumpTarget(node.address, "nsqd", links.node(node.address))
    for host in sorted(_hosts(snapshot)):
        yield JumpTarget(host, "consumer", links.to("/consumers", group="none", filter=host))


def _tasks(links: Links, names: Iterable[str]) -> Iterator[JumpTarget]:
    return (JumpTarget(name, "task", links.to("/jobs/task", name=name)) for name in names)


def _jobs(links: Links, events: Iterable[JobEvent]) -> Iterator[JumpTarget]:
    known = {(it.topic, it.id): it for it in events}
    for (topic, id), it in known.items():
        yield JumpTarget(f"{id} {it.name}", "job", links.job(id, topic, it.channel))


def _hosts(snapshot: Snapshot) -> set[str]:
    return {
        client.hostname
        for topic in snapshot.topics
        for channel in topic.channels
        for row in channel.nodes
        for client in row.clients or ()
        if client.hostname
    }
