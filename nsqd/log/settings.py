"""The log's settings: options, and the policy file's exceptions for individual topics."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.broker.rules import NO_LOG_RULES, LogRules
from nsqd.log.retention import Retention

if TYPE_CHECKING:
    from nsqd.ack_option import Ack
    from nsqd.log_options import LogOptions

_SHORTEST_INTERVAL: Final = 1.0
_LONGEST_INTERVAL: Final = 60.0


class LogPolicy(Protocol):
    """The policy file's rules for logs. When they change, call the store's `settings_changed`."""

    def log(self, topic: str, /) -> LogRules: ...

    def retention_times(self) -> Iterable[int]:
        """Return every retention time in the file, for any topic."""


class LogSettings:
    """The settings of each topic's log. A rule in the policy file takes precedence over the options.

    Each value is looked up separately. For example, if the policy file only sets a topic's retention time, its
    retention size still comes from the options.
    """

    def __init__(self, options: LogOptions, policy: LogPolicy | None) -> None:
        """Set up the settings. `policy` is None if there is no policy file."""
        self.options = options
        self.policy = policy
        self.retention = Retention(options.retention_time, options.retention_bytes)
        self.topic_retention = {topic: Retention(*given) for topic, given in options.topic_retentions.items()}
        self._topic_ack = options.topic_acks

    def ack_of(self, topic: str) -> Ack:
        return self._rules_of(topic).ack or self._topic_ack.get(topic, self.options.ack)

    @property
    def retention_interval(self) -> float | None:
        """Seconds between two checks for expired segments, or None if segments never expire."""
        given = [retention for retention in (self.retention, *self.topic_retention.values()) if retention]
        policy_times = list(self.policy.retention_times()) if self.policy is not None else []
        if not given and not self.options.idempotence_window and self.policy is None:
            return None
        times = [retention.time for retention in given if retention.time]
        times += [time for time in policy_times if time]
        if self.options.idempotence_window:
            times.append(self.options.idempotence_window)
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
        """Return whether the retention was set for this topic or for some topics, rather than for all.

        Only such a retention also drops messages that no channel has received.
        """
        return topic in self.topic_retention or self._rules_of(topic).is_own

    @property
    def needs_ages(self) -> bool:
        """Whether we need each segment's age even without a retention time: a policy file may set one later."""
        return self.policy is not None

    def _rules_of(self, topic: str) -> LogRules:
        return self.policy.log(topic) if self.policy is not None else NO_LOG_RULES
