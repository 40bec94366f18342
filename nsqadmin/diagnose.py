"""What is wrong, in words, with the numbers that say so: rules on a picture and on how its numbers went.

Each rule is a function that yields what it finds. The rules about one channel, and those about one topic, are in groups:
the first that speaks in a group silences the rest of it, and several groups may speak. Every finding has its evidence,
and says so when it is an inference.

    delivery   D1 paused, D2 partly paused, D3 nobody there, D4 nobody where it waits, D5 nobody ready, D7, D6
    handling   D8 requeues, D9 one that is slow
    besides    D10 deferred, D12 samples, D15 spills to disk
    topic      D1 D2 paused, D13 no channel, D14 not handed over, D11 burst
    node       D16 down, slow, left, sick, not everywhere, old, twice, clock; and nsqlookupd likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, Protocol

from nsqadmin.actions import Kind
from nsqadmin.model import (
    Channel,
    Client,
    Evidence,
    Finding,
    Health,
    Lookupd,
    Metric,
    Node,
    Paused,
    Severity,
    Snapshot,
    Topic,
    channel_series,
    topic_series,
)

TAIL_PREFIX: Final = "nsqadmin_tail_"  # channels of our own, which are never diagnosed

_MINUTE: Final = 60.0
_FEW: Final = 2  # samples: fewer say nothing about a trend
_PEERS: Final = 3  # consumers: fewer have no usual rate
_SATURATED: Final = 0.9  # of what consumers ask for
_STANDSTILL: Final = 0.05  # messages a second
_REQUEUED: Final = 0.2  # share of deliveries
_BURST: Final = 3.0
_BURST_AT_LEAST: Final = 5.0  # messages a second: three times nothing is no burst
_BURST_SAMPLES: Final = 12  # to know what is usual
_SLOW_SHARE: Final = 0.25  # of what its peers finish
_MANY_DEFERRED: Final = 100
_SKEW: Final = 10.0  # seconds
_RECENT: Final = 5 * _MINUTE


class Trends(Protocol):
    """How numbers went; `SeriesStore` is one."""

    def recent(self, key: str, metric: Metric, seconds: float) -> Sequence[float]:
        """The known values of the last seconds, the oldest first."""
        ...


class Rule(Protocol):
    def __call__(self, channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterable[Finding]: ...


def diagnose(snapshot: Snapshot, trends: Trends, *, before: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """All findings, the worst first. What was found before keeps the time when it was found first."""
    found = [
        *(finding for topic in snapshot.topics for finding in about_topic(topic, snapshot, trends)),
        *(finding for node in snapshot.nodes for finding in about_node(node, snapshot)),
        *(finding for lookupd in snapshot.lookupds for finding in _lookupd(lookupd)),
    ]
    known = {finding.key: finding.since for finding in before}
    dated = (replace(it, since=it.since or known.get(it.key, snapshot.taken_at)) for it in found)
    return tuple(sorted(dated, key=_order))


def about_topic(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    """About it, and about each of its channels."""
    yield from _first(rule(topic, snapshot, trends) for rule in (_topic_paused, _no_channel, _not_handed_over))
    yield from _burst(topic, snapshot, trends)
    for channel in topic.channels:
        yield from about_channel(channel, topic, snapshot, trends)


def about_channel(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if channel.name.startswith(TAIL_PREFIX):
        return
    for group in _GROUPS:
        yield from _first(rule(channel, topic, snapshot, trends) for rule in group)
    for rule in _BESIDES:
        yield from rule(channel, topic, snapshot, trends)


def _first(answers: Iterable[Iterable[Finding]]) -> Iterable[Finding]:
    for answer in answers:
        if found := list(answer):
            return found
    return ()


_SEVERITIES: Final = {Severity.PROBLEM: 0, Severity.WARNING: 1, Severity.INFO: 2}


def _order(finding: Finding) -> tuple[object, ...]:
    about = (finding.topic, finding.channel, finding.node)
    return _SEVERITIES[finding.severity], -finding.weight, about, finding.rule


# Delivery: D1 to D7


def _paused(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if channel.paused is Paused.YES:
        yield _about(
            channel,
            "D1",
            Severity.WARNING if channel.depth else Severity.INFO,
            "Paused: nothing is delivered",
            "Unpause it when its consumers are to go on.",
            _number("waiting", channel.depth),
            action=Kind.UNPAUSE_CHANNEL,
        )
    elif channel.paused is Paused.PARTLY:
        paused = [row.node for row in channel.nodes if row.paused]
        yield _about(
            channel,
            "D2",
            Severity.WARNING,
            f"Paused on {len(paused)} of {_counted(len(channel.nodes), 'node')}",
            "Pause the rest, or unpause it everywhere.",
            _say("paused on", ", ".join(paused)),
            _number("waiting", channel.depth),
            action=Kind.UNPAUSE_CHANNEL,
        )


def _nobody(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if not channel.depth or channel.client_count:
        return
    yield _about(
        channel,
        "D3",
        Severity.PROBLEM,
        "No consumer is connected",
        "Start a consumer, or delete the channel when nobody needs it any more.",
        _number("waiting", channel.depth),
        _number("consumers", 0),
        *_lag(channel),
    )


def _nobody_there(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    without = [row for row in channel.nodes if row.depth and not row.client_count]
    if not without or not channel.client_count:
        return
    names = ", ".join(row.node for row in without)
    unreachable = [row.node for row in without if (node := snapshot.node(row.node)) and not node.is_reachable]
    advice = "Consumers find nodes through nsqlookupd by their broadcast addresses: are these right, and can they be reached from the consumers?"
    if unreachable:
        advice += f" From here {', '.join(unreachable)} cannot be reached either."
    yield _about(
        channel,
        "D4",
        Severity.PROBLEM,
        f"{len(without)} of {_counted(len(channel.nodes), 'node')} {'has' if len(without) == 1 else 'have'} no consumer, and messages wait there",
        advice,
        _say("nodes without a consumer", names),
        _number("waiting there", sum(row.depth for row in without)),
        _number("consumers elsewhere", channel.client_count),
        is_inferred=True,
    )


def _nobody_ready(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if not channel.depth or channel.ready_count != 0 or channel.in_flight_count or not channel.client_count:
        return
    window = _held_for(trends, channel, lambda depth, in_flight: depth > 0 and in_flight == 0)
    yield _about(
        channel,
        "D5",
        Severity.PROBLEM,
        "Consumers are connected but ask for nothing (RDY 0)",
        "They back off after failures, or their max_in_flight is lower than the number of nodes: look at their log, and raise max_in_flight to at least the number of nodes.",
        _number("waiting", channel.depth),
        _number("consumers", channel.client_count),
        _number("ready count", 0),
        _number("in flight", 0),
        window=window,
        is_inferred=True,
    )


def _hanging(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if not _is_saturated(channel) or _mean(trends, channel, Metric.FINISHED, _MINUTE) > _STANDSTILL:
        return
    if not (timed_out := _mean(trends, channel, Metric.TIMED_OUT, _RECENT)):
        return
    slowest = _by_in_flight(channel)
    yield _about(
        channel,
        "D7",
        Severity.PROBLEM,
        "Handlers hang: messages time out and nothing is finished",
        "Look at what the handlers wait for. Where the work is just long: a longer msg_timeout, or TOUCH.",
        _rate("timed out", timed_out),
        _rate("finished", 0.0),
        _number("in flight", channel.in_flight_count),
        _number("ready count", channel.ready_count or 0),
        *([_say("most in flight", _client_name(slowest[0]))] if slowest else []),
        window=_RECENT,
    )


def _saturated(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    key = channel_series(channel.topic, channel.name)
    depths = trends.recent(key, Metric.DEPTH, 2 * _MINUTE)
    if not _is_saturated(channel) or len(depths) < _FEW or depths[-1] <= depths[0]:
        return
    finished = _mean(trends, channel, Metric.FINISHED, 2 * _MINUTE)
    incoming = _mean(trends, channel, Metric.INCOMING, 2 * _MINUTE)
    if finished <= _STANDSTILL or incoming <= finished:
        return
    yield _about(
        channel,
        "D6",
        Severity.PROBLEM,
        f"Consumers are saturated: they finish {finished:,.1f}/s, {incoming:,.1f}/s arrive",
        f"It takes {incoming / finished:.1f} times as much: more consumers, or a higher max_in_flight where they have time to spare.",
        _rate("in", incoming),
        _rate("finished", finished),
        _number("in flight", channel.in_flight_count),
        _number("ready count", channel.ready_count or 0),
        *_lag(channel),
        window=2 * _MINUTE,
        is_inferred=True,
    )


def _is_saturated(channel: Channel) -> bool:
    """They have in hand what they ask for. nsqd counts down nothing: ready is what is asked for altogether."""
    return bool(channel.ready_count) and channel.in_flight_count >= _SATURATED * (channel.ready_count or 0)


# Handling: D8, D9


def _failing(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    requeued = _mean(trends, channel, Metric.REQUEUED, _RECENT)
    finished = _mean(trends, channel, Metric.FINISHED, _RECENT)
    timed_out = _mean(trends, channel, Metric.TIMED_OUT, _RECENT)
    deliveries = requeued + finished + timed_out
    if requeued <= _STANDSTILL or requeued <= _REQUEUED * deliveries:
        return
    share = requeued / deliveries
    clients = sorted(channel.clients or (), key=lambda it: -(it.requeue_rate or 0.0))
    worst = [it for it in clients[:3] if it.requeue_rate]
    yield _about(
        channel,
        "D8",
        Severity.PROBLEM,
        f"Handlers fail: {_one_of(share)} deliveries is requeued",
        "Look at the consumers' log, and at the messages that come again.",
        _say("requeued", f"{share:.0%} of deliveries"),
        _rate("requeued", requeued),
        _rate("finished", finished),
        *(_say("requeues", f"{_client_name(it)}: {it.requeue_rate:,.1f}/s") for it in worst),
        window=_RECENT,
    )


def _one_slow(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    clients = [it for it in channel.clients or () if it.finish_rate is not None and it.ready_count]
    if len(clients) < _PEERS:
        return
    for it in clients:
        peers = median(other.finish_rate or 0.0 for other in clients if other is not it)
        rate = it.finish_rate or 0.0
        is_full = it.in_flight_count >= max(1, _SATURATED * it.ready_count)
        if is_full and peers > _STANDSTILL and rate < _SLOW_SHARE * peers:
            yield _about(
                channel,
                "D9",
                Severity.WARNING,
                f"One slow consumer: {_client_name(it)}",
                "It holds messages that the others could have handled: look at that machine, or stop it.",
                _rate("it finishes", rate),
                _rate("its peers (median)", peers),
                _number("in flight there", it.in_flight_count),
                is_inferred=True,
            )
            return


# Besides: D10, D12, D15


def _deferred(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if channel.deferred_count < _MANY_DEFERRED and not (channel.deferred_count and not channel.depth):
        return
    if channel.deferred_count < max(10, channel.depth // 10):
        return
    yield _about(
        channel,
        "D10",
        Severity.INFO,
        f"{_counted(channel.deferred_count, 'message')} wait for their delay",
        "They were published or requeued with a delay, and are delivered when it is over. They are not part of the depth.",
        _number("deferred", channel.deferred_count),
        _number("waiting", channel.depth),
    )


def _sampled(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    sampling = [it for it in channel.clients or () if it.sample_rate]
    if not sampling:
        return
    names = ", ".join(sorted({f"{_client_name(it)} takes {it.sample_rate} %" for it in sampling}))
    yield _about(
        channel,
        "D12",
        Severity.INFO,
        f"{names}, by design",
        "Who connects with a sample_rate gets that share, and the rest is dropped for this channel.",
        _number("sampling consumers", len(sampling)),
        _number("consumers", channel.client_count),
    )


def _spilling(channel: Channel, topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    on_disk = trends.recent(channel_series(channel.topic, channel.name), Metric.BACKEND_DEPTH, _RECENT)
    if not channel.backend_depth or len(on_disk) < _FEW or on_disk[-1] <= on_disk[0]:
        return
    rows = [row for row in channel.nodes if row.backend_depth]
    yield _about(
        channel,
        "D15",
        Severity.INFO,
        f"More waits than memory holds, on {', '.join(row.node for row in rows)}",
        "What is beyond mem-queue-size is read from disk when its turn comes: slower, but nothing is lost.",
        _number("not in memory", channel.backend_depth),
        _number("waiting", channel.depth),
        window=_RECENT,
    )


_GROUPS: Final[tuple[tuple[Rule, ...], ...]] = (
    (_paused, _nobody, _nobody_there, _nobody_ready, _hanging, _saturated),
    (_failing, _one_slow),
)
_BESIDES: Final[tuple[Rule, ...]] = (_deferred, _sampled, _spilling)


# Topics: D1, D2, D11, D13, D14


def _topic_paused(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    if topic.paused is Paused.YES:
        yield _of_topic(
            topic,
            "D1",
            Severity.WARNING if topic.depth else Severity.INFO,
            "Paused: new messages wait in the topic",
            "Unpause it when its channels are to get them.",
            _number("waiting", topic.depth),
            action=Kind.UNPAUSE_TOPIC,
        )
    elif topic.paused is Paused.PARTLY:
        paused = [row.node for row in topic.nodes if row.paused]
        yield _of_topic(
            topic,
            "D2",
            Severity.WARNING,
            f"Paused on {len(paused)} of {_counted(len(topic.nodes), 'node')}",
            "Pause the rest, or unpause it everywhere.",
            _say("paused on", ", ".join(paused)),
            action=Kind.UNPAUSE_TOPIC,
        )


def _no_channel(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    without = {row.node for row in topic.nodes} - {row.node for it in topic.channels for row in it.nodes}
    waiting = sum(row.depth for row in topic.nodes if row.node in without)
    if not waiting:
        return
    where = "" if not topic.channels else f" on {', '.join(sorted(without))}"
    yield _of_topic(
        topic,
        "D13",
        Severity.WARNING,
        f"Messages wait in the topic{where} until a channel exists",
        "Start a consumer, or create a channel: the first one gets everything that waits.",
        _number("waiting", waiting),
        _number("channels", len(topic.channels)),
        action=Kind.CREATE_CHANNEL,
    )


def _not_handed_over(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    depths = trends.recent(topic_series(topic.name), Metric.DEPTH, _MINUTE)
    if not topic.depth or not topic.channels or len(depths) < _FEW or min(depths) <= 0 or depths[-1] < depths[0]:
        return
    rows = [row for row in topic.nodes if row.depth]
    yield _of_topic(
        topic,
        "D14",
        Severity.PROBLEM,
        "nsqd does not hand over to the channels",
        "It lacks CPU, or its disk is slow or full: look at the node and at its log.",
        _number("waiting in the topic", topic.depth),
        _say("on", ", ".join(row.node for row in rows)),
        window=_MINUTE,
        is_inferred=True,
    )


def _burst(topic: Topic, snapshot: Snapshot, trends: Trends) -> Iterator[Finding]:
    rates = trends.recent(topic_series(topic.name), Metric.INCOMING, 60 * _MINUTE)
    now = topic.rates.incoming or 0.0
    if len(rates) < _BURST_SAMPLES or now < _BURST_AT_LEAST:
        return
    usual = median(rates[:-_PEERS])
    if now <= _BURST * usual or usual <= _STANDSTILL:
        return
    by_producer: dict[str, float] = {}
    for it in snapshot.producers or ():
        for name, _, rate in it.counts:
            if name == topic.name and rate:
                by_producer[it.hostname] = by_producer.get(it.hostname, 0.0) + rate
    main = max(by_producer, key=lambda host: by_producer[host], default="")
    yield _of_topic(
        topic,
        "D11",
        Severity.INFO,
        f"A burst: {now:,.0f}/s are published, usually {usual:,.0f}/s" + (f"; most of it by {main}" if main else ""),
        "Its channels lag until it is over; look at the drain times.",
        _rate("now", now),
        _rate("median before", usual),
        *([_rate(f"by {main}", by_producer[main])] if main else []),
        window=min(60 * _MINUTE, len(rates) * snapshot.interval),
    )


# Nodes: D16


def about_node(node: Node, snapshot: Snapshot) -> Iterator[Finding]:
    for health, verdict in _HEALTH_VERDICTS.items():
        if node.health is health:
            severity = Severity.WARNING if health is Health.SLOW else Severity.PROBLEM
            yield _of_node(node, severity, f"{node.address} {verdict}", node.explanation, _say("error", node.error))
    if node.is_reachable and node.own_health not in ("", "OK"):
        yield _of_node(
            node,
            Severity.PROBLEM,
            f"{node.address} says that it is not well",
            "Look at its log; most often its disk cannot be written.",
            _say("it says", node.own_health),
        )
    if not node.is_reachable:
        return
    missing = [it.address for it in snapshot.lookupds if it.is_reachable and it.address not in node.lookupds]
    if snapshot.has_lookupds and missing:
        yield _of_node(
            node,
            Severity.WARNING,
            f"{node.address} is not registered with {', '.join(missing)}",
            "Consumers that ask there do not find it: is that nsqlookupd among its --lookupd-tcp-address, and reachable from it?",
            _say("registered with", ", ".join(node.lookupds) or "none"),
        )
    if node.out_of_date:
        newest = max((it.version for it in snapshot.nodes), default="")
        yield _of_node(
            node,
            Severity.INFO,
            f"{node.address} is older than the others",
            "Upgrade it when it suits.",
            _say("version", node.version),
            _say("newest", newest),
        )
    twins = [it.hostname for it in snapshot.nodes if _is_twin(it, node)]
    if twins:
        yield _of_node(
            node,
            Severity.WARNING,
            f"{node.broadcast_address} is announced by {len(twins) + 1} nodes with the same TCP port",
            "They cannot be told apart: give each a --broadcast-address of its own.",
            _say("also announced by", ", ".join(twins)),
        )
    if node.clock_skew is not None and abs(node.clock_skew) > _SKEW:
        yield _of_node(
            node,
            Severity.WARNING,
            f"The clock of {node.address} is {abs(node.clock_skew):,.0f} s {'ahead' if node.clock_skew > 0 else 'behind'}",
            "Ages and latencies are wrong until the clocks agree: is NTP running?",
            _say("ahead of ours by", f"{node.clock_skew:,.1f} s"),
        )


_HEALTH_VERDICTS: Final[Mapping[Health, str]] = {
    Health.DOWN: "does not answer",
    Health.NEVER: "has never answered",
    Health.SLOW: "is slow to answer",
}


def _is_twin(other: Node, node: Node) -> bool:
    return (
        other is not node
        and other.broadcast_address == node.broadcast_address
        and other.tcp_port == node.tcp_port
        and other.is_reachable
    )


def _lookupd(lookupd: Lookupd) -> Iterator[Finding]:
    verdict = _HEALTH_VERDICTS.get(lookupd.health)
    if verdict is None:
        return
    yield Finding(
        rule="D16",
        severity=Severity.WARNING if lookupd.health is Health.SLOW else Severity.PROBLEM,
        verdict=f"nsqlookupd {lookupd.address} {verdict}",
        advice=lookupd.explanation,
        node=lookupd.address,
        evidence=(_say("error", lookupd.error),) if lookupd.error else (),
        since=lookupd.since,
        weight=1e9,
    )


# How findings are written


def _about(
    channel: Channel,
    rule: str,
    severity: Severity,
    verdict: str,
    advice: str,
    *evidence: Evidence,
    window: float = 0.0,
    is_inferred: bool = False,
    action: str = "",
) -> Finding:
    growth = channel.net_rate
    return Finding(
        rule=rule,
        severity=severity,
        verdict=verdict,
        advice=advice,
        topic=channel.topic,
        channel=channel.name,
        evidence=evidence,
        window=window,
        is_inferred=is_inferred,
        action=action,
        weight=channel.depth + 60.0 * max(growth or 0.0, 0.0),
    )


def _of_topic(
    topic: Topic,
    rule: str,
    severity: Severity,
    verdict: str,
    advice: str,
    *evidence: Evidence,
    window: float = 0.0,
    is_inferred: bool = False,
    action: str = "",
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        verdict=verdict,
        advice=advice,
        topic=topic.name,
        evidence=evidence,
        window=window,
        is_inferred=is_inferred,
        action=action,
        weight=float(topic.depth),
    )


def _of_node(node: Node, severity: Severity, verdict: str, advice: str, *evidence: Evidence) -> Finding:
    return Finding(
        rule="D16",
        severity=severity,
        verdict=verdict,
        advice=advice,
        node=node.address,
        evidence=tuple(it for it in evidence if it.value),
        since=node.since if not node.is_reachable else 0.0,
        weight=1e9 if severity is Severity.PROBLEM else 0.0,  # a node that is gone is above all that waits elsewhere
    )


def _say(label: str, value: str) -> Evidence:
    return Evidence(label=label, value=value)


def _number(label: str, value: int) -> Evidence:
    return Evidence(label=label, value=f"{value:,}")


def _rate(label: str, value: float) -> Evidence:
    return Evidence(label=label, value=f"{value:,.1f}/s")


def _lag(channel: Channel) -> list[Evidence]:
    if channel.oldest_age is None:
        return []
    least = "at least " if channel.oldest_is_older else "about "
    return [_say("oldest message", f"{least}{channel.oldest_age:,.0f} s")]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _one_of(share: float) -> str:
    """0.33 → "1 of 3"."""
    return f"{share * 10:.0f} of 10" if share > 0.5 else f"1 of {round(1 / share)}"


def _client_name(client: Client) -> str:
    return client.client_id if client.hostname in ("", client.client_id) else f"{client.hostname} ({client.client_id})"


def _by_in_flight(channel: Channel) -> list[Client]:
    return sorted(channel.clients or (), key=lambda it: -it.in_flight_count)


def _mean(trends: Trends, channel: Channel, metric: Metric, seconds: float) -> float:
    values = trends.recent(channel_series(channel.topic, channel.name), metric, seconds)
    return sum(values) / len(values) if values else 0.0


def _held_for(trends: Trends, channel: Channel, holds: Callable[[float, float], bool]) -> float:
    """For about how long it has been so; 0 when it was not yet so at the sample before."""
    key = channel_series(channel.topic, channel.name)
    depths = trends.recent(key, Metric.DEPTH, _RECENT)
    in_flights = trends.recent(key, Metric.IN_FLIGHT, _RECENT)
    held = 0
    for depth, in_flight in zip(reversed(depths), reversed(in_flights), strict=False):
        if not holds(depth, in_flight):
            break
        held += 1
    return _RECENT * max(held - 1, 0) / max(len(depths), 1) if held > 1 else 0.0
