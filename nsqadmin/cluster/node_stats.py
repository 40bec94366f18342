"""Parses one nsqd's answer to /stats into the model, with rates since its previous answer.

Foreign and older nodes leave out fields or send null, which counts as zero or empty. If a topic's part of the answer
hasn't changed, we don't parse it again, so idle topics cost next to nothing.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.cluster.connections import ClientKey, read_clients, read_producers, with_rates
from nsqadmin.cluster.copies import read_copy
from nsqadmin.cluster.flow import Flow, Paced, Step, first_flow, flow_after, has_finished, is_settled, step_between
from nsqadmin.cluster.measures import measures_of
from nsqadmin.cluster.model import (
    UNKNOWN_RATES,
    ChannelNode,
    Counts,
    Latency,
    Memory,
    Percentile,
    Producer,
    Rates,
    RemoteCopy,
    TopicNode,
)
from nsqadmin.cluster.policy_counts import Reading, Readings, counted_lately, growing, read_counts
from nsqadmin.cluster.sane import (
    LONGEST_NAME,
    MOST_CLIENTS,
    Json,
    NotUnderstood,
    by_our_clock,
    check_count,
    check_numbers,
    moment,
    text,
    whole,
)
from nsqadmin.upstream.slices import Slices, at_once

if TYPE_CHECKING:
    from nsqadmin.cluster.pace import Pace

_PLAIN: Final = 0  # marshal's version without references: equal values give equal bytes
# Limits for one answer, several times the size of the largest node. Each entry takes about a kilobyte while shown.
_MOST_TOPICS: Final = 50_000
_MOST_CHANNELS: Final = 200_000
_MOST_PERCENTILES: Final = 100
_LOCALITIES: Final = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
# The measures of topics and channels: our name, and the one in /stats.
_TOPIC_NUMBERS: Final = [(it.name, it.key) for it in measures_of(TopicNode)]
_CHANNEL_NUMBERS: Final = [(it.name, it.key) for it in measures_of(ChannelNode)]
_STILL: Final = Rates(
    incoming=0.0,
    finished=0.0,
    requeued=0.0,
    timed_out=0.0,
    failed=0.0,
    dropped=0.0,
    expired=0.0,
    buried=0.0,
    removed=0.0,
)
_SILENT: Final = Rates(incoming=0.0, bytes=0.0)
_NOTHING: Final = Step(0, 0, 0, 0, 0, 0, 0)


_NO_CLIENTS: Final[Mapping[ClientKey, Pace]] = {}  # one for all, because most channels of a big cluster have none


@dataclass(frozen=True, slots=True)
class ChannelPart:
    row: ChannelNode
    rates: Rates
    flow: Flow
    clients: Mapping[ClientKey, Pace] = field(default_factory=dict)  # finished, requeued and timed out messages of each
    readings: Readings = ()  # of its policy counts, if there are any

    @property
    def is_at_rest(self) -> bool:
        return (
            self.rates is _STILL
            and not self.row.net_rate
            and not self.row.policy_recent
            and not self.row.buried_recent
            and is_settled(self.flow.standstill, self.row)
            and not any(
                client.finish_rate or client.requeue_rate or client.timeout_rate for client in self.row.clients or ()
            )
        )


@dataclass(frozen=True, slots=True)
class TopicPart:
    """A topic on one node."""

    row: TopicNode
    rates: Rates
    channels: Mapping[str, ChannelPart]
    digest: bytes  # of its part of the answer, to compare with the next one; a digest, because answers fill memory
    is_silent: bool = False  # the node doesn't answer now: these are its last known numbers
    readings: Readings = ()  # of its policy counts, if there are any


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node's answer."""

    at: float  # when it came, on our monotonic clock
    topics: Mapping[str, TopicPart]
    producers: tuple[Producer, ...] | None  # None: not requested
    has_clients: bool  # clients and producers were requested
    version: str = ""
    release: str = ""  # of nsq-suite
    own_health: str = ""
    policy_digest: str | None = None
    policy_error: str = ""
    policy_is_copy: bool = False
    draining: bool = False
    worker: int | None = None  # its number, if it is one of the workers of `nsqd --workers`
    remote: RemoteCopy | None = None
    start_time: float | None = None
    memory: Memory | None = None
    restarted: bool = False  # since its previous answer
    is_silent: bool = False  # the node has been silent since: its numbers are the last known ones, its rates unknown

    @property
    def depth(self) -> int:
        """Messages waiting in its topics and channels."""
        topics = self.topics.values()
        return sum(topic.row.depth + sum(part.row.depth for part in topic.channels.values()) for topic in topics)


def standby_answer(document: Any, *, at: float) -> NodeAnswer:
    """Return the answer of a standby, built from its /remote because it has no /stats. Raise NotUnderstood."""
    return NodeAnswer(at=at, topics={}, producers=(), has_clients=True, remote=read_copy(_opened(document)))


