"""The cluster at one moment, as everybody here sees it: pages, both APIs, diagnosis, metrics and the snapshot file.

    Recording                       what a snapshot file holds, and what the sampler offers live
      ├─ Snapshot                   replaced as a whole by each sweep, never changed
      │    ├─ Node, Lookupd         who was asked, how it is, what it said of itself
      │    ├─ Topic ─ TopicNode     sums over the nodes, and each node's own numbers
      │    │    ├─ Reader ─ ReaderNode   who reads its log without a channel, and how far behind
      │    │    └─ Channel ─ ChannelNode ─ Client
      │    ├─ Producer              who publishes, as the nodes tell it
      │    ├─ Finding               what is wrong, or worth knowing, in words and with its evidence
      │    └─ Unanswered            what could not be asked
      ├─ Series                     how numbers went
      └─ Activity                   what people did here, and what happened by itself

Times are seconds since 1970, durations are seconds, rates are per second. `None` means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from common.wire.names import is_ephemeral

TAIL_PREFIX: Final = "nsqadmin_tail_"  # of channels of our own, through which somebody here watches a topic


class Health(StrEnum):
    """How the last question to a node went."""

    OK = "ok"
    SLOW = "slow"
    DOWN = "down"
    NEVER = "never reached"


class Severity(StrEnum):
    """How much a finding matters. Only problems and warnings count as something being wrong."""

    PROBLEM = "problem"
    WARNING = "warning"
    INFO = "info"


class Paused(StrEnum):
    NO = "no"
    PARTLY = "partly"
    YES = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """Of the time from publishing to finishing, in nanoseconds. Over several nodes `average` is only their mean."""

    quantile: float
    average: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    count: int
    percentiles: tuple[Percentile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What happened each second between the last two samples.

    What is finished is not counted by nsqd: it is what came in and is neither waiting, in flight nor deferred.
    """

    incoming: float | None = None  # published, for a topic; handed over, for a channel
    finished: float | None = None  # channels only
    requeued: float | None = None
    timed_out: float | None = None
    bytes: float | None = None  # topics only


UNKNOWN_RATES = Rates()


