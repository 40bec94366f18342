"""A case: one topic or channel, with everything that the rules need to judge it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nsqadmin.cluster.flow import dropped_among
from nsqadmin.cluster.model import (
    Channel,
    Evidence,
    Finding,
    Metric,
    Severity,
    Snapshot,
    Topic,
    channel_series,
    topic_series,
)
from nsqadmin.cluster.policy_counts import LATELY
from nsqadmin.diagnosis.impact import impact
from nsqadmin.diagnosis.rules import RULES, Effect


class Trends(Protocol):
    """The history of numbers; `SeriesStore` is one."""

    def recent(self, key: str, metric: Metric, seconds: float) -> Sequence[float]:
        """Return the known values of the last `seconds`, oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The context of one topic or channel, and the common parts of all findings about it."""

    snapshot: Snapshot
    trends: Trends
    series: str  # its key in `trends`
    waiting: int
    growth: float  # messages a second that more wait
    lost: int  # messages dropped in the last minutes
    topic: str
    channel: str = ""

    @classmethod
    def of_topic(cls, topic: Topic, snapshot: Snapshot, trends: Trends) -> Case:
        return cls(
            snapshot=snapshot,
            trends=trends,
            series=topic_series(topic.name),
            waiting=topic.depth,
            growth=0.0,
            lost=dropped_among(topic.policy_recent),
            topic=topic.name,
        )

    @classmethod
    def of_channel(cls, channel: Channel, snapshot: Snapshot, trends: Trends) -> Case:
        return cls(
            snapshot=snapshot,
            trends=trends,
            series=channel_series(channel.topic, channel.name),
            waiting=channel.depth,
            growth=channel.growth or 0.0,
            lost=dropped_among(channel.policy_recent),
            topic=channel.topic,
            channel=channel.name,
        )

    def recent(self, metric: Metric, seconds: float) -> Sequence[float]:
        return self.trends.recent(self.series, metric, seconds)

    def mean(self, metric: Metric, seconds: float) -> float:
        values = self.recent(metric, seconds)
        return sum(values) / len(values) if values else 0.0

    def finding(
        self,
        rule: str,
        severity: Severity,
        verdict: str,
        advice: str,
        *evidence: Evidence,
        window: float = 0.0,
        is_inferred: bool = False,
        action: str = "",
        others: tuple[str, ...] = (),
    ) -> Finding:
        effect = RULES[rule].effect if rule in RULES else Effect.WAITING
        is_loss = effect is Effect.LOST
        return Finding(
            rule=rule,
            severity=severity,
            verdict=verdict,
            advice=advice,
            topic=self.topic,
            channel=self.channel,
            evidence=evidence,
            window=window,
            is_inferred=is_inferred,
            action=action,
            others=others,
            weight=impact(
                effect,
                severity,
                messages=self.lost if is_loss else self.waiting,
                speed=self.lost / LATELY if is_loss else self.growth,
            ),
        )


def first_that_speaks(answers: Iterable[Iterable[Finding]]) -> Iterable[Finding]:
    """Return the findings of a group's first rule that finds anything."""
    for answer in answers:
        if found := list(answer):
            return found
    return ()