def silenced(answer: NodeAnswer) -> NodeAnswer:
    """Return a node's last answer as shown while the node doesn't answer: its rates are unknown."""
    if answer.is_silent:
        return answer
    producers = tuple(
        replace(producer, counts=tuple((topic, count, None) for topic, count, _ in producer.counts))
        for producer in answer.producers or ()
    )
    topics = {
        name: replace(
            topic,
            row=replace(topic.row, policy_recent=(), policy_growing=()),
            rates=UNKNOWN_RATES,
            channels={name: _silenced(part) for name, part in topic.channels.items()},
            is_silent=True,
        )
        for name, topic in answer.topics.items()
    }
    return replace(answer, topics=topics, producers=producers, restarted=False, is_silent=True)


def _silenced(part: ChannelPart) -> ChannelPart:
    """Return the part with unknown rates. Missing clients count as none, because we can't request them now."""
    clients = tuple(
        replace(client, finish_rate=None, requeue_rate=None, timeout_rate=None, oldest_in_flight=None)
        for client in part.row.clients or ()
    )
    row = replace(
        part.row,
        net_rate=None,
        policy_recent=(),
        policy_growing=(),
        buried_recent=0,
        is_burying=False,
        clients=clients,
    )
    return replace(part, row=row, rates=UNKNOWN_RATES)


def read_stats(
    node: str,
    document: Any,
    *,
    at: float,
    before: NodeAnswer | None = None,
    has_clients: bool = True,
    has_history: bool = False,
    skew: float = 0.0,
) -> NodeAnswer:
    """Parse the answer in one go, as tests do; see `stats_in_slices`."""
    return at_once(
        stats_in_slices(
            node, document, at=at, before=before, has_clients=has_clients, has_history=has_history, skew=skew
        )
    )


def stats_in_slices(
    node: str,
    document: Any,
    *,
    at: float,
    before: NodeAnswer | None = None,
    has_clients: bool = True,
    has_history: bool = False,
    skew: float = 0.0,
) -> Slices[NodeAnswer]:
    """Parse the answer, with a pause after each topic, channel and producer. Raise NotUnderstood.

    Rates are counted since `before`, the same node's previous answer. `has_clients` says if clients were requested, and
    `has_history` if the node's history can be read. `skew` is how many seconds its clock is ahead of ours.
    """
    document = _opened(document)
    start_time = moment(document.get("start_time")) or None
    restarted = before is not None and start_time != before.start_time
    basis = None if before is None or restarted else before
    seconds = at - basis.at if basis is not None else 0.0
    try:
        reader = _TopicReader(
            node,
            basis,
            before.at if before is not None else None,
            seconds,
            at,
            has_clients,
            has_history,
            skew,
            bool(document.get("release")),
        )
        topics = {}
        for raw in document.get("topics") or ():
            topics[_name(raw, "topic_name")] = yield from reader.read(raw)
        producers = None
        if has_clients:
            known = (basis.producers if basis is not None else None) or ()
            producers = yield from read_producers(node, document.get("producers"), known, seconds)
        memory = _memory(document.get("memory"))
    except NotUnderstood:
        raise
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error
    return NodeAnswer(
        at=at,
        topics=topics,
        producers=producers,
        has_clients=has_clients,
        version=text(document.get("version")),
        release=text(document.get("release")),
        own_health=text(document.get("health")),
        policy_digest=text(document["policy_digest"]) if "policy_digest" in document else None,
        policy_error=text(document.get("policy_error")),
        policy_is_copy=document.get("policy_is_copy") is True,
        draining=document.get("draining") is True,
        worker=whole(document.get("worker")),
        remote=read_copy(document.get("remote")),
        start_time=start_time,
        memory=memory,
        restarted=restarted,
    )


