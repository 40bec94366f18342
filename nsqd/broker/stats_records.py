"""Snapshots of the broker's state: frozen records, with the fields in the order of `/stats`.

HTTP, statsd and tests all read these records. stats.py collects them. `None` and an empty sequence differ, because NSQ
prints `null` for the one and `[]` for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySnapshot:
    """Time from publish to FIN. Percentiles are (quantile, nanoseconds), or None if none are configured."""

    count: int
    percentiles: tuple[tuple[float, float], ...] | None


NO_LATENCY = LatencySnapshot(count=0, percentiles=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSnapshot:
    """One connection: a consumer, a producer or both."""

    client_id: str
    hostname: str
    version: str = "V2"
    remote_address: str
    state: int
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int  # Unix seconds
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: tuple[tuple[str, int], ...] = ()  # at most one (topic, count): NSQ shows no more
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    oldest_in_flight_ms: int | None = None  # age of its oldest delivery; None: not requested, or nothing in flight


class Counter(NamedTuple):
    """Where a channel's counter is shown. Use it as `field(default=0, metadata=Counter(...).shown())`."""

    metric: str = ""  # nsqd_channel_<metric>_total in /metrics; empty: not there
    text: str = ""  # the metric's help text
    in_json: bool = False  # in /stats under the field's name, unless it is 0

    def shown(self) -> dict[str, Counter]:
        return {"counter": self}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSnapshot:
    """To add a counter that NSQ doesn't have, add a line here and one in `_channel_snapshot` of stats.py. That is all."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int = field(metadata=Counter("messages", "Messages that the channel got.").shown())
    zone_local_msg_count: int = field(default=0, metadata=Counter(in_json=True).shown())
    region_local_msg_count: int = field(default=0, metadata=Counter(in_json=True).shown())
    global_msg_count: int = field(default=0, metadata=Counter(in_json=True).shown())
    requeue_count: int = field(metadata=Counter("requeues", "Messages that consumers put back.").shown())
    timeout_count: int = field(metadata=Counter("timeouts", "Messages that were not finished in time.").shown())
    bury_count: int = field(default=0, metadata=Counter("burials", "Messages that were buried.").shown())
    kick_count: int = field(
        default=0, metadata=Counter("kicks", "Buried messages that were given back to the channel.").shown()
    )
    discard_count: int = field(default=0, metadata=Counter("discards", "Buried messages that were discarded.").shown())
    client_count: int
    clients: Sequence[ClientSnapshot] | None  # None: not requested
    paused: bool
    e2e_processing_latency: LatencySnapshot
    buried_count: int = 0
    paused_why: str = ""  # the reason of an automatic pause
    policy_counts: Mapping[str, int] = field(default_factory=dict)  # messages that the policy acted on, by cause
    oldest_timestamp: int | None = None  # of the oldest waiting message; None: not requested, or not known
    expires_at: int | None = None  # when the policy deletes the unused channel; None: not requested, or never


CHANNEL_COUNTERS: Final[Sequence[tuple[str, Counter]]] = tuple(
    (it.name, it.metadata["counter"]) for it in fields(ChannelSnapshot) if "counter" in it.metadata
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    topic_name: str
    channels: Sequence[ChannelSnapshot]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    repeat_count: int = 0  # publishes that were ignored because their key was known
    paused: bool
    policy_counts: Mapping[str, int] = field(default_factory=dict)
    expires_at: int | None = None
    e2e_processing_latency: LatencySnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSnapshot:
    health: str  # "OK", or "NOK - " and the cause
    start_time: int  # Unix seconds
    topics: Sequence[TopicSnapshot] | None  # sorted by name; None: the requested topic doesn't exist
    producers: Sequence[ClientSnapshot] | None  # None: there are none, or not requested


def only_about(topic: str, snapshot: BrokerSnapshot) -> BrokerSnapshot:
    """Remove other topics' producers and counts, which NSQ includes, from a snapshot of one topic.

    Use this for callers who may only see this topic.
    """
    topics = None if snapshot.topics is None else tuple(_only_about(topic, it) for it in snapshot.topics)
    producers = tuple(it for it in snapshot.producers or () if _counts_of(topic, it))
    return replace(snapshot, topics=topics, producers=producers or None)


def _only_about(topic: str, snapshot: TopicSnapshot) -> TopicSnapshot:
    channels = [
        replace(channel, clients=[replace(it, pub_counts=_counts_of(topic, it)) for it in channel.clients])
        if channel.clients
        else channel
        for channel in snapshot.channels
    ]
    return replace(snapshot, channels=channels)


def _counts_of(topic: str, client: ClientSnapshot) -> tuple[tuple[str, int], ...]:
    return tuple(it for it in client.pub_counts if it[0] == topic)
