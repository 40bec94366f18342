"""The rules that a policy sets for topics, channels and logs. Without rules, everything is as in NSQ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from nsqd.ack_option import Ack

_SHORTEST_PAUSE: Final = 1.0  # seconds
_LONGEST_PAUSE: Final = 60.0
_NANOSECONDS: Final = 1_000_000_000


class Overflow(StrEnum):
    """How to handle messages above a limit."""

    REJECT = "reject"  # refuse the publish
    DROP_OLDEST = "drop-oldest"
    BURY = "bury"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffRule:
    """How long a failed message waits before its next attempt."""

    exponential: bool  # True: the delay doubles with each attempt; False: it grows by `shortest_ms`
    shortest_ms: int
    longest_ms: int
    jitter: float  # for example, 0.2 varies the delay by up to 20% in both directions

    def delay_ms(self, attempts: int, random_percent: int) -> int:
        """Return the delay after attempt number `attempts`, counted from 1. `random_percent` is from 0 to 99."""
        times = 1 << min(attempts - 1, 62) if self.exponential else attempts
        delay = min(self.shortest_ms * times, self.longest_ms)
        return int(delay * (1 + self.jitter * (random_percent / 49.5 - 1)))  # 0..99 becomes -1..1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRules:
    """The rules of a channel. None means no such rule. `dry` names the fields that are only being dry-run."""

    max_attempts: int | None = None
    backoff: BackoffRule | None = None
    max_buried: int | None = None
    breaker: float | None = None  # pauses the channel when this share of the last minute's deliveries was buried
    ttl: int | None = None  # nanoseconds
    ttl_buries: bool = False
    max_messages: int | None = None  # waiting and deferred
    max_bytes: int | None = None  # of waiting and deferred messages
    overflow: Overflow = Overflow.REJECT
    max_rate: float | None = None  # deliveries per second
    max_in_flight: int | None = None  # messages, for all consumers together
    max_in_flight_per_group: int | None = None  # messages of one `nsq-group`; see groups.py for this and the next four
    order: str | None = None  # "group": one at a time of each group, in the order of the log
    share: str | None = None  # "group": groups take turns
    weights: tuple[tuple[str, int], ...] = ()  # (group, messages that it gets when it is its turn); others get 1
    max_held: int | None = None  # messages that may wait behind others of their groups
    expire_after: float | None = None  # seconds without consumers, after which the channel is deleted
    expire_full: bool = False  # delete it even if it has messages
    dry: frozenset[str] = frozenset()

    @property
    def has_groups(self) -> bool:
        """Whether it matters to which group a message belongs."""
        return self.max_in_flight_per_group is not None or self.order is not None or self.share is not None

    @property
    def about_groups(self) -> tuple[object, ...]:
        """The rules that decide which messages are held. If they change, the channel begins anew with its groups."""
        return self.max_in_flight_per_group, self.order, self.share

    @property
    def expiry_pause(self) -> float:
        """The seconds between two checks for expired messages while the channel delivers nothing."""
        return min(max((self.ttl or 0) / 1_000_000_000 / 10, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    def in_force(self) -> ChannelRules:
        """Return the rules without the dry run."""
        return replace(self, dry=frozenset(), **_without(self.dry)) if self.dry else self

    def dry_run(self) -> ChannelRules:
        """Return only the dry run's rules."""
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
    """The rules of a topic. None and `dry` are as in `ChannelRules`."""

    max_messages: int | None = None  # from the slowest channel's cursor to the tail
    max_bytes: int | None = None  # of these messages
    overflow: Overflow = Overflow.REJECT
    expire_after: float | None = None  # seconds without publishes, after which the topic is deleted
    expire_full: bool = False
    dry: frozenset[str] = frozenset()

    def in_force(self) -> TopicRules:
        """Return the rules without the dry run."""
        return replace(self, dry=frozenset(), **_without(self.dry)) if self.dry else self

    def dry_run(self) -> TopicRules:
        """Return only the dry run's rules."""
        if not self.dry:
            return NO_TOPIC_RULES
        limits = {name: getattr(self, name) for name in self.dry}
        return TopicRules(overflow=self.overflow, expire_full=self.expire_full, **limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """The rules of a topic's log. None means that nsqd's option applies."""

    ack: Ack | None = None
    retention_time: int | None = None  # nanoseconds
    retention_bytes: int | None = None
    is_own: bool = False  # the retention was set for certain topics, and not for all of them


def deletion_at(
    rules: ChannelRules | TopicRules, idle_since: float, *, is_empty: bool, now: float, at: int
) -> int | None:
    """Return when an idle topic or channel will be deleted, in nanoseconds since 1970, or None if it won't be.

    `now` and `at` are the current time on the monotonic and the wall clock. The result is rounded to seconds, so that
    repeated calls agree.
    """
    if rules.expire_after is None or not (is_empty or rules.expire_full):
        return None
    return round(at / _NANOSECONDS + idle_since + rules.expire_after - now) * _NANOSECONDS


def _without(names: frozenset[str]) -> dict[str, Any]:
    """Return keyword arguments for `replace` that set these fields to None."""
    return dict.fromkeys(names)


NO_CHANNEL_RULES: Final = ChannelRules()
NO_TOPIC_RULES: Final = TopicRules()
NO_LOG_RULES: Final = LogRules()


class RuleSource(Protocol):
    """Where the broker looks up the rules of a topic or channel: at its creation, and in `Broker.rules_changed`."""

    def channel(self, topic: str, channel: str, /) -> ChannelRules: ...

    def topic(self, topic: str, /) -> TopicRules: ...


class _NoRules:
    def channel(self, topic: str, channel: str, /) -> ChannelRules:
        return NO_CHANNEL_RULES

    def topic(self, topic: str, /) -> TopicRules:
        return NO_TOPIC_RULES


NO_RULES: Final[RuleSource] = _NoRules()
