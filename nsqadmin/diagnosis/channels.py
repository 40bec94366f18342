"""Rules about one channel: D1 to D10, D12, D15, D17, D18, D41, D42. Further ones are in `policy.py`, `burials.py` and `groups.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from nsqadmin import numbers
from nsqadmin.actions.plan import Kind
from nsqadmin.cluster.model import Channel, ChannelNode, Evidence, Finding, Metric, Paused, Severity
from nsqadmin.diagnosis import burials, groups, policy
from nsqadmin.diagnosis.case import Case, first_that_speaks
from nsqadmin.diagnosis.clients import FULL, NEEDS_ATTENTION, Condition, is_busy, judged
from nsqadmin.diagnosis.policy import removed_lately
from nsqadmin.diagnosis.upkeep import UNKNOWN_IN_PART
from nsqadmin.diagnosis.words import age, counted, in_minutes, name_of, number, rate, say

_MINUTE: Final = 60.0
_RECENT: Final = 5 * _MINUTE
_LONG: Final = 10 * _MINUTE
_RESTART: Final = 75.0  # seconds in which all consumers of a channel may restart
_SAMPLES_OF_RESTART: Final = 15
_FEW: Final = 2  # samples; fewer show no trend
_STANDSTILL: Final = 0.05  # messages a second
_REQUEUED: Final = 0.2  # share of deliveries
_WORST: Final = 3  # consumers to name in a finding
_MANY_DEFERRED: Final = 100
_LAGGING: Final = frozenset((Condition.STUCK, Condition.SLOW))


def about_channel(channel: Channel, case: Case) -> Iterator[Finding]:
    found = [
        *(finding for group in _GROUPS for finding in first_that_speaks(rule(channel, case) for rule in group)),
        *(finding for rule in _IN_NO_GROUP for finding in rule(channel, case)),
    ]
    yield from found or _unknown_in_part(channel, case)


# Delivery: D1 to D7


def _paused(channel: Channel, case: Case) -> Iterator[Finding]:
    if channel.paused is Paused.YES:
        yield case.finding(
            "D1",
            Severity.WARNING if channel.depth else Severity.INFO,
            "Paused: nothing is delivered",
            "Unpause it when its consumers are ready for more.",
            number("waiting", channel.depth),
            action=Kind.UNPAUSE_CHANNEL,
        )
    elif channel.paused is Paused.PARTLY:
        paused = [row.node for row in channel.nodes if row.paused]
        yield case.finding(
            "D2",
            Severity.WARNING,
            f"Paused on {len(paused)} of {counted(len(channel.nodes), 'node')}",
            "Pause the rest, or unpause it everywhere.",
            say("paused on", ", ".join(paused)),
            number("waiting", channel.depth),
            action=Kind.UNPAUSE_CHANNEL,
        )


def _nobody(channel: Channel, case: Case) -> Iterator[Finding]:
    if channel.client_count or not (channel.depth or removed_lately(channel)):
        return
    is_deploy = _are_restarting(channel, case)
    yield case.finding(
        "D3",
        Severity.INFO if is_deploy else Severity.PROBLEM,
        "No consumer is connected" + (": they have left just now" if is_deploy else ""),
        "Start a consumer, or delete the channel if it is no longer needed.",
        number("waiting", channel.depth),
        number("consumers", 0),
        *_lag(channel),
    )


def _are_restarting(channel: Channel, case: Case) -> bool:
    """Return True if all consumers have left just now, as in a deploy, and no message is lost meanwhile.

    We add up the times without a consumer, so that consumers which crash after each start are found.
    """
    counts, interval = case.recent(Metric.CLIENTS, _RECENT), case.snapshot.interval
    away = sum(not count for count in counts) * interval
    return any(counts) and away <= min(_RESTART, _SAMPLES_OF_RESTART * interval) and not removed_lately(channel)


def _nobody_there(channel: Channel, case: Case) -> Iterator[Finding]:
    without = [row for row in channel.nodes if (row.depth or removed_lately(row)) and not row.client_count]
    if not without or not channel.client_count:
        return
    names = ", ".join(row.node for row in without)
    unreachable = [row.node for row in without if (node := case.snapshot.node(row.node)) and not node.is_reachable]
    advice = "Consumers find nodes through nsqlookupd by their broadcast addresses: check that these are right, and that the consumers can reach them."
    if unreachable:
        advice += f" From here {', '.join(unreachable)} cannot be reached either."
    yield case.finding(
        "D4",
        Severity.PROBLEM,
        f"{len(without)} of {counted(len(channel.nodes), 'node')} {'has' if len(without) == 1 else 'have'} no consumer, and messages wait there",
        advice,
        say("nodes without a consumer", names),
        number("waiting there", sum(row.depth for row in without)),
        number("consumers elsewhere", channel.client_count),
        is_inferred=True,
        others=tuple(row.node for row in without),
    )


def _nobody_ready(channel: Channel, case: Case) -> Iterator[Finding]:
    if channel.ready_count != 0 or channel.in_flight_count or not channel.client_count:
        return
    if not (channel.depth or removed_lately(channel)):
        return
    if not any(row.client_count for row in _answering(channel)):
        return
    window = _held_for(case, lambda depth, in_flight: depth > 0 and in_flight == 0)
    yield case.finding(
        "D5",
        Severity.PROBLEM,
        "Consumers are connected but ask for nothing (RDY 0)",
        "They back off after failures, or their max_in_flight is lower than the number of nodes: look at their logs, and raise max_in_flight to at least the number of nodes.",
        number("waiting", channel.depth),
        number("consumers", channel.client_count),
        number("ready count", 0),
        number("in flight", 0),
        *_worst(channel, case),
        window=window,
        is_inferred=True,
    )


def _stuck(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find consumers that hold messages and finish none, until they finish one.

    What the timeouts do doesn't matter: with an msg_timeout of 10 minutes, five of these go by without one.
    """
    stall, now = channel.stall, case.snapshot.taken_at
    if stall is None or _requeues(channel, case) is not None:  # those that give all back are failing, not stuck
        return
    rows = [row for row in _answering(channel) if not stall.nodes or row.node in stall.nodes]
    on, there = (f" on {len(rows)} of {counted(len(channel.nodes), 'node')}", " there") if stall.nodes else ("", "")
    waiting, in_flight = sum(row.depth for row in rows), sum(row.in_flight_count for row in rows)
    if stall.timed_out:
        least = _MINUTE / 2  # a proof, so it need not last as long
    else:
        least = _MINUTE if waiting or stall.has_held_up else _RECENT
        if least == _RECENT and not _is_saturated(channel):
            return  # with room for more, they may collect messages for minutes, to finish them together
    lasts = now - stall.since
    holders = [it for row in rows for it in row.clients or () if it.in_flight_count]
    if lasts < least or any(is_busy(it, now) for it in holders):
        return
    is_sure = bool(stall.timed_out) or any(it.reports_touches for it in holders)
    unknown = [row for row in rows if row.clients is None]
    if not is_sure and (lasts < _RECENT or not any(_reports_touches(row, case) for row in unknown)):
        return  # the consumers are being asked for, or it's for D42 to say
    if stall.timed_out:
        remedy = "raise msg_timeout or send TOUCH"
    else:
        remedy = "send TOUCH while it lasts, and " + (
            "raise max_in_flight in the policy file" if _is_limited(channel) else "add consumers"
        )
    yield case.finding(
        "D7",
        Severity.PROBLEM if is_sure else Severity.WARNING,
        f"Consumers are stuck{on}: nothing finished{there} for {'at least ' * stall.is_older}{in_minutes(lasts)}, "
        + (f"{waiting:,} waiting" if waiting else f"{in_flight:,} in flight"),
        f"Find out what the handlers wait for. If the work simply takes long, {remedy}.",
        *([say("stuck on", ", ".join(stall.nodes))] if stall.nodes else []),
        number("timed out meanwhile", stall.timed_out),
        number("waiting", waiting),
        number("in flight", in_flight),
        number("ready count", channel.ready_count or 0),
        *_worst(channel, case),
        window=lasts,
        is_inferred=not stall.timed_out,
        others=stall.nodes or tuple(row.node for row in channel.nodes),
    )


