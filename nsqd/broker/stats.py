"""Collects the figures of `/stats` and `/metrics`, in slices, because a node may have thousands of channels.

The generators yield None where a turn may end. So some figures are a moment older than others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nsqd.broker.consumer import Consumer, Locality
from nsqd.broker.stats_records import (
    NO_LATENCY,
    BrokerSnapshot,
    ChannelSnapshot,
    ClientSnapshot,
    TopicSnapshot,
    paths_of,
)

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic

_read_topic: Final = attrgetter(*paths_of(TopicSnapshot))
_read_channel: Final = attrgetter(*paths_of(ChannelSnapshot))


def snapshot(
    broker: Broker, topic: str = "", channel: str = "", *, clients: bool = True, ages_at: float | None = None
) -> BrokerSnapshot:
    """Return all figures, or only the ones of a topic or channel. `topics` is None if the topic is unknown.

    With `ages_at` (monotonic seconds), each client also has the age of its oldest message in flight at that time, and
    each channel the publish time of its oldest waiting message.
    """
    found = topic_snapshots(broker, topic, channel, clients=clients, ages_at=ages_at)
    topics = tuple(it for it in found if it is not None)
    is_known = not topic or topic in broker.topics
    producers = tuple(producer_snapshots(broker, topic)) if clients and is_known else ()
    return snapshot_of(broker, topics if is_known else None, producers)


def snapshot_of(
    broker: Broker, topics: Sequence[TopicSnapshot] | None, producers: Sequence[ClientSnapshot]
) -> BrokerSnapshot:
    """Return the figures of the broker, including the given ones of topics and producers."""
    return BrokerSnapshot(
        health=broker.store.health, start_time=broker.start_time, topics=topics, producers=producers or None
    )


def topic_snapshots(
    broker: Broker, topic: str = "", channel: str = "", *, clients: bool = True, ages_at: float | None = None
) -> Iterator[TopicSnapshot | None]:
    """Yield the figures of topics one by one, and None after each channel: a turn may end at every step."""
    for name in [topic] if topic else sorted(broker.topics):
        found = broker.topics.get(name)
        if found is not None and (not channel or channel in found.channels):
            yield from _topic_with_channels(found, channel, clients=clients, ages_at=ages_at)


def producer_snapshots(broker: Broker, topic: str = "") -> Iterator[ClientSnapshot]:
    """Yield the figures of connections that have published. A turn may end at every step."""
    for describe in list(broker.producers.values()):
        yield describe(topic)


def _topic_with_channels(
    topic: Topic, channel: str, *, clients: bool, ages_at: float | None
) -> Iterator[TopicSnapshot | None]:
    channels: list[ChannelSnapshot] = []
    for name in [channel] if channel else sorted(topic.channels):
        if (found := topic.channels.get(name)) is None:
            continue
        for figures in _channel_with_clients(found, clients=clients, ages_at=ages_at):
            if figures is not None:
                channels.append(figures)
            yield None
            if topic.channels.get(name) is not found:
                break  # it was deleted
    yield _topic_snapshot(topic, channels, ages_at)


def _topic_snapshot(topic: Topic, channels: Sequence[ChannelSnapshot], ages_at: float | None) -> TopicSnapshot:
    return TopicSnapshot(
        *_read_topic(topic),
        topic_name=topic.name,
        channels=tuple(channels),
        paused=topic.paused,
        policy_counts=dict(topic.policy_counts),
        expires_at=topic.expires_at() if ages_at is not None else None,
        e2e_processing_latency=topic.latency(),
    )


def _channel_with_clients(
    channel: Channel, *, clients: bool, ages_at: float | None
) -> Iterator[ChannelSnapshot | None]:
    since: dict[Consumer, float] = {}
    if clients and ages_at is not None:
        # This may go through everything in flight, so it's done only on request.
        for _ in channel.in_flight.find_oldest({it for it in channel.consumers if it.in_flight}, since):
            yield None
    yield _channel_snapshot(channel, since, clients=clients, ages_at=ages_at)


def _channel_snapshot(
    channel: Channel, since: Mapping[Consumer, float], *, clients: bool, ages_at: float | None
) -> ChannelSnapshot:
    ledger, taken, groups = channel.ledger, channel.taken_by_locality, channel.groups
    return ChannelSnapshot(
        *_read_channel(channel),
        channel_name=channel.name,
        in_flight_count=len(channel.in_flight),
        deferred_count=len(ledger.deferred),
        buried_count=len(ledger.buried),
        paused_why=channel.paused_why,
        in_flight_full_since=channel.policy.in_flight_full_since,
        held_full_since=groups.full_since if groups is not None else None,
        policy_counts=dict(channel.policy_counts),
        zone_local_msg_count=taken[Locality.SAME_ZONE],
        region_local_msg_count=taken[Locality.SAME_REGION],
        global_msg_count=taken[Locality.ELSEWHERE],
        client_count=len(channel.consumers),
        clients=_clients_of(channel, since, ages_at) if clients else None,
        paused=channel.paused,
        e2e_processing_latency=channel.latency.snapshot(channel.turn.now) if channel.latency else NO_LATENCY,
        oldest_timestamp=ledger.oldest_timestamp() if ages_at is not None else None,
        expires_at=channel.expires_at() if ages_at is not None else None,
    )


def _clients_of(channel: Channel, since: Mapping[Consumer, float], ages_at: float | None) -> list[ClientSnapshot]:
    clients = [consumer.describe() for consumer in channel.consumers]
    if ages_at is None:
        return clients
    return [
        replace(client, oldest_in_flight_ms=max(0, int((ages_at - since[consumer]) * 1000)))
        if consumer in since
        else client
        for consumer, client in zip(channel.consumers, clients, strict=True)
    ]
