"""What a policy file says about the messages of one channel: the one that is obeyed, and the one that is only tried.

A `ChannelPolicy` answers questions. May another message be delivered now? Was this its last attempt? Is there room? It
changes nothing but its own memory of rates and shares; the channel acts upon its answers.

With `dry_run = true`, a rule does not decide anything yet, and only counts what it would have done. So a channel has a
second instance with these rules. `DryRun` asks it the same questions when something happens, and counts the answers: say
a message has failed for the fifth time, and `max_attempts = 5` is tried. Then the policy in force lets it wait for its
next attempt, and "max_attempts, dry run" goes up by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from nsqd.broker.breaker import Breaker
from nsqd.broker.limits import Usage, capacity, count_cause, drops, excess, excess_with, refuses
from nsqd.broker.rate_limiter import RateLimiter
from nsqd.broker.rules import Overflow

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.ledger import Ledger
    from nsqd.broker.rules import ChannelRules

_SAMPLE: Final = 1_000_000  # messages whose size tells the mean of one


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
        """Return how many of so many messages may be delivered now."""
        return wanted if self._rate_limiter is None else min(wanted, self._rate_limiter.allowed(now))

    def spend(self, taken: int) -> None:
        """Note that so many messages have used the rate."""
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
        """Note that so many messages were buried because they have failed."""
        if self._breaker is not None:
            self._breaker.buried(count, now)

    def has_tripped(self, now: float) -> bool:
        return self._breaker is not None and self._breaker.has_tripped(now)

    def reason_to_pause(self, buried: int, now: float, *, has_failed: bool) -> str | None:
        """Return why the channel has to stop by itself now that so many messages are buried; None: it goes on.

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
        """Count for an attempt that has failed, of a message that is tried again."""
        if attempts == self.rules.max_attempts:  # afterwards it would not have come any more
            self._count("max_attempts")
        if self.rules.backoff is not None:
            self._count("backoff")

    def delivered(self, taken: int, now: float) -> None:
        """Count for messages that were delivered: so many."""
        within = self.policy.allowed(taken, now)
        self.policy.spend(within)
        self._count("max_rate", taken - within)

    def delivered_new(self, batch: Batch, count: int, timestamp: int) -> None:
        """Count for messages of a batch that were delivered for the first time: so many."""
        if self.policy.has_expired(batch, timestamp):
            self._count("ttl", count)

    def deferred(self, count: int, ledger: Ledger) -> None:
        """Count for messages that are about to be deferred: so many."""
        if (room := self.policy.room(ledger)) is not None:
            self._count("overflow", count - room)

    def waits(self, ledger: Ledger) -> None:
        """Count for what waits after bounds were applied to it."""
        beyond = self.policy.beyond(ledger)
        self._count("overflow", beyond - self._beyond)
        self._beyond = beyond

    def buried(self, count: int, buried: int, now: float, *, has_failed: bool) -> None:
        """Count for `count` messages that were buried, as there are `buried` now."""
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
