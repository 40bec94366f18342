"""What a policy demands of a topic or a channel. Where nothing is demanded, everything is as in NSQ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from nsqd.ack import Ack

_SHORTEST_PAUSE: Final = 1.0  # seconds
_LONGEST_PAUSE: Final = 60.0
_NANOSECONDS: Final = 1_000_000_000


class Overflow(StrEnum):
    """What becomes of messages beyond a bound."""

    REJECT = "reject"  # the publish is refused
    DROP_OLDEST = "drop-oldest"
    BURY = "bury"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffRule:
    """How long a message that has failed waits before its next attempt."""

    exponential: bool  # doubled with each attempt; otherwise the same again is added
    shortest_ms: int
    longest_ms: int
    jitter: float  # 0.2: up to a fifth more or less

    def delay_ms(self, attempts: int, random_percent: int) -> int:
        """Return the delay after the attempt of this number; `random_percent` is from 0 to 99."""
        times = 1 << min(attempts - 1, 62) if self.exponential else attempts
        delay = min(self.shortest_ms * times, self.longest_ms)
        return int(delay * (1 + self.jitter * (random_percent / 49.5 - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRules:
    """None: not bounded. `dry` names the rules that only count what they would do, by the names of these fields."""

    max_attempts: int | None = None
    backoff: BackoffRule | None = None
    max_buried: int | None = None
    breaker: float | None = None  # share of the last minute's deliveries that were buried
    ttl: int | None = None  # nanoseconds
    ttl_buries: bool = False
    max_messages: int | None = None  # that wait
    max_bytes: int | None = None  # of what waits
    overflow: Overflow = Overflow.REJECT
    max_rate: float | None = None  # deliveries a second
    expire_after: float | None = None  # seconds without consumers
    expire_full: bool = False  # expires even with messages
    dry: frozenset[str] = frozenset()

    @property
    def expiry_pause(self) -> float:
        """The seconds between two looks for expired messages of a channel that delivers nothing."""
        return min(max((self.ttl or 0) / 1_000_000_000 / 10, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    def in_force(self) -> ChannelRules:
        """Return the rules without those that are only tried."""
        return replace(self, dry=frozenset(), **_nothing_of(self.dry)) if self.dry else self

    def dry_run(self) -> ChannelRules:
        """Return those that are only tried, whose effect is counted."""
        if not self.dry:
            return NO_CHANNEL_RULES
        return ChannelRules(
            overflow=self.overflow,
            ttl_buries=self.ttl_buries,
            expire_full=self.expire_full,
            **{name: getattr(self, name) for name in self.dry},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """None: not bounded. See `ChannelRules`."""

    max_messages: int | None = None  # that are kept
    max_bytes: int | None = None  # that are kept
    overflow: Overflow = Overflow.REJECT
    expire_after: float | None = None  # seconds without publishes
    expire_full: bool = False
    dry: frozenset[str] = frozenset()

    def in_force(self) -> TopicRules:
        """See `ChannelRules`."""
        return replace(self, dry=frozenset(), **_nothing_of(self.dry)) if self.dry else self

    def dry_run(self) -> TopicRules:
        """See `ChannelRules`."""
        if not self.dry:
            return NO_TOPIC_RULES
        tried = {name: getattr(self, name) for name in self.dry}
        return TopicRules(overflow=self.overflow, expire_full=self.expire_full, **tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """What a policy demands of one topic's log. None: nothing, so that the options hold."""

    ack: Ack | None = None
    retention_time: int | None = None  # nanoseconds
    retention_bytes: int | None = None
    is_own: bool = False  # the retention was meant for this topic or some, and not for all


def deletion_at(
    rules: ChannelRules | TopicRules, idle_since: float, *, is_empty: bool, now: float, at: int
) -> int | None:
    """Return when something that nobody uses is deleted, in nanoseconds since 1970; None: it stays.

    `now` and `at` are one moment on two clocks. The time is in whole seconds, so that it is the same at each look.
    """
    if rules.expire_after is None or not (is_empty or rules.expire_full):
        return None
    return round(at / _NANOSECONDS + idle_since + rules.expire_after - now) * _NANOSECONDS


def _nothing_of(names: frozenset[str]) -> dict[str, Any]:
    return dict.fromkeys(names)


NO_CHANNEL_RULES: Final = ChannelRules()
NO_TOPIC_RULES: Final = TopicRules()
NO_LOG_RULES: Final = LogRules()


class RuleSource(Protocol):
    """Where the broker gets the rules of a name: when it is created, and whenever `Broker.rules_changed` is called."""

    def channel(self, topic: str, channel: str, /) -> ChannelRules: ...

    def topic(self, topic: str, /) -> TopicRules: ...


class _NoRules:
    def channel(self, topic: str, channel: str, /) -> ChannelRules:
        return NO_CHANNEL_RULES

    def topic(self, topic: str, /) -> TopicRules:
        return NO_TOPIC_RULES


NO_RULES: Final[RuleSource] = _NoRules()
