"""Many nodes' answers, made into one picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.ages import Ages
from nsqadmin.cluster.model import (
    UNKNOWN_RATES,
    Channel,
    Latency,
    Node,
    Paused,
    Percentile,
    Rates,
    Topic,
    Totals,
)

if TYPE_CHECKING:
    from nsqadmin.cluster.node_stats import ChannelPart, NodeAnswer, TopicPart

_STANDSTILL: Final = 0.01  # messages a second below which nothing is foretold


@dataclass(frozen=True, slots=True)
class Directory:
    """What the nsqlookupds know: topics with those that know them, and the channels of inactive ones."""

    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tombstones: frozenset[tuple[str, str]] = frozenset()  # (topic, node)


@dataclass(frozen=True, slots=True)
class _Merged:
    parts: tuple[TopicPart, ...]
    registered: tuple[tuple[str, ...], tuple[str, ...], tuple[bool, ...]]
    topic: Topic


class Merger:
    """Keeps what it has merged: a topic of which no node has said anything new is the same object as before."""

    def __init__(self) -> None:
        self._before: dict[str, _Merged] = {}
        self._ages = Ages()

    def merge(self, answers: Sequence[NodeAnswer], directory: Directory, *, now: float) -> tuple[Topic, ...]:
        """`answers` in the order in which nodes are shown. `now` is the clock of their `at`."""
        self._ages.begin(now)
        names = set(directory.topics)
        for answer in answers:
            names.update(answer.topics)
        merged = {name: self._topic(name, answers, directory) for name in sorted(names)}
        self._before = merged
        self._ages.forget_but(merged)
        return tuple(it.topic for it in merged.values())

    def _topic(self, name: str, answers: Sequence[NodeAnswer], directory: Directory) -> _Merged:
        parts = tuple(part for answer in answers if (part := answer.topics.get(name)) is not None)
        tombstoned = tuple((name, part.row.node) in directory.tombstones for part in parts)
        registered = (directory.topics.get(name, ()), directory.channels.get(name, ()), tombstoned)
        before = self._before.get(name)
        if (
            before is not None
            and before.registered == registered
            and _same(before.parts, parts)
            and not any(channel.depth for channel in before.topic.channels)  # what waits grows older
        ):
            return before
        return _Merged(parts, registered, self._made(name, parts, registered))

    def _made(
        self,
        name: str,
        parts: tuple[TopicPart, ...],
        registered: tuple[tuple[str, ...], tuple[str, ...], tuple[bool, ...]],
    ) -> Topic:
        lookupds, registered_channels, tombstoned = registered
        rows = tuple(
            part.row if is_tombstoned == part.row.tombstoned else replace(part.row, tombstoned=is_tombstoned)
            for part, is_tombstoned in zip(parts, tombstoned, strict=True)
        )
        by_name: dict[str, list[ChannelPart]] = {}
        for part in parts:
            for channel, channel_part in part.channels.items():
                by_name.setdefault(channel, []).append(channel_part)
        return Topic(
            name=name,
            nodes=rows,
            channels=tuple(self._channel(name, channel, by_name[channel]) for channel in sorted(by_name)),
            depth=sum(row.depth for row in rows),
            backend_depth=sum(row.backend_depth for row in rows),
            message_count=sum(row.message_count for row in rows),
            message_bytes=sum(row.message_bytes for row in rows),
            paused=_paused([row.paused for row in rows]),
            latency=merged_latency([row.latency for row in rows]),
            rates=summed_rates([part.rates for part in parts]),
            lookupds=lookupds,
            registered_channels=registered_channels if not rows else (),
        )

    def _channel(self, topic: str, name: str, parts: Sequence[ChannelPart]) -> Channel:
        rows = tuple(part.row for part in parts)
        rates = summed_rates([part.rates for part in parts])
        depth = sum(row.depth for row in rows)
        message_count = sum(row.message_count for row in rows)
        ready = None
        if all(row.clients is not None for row in rows):
            ready = sum(client.ready_count for row in rows for client in row.clients or ())
        deferred = sum(row.deferred_count for row in rows)
        in_flight = sum(row.in_flight_count for row in rows)
        age, is_older = self._ages.age(topic, name, depth=depth, message_count=message_count)
        return Channel(
            topic=topic,
            name=name,
            nodes=rows,
            depth=depth,
            backend_depth=sum(row.backend_depth for row in rows),
            in_flight_count=in_flight,
            deferred_count=deferred,
            message_count=message_count,
            requeue_count=sum(row.requeue_count for row in rows),
            timeout_count=sum(row.timeout_count for row in rows),
            client_count=sum(row.client_count for row in rows),
            paused=_paused([row.paused for row in rows]),
            latency=merged_latency([row.latency for row in rows]),
            rates=rates,
            ready_count=ready,
            oldest_age=age,
            oldest_is_older=is_older,
            drain_time=drain_time(depth, rates),
        )


def _same(before: Sequence[TopicPart], now: Sequence[TopicPart]) -> bool:
    return len(before) == len(now) and all(old is new for old, new in zip(before, now, strict=True))


def _paused(states: Sequence[bool]) -> Paused:
    if not any(states):
        return Paused.NO
    return Paused.YES if all(states) else Paused.PARTLY


def drain_time(depth: int, rates: Rates) -> float | None:
    """Until it is empty, if it goes on like this; None: not known, or it does not shrink."""
    if not depth:
        return 0.0
    if rates.incoming is None or rates.finished is None:
        return None
    shrinks = rates.finished - rates.incoming
    return depth / shrinks if shrinks > _STANDSTILL else None


def summed_rates(parts: Sequence[Rates]) -> Rates:
    """Of the nodes whose rates are known; unknown where none is."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return UNKNOWN_RATES
    return Rates(
        incoming=_summed([it.incoming for it in parts]),
        finished=_summed([it.finished for it in parts]),
        requeued=_summed([it.requeued for it in parts]),
        timed_out=_summed([it.timed_out for it in parts]),
        bytes=_summed([it.bytes for it in parts]),
    )


