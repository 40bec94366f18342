"""What a policy file says about the messages of a channel or a topic: the one that is obeyed, and the one that is tried.

A `ChannelPolicy` answers questions. May another message be delivered now? Was this its last attempt? Is there room? It
changes nothing but its own memory of rates and shares; the channel acts upon its answers.

With `dry_run = true`, a rule does not decide anything yet, and only counts what it would have done. So a channel has a
second instance with these rules. `DryRun` asks it the same questions when something happens, and counts the answers.
For example, a message has failed for the fifth time, and `max_attempts = 5` is tried. Then the policy in force lets it
wait for its next attempt, and "max_attempts, dry run" goes up by one.

`TopicPolicy` and `TopicDryRun` are the same for a topic. What a new key needs here is a question, and a count.
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

FEWEST: Final = 20  # deliveries of the last minute; with fewer, a share says nothing
_SAMPLE: Final = 1_000_000  # messages whose size tells the mean of one
_BREAKER_WINDOW: Final = 60.0  # seconds
_BREAKER_GRAIN: Final = 5.0  # seconds that are counted together
_RATE_GRAIN: Final = (
    0.01  # seconds between two looks at a channel that is held back, if its rate fills more than a token
)
_ROUNDING: Final = 1e-6  # tokens; sums of floats come out a little below


@final
class ChannelPolicy:
    def __init__(self, rules: ChannelRules, now: float) -> None:
        self._rate_limiter: RateLimiter | None = None
        self._breaker: Breaker | None = None
        self.follow(rules, now)

    def follow(self, rules: ChannelRules, now: float) -> None:
        """Answer by these rules from now on. The same rate or share goes on as it was: a new file is no new burst."""
        self.rules = rules
        self.ttl = rules.ttl  # nanoseconds; deliveries read it
        self.drops = drops(rules)  # whether a bound ever drops or buries the oldest messages
        self.refuses = refuses(rules)  # whether a bound ever refuses a publish
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
        """Return the reason for burying a message that was delivered so often; None: it may be tried again.

        `how` its last attempt has ended, if that has just happened.
        """
        most = self.rules.max_attempts
        if most is None or attempts < most:
            return None
        return f"{attempts} attempts" + (f", the last one {how}" if how else "")

    def delay_after(self, attempts: int, random_percent: Callable[[], int]) -> int:
        """Return the milliseconds that a message has to wait at least, after this attempt has failed."""
        backoff = self.rules.backoff
        if backoff is None:
            return 0
        return backoff.delay_ms(attempts, random_percent() if backoff.jitter else 0)

    # Deliveries

    def allowed(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` messages may be delivered now."""
        return wanted if self._rate_limiter is None else min(wanted, self._rate_limiter.allowed(now))

    def spend(self, taken: int) -> None:
        """Take `taken` deliveries out of the rate."""
        if self._rate_limiter is not None:
            self._rate_limiter.spend(taken)

    def next_delivery(self, now: float) -> float | None:
        """Return when the next message may be delivered; None: now."""
        limiter = self._rate_limiter
        return limiter.next_at(now) if limiter is not None and not limiter.allowed(now) else None

    def note_deliveries(self, count: int, now: float) -> None:
        if self._breaker is not None:
            self._breaker.delivered(count, now)

    # Time to live

    def has_expired(self, batch: Batch, timestamp: int) -> bool:
        """Return whether the messages of a batch have waited for too long. Their delay does not count as waiting."""
        return self.ttl is not None and batch.timestamp + batch.delay_ms * 1_000_000 < timestamp - self.ttl

    # Bounds

    @property
    def buries(self) -> bool:
        """Whether messages beyond a bound are buried, and not dropped."""
        return self.rules.overflow is Overflow.BURY

    def room(self, ledger: Ledger) -> int | None:
        """Return how many messages fit beside those that no bound drops; None: any number, because no bound drops."""
        if not self.drops:
            return None
        sample = Usage(_SAMPLE, ledger.mean_of(_SAMPLE)) if self.rules.max_bytes is not None else Usage(0, 0)
        most = capacity(self.rules, sample)
        return None if most is None else max(0, most - len(ledger.retries) - len(ledger.deferred))

    def beyond(self, ledger: Ledger) -> int:
        """Return how many of the messages that wait for their first delivery are too many."""
        return min(excess(self.rules, usage_of(ledger)), ledger.ahead) if self.drops else 0

    def beyond_with(self, ledger: Ledger, coming: Usage) -> int:
        """Return how many of them have too many bytes together with those that are about to be published."""
        return min(excess_with(self.rules, usage_of(ledger), coming), ledger.ahead)

    # Buried messages

    def note_burials(self, count: int, now: float) -> None:
        """Count burials of messages that have failed, for the breaker."""
        if self._breaker is not None:
            self._breaker.buried(count, now)

    def has_tripped(self, now: float) -> bool:
        return self._breaker is not None and self._breaker.has_tripped(now)

    def reason_to_pause(self, buried: int, now: float, *, has_failed: bool) -> str | None:
        """Return why the channel has to pause itself now that `buried` messages are buried; None: it goes on.

        `has_failed`: whether the last ones have failed. Those that have only waited too long are no consumer's fault.
        """
        if (most := self.rules.max_buried) is not None and buried > most:
            return f"more than {most} messages are buried (max_buried)"
        if has_failed and (breaker := self._breaker) is not None and breaker.has_tripped(now):
            return f"at least {breaker.share:.0%} of the last minute's deliveries were buried (breaker)"
        return None

    def reset_breaker(self) -> None:
        """Begin to count failures anew: somebody has looked at the channel and let it go on."""
        if self._breaker is not None:
            self._breaker.reset()


