"""`/stats` as text for people, in NSQ's columns."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from nsqcommon.options import SECOND, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqd.broker.stats_records import (
        BrokerSnapshot,
        ChannelSnapshot,
        ClientSnapshot,
        LatencySnapshot,
        TopicSnapshot,
    )
    from nsqd.stats.memory import MemorySnapshot


def stats_text(
    snapshot: BrokerSnapshot, memory: MemorySnapshot | None, *, version: str, timestamp: int
) -> Iterator[str]:
    """Yield the lines. `version` is the first line, `timestamp` the wall clock in nanoseconds."""
    yield version
    yield f"start_time {_rfc3339(snapshot.start_time)}"
    yield f"uptime {format_duration(timestamp - snapshot.start_time * SECOND)}"
    yield ""
    yield f"Health: {snapshot.health}"
    if memory is not None:
        yield ""
        yield "Memory:"
        yield from (f"   {name:<25}\t{value}" for name, value in asdict(memory).items())
    now = timestamp // SECOND
    yield ""
    if snapshot.topics:
        yield "Topics:"
        for position, topic in enumerate(snapshot.topics):
            if position:
                yield ""
            yield from _topic_lines(topic, now)
    else:
        yield "Topics: None"
    yield ""
    if snapshot.producers:
        yield "Producers:"
        yield from (f"   {_client_line(client, now)}" for client in snapshot.producers)
    else:
        yield "Producers: None"


def _topic_lines(topic: TopicSnapshot, now: int) -> Iterator[str]:
    yield (
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latency(topic.e2e_processing_latency)}"
    )
    for channel in topic.channels:
        yield from _channel_lines(channel, now)


def _channel_lines(channel: ChannelSnapshot, now: int) -> Iterator[str]:
    yield (
        f"{'   *P ' if channel.paused else '      '}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4} "
        f"re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"e2e%: {_latency(channel.e2e_processing_latency)}"
        f"{f' buried: {channel.buried_count}' if channel.buried_count else ''}"
        f"{f' paused: {channel.paused_why}' if channel.paused_why else ''}"
        f"{_limit(channel, now)}"
        f"{_groups(channel, now)}"
    )
    for client in channel.clients or ():
        yield f"        {_client_line(client, now)}"


def _limit(channel: ChannelSnapshot, now: int) -> str:
    if not channel.max_in_flight:
        return ""
    since = channel.in_flight_full_since
    reached = "" if since is None else f", reached for {format_duration(max(0, now - since // SECOND) * SECOND)}"
    return f" max-inflt: {channel.max_in_flight}{reached}"


def _groups(channel: ChannelSnapshot, now: int) -> str:
    if channel.held_count is None:
        return ""
    since = channel.held_full_since
    full = "" if since is None else f", full for {format_duration(max(0, now - since // SECOND) * SECOND)}"
    return f" held: {channel.held_count}{full} groups: {channel.group_count or 0}"


def _client_line(client: ClientSnapshot, now: int) -> str:
    """Return the line of one client. A client that has published is shown as a producer, even in a channel's list."""
    port = client.remote_address.rpartition(":")[2] if ":" in client.remote_address else ""
    head = f"[{client.version} {f'{client.hostname}:{port} {client.user_agent}':<21}]"
    connected = format_duration(max(0, now - client.connect_ts) * SECOND)
    if client.pub_counts:
        total = sum(count for _, count in client.pub_counts)
        topics = ", ".join(f"{topic}={count}" for topic, count in client.pub_counts)
        return f"{head} msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"{head} state: {client.state} inflt: {client.in_flight_count:<4} rdy: {client.ready_count:<4} "
        f"fin: {client.finish_count:<8} re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} "
        f"connected: {connected}"
    )


def _latency(latency: LatencySnapshot) -> str:
    return ", ".join(_with_unit(value) for _, value in latency.percentiles or ())


def _with_unit(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds > size:
            return f"{nanoseconds / size:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"


def _rfc3339(seconds: int) -> str:
    text = datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