def _reports_touches(row: ChannelNode, case: Case) -> bool:
    """Return True if the row's node says when consumers touch their messages, so that not touching means something."""
    if row.clients:
        return any(it.reports_touches for it in row.clients)
    node = case.snapshot.node(row.node)
    return node is not None and bool(node.release)


def _cannot_tell(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find consumers that finish nothing, where only timeouts would show that they don't work on their messages."""
    stall, now = channel.stall, case.snapshot.taken_at
    if stall is None or stall.timed_out or _requeues(channel, case) is not None:
        return
    if now - stall.since < (_MINUTE if channel.depth or stall.has_held_up else _RECENT):
        return
    rows = [row for row in _answering(channel) if row.in_flight_count]
    silent_on_touches = [row for row in rows if not _reports_touches(row, case)]
    if not silent_on_touches or any(is_busy(it, now) for row in rows for it in row.clients or ()):
        return
    yield case.finding(
        "D42",
        Severity.INFO,
        f"Nothing finished for {'at least ' * stall.is_older}{in_minutes(now - stall.since)}, and nothing timed out: stuck "
        f"or long work, {'this nsqd does' if len(silent_on_touches) == 1 else 'these nsqds do'}n't report touches",
        "If consumers are stuck, their messages time out in the end, and then this is a problem (D7).",
        number("in flight", sum(row.in_flight_count for row in silent_on_touches)),
        number("waiting", channel.depth),
        say("on", ", ".join(row.node for row in silent_on_touches)),
        window=now - stall.since,
    )


def _busy(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find consumers that have finished nothing for a minute because their work takes long."""
    stall, now = channel.stall, case.snapshot.taken_at
    if stall is None or now - stall.since < _MINUTE:
        return
    busy = [it for row in _answering(channel) for it in row.clients or () if is_busy(it, now)]
    if not busy:
        return
    last = max(it.last_touch or 0.0 for it in busy)
    yield case.finding(
        "D41",
        Severity.INFO,
        f"{counted(len(busy), 'consumer').capitalize()} {'has' if len(busy) == 1 else 'have'} long work: nothing "
        f"finished for {'at least ' * stall.is_older}{in_minutes(now - stall.since)}, but they touch their messages",
        "As long as they send TOUCH, their messages do not time out. Nothing is wrong.",
        number("in flight", sum(it.in_flight_count for it in busy)),
        age("last touch ago", max(now - last, 0.0)),
        number("waiting", channel.depth),
        window=now - stall.since,
    )


def _saturated(channel: Channel, case: Case) -> Iterator[Finding]:
    growth = channel.growth  # as if no policy removed messages: losing them is no way to keep up
    if growth is None or growth <= _STANDSTILL or not _is_saturated(channel):
        return
    if min(case.recent(Metric.DEPTH, _MINUTE), default=channel.depth) <= 0:
        return  # a short burst, so far
    window = 2 * _MINUTE
    if case.mean(Metric.FINISHED, window) <= _STANDSTILL:
        window = _LONG  # they take long for each message, and may even hang while something goes on sending TOUCH
        if case.mean(Metric.FINISHED, window) <= _STANDSTILL and not _has_grown(case):
            return
    finished, incoming = case.mean(Metric.FINISHED, window), case.mean(Metric.INCOMING, window)
    if incoming <= finished:
        return
    times = f"{incoming / finished:.1f} times" if finished > _STANDSTILL else "many times"
    is_limited = _is_limited(channel)
    yield case.finding(
        "D6",
        Severity.PROBLEM,
        f"{'max_in_flight is reached: consumers' if is_limited else 'Consumers are saturated: they'} "
        f"finish {numbers.rate(finished)}, {numbers.rate(incoming)} arrive",
        f"The policy file lets {counted(channel.max_in_flight, 'message')} be in flight (max_in_flight), so more consumers don't help: allow about {times} as many, or handle them faster."
        if is_limited
        else f"Consumers need about {times} the capacity: add consumers, or raise max_in_flight where they are idle.",
        rate("in", incoming),
        rate("finished", finished),
        *_outflow(channel),
        number("in flight", channel.in_flight_count),
        number("ready count", channel.ready_count or 0),
        *_lag(channel),
        window=window,
        is_inferred=True,
    )


def _has_grown(case: Case) -> bool:
    """Return True if ever more messages have waited for ten minutes."""
    depths = case.recent(Metric.DEPTH, _LONG)
    if len(depths) * case.snapshot.interval < 0.9 * _LONG:
        return False
    return depths[0] < depths[len(depths) // 2] < depths[-1] and depths[-1] - depths[0] > _STANDSTILL * _LONG


def _outflow(channel: Channel) -> Iterator[Evidence]:
    """Name what leaves the channel without having been finished."""
    for label, value in (
        ("dropped", channel.rates.dropped),
        ("expired", channel.rates.expired),
        ("buried", channel.rates.buried),
    ):
        if value:
            yield rate(label, value)


def _is_saturated(channel: Channel) -> bool:
    """Return True if the consumers hold about as many messages as they ask for, on the nodes that answer.

    nsqd doesn't decrease RDY as it delivers, so the ready count includes the messages in flight.
    """
    if _is_limited(channel):
        return True
    rows = _answering(channel)
    if channel.ready_count is None:
        return False
    ready = sum(client.ready_count for row in rows for client in row.clients or ())
    return bool(ready) and sum(row.in_flight_count for row in rows) >= FULL * ready


def _is_limited(channel: Channel) -> bool:
    """Return True if `max_in_flight` is reached wherever messages wait: then it is what holds these up."""
    waiting = [row for row in _answering(channel) if row.depth]
    return bool(waiting) and all(row.in_flight_full_since is not None for row in waiting)


# Handling: D8, D18, D9


def _failing(channel: Channel, case: Case) -> Iterator[Finding]:
    if (share := _requeues(channel, case)) is None:
        return
    yield case.finding(
        "D8",
        Severity.PROBLEM,
        f"Consumers are failing: {numbers.percent(share)} of deliveries are requeued",
        "Look at the consumers' logs, and at the messages that are requeued.",
        rate("requeued", case.mean(Metric.REQUEUED, _RECENT)),
        rate("finished", case.mean(Metric.FINISHED, _RECENT)),
        *_worst(channel, case),
        window=_RECENT,
    )


def _requeues(channel: Channel, case: Case) -> float | None:
    """Return the share of deliveries that consumers requeue, if it is large."""
    if not _is_requeuing(case):
        return None
    requeued = case.mean(Metric.REQUEUED, _RECENT)
    deliveries = requeued + case.mean(Metric.FINISHED, _RECENT) + case.mean(Metric.TIMED_OUT, _RECENT)
    return requeued / deliveries if requeued > max(_STANDSTILL, _REQUEUED * deliveries) else None


def _is_requeuing(case: Case) -> bool:
    """Return True if something was requeued since the previous answer.

    If not, findings end, and stay for a while (`upkeep.py`): otherwise they would be there minutes after their cause is
    gone.
    """
    recent = case.recent(Metric.REQUEUED, _RECENT)
    return bool(recent) and recent[-1] > 0


def _one_failing(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find consumers that requeue a lot, in a channel that as a whole requeues little."""
    failing = [it for it in judged(channel, case.snapshot.taken_at) if it.condition is Condition.FAILING]
    if not failing or not _is_requeuing(case):
        return
    worst = failing[0]
    more = f", and {counted(len(failing) - 1, 'other')} fail as well" if len(failing) > 1 else ""
    yield case.finding(
        "D18",
        Severity.WARNING,
        f"{name_of(worst.client)} requeues {numbers.percent(worst.failing)} of its messages{more}",
        "Look at that consumer's log, and for differences: its version, its machine, its network.",
        rate("it requeues", worst.client.requeue_rate or 0.0),
        rate("it finishes", worst.client.finish_rate or 0.0),
        say("software", worst.client.user_agent or "unknown"),
        number("consumers", channel.client_count),
        window=_MINUTE,
    )


def _one_slow(channel: Channel, case: Case) -> Iterator[Finding]:
    found = judged(channel, case.snapshot.taken_at)
    lagging = [it for it in found if it.condition in _LAGGING]
    others = (it for it in found if it.condition not in _LAGGING)
    if not lagging or not any(
        (it.client.finish_rate or 0.0) > _STANDSTILL or it.condition is Condition.BUSY for it in others
    ):
        return  # if no consumer works at all, the delivery rules say so
    client, word = lagging[0].client, lagging[0].condition
    many = f"{len(lagging)} of {counted(len(found), 'consumer')} are slow or stuck, such as" if len(lagging) > 1 else ""
    yield case.finding(
        "D9",
        Severity.WARNING,
        f"{many or f'One {word} consumer:'} {name_of(client)}",
        "It holds messages that the others could handle: look at its machine, or stop it.",
        rate("it finishes", client.finish_rate or 0.0),
        rate("its peers (median)", lagging[0].peers),
        number("in flight there", client.in_flight_count),
        *([] if client.oldest_in_flight is None else [age("oldest in flight there", client.oldest_in_flight)]),
        is_inferred=True,
    )


def _one_behind(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find consumers that finish nothing for long while most of the others do, where nothing says if they are busy."""
    found = judged(channel, case.snapshot.taken_at)
    behind = [it for it in found if it.condition is Condition.CANNOT_TELL]
    others = [it for it in found if it.condition is not Condition.CANNOT_TELL and it.client.ready_count]
    working = sum((it.client.finish_rate or 0.0) > _STANDSTILL for it in others)
    if not behind or not working or 2 * working < len(others):
        return
    yield replace(
        case.finding(
            "D9",
            Severity.WARNING,
            f"{counted(len(behind), 'consumer').capitalize()} {'finishes' if len(behind) == 1 else 'finish'} nothing while "
            f"others do: {name_of(behind[0].client)}",
            "It is stuck, or its work takes long: its nsqd doesn't report touches. Look at its machine and its log.",
            rate("its peers (median)", behind[0].peers),
            number("in flight there", behind[0].client.in_flight_count),
            is_inferred=True,
        ),
        facet="behind",
    )


# In no group: D10, D12, D15


def _deferred(channel: Channel, case: Case) -> Iterator[Finding]:
    if channel.deferred_count < _MANY_DEFERRED and not (channel.deferred_count and not channel.depth):
        return
    if channel.deferred_count < max(10, channel.depth // 10):
        return
    yield case.finding(
        "D10",
        Severity.INFO,
        f"{counted(channel.deferred_count, 'message')} wait for their delay",
        "They were published or requeued with a delay, and are delivered when it is over. The depth does not include them.",
        number("deferred", channel.deferred_count),
        number("waiting", channel.depth),
    )


def _sampled(channel: Channel, case: Case) -> Iterator[Finding]:
    sampling = [client for client in channel.clients or () if client.sample_rate]
    if not sampling:
        return
    names = ", ".join(sorted({f"{name_of(client)} takes {client.sample_rate} %" for client in sampling}))
    yield case.finding(
        "D12",
        Severity.INFO,
        f"{names}, by design",
        "A consumer with a sample_rate gets that share of the messages; this channel drops the rest.",
        number("sampling consumers", len(sampling)),
        number("consumers", channel.client_count),
    )


def _spilling(channel: Channel, case: Case) -> Iterator[Finding]:
    on_disk = case.recent(Metric.BACKEND_DEPTH, _RECENT)
    if not channel.backend_depth or len(on_disk) < _FEW or on_disk[-1] <= on_disk[0]:
        return
    rows = [row for row in channel.nodes if row.backend_depth]
    yield case.finding(
        "D15",
        Severity.INFO,
        f"More messages wait than memory holds, on {', '.join(row.node for row in rows)}",
        "Messages beyond mem-queue-size are read from disk when their turn comes: slower, but none is lost.",
        number("not in memory", channel.backend_depth),
        number("waiting", channel.depth),
        window=_RECENT,
    )


def _unknown_in_part(channel: Channel, case: Case) -> Iterator[Finding]:
    if not channel.silent:
        return
    rows = [row for row in channel.nodes if row.node in channel.silent]
    names = ", ".join(channel.silent)
    yield case.finding(
        UNKNOWN_IN_PART,
        Severity.INFO,
        f"Partly unknown: {names} {'does' if len(rows) == 1 else 'do'} not answer",
        "Nothing is wrong on the nodes that answer. Numbers of the others are their last known values.",
        number("waiting there, last known", sum(row.depth for row in rows)),
        number("consumers there, last known", sum(row.client_count for row in rows)),
    )


_Rule = Callable[[Channel, Case], Iterable[Finding]]
_GROUPS: Final[tuple[tuple[_Rule, ...], ...]] = (
    (policy.stopped_itself, _paused, _nobody, _nobody_there, _nobody_ready, _stuck, _saturated),
    (_failing, _one_failing, _one_slow, _one_behind),
)
_IN_NO_GROUP: Final[tuple[_Rule, ...]] = (
    _deferred,
    _sampled,
    _spilling,
    _busy,
    _cannot_tell,
    burials.growing,
    burials.lying,
    policy.dropping,
    policy.expiring,
    policy.ending,
    groups.full_of_held,
    groups.held_up_by_one,
    groups.ignored_headers,
)


# Measures


def _lag(channel: Channel) -> list[Evidence]:
    if channel.oldest_age is None:
        return []
    return [age("oldest message", channel.oldest_age, at_least=channel.oldest_is_older)]


def _answering(channel: Channel) -> list[ChannelNode]:
    return [row for row in channel.nodes if row.node not in channel.silent]


def _worst(channel: Channel, case: Case) -> Iterator[Evidence]:
    """Name the worst consumers, and their problems."""
    bad = [it for it in judged(channel, case.snapshot.taken_at) if it.condition in NEEDS_ATTENTION]
    if bad:
        counts = Counter(f"{name_of(it.client)} {it.word}" for it in bad)
        shown = tuple(counts.items())[:_WORST]
        named = "; ".join(f"{text} ({count:,} connections)" if count > 1 else text for text, count in shown)
        more = len(bad) - sum(count for _, count in shown)
        yield say("worst consumers", named + (f"; {more:,} more" if more else ""))


def _held_for(case: Case, holds: Callable[[float, float], bool]) -> float:
    """Return for about how many seconds `holds` has been true; 0 if it was false at the previous sample."""
    depths = case.recent(Metric.DEPTH, _RECENT)
    in_flights = case.recent(Metric.IN_FLIGHT, _RECENT)
    held = 0
    for depth, in_flight in zip(reversed(depths), reversed(in_flights), strict=False):
        if not holds(depth, in_flight):
            break
        held += 1
    return _RECENT * max(held - 1, 0) / max(len(depths), 1) if held > 1 else 0.0
