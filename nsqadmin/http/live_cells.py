"""The cells of a page: numbers with live updates. In HTML, an element has its cell's key as `data-k`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.measures import measures_of
from nsqadmin.cluster.model import Channel, Lookupd, Node, Severity, Snapshot, Topic
from nsqadmin.parts.silence import is_all_unknown

if TYPE_CHECKING:
    from nsqadmin.cluster.measures import ChannelNumbers, Measure, TopicNumbers

Value = float | int | str | None
Cells = dict[str, Value]

SCOPES: Final = ("overview", "topics", "nodes", "consumers", "jobs", "lookup", "counter")
_WITH_NAME: Final = ("topic", "channel", "node")
_TOP: Final = 40  # topics; the overview's lists are never longer


class _Numbers:
    """The cells of measures."""

    def __init__(self, measures: Iterable[Measure]) -> None:
        live = [it for it in measures if it.is_live]
        self._ends = [f"/{it.cell}" for it in live]
        self._read = attrgetter(*(it.name for it in live))

    def put(self, cells: Cells, key: str, record: TopicNumbers | ChannelNumbers) -> None:
        cells.update(zip([key + end for end in self._ends], self._read(record), strict=True))


_OF_TOPIC: Final = _Numbers(measures_of(Topic))
_OF_TOPIC_NODE: Final = _Numbers(it for it in measures_of(Topic) if it.column)  # the columns of the nodes table
_OF_CHANNEL: Final = _Numbers(measures_of(Channel))


class BadScope(ValueError):
    """No page has this scope."""


def checked_scope(scope: str) -> str:
    """Return the scope, which names a page, if it is valid. Raise BadScope."""
    word, colon, name = scope.partition(":")
    if scope in SCOPES or (word in _WITH_NAME and colon and name and (word != "channel" or "/" in name)):
        return scope
    raise BadScope(f"expected one of {', '.join(SCOPES)}, topic:T, channel:T/C or node:ADDRESS")


def topic_of(scope: str) -> str:
    """Return the topic of the page, or ""."""
    word, _, name = scope.partition(":")
    return name.partition("/")[0] if word in ("topic", "channel") else ""


def topic_of_cell(key: str) -> str:
    """Return the topic of the cell, or ""."""
    return key.split("/", 2)[1].partition("@")[0] if key.startswith("topics/") else ""


def cells_of(snapshot: Snapshot, scope: str, only: Collection[str] | None = None) -> Cells:
    """Return all cells of a page. A deleted topic or a lost node has no cells.

    `only` has the topics whose rows are wanted, if the page lists topics; None: all.
    """
    cells: Cells = dict(_cluster(snapshot))
    word, _, name = scope.partition(":")
    match word:
        case "overview":
            for topic in _top(snapshot):
                _put_topic(cells, topic)
            cells.update(_all_nodes(snapshot))
        case "topics" | "consumers" | "counter" | "lookup":
            for topic in snapshot.topics:
                if only is None or topic.name in only:
                    _put_topic(cells, topic)
            if word == "lookup":
                cells.update(_all_nodes(snapshot))
        case "nodes":
            cells.update(_all_nodes(snapshot))
        case "topic":
            if (found := snapshot.topic(name)) is not None:
                _put_topic(cells, found, with_nodes=True)
        case "channel":
            topic_name, _, channel_name = name.partition("/")
            if (channel := snapshot.channel(topic_name, channel_name)) is not None:
                _put_channel(cells, channel, with_nodes=True)
                cells.update(_clients(channel))
        case "node":
            cells.update(_one_node(snapshot, name))
    return cells


def difference(before: Mapping[str, Value], now: Mapping[str, Value]) -> Cells:
    """Return the changed cells, with None for deleted ones."""
    missing = object()
    changed: Cells = {key: value for key, value in now.items() if before.get(key, missing) != value}
    changed.update((key, None) for key in before if key not in now)
    return changed


def _top(snapshot: Snapshot) -> Iterable[Topic]:
    """Return the topics that the overview may list: topics in trouble, and the biggest by depth and by rate."""
    wrong = {finding.topic for finding in snapshot.findings if finding.severity is not Severity.INFO}
    by_depth = sorted(snapshot.topics, key=lambda topic: -topic.total_depth)[:_TOP]
    by_rate = sorted(snapshot.topics, key=lambda topic: -(topic.rates.incoming or 0.0))[:_TOP]
    named = [topic for name in sorted(wrong) if name and (topic := snapshot.topic(name)) is not None]
    return {topic.name: topic for topic in (*named[: 5 * _TOP], *by_depth, *by_rate)}.values()


def _cluster(snapshot: Snapshot) -> Iterator[tuple[str, Value]]:
    totals = snapshot.totals
    yield "cluster/topics", totals.topic_count
    yield "cluster/channels", totals.channel_count
    yield "cluster/clients", totals.client_count
    yield "cluster/depth", None if is_all_unknown(snapshot) and not totals.depth else totals.depth
    yield "cluster/in_flight", totals.in_flight_count
    yield "cluster/deferred", totals.deferred_count
    yield "cluster/buried", totals.buried_count
    yield "cluster/incoming", _rounded(totals.rates.incoming)
    yield "cluster/finished", _rounded(totals.rates.finished)
    yield "cluster/requeued", _rounded(totals.rates.requeued)
    yield "cluster/timed_out", _rounded(totals.rates.timed_out)
    yield "cluster/nodes_up", sum(node.is_reachable for node in snapshot.nodes)
    yield "cluster/nodes", len(snapshot.nodes)
    yield "cluster/lookupds_up", sum(lookupd.is_reachable for lookupd in snapshot.lookupds)
    yield "cluster/lookupds", len(snapshot.lookupds)
    yield "cluster/published", sum(topic.message_count for topic in snapshot.topics)
    yield "cluster/delivered", sum(channel.message_count for topic in snapshot.topics for channel in topic.channels)


def _put_topic(cells: Cells, topic: Topic, *, with_nodes: bool = False) -> None:
    key = f"topics/{topic.name}"
    worst = topic.worst_channel
    _OF_TOPIC.put(cells, key, topic)
    cells[f"{key}/memory_depth"] = topic.memory_depth
    cells[f"{key}/total_depth"] = topic.total_depth
    cells[f"{key}/incoming"] = _rounded(topic.rates.incoming)
    cells[f"{key}/bytes"] = _rounded(topic.rates.bytes)
    cells[f"{key}/paused"] = topic.paused.value
    cells[f"{key}/channels"] = len(topic.channels)
    cells[f"{key}/nodes"] = len(topic.nodes)
    cells[f"{key}/worst_channel"] = worst.name if worst is not None and worst.depth else None
    for channel in topic.channels:
        _put_channel(cells, channel, with_nodes=False)
    if with_nodes:
        for row in topic.nodes:
            of_node = f"{key}@{row.node}"
            _OF_TOPIC_NODE.put(cells, of_node, row)
            cells[f"{of_node}/memory_depth"] = row.memory_depth
            cells[f"{of_node}/paused"] = "yes" if row.paused else "no"
        cells.update(_readers(topic))


def _readers(topic: Topic) -> Iterator[tuple[str, Value]]:
    yield f"topics/{topic.name}/readers", len(topic.readers) if topic.readers is not None else None
    for reader in topic.readers or ():
        key = f"topics/{topic.name}/reader/{reader.name}/{reader.into}"
        yield f"{key}/behind", reader.behind
        yield f"{key}/behind_time", _whole(reader.behind_time)
        for row in reader.nodes:
            yield f"{key}@{row.node}/behind", row.behind
            yield f"{key}@{row.node}/behind_time", _whole(row.behind_time if row.behind else 0.0)


def _put_channel(cells: Cells, channel: Channel, *, with_nodes: bool) -> None:
    key = f"topics/{channel.topic}/{channel.name}"
    rates = channel.rates
    _OF_CHANNEL.put(cells, key, channel)
    cells[f"{key}/memory_depth"] = channel.memory_depth
    cells[f"{key}/ready"] = channel.ready_count
    cells[f"{key}/incoming"] = _rounded(rates.incoming)
    cells[f"{key}/finished"] = _rounded(rates.finished)
    cells[f"{key}/requeued"] = _rounded(rates.requeued)
    cells[f"{key}/timed_out"] = _rounded(rates.timed_out)
    cells[f"{key}/failed"] = _rounded(rates.failed)
    cells[f"{key}/dropped"] = _rounded(rates.dropped)
    cells[f"{key}/expired"] = _rounded(rates.expired)
    cells[f"{key}/buried_rate"] = _rounded(rates.buried)
    cells[f"{key}/net_rate"] = _rounded(channel.net_rate)
    cells[f"{key}/drain_time"] = _whole(channel.drain_time)
    cells[f"{key}/oldest_age"] = _whole(channel.oldest_age)
    cells[f"{key}/utilisation"] = _rounded(channel.utilisation)
    cells[f"{key}/paused"] = channel.paused.value
    if with_nodes:
        for row in channel.nodes:
            of_node = f"{key}@{row.node}"
            _OF_CHANNEL.put(cells, of_node, row)
            cells[f"{of_node}/memory_depth"] = row.memory_depth
            cells[f"{of_node}/paused"] = "yes" if row.paused else "no"


def _clients(channel: Channel, node: str = "") -> Iterator[tuple[str, Value]]:
    for client in channel.clients or ():
        if node and client.node != node:
            continue
        key = f"topics/{channel.topic}/{channel.name}/clients/{client.node}/{client.remote_address}"
        yield f"{key}/ready", client.ready_count
        yield f"{key}/in_flight", client.in_flight_count
        yield f"{key}/finish_count", client.finish_count
        yield f"{key}/requeue_count", client.requeue_count
        yield f"{key}/message_count", client.message_count
        yield f"{key}/finish_rate", _rounded(client.finish_rate)
        yield f"{key}/requeue_rate", _rounded(client.requeue_rate)
        yield f"{key}/oldest_in_flight", _whole(client.oldest_in_flight)


def _all_nodes(snapshot: Snapshot) -> Iterator[tuple[str, Value]]:
    for node in snapshot.nodes:
        yield from _node(node)
    for lookupd in snapshot.lookupds:
        yield from _lookupd(lookupd)


def _node(node: Node) -> Iterator[tuple[str, Value]]:
    key = f"nodes/{node.address}"
    yield f"{key}/health", node.health.value
    yield f"{key}/topics", node.topic_count if node.is_known else None
    yield f"{key}/channels", node.channel_count if node.is_known else None
    yield f"{key}/clients", node.client_count if node.is_known else None
    yield f"{key}/depth", node.depth if node.is_known else None
    yield f"{key}/in_flight", node.in_flight_count if node.is_known else None
    yield f"{key}/message_count", node.message_count if node.is_known else None
    yield f"{key}/incoming", _rounded(node.rates.incoming)
    yield f"{key}/finished", _rounded(node.rates.finished)
    yield f"{key}/heap", node.memory.heap_in_use if node.memory is not None else None


def _lookupd(lookupd: Lookupd) -> Iterator[tuple[str, Value]]:
    key = f"lookupds/{lookupd.address}"
    yield f"{key}/health", lookupd.health.value
    yield f"{key}/topics", len(lookupd.topics)
    yield f"{key}/nodes", len(lookupd.nodes)


def _one_node(snapshot: Snapshot, address: str) -> Iterator[tuple[str, Value]]:
    if (node := snapshot.node(address)) is None:
        return
    yield from _node(node)
    cells: Cells = {}
    for topic in snapshot.topics:
        for row in topic.nodes:
            if row.node == address:
                _OF_TOPIC_NODE.put(cells, f"topics/{topic.name}@{address}", row)
        for channel in topic.channels:
            for on_node in channel.nodes:
                if on_node.node == address:
                    _OF_CHANNEL.put(cells, f"topics/{topic.name}/{channel.name}@{address}", on_node)
            cells.update(_clients(channel, address))
    yield from cells.items()


def _rounded(value: float | None) -> float | None:
    """Round to the three digits that pages show: an invisible change isn't worth sending."""
    return None if value is None else float(f"{value:.3g}")


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
