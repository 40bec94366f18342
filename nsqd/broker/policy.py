"""Applies the rules of a policy file to the messages of a channel or topic, in force or as a dry run.

A `ChannelPolicy` answers questions: may the channel deliver another message now? Was this the last attempt? Is there
room? It only remembers its own rates and counts; the channel acts on its answers.

A rule with `dry_run = true` only counts the times it would have acted. So a channel has a second `ChannelPolicy` with
these rules. `DryRun` asks it the same questions when something happens, and counts the answers. For example, a message
has failed for the fifth time, and `max_attempts = 5` is a dry run: then the policy in force allows the message
another attempt, and "max_attempts, dry run" goes up by one.

`TopicPolicy` and `TopicDryRun` do the same for a topic. If you add a key to the policy file, add a question to the policy
and a count to the dry run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, final

from nsqd.broker.limits import Headroom, Usage, capacity, count_cause, drops, excess, excess_with, refuses
from nsqd.broker.rules import NO_CHANNEL_RULES, Overflow

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.ledger import Ledger
    from nsqd.broker.limits import AnyRules, LimitReached
    from nsqd.broker.rules import ChannelRules, TopicRules

FEWEST: Final = 20  # deliveries in the last minute; below that, a share means nothing
_NANOSECONDS: Final = 1_000_000_000
_SAMPLE: Final = 1_000_000  # messages, for the mean size of one
_BREAKER_WINDOW: Final = 60.0  # seconds
_BREAKER_GRAIN: Final = 5.0  # seconds that share one count
_RATE_GRAIN: Final = (
    0.01  # seconds between deliveries of a rate-limited channel, if each of them allows several messages
)
_ROUNDING: Final = 1e-6  # tokens; sums of floats come out slightly too low


@final
class ChannelPolicy:
    def __init__(self, rules: ChannelRules, now: float) -> None:
        self._rate_limiter: RateLimiter | None = None
        self._breaker: Breaker | None = None
        self.max_in_flight = 0
        self.in_flight_full_since: int | None = None  # wall clock, nanoseconds; None: there are free places
        self.follow(rules, now)

    def follow(self, rules: ChannelRules, now: float) -> None:
        """Use these rules from now on.

        An unchanged rate or breaker keeps its state, because a reloaded file must not allow another burst.
        """
        self.rules = rules
        if self.max_in_flight != (most := rules.max_in_flight or 0):
            self.max_in_flight = most  # 0: no limit
            self.in_flight_full_since = None
        self.ttl = rules.ttl  # nanoseconds; an attribute of its own, because each delivery reads it
        self.drops = drops(rules)  # whether a limit drops or buries the oldest messages
        self.refuses = refuses(rules)  # whether a limit rejects publishes
        if rules.max_rate is None:
            self._rate_limiter = None
        elif self._rate_limiter is None or self._rate_limiter.rate != rules.max_rate:
            self._rate_limiter = RateLimiter(rules.max_rate, now)
        if rules.breaker is None:
            self._breaker = None
        elif self._breaker is None or self._breaker.share != rules.breaker:
            self._breaker = Breaker(rules.breaker)

    # Attempts

    def last_attempt(self, attempts: int, how: str = "") -> str | None:
        """Return the reason for burying a message that has used up its attempts, or None if it hasn't.

        `how` says how the last attempt ended, if it has just ended; it becomes part of the reason.
        """
        most = self.rules.max_attempts
        if most is None or attempts < most:
            return None
        return f"{attempts} attempts" + (f", the last one {how}" if how else "")

    def delay_after(self, attempts: int, random_percent: Callable[[], int]) -> int:
        """Return the shortest wait after this failed attempt, in milliseconds."""
        backoff = self.rules.backoff
        if backoff is None:
            return 0
        return backoff.delay_ms(attempts, random_percent() if backoff.jitter else 0)

    # Deliveries

    def allowed(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` messages the rate allows now."""
        return wanted if self._rate_limiter is None else min(wanted, self._rate_limiter.allowed(now))

    def spend(self, taken: int) -> None:
        """Count `taken` deliveries against the rate."""
        if self._rate_limiter is not None:
            self._rate_limiter.spend(taken)

    def next_delivery(self, now: float) -> float | None:
        """Return when the next message may be delivered, or None if one may be delivered now."""
        limiter = self._rate_limiter
        return limiter.next_at(now) if limiter is not None and not limiter.allowed(now) else None

    def places(self, in_flight: int) -> int:
        """Return how many more messages `max_in_flight`, which must be set, allows in addition to those in flight.

        If there are more in flight than it allows, because it was lowered, the answer is 0 until there are fewer.
        """
        return max(0, self.max_in_flight - in_flight)

    def is_full(self, in_flight: int) -> bool:
        """Return whether `max_in_flight` allows no message in addition to those in flight."""
        return bool(self.max_in_flight) and in_flight >= self.max_in_flight

    def note_in_flight(self, in_flight: int, timestamp: int) -> None:
        """Note whether `max_in_flight` is reached. Call this at the end of a turn in which `in_flight` may have changed.

        A place that is freed and taken again in the same turn doesn't end the time for which the limit is reached.
        """
        if not self.is_full(in_flight):
            self.in_flight_full_since = None
        elif self.in_flight_full_since is None:
            self.in_flight_full_since = timestamp

    def note_deliveries(self, count: int, now: float) -> None:
        if self._breaker is not None:
            self._breaker.delivered(count, now)

    # Time to live

    def has_expired(self, batch: Batch, timestamp: int) -> bool:
        """Return whether a batch's messages have waited for longer than their TTL, not counting their delay."""
        return self.ttl is not None and batch.timestamp + batch.delay_ms * 1_000_000 < timestamp - self.ttl

    # Limits

    @property
    def buries(self) -> bool:
        """Whether messages above a limit are buried and not dropped."""
        return self.rules.overflow is Overflow.BURY

    def room(self, ledger: Ledger) -> int | None:
        """Return how many new messages fit in addition to retries and deferred ones, which a limit never drops.

        Returns None if no limit drops messages.
        """
        if not self.drops:
            return None
        sample = Usage(_SAMPLE, ledger.mean_of(_SAMPLE)) if self.rules.max_bytes is not None else Usage(0, 0)
        most = capacity(self.rules, sample)
        return None if most is None else max(0, most - len(ledger.retries) - len(ledger.deferred))

    def beyond(self, ledger: Ledger) -> int:
        """Return how many of the messages that wait for their first delivery exceed the limit."""
        return min(excess(self.rules, usage_of(ledger)), ledger.ahead) if self.drops else 0

    def beyond_with(self, ledger: Ledger, incoming: Usage) -> int:
        """Return how many undelivered messages must go to make room for `incoming` under the limit of bytes."""
        return min(excess_with(self.rules, usage_of(ledger), incoming), ledger.ahead)

    # Buried messages

    def note_burials(self, count: int, now: float) -> None:
        """Count burials after failures, for the breaker."""
        if self._breaker is not None:
            self._breaker.buried(count, now)

    def has_tripped(self, now: float) -> bool:
        return self._breaker is not None and self._breaker.has_tripped(now)

    def reason_to_pause(self, buried: int, now: float, *, has_failed: bool) -> str | None:
        """Return why the channel must pause, now that `buried` messages are buried, or None if it needn't.

        `has_failed` is True if the latest ones were buried because they failed. Otherwise, their burial says nothing
        about the consumers, so the breaker ignores it.
        """
        if (most := self.rules.max_buried) is not None and buried > most:
            return f"more than {most} messages are buried (max_buried)"
        if has_failed and (breaker := self._breaker) is not None and breaker.has_tripped(now):
            return f"at least {breaker.share:.0%} of the last minute's deliveries were buried (breaker)"
        return None

    def reset_breaker(self) -> None:
        """Restart the breaker's counts, because an operator has checked and unpaused the channel."""
        if self._breaker is not None:
            self._breaker.reset()