# Who was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a node says about its own memory; bytes, but for the number of objects and collections."""

    heap_in_use: int
    heap_objects: int
    collections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One nsqd. `address` (broadcast address and HTTP port) is its name everywhere, also under /nodes/."""

    address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = ""
    region: str = ""
    zone: str = ""
    health: Health = Health.NEVER
    since: float = 0.0  # when its health became this
    answered_in: float | None = None  # the last time that it did
    error: str = ""  # as it came
    explanation: str = ""  # what that means, and what to try
    not_read: str = ""  # why its answer was not read, although it answers
    token_withheld: str = ""  # why it is asked without the token; empty if it is shown the token or there is none
    own_health: str = ""  # what it says about itself: "OK", or why not
    start_time: float | None = None
    memory: Memory | None = None
    has_history: bool = False  # it can be asked for what was published: peek, browse, seek, replay
    lookupds: tuple[str, ...] = ()  # those that know it, as they are configured
    remote_addresses: tuple[str, ...] = ()  # NSQ's spelling: "<nsqlookupd>/<address it connects from>"
    tombstones: tuple[str, ...] = ()  # topics that some nsqlookupd hides for this node just now
    out_of_date: bool = False
    clock_skew: float | None = None  # how far its clock is ahead of ours
    topic_count: int = 0
    channel_count: int = 0
    client_count: int = 0
    depth: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    rates: Rates = UNKNOWN_RATES

    @property
    def is_reachable(self) -> bool:
        return self.health in (Health.OK, Health.SLOW)

    def seen_by(self, sees: Callable[[str], bool]) -> Node:
        """Return the node without the topics that somebody may not see."""
        return replace(self, tombstones=tuple(topic for topic in self.tombstones if sees(topic)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookupd:
    """One nsqlookupd, under the address that nsqadmin was given."""

    address: str
    health: Health = Health.NEVER
    since: float = 0.0
    answered_in: float | None = None
    error: str = ""
    explanation: str = ""
    not_read: str = ""  # why its answer was not read, although it answers
    nodes_left_out: int = 0  # nodes that it lists beyond --max-nodes; they are not asked
    topics_left_out: int = 0  # topics that it lists beyond the bound; they are not shown
    version: str = ""
    topics: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def is_reachable(self) -> bool:
        return self.health in (Health.OK, Health.SLOW)


# What they have


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A consumer's connection to one node."""

    node: str
    client_id: str
    hostname: str
    remote_address: str
    user_agent: str = ""
    version: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_time: float = 0.0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    region: str = ""
    zone: str = ""
    tls: bool = False
    tls_version: str = ""
    tls_cipher_suite: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    finish_rate: float | None = None
    requeue_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A connection that publishes, on one node: `counts` is (topic, messages, rate)."""

    node: str
    client_id: str
    hostname: str
    remote_address: str
    user_agent: str = ""
    connect_time: float = 0.0
    counts: tuple[tuple[str, int, float | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelNode:
    """A channel on one node."""

    node: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    zone_local_count: int = 0
    region_local_count: int = 0
    global_count: int = 0
    paused: bool = False
    latency: Latency | None = None
    clients: tuple[Client, ...] | None = None  # None: not asked for in this sweep

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel on all of its nodes. The numbers are sums."""

    topic: str
    name: str
    nodes: tuple[ChannelNode, ...] = ()
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    paused: Paused = Paused.NO
    latency: Latency | None = None
    rates: Rates = UNKNOWN_RATES
    ready_count: int | None = None  # what its consumers ask for; None where clients were not asked for
    oldest_age: float | None = None  # how long the next message has waited: lag, as time. Told from our samples
    oldest_is_older: bool = False  # we have not watched for long enough: it is at least that
    drain_time: float | None = None  # until it is empty, if it goes on like this; None: not known, or it grows

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def clients(self) -> tuple[Client, ...] | None:
        """All of them, where they were asked for."""
        if any(row.clients is None for row in self.nodes):
            return None
        return tuple(client for row in self.nodes for client in row.clients or ())

    @property
    def utilisation(self) -> float | None:
        """How much of what its consumers ask for they have in their hands: 1 means that they are saturated."""
        return self.in_flight_count / self.ready_count if self.ready_count else None

    @property
    def net_rate(self) -> float | None:
        """How fast it grows; below zero, how fast it empties."""
        if self.rates.incoming is None or self.rates.finished is None:
            return None
        return self.rates.incoming - self.rates.finished


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNode:
    """A topic on one node; `depth` is what waits for a first channel, or for the topic's pause to end."""

    node: str
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    tombstoned: bool = False
    latency: Latency | None = None
    has_log: bool = False  # this node keeps its history, and it can be read

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderNode:
    """How far a reader has committed the topic's log on one node, by its last report. `as_of` is when the node said so."""

    node: str
    as_of: float
    heard: float  # when it last reported
    committed: float  # when it last reported progress
    behind: int = 0  # messages there that it has not committed
    behind_bytes: int | None = None
    behind_time: float | None = None  # how long ago the first of them was published
    missed: int = 0  # messages that were removed before it had committed them
    rate: float | None = None  # messages that it commits
    is_new_log: bool = False  # what it reported was about a log that is gone
    retention_time: float = 0.0  # how long the node keeps what its channels have finished; with both 0 not at all
    retention_bytes: int = 0
    reason: str = ""  # why the node does not say it now; then this is what it said last


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads the topic's logs without a channel, and where that lands. Name and `into` tell readers apart."""

    name: str
    into: str
    format: str = ""
    hosts: tuple[str, ...] = ()
    nodes: tuple[ReaderNode, ...] = ()
    unheard: tuple[str, ...] = ()  # nodes that have the topic's log, and to which it has reported nothing

    @property
    def behind(self) -> int:
        return sum(row.behind for row in self.nodes)

    @property
    def behind_time(self) -> float | None:
        """Of the node where it is furthest behind; None: some node cannot tell."""
        times = [row.behind_time if row.behind else 0.0 for row in self.nodes]
        return None if None in times else max(it for it in times if it is not None)

    @property
    def missed(self) -> int:
        return sum(row.missed for row in self.nodes)

    @property
    def heard(self) -> float:
        """The last time, by any node."""
        return max(row.heard for row in self.nodes)

    @property
    def committed(self) -> float:
        return max(row.committed for row in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A node that does not say who reads its log of the topic."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic on all of its nodes. The numbers are sums."""

    name: str
    nodes: tuple[TopicNode, ...] = ()
    channels: tuple[Channel, ...] = ()
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: Paused = Paused.NO
    latency: Latency | None = None
    rates: Rates = UNKNOWN_RATES
    lookupds: tuple[str, ...] = ()  # those that know the name
    registered_channels: tuple[str, ...] = ()  # names that an nsqlookupd keeps; asked for inactive topics only
    readers: tuple[Reader, ...] | None = None  # None: not asked for; asked for topics only that somebody looks at
    readers_untold: tuple[Untold, ...] = ()

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def is_inactive(self) -> bool:
        """Known to an nsqlookupd, but on no node that we see."""
        return not self.nodes

    @property
    def total_depth(self) -> int:
        """Everything that waits, each channel's copies counted."""
        return self.depth + sum(channel.depth for channel in self.channels)

    @property
    def worst_channel(self) -> Channel | None:
        return max(self.channels, key=lambda channel: channel.depth, default=None)

    def channel(self, name: str) -> Channel | None:
        return next((channel for channel in self.channels if channel.name == name), None)


# What it means


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number behind a finding, ready to be read: `ready count` is the label, `0` the value."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule has found about a channel, a topic, a node or an nsqlookupd. What it is about is what is not empty."""

    rule: str  # "D1" to "D16"
    severity: Severity
    verdict: str  # one sentence
    advice: str  # what to do about it
    topic: str = ""
    channel: str = ""
    node: str = ""  # an nsqd's or an nsqlookupd's address
    evidence: tuple[Evidence, ...] = ()
    window: float = 0.0  # over how long it was looked at; 0: only at this moment
    since: float = 0.0  # when it was first found
    is_inferred: bool = False  # likely, not certain
    action: str = ""  # the kind of an action that may help
    weight: float = 0.0  # orders findings of one severity: the bigger the worse

    @property
    def key(self) -> str:
        """The same from one sample to the next."""
        return "/".join((self.rule, self.topic, self.channel, self.node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """What the picture lacks: what failed, whom it concerns, what to try, and the error as it came."""

    what: str
    where: str
    advice: str
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    topic_count: int = 0
    channel_count: int = 0
    client_count: int = 0
    depth: int = 0  # of topics and channels: everything that waits
    in_flight_count: int = 0
    deferred_count: int = 0
    rates: Rates = UNKNOWN_RATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole picture. Everything is in a fixed order: by name, nodes by hostname and address, the worst finding first."""

    index: int  # goes up with each sweep; 0: nothing has been asked yet
    taken_at: float
    interval: float  # until the next one
    has_lookupds: bool  # False: a fixed list of nsqd
    took: float = 0.0
    nodes: tuple[Node, ...] = ()
    lookupds: tuple[Lookupd, ...] = ()
    topics: tuple[Topic, ...] = ()
    producers: tuple[Producer, ...] | None = ()  # None: not asked for in this sweep
    findings: tuple[Finding, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    totals: Totals = Totals()
    # Otherwise clients are known of topics only that somebody looks at, or that are in trouble.
    has_all_clients: bool = True
    _by_name: dict[str, Topic] = field(default_factory=dict, repr=False, compare=False)
    _by_address: dict[str, Node] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._by_name.update((topic.name, topic) for topic in self.topics)
        self._by_address.update((node.address, node) for node in self.nodes)

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def channel(self, topic: str, channel: str) -> Channel | None:
        found = self.topic(topic)
        return found.channel(channel) if found is not None else None

    def node(self, address: str) -> Node | None:
        return self._by_address.get(address)

    def findings_about(self, *, topic: str = "", channel: str = "", node: str = "") -> tuple[Finding, ...]:
        """Of this very channel, topic or node."""
        about = (topic, channel, node)
        return tuple(it for it in self.findings if (it.topic, it.channel, it.node) == about)


NOTHING_YET = Snapshot(index=0, taken_at=0.0, interval=0.0, has_lookupds=False)


# How it went


class Metric(StrEnum):
    """What a series may be of. A rate is named after what happens."""

    DEPTH = "depth"
    BACKEND_DEPTH = "backend_depth"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"
    CLIENTS = "clients"
    INCOMING = "incoming"
    FINISHED = "finished"
    REQUEUED = "requeued"
    TIMED_OUT = "timed_out"
    BYTES = "bytes"
    FINDINGS = "findings"  # of the cluster: problems and warnings


class Span(StrEnum):
    """How far a series looks back, and with that how fine it is."""

    MINUTES = "12m"  # a point for each sample
    HOURS = "6h"  # one a minute
    DAYS = "7d"  # one every ten minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Equally spaced points, the newest last; `end` is the newest one's time. None: nobody was asked then."""

    end: float
    step: float
    values: Mapping[str, tuple[float | None, ...]]  # by metric


CLUSTER_SERIES = "cluster"


def topic_series(topic: str) -> str:
    return f"topic:{topic}"


def channel_series(topic: str, channel: str) -> str:
    return f"channel:{topic}/{channel}"


def node_series(address: str) -> str:
    return f"node:{address}"


# What happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What somebody did with nsqadmin, or what the sampler saw happen."""

    at: float
    what: str  # an action's word, or an event's: "node_down", "nsqd_restarted", "topic_appeared", ...
    text: str  # one sentence
    user: str = ""  # empty: nobody, it happened
    remote: str = ""
    topic: str = ""
    channel: str = ""
    nodes: tuple[str, ...] = ()
    result: str = ""  # "ok", "partly", "failed", "refused"; empty for events
    took: float | None = None

    @property
    def is_action(self) -> bool:
        return bool(self.result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A snapshot with all that is shown around it. Keys of `series` are `<key>@<span>`."""

    snapshot: Snapshot
    series: Mapping[str, Series] = field(default_factory=dict)
    activity: tuple[Activity, ...] = ()
