"""Rules about one topic: D1, D2, D11, D13, D14. Rules about the policy are in `policy.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Final

from nsqadmin import numbers
from nsqadmin.actions.plan import Kind
from nsqadmin.cluster.model import Finding, Metric, Paused, Severity, Snapshot, Topic
from nsqadmin.diagnosis import policy
from nsqadmin.diagnosis.case import Case, first_that_speaks
from nsqadmin.diagnosis.words import counted, number, rate, say

_MINUTE: Final = 60.0
_HOUR: Final = 60 * _MINUTE
_FEW: Final = 2  # samples; fewer show no trend
_STANDSTILL: Final = 0.05  # messages a second
_BURST: Final = 3.0  # times the usual rate
_BURST_AT_LEAST: Final = 5.0  # messages a second; three times next to nothing isn't a burst
_BURST_SAMPLES: Final = 12  # samples needed to know the usual rate
_BURST_NOW: Final = 3  # of the newest samples that may belong to the burst


def about_topic(topic: Topic, case: Case) -> Iterator[Finding]:
    """Yield the findings about the topic itself, without its channels."""
    yield from first_that_speaks(rule(topic, case) for rule in _WAITING)
    for rule in (_burst, policy.rejecting, policy.dropping, policy.ending):
        yield from rule(topic, case)


def _paused(topic: Topic, case: Case) -> Iterator[Finding]:
    if topic.paused is Paused.YES:
        yield case.finding(
            "D1",
            Severity.WARNING if topic.depth else Severity.INFO,
            "Paused: new messages wait in the topic",
            "Unpause it when its channels can take them.",
            number("waiting", topic.depth),
            action=Kind.UNPAUSE_TOPIC,
        )
    elif topic.paused is Paused.PARTLY:
        paused = [row.node for row in topic.nodes if row.paused]
        yield case.finding(
            "D2",
            Severity.WARNING,
            f"Paused on {len(paused)} of {counted(len(topic.nodes), 'node')}",
            "Pause the rest, or unpause it everywhere.",
            say("paused on", ", ".join(paused)),
            action=Kind.UNPAUSE_TOPIC,
        )


def _no_channel(topic: Topic, case: Case) -> Iterator[Finding]:
    without = {row.node for row in topic.nodes} - {row.node for channel in topic.channels for row in channel.nodes}
    waiting = sum(row.depth for row in topic.nodes if row.node in without)
    if not waiting:
        return
    where = "" if not topic.channels else f" on {', '.join(sorted(without))}"
    yield case.finding(
        "D13",
        Severity.WARNING,
        f"Messages wait in the topic{where} until a channel exists",
        "Start a consumer, or create a channel: the first one gets everything that waits.",
        number("waiting", waiting),
        number("channels", len(topic.channels)),
        action=Kind.CREATE_CHANNEL,
    )


def _not_handed_over(topic: Topic, case: Case) -> Iterator[Finding]:
    depths = case.recent(Metric.DEPTH, _MINUTE)
    if not topic.depth or not topic.channels or len(depths) < _FEW or min(depths) <= 0 or depths[-1] < depths[0]:
        return
    yield case.finding(
        "D14",
        Severity.PROBLEM,
        "Messages do not reach the channels",
        "It lacks CPU, or its disk is slow or full: look at the node and at its log.",
        number("waiting in the topic", topic.depth),
        say("on", ", ".join(row.node for row in topic.nodes if row.depth)),
        window=_MINUTE,
        is_inferred=True,
    )


_WAITING: Final[tuple[Callable[[Topic, Case], Iterable[Finding]], ...]] = (_paused, _no_channel, _not_handed_over)


def _burst(topic: Topic, case: Case) -> Iterator[Finding]:
    rates = case.recent(Metric.INCOMING, _HOUR)
    now = topic.rates.incoming or 0.0
    if len(rates) < _BURST_SAMPLES or now < _BURST_AT_LEAST:
        return
    usual = median(rates[:-_BURST_NOW])
    if now <= _BURST * usual or usual <= _STANDSTILL:
        return
    by_producer = _rates_of_producers(topic, case.snapshot)
    main = max(by_producer, key=lambda host: by_producer[host], default="")
    yield case.finding(
        "D11",
        Severity.INFO,
        f"A burst: {numbers.rate(now)} are published, usually {numbers.rate(usual)}"
        + (f"; most of it by {main}" if main else ""),
        "Its channels lag until the burst is over; look at their drain times.",
        rate("now", now),
        rate("median before", usual),
        *([rate(f"by {main}", by_producer[main])] if main else []),
        window=min(_HOUR, len(rates) * case.snapshot.interval),
    )


def _rates_of_producers(topic: Topic, snapshot: Snapshot) -> dict[str, float]:
    """Return the topic's producers' publish rates, by hostname."""
    found: dict[str, float] = {}
    for producer in snapshot.producers or ():
        for name, _, published in producer.counts:
            if name == topic.name and published:
                found[producer.hostname] = found.get(producer.hostname, 0.0) + published
    return found