@final
class DryRun:
    """A channel's dry run: counts, by cause, how often its rules would have acted."""

    def __init__(self, rules: ChannelRules, counts: dict[str, int], now: float) -> None:
        self.policy = ChannelPolicy(rules, now)
        self._counts = counts
        self._beyond = 0  # messages above the limit at the last call of `waits`

    @property
    def rules(self) -> ChannelRules:
        return self.policy.rules

    def _count(self, cause: str, count: int = 1) -> None:
        count_cause(self._counts, f"{cause}, dry run", count)

    def failed(self, attempts: int) -> None:
        """Count a failed attempt that would have been the last one, or would have been followed by a backoff."""
        if attempts == self.rules.max_attempts:  # not >=, because later attempts would not have happened
            self._count("max_attempts")
        if self.rules.backoff is not None:
            self._count("backoff")

    def delivered(self, taken: int, now: float) -> None:
        """Count deliveries that the rate would have delayed."""
        within = self.policy.allowed(taken, now)
        self.policy.spend(within)
        self._count("max_rate", taken - within)

    def put_in_flight(self, count: int, in_flight: int) -> None:
        """Count the deliveries among the latest `count` that would have waited for a place.

        `in_flight` is the number of messages in flight now. For example, with a limit of 3, 2 messages in flight and 5
        new deliveries, 4 of these would have waited.
        """
        if most := self.policy.max_in_flight:
            self._count("max_in_flight", min(count, in_flight - most))

    def delivered_new(self, batch: Batch, count: int, timestamp: int) -> None:
        """Count first deliveries of messages that would have expired."""
        if self.policy.has_expired(batch, timestamp):
            self._count("ttl", count)

    def deferred(self, count: int, ledger: Ledger) -> None:
        """Count messages that are about to be deferred, but would have had no room."""
        if (room := self.policy.room(ledger)) is not None:
            self._count("overflow", count - room)

    def waits(self, ledger: Ledger) -> None:
        """Count the waiting messages that the limit would have dropped or buried since the last call."""
        beyond = self.policy.beyond(ledger)
        self._count("overflow", beyond - self._beyond)
        self._beyond = beyond

    def buried(self, count: int, buried: int, now: float, *, has_failed: bool) -> None:
        """Count this burial if it would have paused the channel. `buried` is the number of them afterwards."""
        if (most := self.rules.max_buried) is not None and buried > most:
            self._count("max_buried")
        if has_failed:
            self.policy.note_burials(count, now)
            if self.policy.has_tripped(now):
                self._count("breaker")
                self.policy.reset_breaker()


