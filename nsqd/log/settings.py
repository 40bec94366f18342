"""The settings of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.broker.rules import NO_LOG_RULES, LogRules
from nsqd.log.retention import Retention

if TYPE_CHECKING:
    from nsqd.ack import Ack

_SHORTEST_INTERVAL: Final = 1.0
_LONGEST_INTERVAL: Final = 60.0


class LogPolicy(Protocol):
    """What a policy file says about logs. It may change: then the store's `settings_changed` is called."""

    def log(self, topic: str, /) -> LogRules: ...

    def retention_times(self) -> Iterable[int]:
        """Return all times for which it has messages kept, for whatever topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Has no defaults: nsqd's options define the only ones."""

    max_bytes_per_file: int
    mem_queue_size: int  # messages in a topic's tail cache
    mem_queue_bytes: int  # the same in bytes
    sync_every: int  # how many messages may be unsynced
    sync_timeout: float  # for how many seconds
    ack: Ack
    topic_ack: Mapping[str, Ack]
    disk_reserve: int  # bytes that publishing leaves free; -1: see disk_reserve.py
    retention: Retention
    topic_retention: Mapping[str, Retention]
    idempotence_window: int  # nanoseconds for which keys are remembered
    idempotence_keys: int  # how many at most
    policy: LogPolicy | None  # overrules what is said of single topics here; None: there is no policy file

    def ack_of(self, topic: str) -> Ack:
        return self._rules_of(topic).ack or self.topic_ack.get(topic, self.ack)

    @property
    def retention_interval(self) -> float | None:
        """Seconds between two looks for segments that have become too old; None: nothing ever becomes too old."""
        given = [retention for retention in (self.retention, *self.topic_retention.values()) if retention]
        policy_times = list(self.policy.retention_times()) if self.policy is not None else []
        if not given and not self.idempotence_window and self.policy is None:
            return None
        times = [retention.time for retention in given if retention.time]
        times += [time for time in policy_times if time]
        if self.idempotence_window:
            times.append(self.idempotence_window)
        shortest = min((time / 1e9 for time in times), default=inf)
        return min(max(shortest / 10, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)

    def retention_of(self, topic: str) -> Retention:
        given = self.topic_retention.get(topic, self.retention)
        rules = self._rules_of(topic)
        if rules.retention_time is None and rules.retention_bytes is None:
            return given
        return Retention(
            given.time if rules.retention_time is None else rules.retention_time,
            given.bytes if rules.retention_bytes is None else rules.retention_bytes,
        )

    def is_own_retention(self, topic: str) -> bool:
        """Return whether its retention was set for this very topic: then it holds also while no channel has got all."""
        return topic in self.topic_retention or self._rules_of(topic).is_own

    @property
    def needs_ages(self) -> bool:
        """Whether a retention by time may come to hold while nsqd runs, so that the age of each segment is needed."""
        return self.policy is not None

    def _rules_of(self, topic: str) -> LogRules:
        return self.policy.log(topic) if self.policy is not None else NO_LOG_RULES
