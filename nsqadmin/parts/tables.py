"""Tables: sorted by the links in their headers, and divided into pages. The URL has both, so no script is needed.

Each table has its own argument, because a page may have several: `?sort-nodes=-depth&sort-consumers=state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from nsqadmin.cluster.measures import measures_of
from nsqadmin.cluster.merge import version_key
from nsqadmin.cluster.model import Channel, Topic
from nsqadmin.parts.status import HEALTH

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.cluster.measures import Measure

T = TypeVar("T")
Value = float | int | str | tuple[Any, ...] | None
Key = Callable[[Any], Value]

MOST_ROWS: Final = 500  # of a table without pages
PER_PAGE: Final = 50  # rows; on a phone each is a card
_WORST_FIRST: Final = {"problem": 0, "warning": 1, "info": 2, "muted": 3, "ok": 4}
_PASSING: Final = frozenset(("fresh", "page"))  # arguments that a sort link drops


# Sorting


def of_the(path: str) -> Key:
    """Return a key that reads an attribute, or an attribute of an attribute."""
    names = path.split(".")

    def key(row: Any) -> Value:
        for name in names:
            row = getattr(row, name)
        value: Value = row
        return value

    return key


def _negative(path: str) -> Key:
    """Return a key for ages, which are the reverse of times."""
    read = of_the(path)
    return lambda row: -value if isinstance(value := read(row), int | float) and value else None


def _over_channels(read: Callable[[Any], int]) -> Key:
    """Return a key for a topic on a node: the sum over its channels there."""
    return lambda row: sum(read(on) for _, on in row.channels)


_OF_TOPIC: Final = {it.column: it.read for it in measures_of(Topic) if it.column}
_CHANNEL_COLUMNS: Final = [it for it in measures_of(Channel) if it.column]
_OF_CHANNEL: Final = {it.column: it.read for it in _CHANNEL_COLUMNS}
# Sort keys by table and column. The columns' content is in the template of the table.
KEYS: Final[Mapping[str, Mapping[str, Key]]] = {
    "consumers": {
        "consumer": lambda row: (row.client.hostname, row.client.client_id, row.client.node, row.client.remote_address),
        "state": of_the("rank"),
        "channel": lambda row: (row.topic, row.channel),
        "software": of_the("client.user_agent"),
        "node": of_the("client.node"),
        "inflight": of_the("client.in_flight_count"),
        "oldest": of_the("client.oldest_in_flight"),
        "rate": of_the("client.finish_rate"),
        "finished": of_the("client.finish_count"),
        "requeued": of_the("client.requeue_count"),
        "failing": of_the("client.requeue_rate"),
        "connected": _negative("client.connect_time"),
    },
    "groups": {
        "name": of_the("host"),
        "state": of_the("rank"),
        "connections": of_the("connections"),
        "nodes": of_the("nodes"),
        "inflight": of_the("in_flight"),
        "oldest": of_the("oldest"),
        "rate": of_the("finish_rate"),
        "failing": of_the("requeue_rate"),
        "finished": of_the("finished"),
        "requeued": of_the("requeued"),
    },
    "channels": {
        **_OF_CHANNEL,
        "name": of_the("name"),
        "in": of_the("rates.incoming"),
        "out": of_the("rates.finished"),
        "drain": of_the("drain_time"),
        "lag": of_the("oldest_age"),
        "failures": of_the("rates.failed"),
    },
    "channel-nodes": {**_OF_CHANNEL, "node": of_the("node")},
    "topic-nodes": {**_OF_TOPIC, "node": of_the("node")},
    "node-topics": {
        **{column: _over_channels(read) for column, read in _OF_CHANNEL.items()},
        "name": of_the("topic.name"),
        "depth": lambda row: row.on.depth + sum(on.depth for _, on in row.channels),
        "disk": lambda row: row.on.backend_depth + sum(on.backend_depth for _, on in row.channels),
        "messages": of_the("on.message_count"),
    },
    "producers": {
        "producer": of_the("producer.hostname"),
        "address": of_the("producer.remote_address"),
        "software": of_the("producer.user_agent"),
        "node": of_the("producer.node"),
        "rate": of_the("rate"),
        "messages": of_the("count"),
        "connected": _negative("producer.connect_time"),
    },
    "nodes": {
        "node": lambda node: (node.hostname, node.address),
        "state": lambda node: (_WORST_FIRST[HEALTH[node.health].kind], not node.draining),
        "version": lambda node: version_key(node.version),
        "up": _negative("start_time"),
        "in": of_the("rates.incoming"),
        "depth": of_the("depth"),
        "inflight": of_the("in_flight_count"),
        "clients": of_the("client_count"),
        "topics": of_the("topic_count"),
        "memory": lambda node: node.memory.heap_in_use if node.memory is not None else None,
        "zone": of_the("zone"),
        "copy": lambda node: node.remote.behind_seconds if node.remote is not None else None,
        "answered": of_the("answered_in"),
    },
}


class Sorting:
    """The sort order of one table of a page, and the links for changing it."""

    def __init__(self, request: Request, table: str, default: str = "") -> None:
        """`default` is a column, with a leading dash for descending; "": the original order."""
        self._keys = KEYS[table]
        self._argument = f"sort-{table}"
        self._default = default
        raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
        self._path = raw.decode("latin-1")
        self._others = [
            (name, value)
            for name, value in request.query_params.multi_items()
            if name != self._argument and name not in _PASSING
        ]
        wanted = request.query_params.get(self._argument, default)
        self.chosen = wanted if wanted.removeprefix("-") in self._keys else default

    def rows(self, rows: Iterable[T]) -> list[T]:
        if not self.chosen:
            return list(rows)
        return sorted_rows(rows, self._keys[self.chosen.removeprefix("-")], self.chosen)

    def direction(self, column: str) -> str:
        """Return `ascending` or `descending` for the column by which the table is sorted, otherwise ""."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.chosen, "")

    def href(self, column: str, *, descending: bool) -> str:
        """Return the link of a header: if the table is already sorted by it, the link reverses the order."""
        turned = {"ascending": f"-{column}", "descending": column}.get(self.direction(column))
        wanted = turned or (f"-{column}" if descending else column)
        return self._url(wanted)

    def page(self, number: int) -> str:
        """Return the link to a page of the table, in the present order."""
        return self._url(self.chosen, *([("page", str(number))] if number > 1 else []))

    def _url(self, sort: str, *more: tuple[str, str]) -> str:
        given = [*self._others, *([] if sort == self._default else [(self._argument, sort)]), *more]
        return f"{self._path}?{urlencode(given)}" if given else self._path


def sorted_rows(rows: Iterable[T], key: Callable[[T], Value], sort: str) -> list[T]:
    """Sort the rows. Unknown values come last in both directions, because they are neither much nor little."""
    values = [(key(row), row) for row in rows]
    known: list[tuple[Any, T]] = [pair for pair in values if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in known] + [row for value, row in values if value is None]


def number_columns(channel: Channel) -> list[Measure]:
    """Return the measures with a column in the table of the channel's nodes: ours only if one isn't 0."""
    return [it for it in _CHANNEL_COLUMNS if it.is_nsqs or it.read(channel)]


# Pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[T]):
    """The rows of one page of a long table."""

    rows: tuple[T, ...]
    page: int
    pages: int
    total: int  # rows on all pages


def part_of(rows: Sequence[T], page: int, *, per_page: int = PER_PAGE) -> Part[T]:
    pages = max(1, -(-len(rows) // per_page))
    page = min(max(1, page), pages)
    return Part(rows=tuple(rows[(page - 1) * per_page : page * per_page]), page=page, pages=pages, total=len(rows))


def page_number(request: Request) -> int:
    text = request.query_params.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1