def usage_of(ledger: Ledger) -> Usage:
    """Return the waiting and deferred messages, including ones not released to the channel yet. Bytes are estimated."""
    feed = ledger.feed
    messages = ledger.depth + len(ledger.deferred) + feed.log.tail - feed.high_watermark
    return Usage(messages, ledger.mean_of(messages))


# Most channels have no rules, and there may be very many of them. They share these two, which never change.
_NO_POLICY: Final = ChannelPolicy(NO_CHANNEL_RULES, 0.0)
NO_DRY_RUN: Final = DryRun(NO_CHANNEL_RULES, {}, 0.0)


def policy_of(rules: ChannelRules, now: float, former: ChannelPolicy | None = None) -> ChannelPolicy:
    """Return a channel's policy for these rules. Keeps the state of the `former` one, if there is one."""
    if rules is NO_CHANNEL_RULES:
        return _NO_POLICY
    if former is None or former is _NO_POLICY:
        return ChannelPolicy(rules, now)
    former.follow(rules, now)
    return former


def dry_run_of(rules: ChannelRules, counts: dict[str, int], now: float, former: DryRun | None = None) -> DryRun:
    """Return a channel's dry run for these rules. Keeps the state of the `former` one, if there is one."""
    if rules is NO_CHANNEL_RULES:
        return NO_DRY_RUN
    if former is None or former is NO_DRY_RUN:
        return DryRun(rules, counts, now)
    former.policy.follow(rules, now)
    return former


