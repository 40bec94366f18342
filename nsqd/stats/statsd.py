"""Formats figures as lines for a statsd daemon, and packs them into packets. statsd_push.py sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from nsqcommon.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqd.broker.stats_records import BrokerSnapshot, ChannelSnapshot, LatencySnapshot, TopicSnapshot
    from nsqd.stats.memory import MemorySnapshot


def full_prefix(prefix: str, address: str, port: int) -> str:
    """Expand `%s` in the prefix, and end it with a dot, as NSQ does: `nsq.%s` becomes `nsq.host_example_4151.`"""
    host = f"{address}:{port}".replace(".", "_").replace(":", "_")
    prefix = prefix.replace("%s", host)
    return prefix + "." if prefix and not prefix.endswith(".") else prefix


class StatsdLines:
    """Generates the lines to push. Keeps the last values of counters, because statsd expects increments."""

    def __init__(self, prefix: str, *, exclude_ephemeral: bool) -> None:
        self._prefix = prefix
        self._exclude_ephemeral = exclude_ephemeral
        self._last_values: dict[str, int] = {}

    def lines(self, snapshot: BrokerSnapshot, memory: MemorySnapshot | None) -> Iterator[str]:
        """Yield the lines in NSQ's order. Consume all of them, so that the last values of all counters are updated.

        Forgets deleted topics and channels, so that their counters start from 0 if they are created again.
        """
        last, self._last_values = self._last_values, {}
        of_topics = chain.from_iterable(map(self._of_topic, snapshot.topics or ()))
        for name, value, is_counter in chain(of_topics, _of_memory(memory) if memory is not None else ()):
            yield self._line(name, value, is_counter, last)

    def _line(self, name: str, value: int, is_counter: bool, last: dict[str, int]) -> str:
        if not is_counter:
            return f"{self._prefix}{name}:{value}|g\n"
        self._last_values[name] = value
        before = last.get(name, 0)
        grown = value - before if value >= before else value  # smaller if the topic was deleted and created again
        return f"{self._prefix}{name}:{grown}|c\n"

    def _of_topic(self, topic: TopicSnapshot) -> Iterator[tuple[str, int, bool]]:
        if self._exclude_ephemeral and is_ephemeral(topic.topic_name):
            return
        prefix = f"topic.{topic.topic_name}."
        yield prefix + "message_count", topic.message_count, True
        yield prefix + "message_bytes", topic.message_bytes, True
        yield prefix + "depth", topic.depth, False
        yield prefix + "backend_depth", topic.backend_depth, False
        yield from _of_latency(prefix, topic.e2e_processing_latency)
        for channel in topic.channels:
            if not (self._exclude_ephemeral and is_ephemeral(channel.channel_name)):
                yield from _of_channel(f"{prefix}channel.{channel.channel_name}.", channel)


def _of_channel(prefix: str, channel: ChannelSnapshot) -> Iterator[tuple[str, int, bool]]:
    yield prefix + "message_count", channel.message_count, True
    yield prefix + "depth", channel.depth, False
    yield prefix + "backend_depth", channel.backend_depth, False
    yield prefix + "in_flight_count", channel.in_flight_count, False
    yield prefix + "deferred_count", channel.deferred_count, False
    yield prefix + "requeue_count", channel.requeue_count, True
    yield prefix + "timeout_count", channel.timeout_count, True
    yield prefix + "clients", channel.client_count, False
    if channel.buried_count or channel.bury_count or channel.kick_count or channel.discard_count:  # not in NSQ
        yield prefix + "buried_count", channel.buried_count, False
        yield prefix + "bury_count", channel.bury_count, True
        yield prefix + "kick_count", channel.kick_count, True
        yield prefix + "discard_count", channel.discard_count, True
    yield from _of_latency(prefix, channel.e2e_processing_latency)


def _of_latency(prefix: str, latency: LatencySnapshot) -> Iterator[tuple[str, int, bool]]:
    for quantile, value in latency.percentiles or ():
        yield f"{prefix}e2e_processing_latency_{quantile * 100:.0f}", int(value), False


def _of_memory(memory: MemorySnapshot) -> Iterator[tuple[str, int, bool]]:
    yield "mem.heap_objects", memory.heap_objects, False
    yield "mem.heap_idle_bytes", memory.heap_idle_bytes, False
    yield "mem.heap_in_use_bytes", memory.heap_in_use_bytes, False
    yield "mem.heap_released_bytes", memory.heap_released_bytes, False
    yield "mem.gc_pause_usec_100", memory.gc_pause_usec_100, False
    yield "mem.gc_pause_usec_99", memory.gc_pause_usec_99, False
    yield "mem.gc_pause_usec_95", memory.gc_pause_usec_95, False
    yield "mem.next_gc_bytes", memory.next_gc_bytes, False
    yield "mem.gc_runs", memory.gc_total_runs, True


def packets(lines: Iterable[str], most_bytes: int) -> list[bytes]:
    """Pack whole lines into packets of up to `most_bytes`. A longer line gets its own packet."""
    packed: list[bytes] = []
    pending = b""
    for line in lines:
        data = line.encode("utf-8", "replace")
        if pending and len(pending) + len(data) > most_bytes:
            packed.append(pending)
            pending = b""
        pending += data
    if pending:
        packed.append(pending)
    return packed
