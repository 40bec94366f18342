"""Merges the answers of all nodes into one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import add, attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqadmin.cluster.ages import Ages
from nsqadmin.cluster.measures import ChannelNumbers, TopicNumbers
from nsqadmin.cluster.model import (
    UNKNOWN_RATES,
    Channel,
    Latency,
    Node,
    Paused,
    Percentile,
    Rates,
    Stall,
    Topic,
    Totals,
)

if TYPE_CHECKING:
    from nsqadmin.cluster.flow import Standstill
    from nsqadmin.cluster.model import ChannelNode, Counts, TopicNode
    from nsqadmin.cluster.node_stats import ChannelPart, NodeAnswer, TopicPart

_LASTING: Final = 300.0  # seconds; a shorter standstill on some nodes may be one slow message on each
_STANDSTILL: Final = 0.01  # messages a second; a channel that shrinks more slowly gets no drain time


@dataclass(frozen=True, slots=True)
class Directory:
    """The topics and channels registered with the nsqlookupds."""

    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by topic: the nsqlookupds that know it
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # channels of inactive topics
    tombstones: frozenset[tuple[str, str]] = frozenset()  # (topic, node)


class _Registered(NamedTuple):
    """The registrations of one topic."""

    lookupds: tuple[str, ...]  # the nsqlookupds that know it
    channels: tuple[str, ...]
    tombstones: tuple[bool, ...]  # for each part, True if a tombstone hides its node


@dataclass(frozen=True, slots=True)
class _Merged:
    """A topic, and its sources."""

    parts: tuple[TopicPart, ...]
    registered: _Registered
    topic: Topic


class _Sums:
    """Adds up numbers over nodes, in the order of the model's fields."""

    def __init__(self, numbers: type[TopicNumbers | ChannelNumbers]) -> None:
        self._read = attrgetter(*(it.name for it in fields(numbers)))

    def over(self, rows: Sequence[TopicNode | ChannelNode]) -> tuple[int, ...]:
        if not rows:
            return ()  # and so zeros
        sums: tuple[int, ...] = self._read(rows[0])
        for row in rows[1:]:
            sums = tuple(map(add, sums, self._read(row)))
        return sums


_OF_TOPICS: Final = _Sums(TopicNumbers)
_OF_CHANNELS: Final = _Sums(ChannelNumbers)