@final
class TopicPolicy:
    """Answers questions about a topic according to its rules."""

    def __init__(self, rules: TopicRules) -> None:
        self._room: Headroom | None = None  # for this turn's publishes; None: not measured yet
        self.follow(rules)

    def follow(self, rules: TopicRules) -> None:
        """Use these rules from now on."""
        self.rules = rules
        self.drops = drops(rules)  # whether a limit drops the oldest messages
        self.refuses = refuses(rules)  # whether a limit rejects publishes

    def excess(self, held: Usage) -> int:
        """Return how many of the topic's messages exceed a limit that drops."""
        return excess(self.rules, held) if self.drops else 0

    def excess_with(self, held: Usage, incoming: Usage) -> int:
        """Return how many of the topic's messages must go to make room for `incoming` under the limit of bytes."""
        return excess_with(self.rules, held, incoming)

    # Publishes of this turn

    @property
    def is_measured(self) -> bool:
        """Whether `measure` was called for this turn's publishes."""
        return self._room is not None

    def measure(self, name: str, held: Usage, channels: Iterable[tuple[str, AnyRules, Usage]]) -> None:
        """Measure the room for this turn's publishes under the limits of the topic and of its channels.

        `held` is the topic's usage. Each channel is given by its name, rules and usage.
        """
        room = self._room = Headroom()
        room.narrow(f"topic {name}", self.rules, held)
        for channel, rules, held_there in channels:
            room.narrow(f"channel {name}:{channel}", rules, held_there)

    def forget_room(self) -> None:
        self._room = None

    def admit(self, count: int, size: int) -> LimitReached | None:
        """Take the room for a publish, or return the limit that it would exceed."""
        return self._room.take(count, size) if self._room is not None else None


@final
class TopicDryRun:
    """A topic's dry run: counts, by cause, how often its rules would have acted."""

    def __init__(self, rules: TopicRules, counts: dict[str, int]) -> None:
        self.policy = TopicPolicy(rules)
        self._counts = counts
        self._beyond = 0  # messages above the limit at the last call of `holds`

    def published(self, count: int, size: int) -> None:
        """Count the messages of a publish that would have been rejected."""
        if (full := self.policy.admit(count, size)) is not None:
            count_cause(self._counts, f"{full.rule}, dry run", count)

    def holds(self, held: Usage) -> None:
        """Count the messages that the topic's limit would have dropped since the last call."""
        if self.policy.drops:
            beyond = self.policy.excess(held)
            count_cause(self._counts, "overflow, dry run", beyond - self._beyond)
            self._beyond = beyond


class RateLimiter:
    """Limits a channel's deliveries per second with a token bucket. Each delivery takes a token.

    The bucket holds one second's worth of tokens, so an idle channel may deliver that many in one burst. Each call of
    `allowed` refills it according to the time that has passed, so it doesn't matter how often you call it.
    """

    __slots__ = ("_filled_at", "_most", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate  # tokens per second
        self._most = max(1.0, rate)
        self._tokens = self._most
        self._filled_at = now

    def allowed(self, now: float) -> int:
        """Return how many messages may be delivered now."""
        self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        return max(0, int(self._tokens + _ROUNDING))

    def spend(self, count: int) -> None:
        self._tokens -= count

    def next_at(self, now: float) -> float:
        """Return when to deliver again. At a high rate, that is when a hundredth of a second's worth has accumulated."""
        wanted = max(1.0, self.rate * _RATE_GRAIN)
        return now + max(0.0, wanted - self._tokens) / self.rate


class Breaker:
    """Trips when at least `share` of the last minute's deliveries were buried."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._counts: deque[list[float]] = deque()  # [start, deliveries, burials] of each five seconds

    def delivered(self, count: int, now: float) -> None:
        self._present(now)[1] += count

    def buried(self, count: int, now: float) -> None:
        self._present(now)[2] += count

    def has_tripped(self, now: float) -> bool:
        self._present(now)
        delivered = sum([counted[1] for counted in self._counts])
        buried = sum([counted[2] for counted in self._counts])
        return delivered >= FEWEST and buried >= self.share * delivered

    def reset(self) -> None:
        """Forget all counts."""
        self._counts.clear()

    def _present(self, now: float) -> list[float]:
        counts = self._counts
        while counts and counts[0][0] <= now - _BREAKER_WINDOW:
            counts.popleft()
        if not counts or counts[-1][0] + _BREAKER_GRAIN <= now:
            counts.append([now, 0, 0])
        return counts[-1]


def duration_text(duration: int) -> str:
    """Return a duration (nanoseconds) as the reasons of burials have it, for example "90s" or "2h"."""
    seconds = duration / _NANOSECONDS
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"
