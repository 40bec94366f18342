"""The cluster at one moment: the model shared by pages, both APIs, diagnosis, metrics and the snapshot file.

    Recording                       the content of a snapshot file, also available live from the sampler
      ├─ Snapshot                   replaced as a whole by each sweep, never changed
      │    ├─ Node, Lookupd         a polled process: its health, and its reports about itself
      │    ├─ Topic ─ TopicNode     sums over the nodes, and each node's own numbers
      │    │    ├─ Reader ─ ReaderNode   a program that reads the log without a channel, and its lag
      │    │    └─ Channel ─ ChannelNode ─ Client
      │    ├─ Producer              a connection that publishes
      │    ├─ Finding               a problem or remark, in words and with its evidence
      │    ├─ Silent                a node that doesn't answer now: totals include its last known values
      │    ├─ Unanswered            a failed request, so that the snapshot lacks something
      │    └─ PausedBy             who paused a topic or a channel
      ├─ Series                     the history of some numbers
      └─ Activity                   actions of users, and events in the cluster

Times are seconds since 1970, durations are seconds, rates are per second. `None` means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from nsqadmin.cluster.measures import ChannelNumbers, TopicNumbers, number
from nsqadmin.cluster.message_groups import MessageGroup  # noqa: TC001 - from_json reads annotations at run time
from nsqcommon.wire.names import is_ephemeral

Counts = tuple[tuple[str, int], ...]  # by cause

TAIL_PREFIX: Final = "nsqadmin_tail_"  # of nsqadmin's own channels, which tail a topic for viewers


class Health(StrEnum):
    """The outcome of the last request to a node."""

    OK = "ok"
    SLOW = "slow"
    DOWN = "down"
    NEVER = "never reached"


class Severity(StrEnum):
    """How much a finding matters. Only problems and warnings mean that something is wrong."""

    PROBLEM = "problem"
    WARNING = "warning"
    INFO = "info"


class Paused(StrEnum):
    NO = "no"
    PARTLY = "partly"
    YES = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentile:
    """A percentile of the time from publishing to finishing, in nanoseconds. None: nothing was finished lately.

    Over several nodes, `average` is only the mean of their percentiles.
    """

    quantile: float
    average: float | None
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    count: int  # messages that nsqd has measured lately; 0: the percentiles are unknown
    percentiles: tuple[Percentile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Events per second between the last two samples; `failed` and all that follow are over the last minute.

    nsqd doesn't count finished messages. We derive them: they came in and aren't waiting, in flight or deferred.
    """

    incoming: float | None = None  # published, for a topic; handed over, for a channel
    finished: float | None = None  # channels only
    requeued: float | None = None
    timed_out: float | None = None
    failed: float | None = None  # requeued and timed out together; channels only
    dropped: float | None = None  # lost by a policy, but not because of their age; channels only
    expired: float | None = None  # dropped or buried by a policy because of their age; channels only
    buried: float | None = None  # buried, by consumers or a policy, at least; channels only
    removed: float | None = None  # from the queue by a policy: dropped, expired, buried by overflow; channels only
    bytes: float | None = None  # between the last two samples; topics only


UNKNOWN_RATES = Rates()


# Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A node's report about its own memory."""

    heap_in_use: int  # bytes
    heap_objects: int
    collections: int  # runs of its garbage collector


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCopy:
    """A node's copy of its data path in an object store. If this machine is lost, another one goes on with it."""

    store: str = ""  # its URL
    name: str = ""  # the node's name in the store: other machines with the same name are its standbys or successors
    state: str = ""  # "owner", "down" (the store does not answer), "fenced" (taken over by another) or "standby"
    refusal: str = ""  # why publishes that wait for the store are refused
    behind_seconds: float = 0.0  # age of the oldest change that the store hasn't confirmed
    behind_bytes: int = 0
    waiting_publishes: int = 0
    is_adopted: bool = False  # at its start, the node continued with the data stored by another machine
    asides: tuple[str, ...] = ()  # folders with files that were set aside at a start
    wants_standby: bool = False  # started with --standby, so another machine should be its standby
    standbys: tuple[str, ...] = ()  # addresses of the standbys that polled it lately

    @property
    def key(self) -> tuple[str, str]:
        return self.store, self.name

    @property
    def is_owned(self) -> bool:
        return self.state in ("owner", "down")

    @property
    def is_down(self) -> bool:
        return self.state == "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One nsqd."""

    address: str  # broadcast address and HTTP port: the node's name everywhere, also under /nodes/
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = ""
    release: str = ""  # of nsq-suite; empty for a Go nsqd
    region: str = ""
    zone: str = ""
    health: Health = Health.NEVER
    since: float = 0.0  # when its health last changed
    answered_in: float | None = None  # duration of its last answer
    answered_at: float | None = None  # when that answer came; None: it has never answered
    error: str = ""  # original text of the error
    explanation: str = ""  # meaning of the error, and what to try
    not_read: str = ""  # why its answer couldn't be used
    token_withheld: str = ""  # why we don't send it the token; empty if we do, or there is none
    own_health: str = ""  # its report about itself: "OK", or the problem
    policy_digest: str | None = None  # of its policy file; empty: it has none; None: it doesn't say
    policy_error: str = ""  # why it still uses an earlier policy file
    policy_is_copy: bool = False  # it started with a copy of an earlier policy file, because the file was broken
    state: str = ""  # its state in nsqlookupd: "draining", "full" or "unhealthy"; empty: it accepts messages
    unreachable: tuple[str, ...] = ()  # why nsqlookupds can't connect to it: "<nsqlookupd>: <why>"
    draining: bool = False  # it refuses publishes and delivers its waiting messages before a stop
    worker: int | None = None  # its number, if it is one of the workers of `nsqd --workers`
    remote: RemoteCopy | None = None  # None: it keeps no copy, or doesn't say
    successor: str = ""  # it is silent, and the node with this address has taken over its messages
    start_time: float | None = None
    memory: Memory | None = None
    has_history: bool = False  # its history can be read: peek, browse, seek, replay
    lookupds: tuple[str, ...] = ()  # the nsqlookupds that list it, by their configured addresses
    remote_addresses: tuple[str, ...] = ()  # NSQ's spelling: "<nsqlookupd>/<address it connects from>"
    tombstones: tuple[str, ...] = ()  # topics for which some nsqlookupd hides this node now
    out_of_date: bool = False
    clock_skew: float | None = None  # seconds that its clock is ahead of ours
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

    @property
    def is_standby(self) -> bool:
        """True if it is the standby of another node, and accepts nothing until it takes over."""
        return self.remote is not None and self.remote.state == "standby"

    @property
    def is_known(self) -> bool:
        """True if we have its numbers, if only from before it fell silent."""
        return self.is_reachable or self.answered_at is not None

    def seen_by(self, sees: Callable[[str], bool]) -> Node:
        """Return the node without the topics that a viewer may not see, and without texts that could name them."""
        return replace(
            self,
            tombstones=tuple(topic for topic in self.tombstones if sees(topic)),
            error="",
            own_health=self.own_health if self.own_health in ("", "OK") else "it is unhealthy",
            policy_error="it has mistakes" if self.policy_error else "",
            remote=replace(self.remote, refusal="") if self.remote is not None else None,
            unreachable=("nsqlookupd cannot connect to it",) if self.unreachable else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A node that has topics and doesn't answer now. All totals include its last answer, so that none drops."""

    node: str
    since: float  # when it first failed to answer
    answered_at: float  # when its last answer came
    depth: int = 0  # messages that waited in its topics and channels by that answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookupd:
    """One nsqlookupd."""

    address: str  # as configured
    health: Health = Health.NEVER
    since: float = 0.0
    answered_in: float | None = None
    error: str = ""
    explanation: str = ""
    not_read: str = ""  # why its answer couldn't be used
    nodes_left_out: int = 0  # number of listed nodes beyond --max-nodes; we don't poll them
    topics_left_out: int = 0  # number of listed topics beyond our limit; we don't show them
    version: str = ""
    topics: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def is_reachable(self) -> bool:
        return self.health in (Health.OK, Health.SLOW)

    def seen_by(self, sees: Callable[[str], bool]) -> Lookupd:
        """Return it without the topics that a viewer may not see, and without texts that could name them."""
        return replace(self, topics=tuple(topic for topic in self.topics if sees(topic)), error="")


# Topics, channels and connections


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
    finish_rate: float | None = None  # over the last minute
    requeue_rate: float | None = None  # over the last minute
    timeout_rate: float | None = None  # over the last minute: messages that it let time out
    touch_count: int = 0
    last_touch: float | None = None  # when it last extended a message's deadline; None: unknown, or never
    reports_touches: bool = True  # False: its nsqd doesn't, so `last_touch` says nothing
    oldest_in_flight: float | None = None  # how long it has had its oldest message; None: unknown, or it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A connection to one node that publishes."""

    node: str
    client_id: str
    hostname: str
    remote_address: str
    user_agent: str = ""
    connect_time: float = 0.0
    counts: tuple[tuple[str, int, float | None], ...] = ()  # (topic, messages, rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedReason:
    """Why messages are buried."""

    pattern: str  # with `*` for numbers and ids; may be hidden
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Consumers hold messages and have finished none: on all nodes that answer and on which they hold any, or on some."""

    since: float
    is_older: bool = False  # it was so when nsqadmin started
    timed_out: int = 0  # messages that have timed out since
    has_held_up: bool = False  # other messages have waited for a minute since
    nodes: tuple[str, ...] = ()  # these nodes only; on others, consumers go on


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelNode(ChannelNumbers):
    """A channel on one node."""

    NUMBERS_AFTER = ("node", "oldest_at")

    node: str
    zone_local_count: int = number(key="zone_local_msg_count", is_live=False)
    region_local_count: int = number(key="region_local_msg_count", is_live=False)
    global_count: int = number(key="global_msg_count", is_live=False)
    paused: bool = False
    latency: Latency | None = None
    oldest_at: float | None = None  # publish time of its oldest waiting message, if the node reports it (ours does)
    net_rate: float | None = None  # change of the depth a second, over about a minute; None: unknown
    paused_why: str = ""  # if it has paused itself
    in_flight_full_since: float | None = None  # when max_in_flight was reached; None: it isn't
    group_count: int | None = None  # groups with messages that are held, wait again or are in flight; None: no rules
    held_full_since: float | None = None  # when max_held was reached; None: it isn't
    max_held: int = 0  # only requested if it holds many; 0: not requested
    largest_groups: tuple[MessageGroup, ...] = ()  # the same; names may be hidden
    policy_counts: Counts = ()
    policy_recent: Counts = ()  # of the last five minutes
    policy_growing: tuple[str, ...] | None = (
        None  # causes that have counted on since the previous answer; None: unknown
    )
    buried_recent: int = 0  # messages buried in the last five minutes, at least
    is_burying: bool | None = None  # some were buried since the previous answer; None: unknown
    buried_reasons: tuple[BuriedReason, ...] = ()  # most frequent first; only requested if messages were buried lately
    expires_at: float | None = None  # when the policy deletes it, if it stays unused
    clients: tuple[Client, ...] | None = None  # None: not requested in this sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel(ChannelNumbers):
    """A channel on all of its nodes. The numbers are sums; for `silent` nodes they are the last known ones.

    Rates of a silent node are unknown, so a sum of rates with such a node is a lower bound.
    """

    NUMBERS_AFTER = ("silent", "rates")

    topic: str
    name: str
    nodes: tuple[ChannelNode, ...] = ()
    silent: tuple[str, ...] = ()  # its nodes that don't answer now
    paused: Paused = Paused.NO
    latency: Latency | None = None
    rates: Rates = UNKNOWN_RATES
    policy_counts: Counts = ()
    policy_recent: Counts = ()
    policy_growing: tuple[str, ...] | None = None
    ready_count: int | None = None  # sum of its consumers' ready counts; None if clients weren't requested
    # Lag in seconds: the age of the oldest waiting message. Our nsqd reports it; for others we estimate it from
    # samples.
    oldest_age: float | None = None
    oldest_is_older: bool = (
        False  # `oldest_age` is a lower bound: some node doesn't report it, or we haven't watched long enough
    )
    net_rate: float | None = None  # change of the depth a second, over about a minute, on the nodes that answer
    drain_time: float | None = None  # until consumers have emptied it at this rate; None: never, or unknown
    stall: Stall | None = None  # consumers hold messages and finish none

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def clients(self) -> tuple[Client, ...] | None:
        """The clients on all nodes; None if they weren't requested from some node."""
        if any(row.clients is None for row in self.nodes):
            return None
        return tuple(client for row in self.nodes for client in row.clients or ())

    @property
    def paused_why(self) -> str:
        """Why it has paused itself, on the first such node."""
        return next((row.paused_why for row in self.nodes if row.paused_why), "")

    @property
    def has_groups(self) -> bool:
        """Whether a node has rules about groups, or has had some and still holds messages."""
        return any(row.group_count is not None or row.held_count for row in self.nodes)

    @property
    def group_count(self) -> int:
        """The greatest number of groups on a node. Nodes may share groups, so their sum would be too high."""
        return max((row.group_count or 0 for row in self.nodes), default=0)

    @property
    def utilisation(self) -> float | None:
        """The share of its consumers' ready count that is in flight, on the nodes that answer: at 1 they are saturated.

        More may be in flight for a moment, after a consumer has lowered its ready count.
        """
        in_flight = sum(row.in_flight_count for row in self.nodes if row.node not in self.silent)
        return min(1.0, in_flight / self.ready_count) if self.ready_count else None

    @property
    def growth(self) -> float | None:
        """The net rate if no policy had removed any messages: dropping messages is no way to keep up."""
        return None if self.net_rate is None else self.net_rate + (self.rates.removed or 0.0)

    @property
    def buried_recent(self) -> int:
        """Messages buried in the last five minutes on the nodes that answer, at least."""
        return sum(row.buried_recent for row in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNode(TopicNumbers):
    """A topic on one node."""

    NUMBERS_AFTER = ("node", "node")

    node: str
    paused: bool = False
    ack: str = ""  # the topic's --ack there; empty: the node keeps no copy in a store, and doesn't say
    tombstoned: bool = False
    latency: Latency | None = None
    policy_counts: Counts = ()  # of messages without a channel
    policy_recent: Counts = ()  # of the last five minutes
    policy_growing: tuple[str, ...] | None = (
        None  # causes that have counted on since the previous answer; None: unknown
    )
    expires_at: float | None = None  # when the policy deletes it, if it stays unused
    has_log: bool = False  # this node has the topic's history, and it can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderNode:
    """A reader's progress in the topic's log on one node, by the reader's last report to that node."""

    node: str
    as_of: float  # time of the node's answer
    heard: float  # when the reader last reported to the node
    committed: float  # when the reader last reported progress
    behind: int = 0  # messages on this node that the reader hasn't committed
    behind_bytes: int | None = None
    behind_time: float | None = None  # age of the first of these messages
    missed: int = 0  # messages that the node removed before the reader had committed them
    rate: float | None = None  # messages a second that the reader commits
    is_new_log: bool = False  # the reader's report was about an earlier log, which is gone
    retention_time: float = 0.0  # how long the node keeps messages that all channels have finished
    retention_bytes: int = 0  # how many bytes of these it keeps; with both 0 it keeps none
    reason: str = ""  # why the node doesn't answer now; the other fields are then its last answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A program that reads the topic's logs without a channel. `name` and `into` together identify it."""

    name: str
    into: str  # where the reader puts the messages
    format: str = ""
    hosts: tuple[str, ...] = ()
    nodes: tuple[ReaderNode, ...] = ()
    unheard: tuple[str, ...] = ()  # nodes that have the topic's log but no report from this reader

    @property
    def behind(self) -> int:
        return sum(row.behind for row in self.nodes)

    @property
    def behind_time(self) -> float | None:
        """The lag on the node where it is furthest behind; None if some node can't tell."""
        times = [row.behind_time if row.behind else 0.0 for row in self.nodes]
        return None if None in times else max(time for time in times if time is not None)

    @property
    def missed(self) -> int:
        return sum(row.missed for row in self.nodes)

    @property
    def heard(self) -> float:
        """When it last reported to any node."""
        return max(row.heard for row in self.nodes)

    @property
    def committed(self) -> float:
        return max(row.committed for row in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A node that doesn't report who reads its log of the topic."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(TopicNumbers):
    """A topic on all of its nodes. The numbers are sums, as in `Channel`."""

    NUMBERS_AFTER = ("channels", "channels")

    name: str
    nodes: tuple[TopicNode, ...] = ()
    silent: tuple[str, ...] = ()  # its nodes that don't answer now
    channels: tuple[Channel, ...] = ()
    paused: Paused = Paused.NO
    latency: Latency | None = None
    rates: Rates = UNKNOWN_RATES
    policy_counts: Counts = ()  # of messages without a channel
    policy_recent: Counts = ()
    policy_growing: tuple[str, ...] | None = None
    lookupds: tuple[str, ...] = ()  # the nsqlookupds that know its name
    registered_channels: tuple[str, ...] = ()  # channels listed by an nsqlookupd; only requested for inactive topics
    readers: tuple[Reader, ...] | None = None  # only requested while someone looks at the topic; None: not requested
    readers_untold: tuple[Untold, ...] = ()

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def is_inactive(self) -> bool:
        """True if an nsqlookupd knows it, but no node has it, or had it when it last answered."""
        return not self.nodes

    @property
    def total_depth(self) -> int:
        """Messages waiting in the topic and in all of its channels; each channel has its own copies."""
        return self.depth + sum(channel.depth for channel in self.channels)

    @property
    def worst_channel(self) -> Channel | None:
        return max(self.channels, key=lambda channel: channel.depth, default=None)

    def channel(self, name: str) -> Channel | None:
        return next((channel for channel in self.channels if channel.name == name), None)


# Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number behind a finding, as text to show."""

    label: str  # for example `ready count`
    value: str  # for example `0`


# Labels of evidence that quotes a node or nsqlookupd, which can name any topic.
QUOTES: Final = frozenset(("error", "it says", "nsqlookupd says"))

RECURRING: Final = 2  # returns within an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule's result. Its subject is in `topic`, `channel` and `node`."""

    rule: str  # "D1" to "D42"
    severity: Severity
    verdict: str  # one sentence
    advice: str  # how to fix it
    topic: str = ""
    channel: str = ""
    node: str = ""  # the address of an nsqd or an nsqlookupd
    facet: str = ""  # for rules with several kinds of findings: which of them this is
    others: tuple[str, ...] = ()  # addresses of further nodes or nsqlookupds that it rests on, or where it is
    evidence: tuple[Evidence, ...] = ()
    window: float = 0.0  # seconds that the rule looked back; 0: only at this moment
    since: float = 0.0  # when it was first found, at this severity
    seen: float = 0.0  # when it was last found; 0: now
    is_inferred: bool = False  # likely, not certain
    is_frozen: bool = False  # found before a node fell silent, and kept until that node answers
    is_held: bool = False  # not found any more, and kept until that has lasted for a while
    returns: int = 0  # how often it, or something of its family, was away for a while and came back in the last hour
    action: str = ""  # kind of action that may help
    weight: float = 0.0  # its impact: see `nsqadmin.diagnosis.impact`

    @property
    def key(self) -> str:
        """Identifies the finding from one sample to the next."""
        rule = f"{self.rule}:{self.facet}" if self.facet else self.rule
        return "/".join((rule, self.topic, self.channel, self.node))

    @property
    def is_recurring(self) -> bool:
        """True if it comes and goes, so that it stays until it has been away for long: `diagnosis/upkeep.py`."""
        return self.returns >= RECURRING

    def without_quotes(self) -> Finding:
        """Return the finding without texts of nodes, for viewers who don't see all topics."""
        if not any(it.label in QUOTES for it in self.evidence):
            return self
        return replace(self, evidence=tuple(it for it in self.evidence if it.label not in QUOTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Something that the snapshot lacks, because a request failed or a limit was reached."""

    what: str  # the failed request, or the part left out
    where: str  # the address of the nsqd or nsqlookupd
    advice: str  # what to try
    raw: str  # original text of the error

    def without_quote(self) -> Unanswered:
        return replace(self, raw="")


class PausedHow(StrEnum):
    HERE = "here"  # by an action of this nsqadmin
    OUTSIDE = "outside"  # by something else; `who` is the name that the node recorded
    BEFORE = "before"  # already so when nsqadmin first looked, at `at`
    ITSELF = "itself"  # the channel has paused itself; its rows say why


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedBy:
    """Who paused a topic, or a channel of it, and when."""

    topic: str
    channel: str = ""  # empty: the topic itself
    at: float
    who: str = ""  # empty: unknown, or without a login
    how: PausedHow


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    topic_count: int = 0
    channel_count: int = 0
    client_count: int = 0
    depth: int = 0  # messages waiting in topics and in channels
    in_flight_count: int = 0
    deferred_count: int = 0
    buried_count: int = 0
    rates: Rates = UNKNOWN_RATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole cluster at one moment.

    The order is fixed: everything by name, but nodes by hostname and address, and findings by severity.
    """

    index: int  # goes up with each sweep; 0: no sweep yet
    taken_at: float
    interval: float  # until the next sweep
    has_lookupds: bool  # False: nsqadmin was given a fixed list of nsqd
    took: float = 0.0
    nodes: tuple[Node, ...] = ()
    lookupds: tuple[Lookupd, ...] = ()
    topics: tuple[Topic, ...] = ()
    producers: tuple[Producer, ...] | None = ()  # None: not requested in this sweep
    findings: tuple[Finding, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    silent: tuple[Silent, ...] = ()  # the nodes whose last known values are in the totals
    pauses: tuple[PausedBy, ...] = ()
    totals: Totals = Totals()
    # False: clients are only known for topics that someone looks at, or that are in trouble.
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

    def paused_by(self, topic: str, channel: str = "") -> PausedBy | None:
        return next((it for it in self.pauses if (it.topic, it.channel) == (topic, channel)), None)

    def findings_about(self, *, topic: str = "", channel: str = "", node: str = "") -> tuple[Finding, ...]:
        """Return the findings about exactly this. Findings about a topic don't include those about its channels."""
        about = (topic, channel, node)
        return tuple(found for found in self.findings if (found.topic, found.channel, found.node) == about)


NOTHING_YET = Snapshot(index=0, taken_at=0.0, interval=0.0, has_lookupds=False)


# History


class Metric(StrEnum):
    """The metric of a series. A rate is named after its event."""

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
    FINDINGS = "findings"  # only for the cluster: the number of problems and warnings
    PROBLEMS = "problems"  # only for the cluster: the number of open incidents that are problems
    FAILED_JOBS = "failed_jobs"  # only for the cluster: jobs that workers reported as failed


class Span(StrEnum):
    """How far a series looks back, which also sets its resolution."""

    MINUTES = "12m"  # a point for each sample
    HOURS = "6h"  # one a minute
    DAYS = "7d"  # one every ten minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Equally spaced points, newest last."""

    end: float  # the time of the newest point
    step: float
    values: Mapping[str, tuple[float | None, ...]]  # by metric; None: unknown at that time
    points: int = 0  # number of points over its whole span; 0: as many as there are
    last_known: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by metric: the part of silent nodes
    partial: tuple[bool, ...] = ()  # when some node was silent, so that rates are lower bounds; empty: never


CLUSTER_SERIES = "cluster"


def topic_series(topic: str) -> str:
    return f"topic:{topic}"


def channel_series(topic: str, channel: str) -> str:
    return f"channel:{topic}/{channel}"


def node_series(address: str) -> str:
    return f"node:{address}"


# Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """An action of a user, or an event in the cluster."""

    at: float
    what: str  # word for an action or an event: "node_down", "nsqd_restarted", "topic_appeared", ...
    text: str  # one sentence
    user: str = ""  # who did it; empty if unknown
    remote: str = ""
    topic: str = ""
    channel: str = ""
    nodes: tuple[str, ...] = ()
    result: str = ""  # "ok", "partly", "failed", "refused"; empty for events
    took: float | None = None
    is_outside: bool = False  # done without this nsqadmin; `user` is the name that the node recorded
    undo: str = ""  # id for undoing the action; empty if that isn't possible
    also: tuple[str, ...] = ()  # further topics that the text may name

    @property
    def is_action(self) -> bool:
        return bool(self.result)

    @property
    def by(self) -> str:
        """The user and machine, for people: "ana (10.0.0.9)"."""
        host = self.remote.rpartition(":")[0] or self.remote
        return f"{self.user or 'anonymous'} ({host})" if host else self.user or "anonymous"

    def is_for(self, sees: Callable[[str], bool]) -> bool:
        """Return True if a user who sees these topics may read it."""
        return all(sees(topic) for topic in (self.topic, *self.also) if topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A snapshot with everything that pages show beside it."""

    snapshot: Snapshot
    series: Mapping[str, Series] = field(default_factory=dict)  # by `<key>@<span>`
    activity: tuple[Activity, ...] = ()