def _summed(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def merged_latency(parts: Iterable[Latency | None]) -> Latency | None:
    """NSQ's way: means weighted by count, which are no percentiles of the whole. So the highest stands beside them."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    if len(known) == 1:
        return known[0]
    merged: dict[float, Percentile] = {}
    counts: dict[float, int] = {}
    for part in known:
        for it in part.percentiles:
            before = merged.get(it.quantile)
            count = counts.get(it.quantile, 0) + part.count
            counts[it.quantile] = count
            merged[it.quantile] = it if before is None else _joined(before, it, part.count / count if count else 0.0)
    return Latency(count=sum(part.count for part in known), percentiles=tuple(merged.values()))


def _joined(before: Percentile, it: Percentile, share: float) -> Percentile:
    return Percentile(
        quantile=it.quantile,
        average=before.average + (it.average - before.average) * share,
        minimum=min(before.minimum, it.minimum),
        maximum=max(before.maximum, it.maximum),
    )


# The whole


def totals_of(topics: Iterable[Topic]) -> Totals:
    """In: what is published. Out, requeued and timed out: what channels do."""
    topics = tuple(topics)
    channels = [channel for topic in topics for channel in topic.channels]
    return Totals(
        topic_count=len(topics),
        channel_count=len(channels),
        client_count=sum(it.client_count for it in channels),
        depth=sum(it.depth for it in topics) + sum(it.depth for it in channels),
        in_flight_count=sum(it.in_flight_count for it in channels),
        deferred_count=sum(it.deferred_count for it in channels),
        rates=Rates(
            incoming=_summed(it.rates.incoming for it in topics),
            finished=_summed(it.rates.finished for it in channels),
            requeued=_summed(it.rates.requeued for it in channels),
            timed_out=_summed(it.rates.timed_out for it in channels),
            bytes=_summed(it.rates.bytes for it in topics),
        ),
    )


def node_order(node: Node) -> tuple[str, str]:
    return node.hostname, node.address


def is_out_of_date(version: str, newest: tuple[int, int, int]) -> bool:
    return version_key(version) < newest


def version_key(version: str) -> tuple[int, int, int]:
    """By semantic versioning; what cannot be read is 0.0.0. A pre-release counts as its release."""
    core = version.removeprefix("v").partition("-")[0].partition("+")[0].split(".")
    try:
        major, minor, patch = (int(it) for it in core)
    except ValueError:
        return 0, 0, 0
    return major, minor, patch
