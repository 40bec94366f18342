"""The consumers of all topics, worst first, or grouped by program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Metric, channel_series
from nsqadmin.diagnosis.clients import Condition, judged
from nsqadmin.http.app import Route
from nsqadmin.messages.in_flight import name_of_consumer
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.sparks import Sparks
from nsqadmin.parts.status import State
from nsqcommon.wire.names import EPHEMERAL

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel, Client, Snapshot
    from nsqadmin.diagnosis.clients import Judged
    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.sparks import Spark
    from nsqadmin.services import Services

_KINDS: Final = {
    Condition.STUCK: "problem",
    Condition.NOT_READY: "problem",
    Condition.FAILING: "warning",
    Condition.SLOW: "warning",
    Condition.BUSY: "ok",
    Condition.CANNOT_TELL: "muted",
    Condition.IDLE: "muted",
    Condition.UNKNOWN: "muted",
    Condition.NEW: "muted",
    Condition.OK: "ok",
}
_BAD: Final = frozenset(("problem", "warning"))


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        services.view.look_at()
        snapshot = await painter.picture(request)
        wanted = request.query_params.get("filter", "").strip()
        group = word_of(request, "group", ("host", "client_id", "user_agent", "none"))
        return painter.page(
            request,
            "consumers.html",
            snapshot,
            current="Consumers",
            scope="consumers",
            page=consumers_page(snapshot, wanted=wanted, group=group),
            wanted=wanted,
            group=group,
            spark_of=partial(out_spark, Sparks(services.view)),
        )

    return [Route("GET", "/consumers", painter.cached(page))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    client: Client
    topic: str
    channel: str
    condition: Condition
    state: State
    rank: tuple[object, ...]  # orders consumers, worst first

    @property
    def name(self) -> str:
        """Its name in the addresses of lists of its messages."""
        return name_of_consumer(self.client.version, self.client.client_id, self.client.remote_address)

    def is_named(self, name: str) -> bool:
        """Return whether nsqd finds its messages by this name."""
        return name in (self.client.client_id, self.client.hostname, self.client.remote_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGroup:
    host: str
    state: State  # of its worst connection; with numbers, and with those of the others, if they differ
    rank: tuple[object, ...]
    connections: int
    channels: tuple[tuple[str, str], ...]
    nodes: int
    in_flight: int
    ready: int
    finished: int
    requeued: int
    finish_rate: float | None
    requeue_rate: float | None
    oldest: float | None  # in flight anywhere in the group


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumersPage:
    total: int
    rows: tuple[ClientRow, ...]
    groups: tuple[ClientGroup, ...]


def client_rows(channel: Channel, now: float) -> tuple[ClientRow, ...] | None:
    """Return the channel's consumers, worst first; None if they weren't requested yet.

    If only some nodes were asked, return at least the clients there.
    """
    found = judged(channel, now)
    if not found and channel.client_count and channel.clients is None:
        return None
    return tuple(sorted((_client_row(channel, it) for it in found), key=lambda row: row.rank))


def _client_row(channel: Channel, found: Judged) -> ClientRow:
    client, word = found.client, found.word
    return ClientRow(
        client=client,
        topic=channel.topic,
        channel=channel.name,
        condition=found.condition,
        state=State(word[0].upper() + word[1:], _KINDS[found.condition]),
        rank=(*found.rank, client.hostname, client.client_id, client.node, client.remote_address),
    )


def consumers_page(snapshot: Snapshot, *, wanted: str, group: str) -> ConsumersPage:
    now = snapshot.taken_at
    rows = [row for topic in snapshot.topics for channel in topic.channels for row in client_rows(channel, now) or ()]
    words = wanted.lower().split()
    matching = sorted((row for row in rows if all(word in _text_of(row) for word in words)), key=lambda row: row.rank)
    return ConsumersPage(
        total=sum(channel.client_count for topic in snapshot.topics for channel in topic.channels),
        rows=tuple(matching),
        groups=client_groups(matching, group) if group != "none" else (),
    )


def out_spark(sparks: Sparks, channels: Iterable[tuple[str, str]]) -> Spark | None:
    """Draw how much all consumers of these channels finished: no history is kept of a single one."""
    return sparks.of(Metric.FINISHED, [channel_series(topic, channel) for topic, channel in channels], "rate")


def client_groups(rows: Iterable[ClientRow], by: str) -> tuple[ClientGroup, ...]:
    """Group consumers, starting with the group of the worst one."""
    groups: dict[str, list[ClientRow]] = {}
    for row in rows:
        key = {"client_id": row.client.client_id, "user_agent": row.client.user_agent}.get(by, row.client.hostname)
        groups.setdefault(key, []).append(row)
    return tuple(sorted((_group(key, members) for key, members in groups.items()), key=lambda group: group.rank))


def _group(key: str, rows: list[ClientRow]) -> ClientGroup:
    clients = [row.client for row in rows]
    working = [
        row for row in rows if row.condition is not Condition.IDLE
    ]  # a connection without work says nothing about the others
    worst = min(working or rows, key=lambda row: row.rank)
    ages = [client.oldest_in_flight for client in clients if client.oldest_in_flight is not None]
    return ClientGroup(
        host=key,
        state=worst.state if len({row.condition for row in working}) <= 1 else _counted(rows),
        rank=(*worst.rank[:3], key),
        connections=len(rows),
        channels=_worst_first(rows),
        nodes=len({client.node for client in clients}),
        in_flight=sum(client.in_flight_count for client in clients),
        ready=sum(client.ready_count for client in clients),
        finished=sum(client.finish_count for client in clients),
        requeued=sum(client.requeue_count for client in clients),
        finish_rate=_summed(client.finish_rate for client in clients),
        requeue_rate=_summed(client.requeue_rate for client in clients),
        oldest=max(ages, default=None),
    )


def _counted(rows: Iterable[ClientRow]) -> State:
    """Say how many connections are in which state, the worst first: "3 stuck, 27 OK"."""
    counts = Counter(row.condition for row in rows)
    worst, *others = (
        State(f"{counts[it]} {'with ' if it is Condition.NOT_READY else ''}{it}", _KINDS[it])
        for it in Condition
        if it in counts
    )
    return replace(worst, also=tuple(others))


def _worst_first(rows: Iterable[ClientRow]) -> tuple[tuple[str, str], ...]:
    """Return their channels: the worst first, as its consumers give the group its state, and ephemeral ones last."""
    worst: dict[tuple[str, str], tuple[object, ...]] = {}
    for row in rows:
        name = row.topic, row.channel
        rank = (row.state.kind not in _BAD, name[1].endswith(EPHEMERAL), *row.rank[:1], name)
        worst[name] = min(rank, worst.get(name, rank))
    return tuple(sorted(worst, key=lambda name: worst[name]))


def _summed(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _text_of(row: ClientRow) -> str:
    client = row.client
    words = (client.hostname, client.client_id, client.user_agent, client.remote_address, client.node)
    return f"{' '.join(words)} {row.topic}/{row.channel}".lower()
