"""`/metrics`: the node's figures in the Prometheus format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.prometheus import Metric, Sample, counter, gauge, histogram
from nsqcommon.version import NSQ_VERSION, suite_version
from nsqd.broker.stats_records import ChannelSnapshot, TopicSnapshot, measures_of
from nsqd.broker.store import RemoteState
from nsqd.readers import silence

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.broker.stats_records import LatencySnapshot
    from nsqd.broker.store import DiskSnapshot, RemoteSnapshot
    from nsqd.readers import LogConsumer
    from nsqd.stats.memory import MemorySnapshot

_NANOSECONDS: Final = 1_000_000_000


def nsqd_metrics(
    broker: Broker,
    topics: Sequence[TopicSnapshot],
    memory: MemorySnapshot,
    lags: Iterable[tuple[str, LogConsumer, int]] = (),
    *,
    waiting: int,
    policy_error: str,
    policy_is_copy: bool,
) -> list[Metric]:
    """Collect the node's metrics. Samples of topics and channels are generated when you iterate over them.

    `topics` are snapshots with ages. `lags` are (topic, reader, lag in messages). `waiting` is the number of requests
    to /topic/log that wait for the log to grow.
    """
    channels = [(topic.topic_name, channel) for topic in topics for channel in topic.channels]
    return [
        *_of_node(broker, memory, connections=len(broker.producers)),
        *_of_disk(disk := broker.store.disk()),
        *(_of_remote(disk.remote) if disk.remote is not None else ()),
        *_of_publishes(broker, policy_error, policy_is_copy),
        gauge("nsqd_log_requests_waiting", "Requests to /topic/log waiting for the log to grow.", waiting),
        *_of_topics(topics),
        *_of_channels(channels, broker.turn.timestamp),
        _family(
            "gauge",
            "nsqd_channel_oldest_message_age_seconds",
            "Age of the oldest waiting message: the channel's lag in time.",
            _ages(channels, broker.turn.timestamp),
        ),
        _family(
            "gauge",
            "nsqd_channel_e2e_latency_seconds",
            "Time from publish to FIN, over --e2e-processing-latency-window-time.",
            _latencies(channels),
        ),
        *_of_readers(list(lags), broker.turn.timestamp),
    ]


Figures = Iterable[tuple[dict[str, str], float]]


def _family(kind: str, name: str, text: str, figures: Figures) -> Metric:
    samples = (Sample(value, labels) for labels, value in figures)
    return Metric(name, "counter" if kind == "counter" else "gauge", text, samples)


def _of(topic: TopicSnapshot) -> dict[str, str]:
    return {"topic": topic.topic_name}


def _in(topic: str, channel: ChannelSnapshot) -> dict[str, str]:
    return {"topic": topic, "channel": channel.channel_name}


def _of_node(broker: Broker, memory: MemorySnapshot, *, connections: int) -> list[Metric]:
    return [
        _of_build(),
        gauge("nsqd_healthy", "1 while /ping says OK.", int(broker.store.health == "OK")),
        gauge("nsqd_start_time_seconds", "When the daemon started, in Unix time.", broker.start_time),
        gauge("nsqd_resident_memory_bytes", "Resident memory.", memory.heap_in_use_bytes),
        gauge("nsqd_producers", "Connections that have published.", connections),
    ]


def _of_build() -> Metric:
    build = {"version": NSQ_VERSION, "release": suite_version()}
    return gauge("nsqd_build_info", "Always 1; the labels name the version.", 1, build)


def _of_disk(disk: DiskSnapshot) -> list[Metric]:
    return [
        gauge(
            "nsqd_clock_jump_seconds",
            "How far the wall clock jumped, forward or back, between its last record on disk and the start.",
            disk.clock_jump,
        ),
        _family("counter", "nsqd_disk_reads_refused_total", "Reads that failed on disk.", [({}, disk.reads_refused)]),
        _family(
            "gauge",
            "nsqd_log_waiting_for_disk",
            "Reads and compactions that will be retried because the disk failed to read.",
            (({"topic": topic}, waiting) for topic, waiting in disk.waiting),
        ),
    ]


def standby_metrics(requests: Mapping[tuple[str, str], int]) -> list[Metric]:
    """Collect the metrics of a process that waits until it may own its name, so there is no broker yet."""
    return [_of_build(), _remote_state(RemoteState.STANDBY), _remote_requests(requests)]


def _remote_state(found: RemoteState) -> Metric:
    return _family(
        "gauge",
        "nsqd_remote_state",
        "1 for what the node is to its copy in the store of --remote: owner, down (no answer), fenced or standby.",
        (({"state": state.value}, int(found is state)) for state in RemoteState),
    )


def _remote_requests(requests: Mapping[tuple[str, str], int]) -> Metric:
    return _family(
        "counter",
        "nsqd_remote_requests_total",
        "Requests to the store, by what they were and how they ended.",
        (({"verb": verb, "outcome": outcome}, count) for (verb, outcome), count in sorted(requests.items())),
    )


def _of_remote(it: RemoteSnapshot) -> list[Metric]:
    return [
        _remote_state(it.state),
        gauge(
            "nsqd_remote_behind_seconds", "Age of the oldest change that the store hasn't confirmed.", it.behind_seconds
        ),
        gauge("nsqd_remote_behind_bytes", "Bytes that the store hasn't confirmed.", it.behind_bytes),
        gauge("nsqd_remote_waiting_publishes", "Batches whose publishers wait for the store.", it.waiting_publishes),
        _remote_requests(it.requests),
        histogram("nsqd_remote_create_seconds", "How long the store takes to create an object.", it.create_seconds),
        histogram(
            "nsqd_remote_confirm_seconds",
            "Time from a change to its confirmation, of the oldest change in each slot.",
            it.confirm_seconds,
        ),
        counter("nsqd_remote_slots_total", "Slots begun.", it.slots),
        counter("nsqd_remote_slot_bytes_total", "Bytes in the bodies of these slots.", it.slot_bytes),
        counter("nsqd_remote_roots_total", "Roots stored.", it.roots),
        gauge("nsqd_remote_run", "Number of the run that the node writes to.", int(it.run.partition("-")[0])),
        gauge("nsqd_remote_files", "Files of the data path that the store has.", it.files),
    ]


def _of_publishes(broker: Broker, policy_error: str, policy_is_copy: bool) -> list[Metric]:
    return [
        gauge(
            "nsqd_policy_file_valid",
            "1 while the present --policy-file is in force; 0 after an invalid change to it.",
            int(not policy_error),
        ),
        gauge(
            "nsqd_policy_file_is_copy",
            "1 while a copy of --policy-file is in force, because the file was invalid when nsqd started.",
            int(policy_is_copy),
        ),
        gauge("nsqd_keys", "Idempotence keys in memory.", broker.turn.keys.count),
        _family(
            "counter",
            "nsqd_keys_dropped_early_total",
            "Idempotence keys that were forgotten early because of --idempotence-keys.",
            (({}, broker.turn.keys.dropped_early),),
        ),
    ]


def _of_topics(topics: Sequence[TopicSnapshot]) -> list[Metric]:
    def figures(read: Callable[[TopicSnapshot], int]) -> Figures:
        return ((_of(topic), read(topic)) for topic in topics)

    return [
        *_measured("nsqd_topic_", TopicSnapshot, figures),
        _family("gauge", "nsqd_topic_paused", "1 while the topic is paused.", figures(lambda it: int(it.paused))),
        _family(
            "counter",
            "nsqd_topic_policy_total",
            "Messages of the topic that the policy file's rules affected, or would have in a dry run, by cause.",
            (({**_of(t), "cause": cause}, count) for t in topics for cause, count in t.policy_counts.items()),
        ),
    ]


def _of_channels(channels: Sequence[tuple[str, ChannelSnapshot]], timestamp: int) -> list[Metric]:
    def figures(read: Callable[[ChannelSnapshot], int | None]) -> Figures:
        found = ((_in(topic, channel), read(channel)) for topic, channel in channels)
        return ((labels, number) for labels, number in found if number is not None)

    return [
        *_measured("nsqd_channel_", ChannelSnapshot, figures),
        _family(
            "gauge",
            "nsqd_channel_in_flight_full_seconds",
            "How long max_in_flight has been reached; 0: it isn't.",
            ((_in(t, c), _age(c.in_flight_full_since, timestamp)) for t, c in channels if c.max_in_flight),
        ),
        _family(
            "gauge",
            "nsqd_channel_held_full_seconds",
            "How long max_held has been reached; 0: it isn't.",
            ((_in(t, c), _age(c.held_full_since, timestamp)) for t, c in channels if c.group_count is not None),
        ),
        _family("gauge", "nsqd_channel_paused", "1 while the channel is paused.", figures(lambda it: int(it.paused))),
        _family(
            "counter",
            "nsqd_channel_policy_total",
            "Messages of the channel that the policy file's rules affected, or would have in a dry run, by cause.",
            (({**_in(t, c), "cause": cause}, count) for t, c in channels for cause, count in c.policy_counts.items()),
        ),
    ]


def _measured(prefix: str, record: type, figures: Callable[[Callable[[Any], int]], Figures]) -> Iterator[Metric]:
    """Yield the metrics of a record's measures: the counters, then the gauges."""
    measures = measures_of(record)
    for name, it in measures.items():
        if it.metric and it.is_counter:
            yield _family("counter", f"{prefix}{it.metric}_total", it.help, figures(attrgetter(name)))
    for name, it in measures.items():
        if it.metric and not it.is_counter:
            yield _family("gauge", f"{prefix}{it.metric}", it.help, figures(attrgetter(name)))