@final
class DryRun:
    """Rules of a channel that are only tried: counts, by cause, what they would have done."""

    def __init__(self, rules: ChannelRules, counts: dict[str, int], now: float) -> None:
        self.policy = ChannelPolicy(rules, now)
        self._counts = counts
        self._beyond = 0  # how many messages a bound would have dropped last time

    @property
    def rules(self) -> ChannelRules:
        return self.policy.rules

    def _count(self, cause: str, count: int = 1) -> None:
        count_cause(self._counts, f"{cause}, dry run", count)

    def failed(self, attempts: int) -> None:
        """Count a failed attempt that would have been the last one, or would have been followed by a backoff."""
        if attempts == self.rules.max_attempts:  # afterwards it would not have come any more
            self._count("max_attempts")
        if self.rules.backoff is not None:
            self._count("backoff")

    def delivered(self, taken: int, now: float) -> None:
        """Count deliveries that a rate would have put off."""
        within = self.policy.allowed(taken, now)
        self.policy.spend(within)
        self._count("max_rate", taken - within)

    def delivered_new(self, batch: Batch, count: int, timestamp: int) -> None:
        """Count first deliveries of messages that would have expired."""
        if self.policy.has_expired(batch, timestamp):
            self._count("ttl", count)

    def deferred(self, count: int, ledger: Ledger) -> None:
        """Count messages that are about to be deferred and would have had no room."""
        if (room := self.policy.room(ledger)) is not None:
            self._count("overflow", count - room)

    def waits(self, ledger: Ledger) -> None:
        """Count the waiting messages that a bound would have dropped or buried since the last call."""
        beyond = self.policy.beyond(ledger)
        self._count("overflow", beyond - self._beyond)
        self._beyond = beyond

    def buried(self, count: int, buried: int, now: float, *, has_failed: bool) -> None:
        """Count a burial after which the channel would have paused itself; `buried` is how many messages are buried now."""
        if (most := self.rules.max_buried) is not None and buried > most:
            self._count("max_buried")
        if has_failed:
            self.policy.note_burials(count, now)
            if self.policy.has_tripped(now):
                self._count("breaker")
                self.policy.reset_breaker()


def usage_of(ledger: Ledger) -> Usage:
    """Return what waits, now or for its time, with what the topic has not handed over yet. Bytes are estimated."""
    feed = ledger.feed
    messages = ledger.depth + len(ledger.deferred) + feed.log.tail - feed.high_watermark
    return Usage(messages, ledger.mean_of(messages))


# Most channels have no rules, and there may be very many channels: they share these two, which never change.
_NO_POLICY: Final = ChannelPolicy(NO_CHANNEL_RULES, 0.0)
_NO_DRY_RUN: Final = DryRun(NO_CHANNEL_RULES, {}, 0.0)


def policy_of(rules: ChannelRules, now: float, former: ChannelPolicy | None = None) -> ChannelPolicy:
    """Return the policy of a channel that follows these rules from now on, after a `former` one."""
    if rules is NO_CHANNEL_RULES:
        return _NO_POLICY
    if former is None or former is _NO_POLICY:
        return ChannelPolicy(rules, now)
    former.follow(rules, now)
    return former