class Merger:
    """Merges sweep after sweep. If no node has said anything new about a topic, the same object is used again."""

    def __init__(self) -> None:
        self._before: dict[str, _Merged] = {}
        self._ages = Ages()
        self._now = self._wall = 0.0

    def merge(
        self, answers: Sequence[NodeAnswer], directory: Directory, *, now: float, wall: float = 0.0
    ) -> tuple[Topic, ...]:
        """Return all topics. `answers` are in display order; `now` is on the clock of their `at`. `wall` is the same
        moment in seconds since 1970.

        Includes the last answers of silent nodes, so that no sum drops because a node doesn't answer.
        """
        self._now, self._wall = now, wall
        self._ages.begin(now, wall)
        names = set(directory.topics)
        for answer in answers:
            names.update(answer.topics)
        merged = {name: self._topic(name, answers, directory) for name in sorted(names)}
        self._before = merged
        self._ages.keep_only(merged)
        return tuple(entry.topic for entry in merged.values())

    def _topic(self, name: str, answers: Sequence[NodeAnswer], directory: Directory) -> _Merged:
        parts = tuple(part for answer in answers if (part := answer.topics.get(name)) is not None)
        registered = _Registered(
            directory.topics.get(name, ()),
            directory.channels.get(name, ()),
            tuple((name, part.row.node) in directory.tombstones for part in parts),
        )
        before = self._before.get(name)
        if (
            before is not None
            and before.registered == registered
            and _same(before.parts, parts)
            and not any(channel.depth for channel in before.topic.channels)  # waiting messages grow older
        ):
            return before
        return _Merged(parts, registered, self._build_topic(name, parts, registered))

    def _build_topic(self, name: str, parts: tuple[TopicPart, ...], registered: _Registered) -> Topic:
        rows = tuple(
            part.row if is_tombstoned == part.row.tombstoned else replace(part.row, tombstoned=is_tombstoned)
            for part, is_tombstoned in zip(parts, registered.tombstones, strict=True)
        )
        silent = tuple(part.row.node for part in parts if part.is_silent)
        by_name: dict[str, list[ChannelPart]] = {}
        for part in parts:
            for channel, channel_part in part.channels.items():
                by_name.setdefault(channel, []).append(channel_part)
        return Topic(
            *_OF_TOPICS.over(rows),
            name=name,
            nodes=rows,
            silent=silent,
            channels=tuple(self._build_channel(name, channel, by_name[channel], silent) for channel in sorted(by_name)),
            paused=_paused([row.paused for row in rows]),
            latency=merged_latency([row.latency for row in rows]),
            policy_counts=_added_up(row.policy_counts for row in rows),
            policy_recent=_added_up(row.policy_recent for row in rows),
            policy_growing=tuple(sorted({cause for row in rows for cause in row.policy_growing or ()})),
            rates=summed_rates([part.rates for part in parts]),
            lookupds=registered.lookupds,
            registered_channels=registered.channels if not rows else (),
        )

    def _build_channel(self, topic: str, name: str, parts: Sequence[ChannelPart], silent: tuple[str, ...]) -> Channel:
        rows = tuple(part.row for part in parts)
        silent_here = tuple(row.node for row in rows if row.node in silent)
        rates = summed_rates([part.rates for part in parts])
        depth = sum(row.depth for row in rows)
        net_rate = _summed(row.net_rate for row in rows)
        growth = None if net_rate is None else net_rate + (rates.removed or 0.0)
        ready = None
        if all(row.clients is not None for row in rows):
            ready = sum(client.ready_count for row in rows for client in row.clients or ())
        age = self._ages.of_channel(topic, name, rows, silent_here)
        return Channel(
            *_OF_CHANNELS.over(rows),
            topic=topic,
            name=name,
            nodes=rows,
            silent=silent_here,
            policy_counts=_added_up(row.policy_counts for row in rows),
            policy_recent=_added_up(row.policy_recent for row in rows),
            policy_growing=tuple(sorted({cause for row in rows for cause in row.policy_growing or ()})),
            paused=_paused([row.paused for row in rows]),
            latency=merged_latency([row.latency for row in rows]),
            rates=rates,
            ready_count=ready,
            oldest_age=age.seconds,
            oldest_is_older=age.is_older,
            net_rate=net_rate,
            drain_time=drain_time(depth, growth) if not silent_here else None,
            stall=self._stall(parts, silent_here),
        )

    def _stall(self, parts: Sequence[ChannelPart], silent: tuple[str, ...]) -> Stall | None:
        """Return the standstill of the whole channel, or of those nodes on which one has lasted."""
        found: list[tuple[ChannelNode, Standstill]] = []
        working: list[ChannelNode] = []  # consumers hold or finish messages, and there is no standstill
        for part in parts:
            if part.row.node in silent:
                continue
            if part.flow.standstill is not None:
                found.append((part.row, part.flow.standstill))
            elif part.row.in_flight_count or part.rates.finished:
                working.append(part.row)
        lasting = [(row, it) for row, it in found if it.has_held_up and self._now - it.since >= _LASTING]
        if lasting and len(lasting) < len(found):
            working += [row for row, it in found if (row, it) not in lasting]
        if working:
            found = lasting
        if not found:
            return None
        last = max((it for _, it in found), key=lambda it: it.since)
        return Stall(
            since=self._wall - (self._now - last.since),
            is_older=last.is_older,
            timed_out=sum(max(row.timeout_count - it.timed_out_before, 0) for row, it in found),
            has_held_up=any(it.has_held_up for _, it in found),
            nodes=tuple(row.node for row, _ in found) if working else (),
        )


def _same(before: Sequence[TopicPart], now: Sequence[TopicPart]) -> bool:
    return len(before) == len(now) and all(old is new for old, new in zip(before, now, strict=True))


def _paused(states: Sequence[bool]) -> Paused:
    if not any(states):
        return Paused.NO
    return Paused.YES if all(states) else Paused.PARTLY


def _added_up(parts: Iterable[Counts]) -> Counts:
    total: dict[str, int] = {}
    for counts in parts:
        for cause, count in counts:
            total[cause] = total.get(cause, 0) + count
    return tuple(sorted(total.items()))


