"""Snapshots of the broker's state: frozen records, whose fields are the table of measures.

HTTP, statsd and tests all read these records. stats.py collects them. NSQ's numbers are in the order of `/stats`.
`None` and an empty sequence differ, because NSQ prints `null` for the one and `[]` for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import NamedTuple


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
    touch_count: int = 0
    last_touch_at: int = 0  # wall clock, nanoseconds; 0: it has touched no message
    oldest_in_flight_ms: int | None = None  # age of its oldest delivery; None: not requested, or nothing in flight


class Json(Enum):
    """Whether a measure is a member of `/stats`. It has the name of its field there."""

    ALWAYS = auto()  # as in NSQ
    IF_SET = auto()  # unless it is 0, as in NSQ
    OURS = auto()  # after NSQ's members, unless it is 0
    NEVER = auto()


class Measure(NamedTuple):
    """One number of a topic or channel: where the broker has it, and where we show it.

    `counter` or `gauge` is the metadata of its field. stats.py, JSON, `/metrics` and statsd all go by these fields, so a
    number that NSQ doesn't have takes one field below, and the code that counts it. Only the text form of `/stats` is
    written by hand, because its lines are NSQ's.

    A field that is positional is read at `of`: stats.py passes all of them at once. It computes the others.

    A number that only some topics or channels have is None for the others, and shown nowhere there.
    """

    metric: str  # nsqd_topic_<metric> or nsqd_channel_<metric> in /metrics, and _total for a counter; empty: not there
    help: str  # the metric's text
    is_counter: bool
    of: str  # its path from the Topic or Channel; empty: the field's name
    json: Json
    statsd: str | None  # None: the field's name; empty: we don't push it


def counter(
    metric: str, help: str, *, of: str = "", json: Json = Json.OURS, statsd: str | None = None
) -> dict[str, Measure]:
    """Describe a number that only grows."""
    return {"measure": Measure(metric, help, True, of, json, statsd)}


def gauge(
    metric: str, help: str, *, of: str = "", json: Json = Json.OURS, statsd: str | None = None
) -> dict[str, Measure]:
    return {"measure": Measure(metric, help, False, of, json, statsd)}


def measures_of(record: type) -> Mapping[str, Measure]:
    """Return the measures by field, in the order of the fields."""
    return {it.name: it.metadata["measure"] for it in fields(record) if "measure" in it.metadata}


def paths_of(record: type) -> Sequence[str]:
    """Return the paths of the positional measures, in the order in which the record takes them."""
    return [it.metadata["measure"].of or it.name for it in fields(record) if not it.kw_only]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSnapshot:
    """One channel. Give a number that the broker counts `kw_only=False`, or stats.py doesn't read it and it stays 0."""

    channel_name: str
    depth: int = field(
        kw_only=False, metadata=gauge("depth", "Messages waiting for a consumer.", of="ledger.depth", json=Json.ALWAYS)
    )
    backend_depth: int = field(
        kw_only=False,
        metadata=gauge(
            "backend_depth", "The part of the depth that is only on disk.", of="ledger.backend_depth", json=Json.ALWAYS
        ),
    )
    in_flight_count: int = field(
        metadata=gauge("in_flight", "Messages delivered to consumers and not answered yet.", json=Json.ALWAYS)
    )
    deferred_count: int = field(
        metadata=gauge("deferred", "Deferred messages: they are delivered later.", json=Json.ALWAYS)
    )
    buried_count: int = field(default=0, metadata=gauge("buried", "Buried messages: they wait for an operator."))
    message_count: int = field(
        kw_only=False,
        metadata=counter("messages", "Messages that the channel got.", of="ledger.message_count", json=Json.ALWAYS),
    )
    zone_local_msg_count: int = field(default=0, metadata=counter("", "", json=Json.IF_SET, statsd=""))
    region_local_msg_count: int = field(default=0, metadata=counter("", "", json=Json.IF_SET, statsd=""))
    global_msg_count: int = field(default=0, metadata=counter("", "", json=Json.IF_SET, statsd=""))
    requeue_count: int = field(
        kw_only=False, metadata=counter("requeues", "Messages that consumers put back.", json=Json.ALWAYS)
    )
    timeout_count: int = field(
        kw_only=False, metadata=counter("timeouts", "Messages that were not finished in time.", json=Json.ALWAYS)
    )
    bury_count: int = field(
        default=0,
        kw_only=False,
        metadata=counter("burials", "Messages that were buried.", of="buried_queue.bury_count", json=Json.NEVER),
    )
    kick_count: int = field(
        default=0,
        kw_only=False,
        metadata=counter(
            "kicks",
            "Buried messages that were given back to the channel.",
            of="buried_queue.kick_count",
            json=Json.NEVER,
        ),
    )
    discard_count: int = field(
        default=0,
        kw_only=False,
        metadata=counter(
            "discards", "Buried messages that were discarded.", of="buried_queue.discard_count", json=Json.NEVER
        ),
    )
    client_count: int = field(metadata=gauge("clients", "Consumers.", json=Json.ALWAYS, statsd="clients"))
    max_in_flight: int = field(
        default=0,
        kw_only=False,
        metadata=gauge(
            "max_in_flight",
            "Limit of messages in flight, from the policy file; 0: none.",
            of="policy.max_in_flight",
            statsd="",  # or a channel with buried messages and without a limit would get another line
        ),
    )
    held_count: int | None = field(
        default=None,
        kw_only=False,
        metadata=gauge("held", "The part of the depth that waits for other messages of its groups (nsq-group)."),
    )
    group_count: int | None = field(
        default=None,
        kw_only=False,
        metadata=gauge("groups", "Groups with messages that are held, wait again or are in flight."),
    )
    clients: Sequence[ClientSnapshot] | None  # None: not requested
    paused: bool
    e2e_processing_latency: LatencySnapshot
    paused_why: str = ""  # the reason of an automatic pause
    in_flight_full_since: int | None = None  # when `max_in_flight` was reached, which it still is; None: it isn't
    held_full_since: int | None = None  # when `max_held` was reached, which it still is; None: it isn't
    policy_counts: Mapping[str, int] = field(default_factory=dict)  # messages that the policy acted on, by cause
    oldest_timestamp: int | None = None  # of the oldest waiting message; None: not requested, or not known
    expires_at: int | None = None  # when the policy deletes the unused channel; None: not requested, or never


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    topic_name: str
    channels: Sequence[ChannelSnapshot]
    depth: int = field(
        kw_only=False, metadata=gauge("depth", "Messages that no channel has received yet.", json=Json.ALWAYS)
    )
    backend_depth: int = field(
        kw_only=False, metadata=gauge("backend_depth", "The part of the depth that is only on disk.", json=Json.ALWAYS)
    )
    message_count: int = field(
        kw_only=False, metadata=counter("messages", "Messages published to the topic.", json=Json.ALWAYS)
    )
    message_bytes: int = field(
        kw_only=False, metadata=counter("message_bytes", "Bytes in the bodies of these messages.", json=Json.ALWAYS)
    )
    repeat_count: int = field(
        default=0,
        kw_only=False,
        metadata=counter("repeats", "Publishes that were skipped because their idempotence key was known.", statsd=""),
    )
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