def dry_run_of(rules: ChannelRules, counts: dict[str, int], now: float, former: DryRun | None = None) -> DryRun:
    """Return the dry run of a channel that tries these rules from now on, after a `former` one."""
    if rules is NO_CHANNEL_RULES:
        return _NO_DRY_RUN
    if former is None or former is _NO_DRY_RUN:
        return DryRun(rules, counts, now)
    former.policy.follow(rules, now)
    return former


@final
class TopicPolicy:
    """The answers of some rules of a topic."""

    def __init__(self, rules: TopicRules) -> None:
        self._room: Headroom | None = None  # for this turn's publishes; None: it has to be measured
        self.follow(rules)

    def follow(self, rules: TopicRules) -> None:
        """Answer by these rules from now on."""
        self.rules = rules
        self.drops = drops(rules)  # whether a bound ever drops the oldest messages
        self.refuses = refuses(rules)  # whether a bound ever refuses a publish

    def excess(self, held: Usage) -> int:
        """Return how many of the messages that the topic holds are too many."""
        return excess(self.rules, held) if self.drops else 0

    def excess_with(self, held: Usage, coming: Usage) -> int:
        """Return how many of them have too many bytes together with those that are about to be published."""
        return excess_with(self.rules, held, coming)

    # Publishes of this turn

    @property
    def is_measured(self) -> bool:
        """Whether it is known how much room this turn's publishes have."""
        return self._room is not None

    def measure(self, name: str, held: Usage, channels: Iterable[tuple[str, AnyRules, Usage]]) -> None:
        """Measure the room for this turn's publishes, by bounds of the topic and of its channels.

        `held`: what the topic holds; each channel comes with its name, rules, and what it holds.
        """
        room = self._room = Headroom()
        room.narrow(f"topic {name}", self.rules, held)
        for channel, rules, held_there in channels:
            room.narrow(f"channel {name}:{channel}", rules, held_there)

    def forget_room(self) -> None:
        self._room = None

    def admit(self, count: int, size: int) -> LimitReached | None:
        """Use the room for a publish, or return the bound that is in its way."""
        return self._room.take(count, size) if self._room is not None else None


@final
class TopicDryRun:
    """Rules of a topic that are only tried: counts, by cause, what they would have done."""

    def __init__(self, rules: TopicRules, counts: dict[str, int]) -> None:
        self.policy = TopicPolicy(rules)
        self._counts = counts
        self._beyond = 0  # how many messages a bound would have dropped last time

    def published(self, count: int, size: int) -> None:
        """Count messages of a publish that would have been refused."""
        if (full := self.policy.admit(count, size)) is not None:
            count_cause(self._counts, f"{full.rule}, dry run", count)

    def holds(self, held: Usage) -> None:
        """Count the messages of a topic that a bound would have dropped since the last call."""
        if self.policy.drops:
            beyond = self.policy.excess(held)
            count_cause(self._counts, "overflow, dry run", beyond - self._beyond)
            self._beyond = beyond


class RateLimiter:
    """How fast a channel may deliver: a bucket of tokens, one for each delivery, that fills at the rate of the policy.

    The bucket holds what may be delivered in one second, so a channel that was idle may deliver that much at once.
    Nothing is lost by looking late: the next look finds all tokens that have come since, up to that second.
    """

    __slots__ = ("_filled_at", "_most", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate  # tokens a second
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
        """Return when some more may be delivered: at a high rate as many as come in a hundredth of a second."""
        wanted = max(1.0, self.rate * _RATE_GRAIN)
        return now + max(0.0, wanted - self._tokens) / self.rate


class Breaker:
    """Trips when at least `share` of the last minute's deliveries were buried."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._counts: deque[list[float]] = deque()  # [when it began, deliveries, burials]

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
        """Begin anew: somebody has looked at the channel and let it go on."""
        self._counts.clear()

    def _present(self, now: float) -> list[float]:
        counts = self._counts
        while counts and counts[0][0] <= now - _BREAKER_WINDOW:
            counts.popleft()
        if not counts or counts[-1][0] + _BREAKER_GRAIN <= now:
            counts.append([now, 0, 0])
        return counts[-1]
