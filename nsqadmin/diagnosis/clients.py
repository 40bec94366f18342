"""Judges each consumer of a channel, by its own figures and by its peers'. This is the only place that does.

    busy      it has finished none for half a minute, but touches those that it has: long work, not a fault
    stuck     it has as many messages as it may have, and has finished none for half a minute or lets them time out;
              while max_in_flight of the policy file is reached, any number is as many as it may have
    can't tell  the same, without a timeout, on an nsqd that doesn't report touches: stuck or busy
    RDY 0     it asks for nothing, although messages wait
    failing   it requeues more than a fifth of its messages
    slow      it has as many as it may have, and finishes less than a quarter of its peers' median
    idle      it has nothing to do
    unknown   its node is silent
    OK        none of these; "new" until its rates are known

Rates are averages over the last minute (`nsqadmin.cluster.pace`). `judged` uses the order above, worst first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, Client

FULL: Final = 0.9  # share of the ready count that is in flight
FAILING: Final = 0.2  # share of its messages that a consumer requeues
SLOW: Final = 0.25  # share of its peers' median rate
STANDSTILL: Final = 0.05  # messages a second
_PEERS: Final = 3  # consumers; with fewer, no rate is typical
_NO_PROGRESS: Final = 30.0  # seconds; a shorter time without a FIN says little
_TOUCHED: Final = 120.0  # seconds


class Condition(StrEnum):
    STUCK = "stuck"
    NOT_READY = "RDY 0"
    FAILING = "failing"
    SLOW = "slow"
    BUSY = "busy"
    CANNOT_TELL = "can't tell"
    IDLE = "idle"
    UNKNOWN = "unknown"
    NEW = "new"
    OK = "OK"


_RANK: Final = {condition: rank for rank, condition in enumerate(Condition)}
NEEDS_ATTENTION: Final = frozenset((Condition.STUCK, Condition.NOT_READY, Condition.FAILING, Condition.SLOW))


@dataclass(frozen=True, slots=True)
class Judged:
    client: Client
    condition: Condition
    failing: float = 0.0  # share of its messages that it requeues
    peers: float = 0.0  # the median rate of the other consumers

    @property
    def word(self) -> str:
        """Return the condition in words: `stuck`, `failing 35 %`."""
        return f"failing {numbers.percent(self.failing)}" if self.condition is Condition.FAILING else self.condition

    @property
    def rank(self) -> tuple[int, float, float]:
        """Sort key, worst first: by condition, then by requeues, then by messages held."""
        return _RANK[self.condition], -self.failing, -self.client.in_flight_count


def judged(channel: Channel, now: float) -> tuple[Judged, ...]:
    """Judge the known consumers, worst first. `now` is the time of the sample, in seconds since 1970."""
    clients = [client for row in channel.nodes for client in row.clients or ()]
    answering = [client for client in clients if client.node not in channel.silent]
    # Sorted once: with thousands of consumers, a median for each of them would take seconds.
    rates = sorted(client.finish_rate for client in answering if client.finish_rate is not None and client.ready_count)
    waiting = channel.depth > 0
    limited = {row.node for row in channel.nodes if row.in_flight_full_since is not None}
    found = [
        *(_judged(it, rates, waiting=waiting, is_limited=it.node in limited, now=now) for it in answering),
        *(Judged(client, Condition.UNKNOWN) for client in clients if client.node in channel.silent),
    ]
    return tuple(sorted(found, key=lambda it: it.rank))


def _judged(client: Client, rates: Sequence[float], *, waiting: bool, is_limited: bool, now: float) -> Judged:
    failing = _share_given_back(client)
    peers = _median_of_others(client, rates)
    is_full = client.in_flight_count >= (1.0 if is_limited else max(1.0, FULL * client.ready_count))
    return Judged(client, _condition(client, failing, peers, waiting, is_full, now), failing, peers)


def _condition(client: Client, failing: float, peers: float, waiting: bool, is_full: bool, now: float) -> Condition:
    if client.finish_rate is None:
        return Condition.NEW
    if not client.finish_rate and not client.requeue_rate and _had_time(client, now):
        if is_busy(client, now):
            return Condition.BUSY
        if is_full:
            return Condition.STUCK if client.reports_touches or client.timeout_rate else Condition.CANNOT_TELL
    if not client.ready_count and waiting and not client.in_flight_count:
        return Condition.NOT_READY
    if failing > FAILING and (client.requeue_rate or 0.0) > STANDSTILL:
        return Condition.FAILING
    if is_full and peers > STANDSTILL and client.finish_rate < SLOW * peers:
        return Condition.SLOW
    if not client.in_flight_count and not client.finish_rate:
        return Condition.IDLE
    return Condition.OK


def is_busy(client: Client, now: float) -> bool:
    """Return True if the consumer is working on its messages, as its touches show.

    It touched them within the last two minutes; or longer ago, but since it got the oldest one, and none has timed out:
    then its msg_timeout is longer, and isn't over yet.
    """
    if not client.in_flight_count or client.last_touch is None:
        return False
    ago = now - client.last_touch
    has_kept = client.oldest_in_flight is not None and client.oldest_in_flight > ago and not client.timeout_rate
    return ago <= _TOUCHED or has_kept


def _had_time(client: Client, now: float) -> bool:
    """Return True if the consumer has had its messages long enough to finish one.

    A message that times out comes back with an age of zero. NSQ's nsqd doesn't report ages, so there we use the time
    since the consumer connected.
    """
    held = client.oldest_in_flight if client.oldest_in_flight is not None else now - client.connect_time
    return bool(client.timeout_rate) or held >= _NO_PROGRESS


def _share_given_back(client: Client) -> float:
    requeued, finished = client.requeue_rate or 0.0, client.finish_rate or 0.0
    return requeued / (requeued + finished) if requeued else 0.0


def _median_of_others(client: Client, rates: Sequence[float]) -> float:
    """Return the median rate of the other consumers that ask for messages, or 0 if there are too few."""
    if len(rates) < _PEERS or client.finish_rate is None:
        return 0.0
    own = bisect_left(rates, client.finish_rate) if client.ready_count else len(rates)
    others = len(rates) - (own < len(rates))

    def other(place: int) -> float:
        return rates[place + (place >= own)]

    middle = others // 2
    return other(middle) if others % 2 else (other(middle - 1) + other(middle)) / 2