def _opened(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise NotUnderstood(f"expected an object, got {type(document).__name__}")
    data = document.get("data")
    return data if isinstance(data, dict) and "topics" not in document else document  # the envelope of NSQ before 1.0


@dataclass(slots=True)
class _TopicReader:
    node: str
    basis: NodeAnswer | None  # the answer since which we count rates; None: there is none, or the node was restarted
    since: float | None  # when the previous answer came
    seconds: float  # since that answer
    at: float  # when this answer came
    has_clients: bool
    has_history: bool
    skew: float
    reports_touches: bool  # NSQ's nsqd doesn't, nor does ours before it also told its release
    _topics: int = 0
    _channels: int = 0
    _clients: int = 0

    def read(self, raw: dict[str, Any]) -> Slices[TopicPart]:
        self._topics += 1
        check_count(self._topics, _MOST_TOPICS, "topics")
        yield
        before = self.basis.topics.get(raw["topic_name"]) if self.basis is not None else None
        digest = blake2b(marshal.dumps(raw, _PLAIN), digest_size=16).digest()
        if before is not None and before.digest == digest and before.row.has_log == self.has_history:
            return _unchanged(before, self.at)
        counts = read_counts(raw.get("policy_counts"))
        readings, recent = self._lately(before, counts)
        numbers: dict[str, Any] = {name: raw.get(key) or 0 for name, key in _TOPIC_NUMBERS}
        check_numbers(*numbers.values(), *(raw.get(key) or 0 for key in _LOCALITIES))
        row = TopicNode(
            node=self.node,
            **numbers,
            paused=bool(raw.get("paused")),
            ack=text(raw.get("ack")),
            latency=read_latency(raw.get("e2e_processing_latency")),
            policy_counts=counts,
            policy_recent=recent,
            policy_growing=growing(before.row.policy_counts if before is not None else (), counts) if recent else (),
            expires_at=by_our_clock(raw.get("expires_at"), self.skew),
            has_log=self.has_history,
        )
        known = before.channels if before is not None else {}
        arrived = _arrived(before.row, row) if before is not None else None
        channels = {}
        for raw_channel in raw.get("channels") or ():
            name = _name(raw_channel, "channel_name")
            channels[name] = self._channel(raw_channel, known.get(name), arrived)
            yield
        rates = _topic_rates(row, before.row if before is not None else None, self.seconds)
        return TopicPart(row, rates, channels, digest, readings=readings)

    def _lately(self, before: TopicPart | ChannelPart | None, counts: Counts) -> tuple[Readings, Counts]:
        readings = before.readings if before is not None else ()
        if not readings and self.since is not None:
            # What is new, or on a node that was restarted, has counted from zero since the previous answer.
            readings = (Reading(self.since, before.row.policy_counts if before is not None else ()),)
        return counted_lately(readings, Reading(self.at, counts))

    def _channel(self, raw: Json, before: ChannelPart | None, arrived: int | None) -> ChannelPart:
        """Parse a channel. `arrived` is the number of messages that its topic may have handed over; None: unknown."""
        self._channels += 1
        self._clients += len(raw.get("clients") or ())
        check_count(self._channels, _MOST_CHANNELS, "channels")
        check_count(self._clients, MOST_CLIENTS, "clients")
        row = self._channel_row(raw)
        # If we didn't request clients the node sends null; without clients the difference doesn't matter.
        paces: Mapping[ClientKey, Pace] = _NO_CLIENTS
        added: dict[str, Any] = {}  # copying a row costs more than all the counting
        if self.has_clients or raw.get("clients") is not None or raw.get("client_count") == 0:
            known = before.clients if before is not None else {}
            added["clients"], paces = read_clients(
                self.node, raw.get("clients"), known, self.at, self.skew, reports_touches=self.reports_touches
            )
        if raw.get("client_count") is None:
            added["client_count"] = len(added.get("clients") or ())
        readings, recent = self._lately(before, row.policy_counts)
        if recent:
            known_counts = before.row.policy_counts if before is not None else ()
            added |= {"policy_recent": recent, "policy_growing": growing(known_counts, row.policy_counts)}
        if added:
            row = replace(row, **added)
        step, paced = None, None
        if before is None or self.seconds <= 0:
            flow = first_flow(self.at, row)
        else:
            step = step_between(before.row, row, arrived)
            progress = step is not None and has_finished(before.row, row, step)
            flow = flow_after(before.flow, self.at, row, step, has_finished=progress)
            paced = flow.paced(self.at, row)
            row = _with_flow(row, flow, paced, is_burying=step is not None and step.buried > 0)
        return ChannelPart(row, _rates(step, paced, self.seconds), flow, paces or _NO_CLIENTS, readings)

    def _channel_row(self, raw: Json) -> ChannelNode:
        """Parse the channel's own numbers, without its clients and the counts since the previous answer."""
        numbers: dict[str, Any] = {name: raw.get(key) or 0 for name, key in _CHANNEL_NUMBERS}
        check_numbers(*numbers.values())
        return ChannelNode(
            node=self.node,
            **numbers,
            paused=bool(raw.get("paused")),
            latency=read_latency(raw.get("e2e_processing_latency")),
            oldest_at=by_our_clock(raw.get("oldest_timestamp"), self.skew),
            paused_why=text(raw.get("paused_why")),
            in_flight_full_since=by_our_clock(raw.get("in_flight_full_since"), self.skew),
            group_count=whole(raw.get("group_count")),
            held_full_since=by_our_clock(raw.get("held_full_since"), self.skew),
            policy_counts=read_counts(raw.get("policy_counts")),
            expires_at=by_our_clock(raw.get("expires_at"), self.skew),
        )


def _name(raw: Json, key: str) -> str:
    """Return the name. It needn't be valid in NSQ: we show it all the same."""
    name = raw[key]
    if not isinstance(name, str):
        raise TypeError(f"{key} is not text")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a {key} of {len(name):,} characters")
    return name


def _unchanged(before: TopicPart, at: float) -> TopicPart:
    """Return the part with rates of zero. Rates over a minute fall to zero within that minute.

    If they were zero before, this is the very same object, because `Merger` tests identity.
    """
    is_at_rest = before.rates is _SILENT and not before.row.policy_recent
    if is_at_rest and all(part.is_at_rest for part in before.channels.values()):
        return before
    still = {name: _stilled(part, at) for name, part in before.channels.items()}
    row, readings = before.row, before.readings
    if row.policy_recent:
        readings, recent = counted_lately(readings, Reading(at, row.policy_counts))
        row = replace(row, policy_recent=recent, policy_growing=())
    return TopicPart(row, _SILENT, still, before.digest, readings=readings)


def _stilled(part: ChannelPart, at: float) -> ChannelPart:
    row, paces, readings = part.row, part.clients, part.readings
    flow = flow_after(part.flow, at, row, _NOTHING, has_finished=False)
    paced = flow.paced(at, row)
    row = _with_flow(row, flow, paced, is_burying=False)
    if row.clients:
        paces = newer = dict(paces)
        row = replace(row, clients=tuple(with_rates(client, newer, at) for client in row.clients))
    if row.policy_recent:
        readings, recent = counted_lately(readings, Reading(at, row.policy_counts))
        row = replace(row, policy_recent=recent, policy_growing=())
    return ChannelPart(row, _rates(_NOTHING, paced, 1.0), flow, paces, readings)


def _with_flow(row: ChannelNode, flow: Flow, paced: Paced | None, *, is_burying: bool) -> ChannelNode:
    net_rate = paced.net if paced is not None else None
    if (row.net_rate, row.buried_recent, bool(row.is_burying)) == (net_rate, flow.buried_lately, is_burying):
        return row
    return replace(row, net_rate=net_rate, buried_recent=flow.buried_lately, is_burying=is_burying)


def _arrived(before: TopicNode, now: TopicNode) -> int | None:
    """Return how many messages the topic may have handed over to each channel; None if it was created again."""
    published = now.message_count - before.message_count
    return None if published < 0 else published + max(before.depth - now.depth, 0)


def _topic_rates(now: TopicNode, before: TopicNode | None, seconds: float) -> Rates:
    if before is None or seconds <= 0:
        return UNKNOWN_RATES
    messages, size = now.message_count - before.message_count, now.message_bytes - before.message_bytes
    if messages < 0 or size < 0:  # the topic was deleted and created again
        return UNKNOWN_RATES
    return Rates(incoming=messages / seconds, bytes=size / seconds) if messages else _SILENT


def _rates(step: Step | None, paced: Paced | None, seconds: float) -> Rates:
    if step is None:
        return UNKNOWN_RATES
    if step == _NOTHING and (paced is None or not any(paced[1:])):
        return _STILL
    return Rates(
        incoming=step.incoming / seconds,
        finished=step.finished / seconds,
        requeued=step.requeued / seconds,
        timed_out=step.timed_out / seconds,
        failed=paced.failed if paced is not None else None,
        dropped=paced.dropped if paced is not None else None,
        expired=paced.expired if paced is not None else None,
        buried=paced.buried if paced is not None else None,
        removed=paced.removed if paced is not None else None,
    )


# Small parts


def read_latency(raw: Any) -> Latency | None:
    """Parse one node's percentiles; None if it sends none."""
    if not isinstance(raw, dict):
        return None
    count = raw.get("count") or 0
    has_sample = raw.get("count") != 0  # without one, nsqd sends percentiles of zero
    check_numbers(count)
    percentiles = []
    check_count(len(raw.get("percentiles") or ()), _MOST_PERCENTILES, "percentiles")
    for entry in raw.get("percentiles") or ():
        value, quantile = entry.get("value") or 0, entry["quantile"]
        check_numbers(value, quantile)
        known = float(value) if has_sample else None
        percentiles.append(Percentile(quantile=float(quantile), average=known, minimum=known, maximum=known))
    return Latency(count=count, percentiles=tuple(percentiles)) if percentiles else None


def _memory(raw: Any) -> Memory | None:
    if not isinstance(raw, dict):
        return None
    counts = [raw.get(name) or 0 for name in ("heap_in_use_bytes", "heap_objects", "gc_total_runs")]
    check_numbers(*counts)
    in_use, objects, collections = map(int, counts)
    return Memory(heap_in_use=in_use, heap_objects=objects, collections=collections)
