"""Formats figures as lines for a statsd daemon, and packs them into packets. statsd_push.py sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.stats_records import ChannelSnapshot, Json, TopicSnapshot, measures_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqd.broker.stats_records import BrokerSnapshot, LatencySnapshot
    from nsqd.stats.memory import MemorySnapshot

    Rows = list[tuple[str, Callable[[Any], int], bool]]


class _Pushed:
    """The measures of topics or channels that we push: name, how to read it, and whether it's a counter."""

    def __init__(self, record: type[TopicSnapshot | ChannelSnapshot]) -> None:
        measures = {name: it for name, it in measures_of(record).items() if it.statsd != ""}
        # NSQ begins with what was published. Otherwise it has the order of /stats.
        names = sorted(measures, key=lambda name: not name.startswith("message_"))
        self.nsqs: Rows = []
        self.ours: Rows = []
        self.of_some: Rows = []  # gauges; None for the topics or channels that have no such number
        may_be_none = {it.name for it in fields(record) if it.default is None}
        for name in names:
            it = measures[name]
            ours = self.of_some if name in may_be_none else self.ours
            rows = self.nsqs if it.json is Json.ALWAYS else ours
            rows.append((it.statsd or name, attrgetter(name), it.is_counter))


_OF_TOPICS: Final = _Pushed(TopicSnapshot)
_OF_CHANNELS: Final = _Pushed(ChannelSnapshot)
_OF_MEMORY: Final = (
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
)


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
        for topic in snapshot.topics or ():
            yield from self._of_topic(topic, last)
        if memory is not None:
            yield from self._of_memory(memory, last)

    def _of_topic(self, topic: TopicSnapshot, last: dict[str, int]) -> Iterator[str]:
        if self._exclude_ephemeral and is_ephemeral(topic.topic_name):
            return
        of_topic = f"{self._prefix}topic.{topic.topic_name}."
        yield from self._measures(of_topic, topic, _OF_TOPICS, last)
        yield from _of_latency(of_topic, topic.e2e_processing_latency)
        for channel in topic.channels:
            if not (self._exclude_ephemeral and is_ephemeral(channel.channel_name)):
                of_channel = f"{of_topic}channel.{channel.channel_name}."
                yield from self._measures(of_channel, channel, _OF_CHANNELS, last)
                yield from _of_latency(of_channel, channel.e2e_processing_latency)

    def _measures(
        self, prefix: str, snapshot: TopicSnapshot | ChannelSnapshot, pushed: _Pushed, last: dict[str, int]
    ) -> Iterator[str]:
        rows = pushed.nsqs
        for _, read, _ in pushed.ours:
            if read(snapshot):  # then all of ours, so that gauges fall to 0 again
                rows = rows + pushed.ours
                break
        for name, read, is_counter in rows:
            if is_counter:
                yield self._counter(prefix + name, read(snapshot), last)
            else:
                yield f"{prefix}{name}:{read(snapshot)}|g\n"
        for name, read, _ in pushed.of_some:
            if (value := read(snapshot)) is not None:
                yield f"{prefix}{name}:{value}|g\n"

    def _of_memory(self, memory: MemorySnapshot, last: dict[str, int]) -> Iterator[str]:
        for name in _OF_MEMORY:
            yield f"{self._prefix}mem.{name}:{getattr(memory, name)}|g\n"
        yield self._counter(f"{self._prefix}mem.gc_runs", memory.gc_total_runs, last)

    def _counter(self, name: str, value: int, last: dict[str, int]) -> str:
        self._last_values[name] = value
        before = last.get(name, 0)
        grown = value - before if value >= before else value  # smaller if the topic was deleted and created again
        return f"{name}:{grown}|c\n"


def _of_latency(prefix: str, latency: LatencySnapshot) -> Iterator[str]:
    for quantile, value in latency.percentiles or ():
        yield f"{prefix}e2e_processing_latency_{quantile * 100:.0f}:{int(value)}|g\n"


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