def drain_time(depth: int, growth: float | None) -> float | None:
    """Return the seconds until a channel is empty if its depth changes like this; None: unknown, or it doesn't shrink."""
    if not depth:
        return 0.0
    return depth / -growth if growth is not None and -growth > _STANDSTILL else None


def summed_rates(parts: Sequence[Rates]) -> Rates:
    """Add up the nodes' known rates; the sum is unknown if all are."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return UNKNOWN_RATES
    return Rates(
        incoming=_summed([rates.incoming for rates in parts]),
        finished=_summed([rates.finished for rates in parts]),
        requeued=_summed([rates.requeued for rates in parts]),
        timed_out=_summed([rates.timed_out for rates in parts]),
        failed=_summed([rates.failed for rates in parts]),
        dropped=_summed([rates.dropped for rates in parts]),
        expired=_summed([rates.expired for rates in parts]),
        buried=_summed([rates.buried for rates in parts]),
        removed=_summed([rates.removed for rates in parts]),
        bytes=_summed([rates.bytes for rates in parts]),
    )


def _summed(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def merged_latency(parts: Iterable[Latency | None]) -> Latency | None:
    """Merge percentiles the way NSQ does: by their means, weighted by count.

    Such a mean isn't a percentile of the whole, so we also keep the minimum and the maximum.
    """
    told = [part for part in parts if part is not None]
    known = [part for part in told if part.count] or told[:1]  # without a sample, a percentile says nothing
    if not known:
        return None
    if len(known) == 1:
        return known[0]
    merged: dict[float, Percentile] = {}
    counts: dict[float, int] = {}
    for part in known:
        for added in part.percentiles:
            quantile = added.quantile
            before = merged.get(quantile)
            count = counts.get(quantile, 0) + part.count
            counts[quantile] = count
            share = part.count / count if count else 0.0
            merged[quantile] = added if before is None else _joined(before, added, share)
    return Latency(count=sum(part.count for part in known), percentiles=tuple(merged.values()))


def _joined(before: Percentile, added: Percentile, share: float) -> Percentile:
    """Merge two percentiles; `share` is the weight of the second one."""
    if before.average is None or before.minimum is None or before.maximum is None:
        return added
    if added.average is None or added.minimum is None or added.maximum is None:
        return before
    return Percentile(
        quantile=added.quantile,
        average=before.average + (added.average - before.average) * share,
        minimum=min(before.minimum, added.minimum),
        maximum=max(before.maximum, added.maximum),
    )


# Totals and nodes


def totals_of(topics: Iterable[Topic]) -> Totals:
    """Add up the whole cluster: incoming rates and bytes over topics, all other rates over channels."""
    topics = tuple(topics)
    channels = [channel for topic in topics for channel in topic.channels]
    return Totals(
        topic_count=len(topics),
        channel_count=len(channels),
        client_count=sum(channel.client_count for channel in channels),
        depth=sum(topic.depth for topic in topics) + sum(channel.depth for channel in channels),
        in_flight_count=sum(channel.in_flight_count for channel in channels),
        deferred_count=sum(channel.deferred_count for channel in channels),
        buried_count=sum(channel.buried_count for channel in channels),
        rates=Rates(
            incoming=_summed(topic.rates.incoming for topic in topics),
            finished=_summed(channel.rates.finished for channel in channels),
            requeued=_summed(channel.rates.requeued for channel in channels),
            timed_out=_summed(channel.rates.timed_out for channel in channels),
            failed=_summed(channel.rates.failed for channel in channels),
            dropped=_summed(channel.rates.dropped for channel in channels),
            expired=_summed(channel.rates.expired for channel in channels),
            buried=_summed(channel.rates.buried for channel in channels),
            removed=_summed(channel.rates.removed for channel in channels),
            bytes=_summed(topic.rates.bytes for topic in topics),
        ),
    )


def node_order(node: Node) -> tuple[str, str]:
    return node.hostname, node.address


def is_out_of_date(version: str, newest: tuple[int, int, int]) -> bool:
    return version_key(version) < newest


def version_key(version: str) -> tuple[int, int, int]:
    """Return the version as comparable numbers. A pre-release counts as its release, an unreadable version as 0.0.0."""
    core = version.removeprefix("v").partition("-")[0].partition("+")[0].split(".")
    try:
        major, minor, patch = (int(number) for number in core)
    except ValueError:
        return 0, 0, 0
    return major, minor, patch
