"""Finds topics and channels that have been unused for longer than `expire_after` in the policy.

Idle time starts at the last use, or at the start of nsqd if that is later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.rules import ChannelRules, TopicRules
    from nsqd.broker.topic import Topic


class Expired(NamedTuple):
    """A channel to delete, or the whole topic if `channel` is empty."""

    topic: str
    channel: str
    after: float  # seconds, from the rule
    is_dry_run: bool  # only report it


def expired_in(topic: Topic, now: float) -> list[Expired]:
    """Return the topic if it has expired, otherwise its expired channels."""
    is_idle = topic.is_idle(now)
    for rules, is_dry_run in ((topic.policy.rules, False), (topic.dry_run.policy.rules, True)):
        if is_idle and rules.expire_after is not None and _has_expired(topic, rules, now):
            return [Expired(topic.name, "", rules.expire_after, is_dry_run)]
    found = []
    for name, channel in topic.channels.items():
        for rules_of, is_dry_run in ((channel.policy.rules, False), (channel.dry_run.rules, True)):
            if not channel.consumers and rules_of.expire_after is not None and _has_expired(channel, rules_of, now):
                found.append(Expired(topic.name, name, rules_of.expire_after, is_dry_run))
                break
    return found


def _has_expired(it: Topic | Channel, rules: ChannelRules | TopicRules, now: float) -> bool:
    after = rules.expire_after
    return after is not None and now - it.idle_since >= after and (rules.expire_full or it.is_empty)