def _of_readers(lags: Sequence[tuple[str, LogConsumer, int]], timestamp: int) -> list[Metric]:
    def labels(topic: str, reader: LogConsumer) -> dict[str, str]:
        return {"topic": topic, "reader": reader.report.name, "into": reader.report.into}

    return [
        _family(
            "gauge",
            "nsqd_reader_behind",
            "Messages that a reader of the topic's log has not committed, according to its last report.",
            ((labels(topic, reader), behind) for topic, reader, behind in lags),
        ),
        _family(
            "gauge",
            "nsqd_reader_silent_seconds",
            "Time since the reader's last report; a running one reports at least once a minute.",
            ((labels(topic, reader), silence(reader, timestamp)) for topic, reader, _ in lags),
        ),
    ]


def _ages(channels: Iterable[tuple[str, ChannelSnapshot]], now: int) -> Iterator[tuple[dict[str, str], float]]:
    for topic, channel in channels:
        if channel.oldest_timestamp is not None:
            yield _in(topic, channel), _age(channel.oldest_timestamp, now)
        elif not channel.depth:
            yield _in(topic, channel), 0.0


def _age(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0, now - since) / _NANOSECONDS


def _latencies(channels: Iterable[tuple[str, ChannelSnapshot]]) -> Iterator[tuple[dict[str, str], float]]:
    for topic, channel in channels:
        latency: LatencySnapshot = channel.e2e_processing_latency
        for quantile, value in latency.percentiles or ():
            yield {**_in(topic, channel), "quantile": f"{quantile:g}"}, value / _NANOSECONDS
