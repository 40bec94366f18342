"""Finds the rules for a name: each key comes from the first entry that matches the name and has the key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from nsqcommon.durations import seconds
from nsqcommon.name_patterns import matcher
from nsqd.broker.rules import (
    NO_CHANNEL_RULES,
    NO_LOG_RULES,
    NO_TOPIC_RULES,
    BackoffRule,
    ChannelRules,
    LogRules,
    TopicRules,
)
from nsqd.policy.keys import KEYS, About

ANY: Final = "*"

_BACKOFF_MIN_MS: Final = 1_000
_BACKOFF_MAX_MS: Final = 600_000
_JITTER: Final = 0.2
_EXPIRY_INTERVAL: Final = 60.0
_SHORTEST_INTERVAL: Final = 1.0

R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: two equal entries are still two places in a file
class PolicyEntry:
    line: int  # of its [[policy]]
    topic: str  # a pattern
    channel: str | None  # a pattern; None if the entry has no `channel`
    written: Mapping[str, Any]  # the values as in the file
    values: Mapping[str, Any]  # the values as parsed
    is_dry: bool
    _is_topic: Callable[[str], object] = field(init=False)
    _is_channel: Callable[[str], object] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_topic", matcher(self.topic))
        object.__setattr__(self, "_is_channel", matcher(self.channel or ANY))

    def matches_topic(self, topic: str) -> bool:
        """Return whether the entry applies to this topic or to its channels."""
        return self.topic == ANY or bool(self._is_topic(topic))

    def matches_channel(self, channel: str | None) -> bool:
        """Return whether the entry applies to this channel or, if `channel` is None, to the topic itself."""
        return self.channel is None or (channel is not None and bool(self._is_channel(channel)))

    def about(self, key: str) -> About:
        """Return whether a key of this entry applies to CHANNELS or to TOPICS."""
        about = KEYS[key].about
        if about is About.EITHER:
            return About.TOPICS if self.channel is None else About.CHANNELS
        return about


@dataclass(frozen=True, slots=True)
class EffectiveKey:
    """A key that applies to a name, and the line it comes from."""

    value: Any  # as written in the file
    line: int
    is_dry: bool


class Policies:
    """A policy file's entries. Names that match the same entries share one object with their rules."""

    def __init__(self, entries: Sequence[PolicyEntry]) -> None:
        self.entries = entries
        self._of_last_topic: tuple[str, list[PolicyEntry]] = ("", [])
        self._of_channels: dict[tuple[PolicyEntry, ...], ChannelRules] = {(): NO_CHANNEL_RULES}
        self._of_topics: dict[tuple[PolicyEntry, ...], TopicRules] = {(): NO_TOPIC_RULES}
        self._of_logs: dict[tuple[PolicyEntry, ...], LogRules] = {(): NO_LOG_RULES}

    def channel(self, topic: str, channel: str) -> ChannelRules:
        return _shared(self._of_channels, self._matching(topic, channel), _channel_rules)

    def topic(self, topic: str) -> TopicRules:
        return _shared(self._of_topics, self._matching(topic, None), _topic_rules)

    def log(self, topic: str) -> LogRules:
        return _shared(self._of_logs, self._matching(topic, None), _log_rules)

    def retention_times(self) -> Iterator[int]:
        for entry in self.entries:
            if "retention_time" in entry.values:
                yield entry.values["retention_time"]

    @property
    def expiry_interval(self) -> float:
        """Seconds between checks for expired topics and channels: 60, or less if some expire within ten minutes."""
        times = [seconds(entry.values["expire_after"]) for entry in self.entries if "expire_after" in entry.values]
        return min([_EXPIRY_INTERVAL, *(max(_SHORTEST_INTERVAL, time / 10) for time in times)])

    def explain(self, topic: str, channel: str | None) -> dict[str, EffectiveKey]:
        """Return the keys that apply to a channel or, if `channel` is None, to the topic, in the order of `KEYS`."""
        found = _deciding(self._matching(topic, channel), About.TOPICS if channel is None else About.CHANNELS)
        return {
            key: EffectiveKey(found[key].written[key], found[key].line, found[key].is_dry)
            for key in KEYS
            if key in found
        }

    def _matching(self, topic: str, channel: str | None) -> tuple[PolicyEntry, ...]:
        return tuple([entry for entry in self._about_topic(topic) if entry.matches_channel(channel)])

    def _about_topic(self, topic: str) -> list[PolicyEntry]:
        """Return the entries that match the topic.

        Caches the last result, because callers ask about a topic, then its log, then each of its channels.
        """
        last, entries = self._of_last_topic
        if last != topic:
            entries = [entry for entry in self.entries if entry.matches_topic(topic)]
            self._of_last_topic = topic, entries
        return entries


def _shared(
    known: dict[tuple[PolicyEntry, ...], R],
    entries: tuple[PolicyEntry, ...],
    make: Callable[[Iterable[PolicyEntry]], R],
) -> R:
    rules = known.get(entries)
    if rules is None:
        rules = known[entries] = make(entries)
    return rules


def _deciding(entries: Iterable[PolicyEntry], about: About) -> dict[str, PolicyEntry]:
    """Map each key that applies to `about` to the first entry that has it."""
    deciding: dict[str, PolicyEntry] = {}
    for entry in entries:
        for key in entry.values:
            if entry.about(key) is about:
                deciding.setdefault(key, entry)
    return deciding


def _channel_rules(entries: Iterable[PolicyEntry]) -> ChannelRules:
    deciding = _deciding(entries, About.CHANNELS)
    rules = ChannelRules(**_named(ChannelRules, deciding), dry=_dry(deciding))
    return rules if rules != NO_CHANNEL_RULES else NO_CHANNEL_RULES


def _topic_rules(entries: Iterable[PolicyEntry]) -> TopicRules:
    deciding = _deciding(entries, About.TOPICS)
    rules = TopicRules(**_named(TopicRules, deciding), dry=_dry(deciding))
    return rules if rules != NO_TOPIC_RULES else NO_TOPIC_RULES


def _named(rules: type[ChannelRules | TopicRules], deciding: Mapping[str, PolicyEntry]) -> dict[str, Any]:
    """Return the arguments for `rules`. Most fields have the name and value of a key; three are derived."""
    values = {key: entry.values[key] for key, entry in deciding.items()}
    if "expire_after" in values:
        values["expire_after"] = seconds(values["expire_after"])
    if "ttl_action" in values:
        values["ttl_buries"] = values["ttl_action"] == "bury"
    if "backoff" in values:
        values["backoff"] = _backoff(_getter(deciding))
    return {it.name: values[it.name] for it in fields(rules) if it.name in values}


def _log_rules(entries: Iterable[PolicyEntry]) -> LogRules:
    deciding = _deciding(entries, About.TOPICS)
    get = _getter(deciding)
    retains = [deciding[key] for key in ("retention_time", "retention_bytes") if key in deciding]
    return LogRules(
        ack=get("ack"),
        retention_time=get("retention_time"),
        retention_bytes=get("retention_bytes"),
        is_own=any(entry.topic != ANY for entry in retains),
    )


def _backoff(get: Callable[..., Any]) -> BackoffRule:
    shortest = get("backoff_min", _BACKOFF_MIN_MS)
    # We refuse a contradiction within an entry. If two entries contradict each other, the longer delay applies.
    longest = max(shortest, get("backoff_max", _BACKOFF_MAX_MS))
    return BackoffRule(
        exponential=get("backoff") == "exponential",
        shortest_ms=shortest,
        longest_ms=longest,
        jitter=get("jitter", _JITTER),
    )


def _getter(deciding: Mapping[str, PolicyEntry]) -> Callable[..., Any]:
    return lambda key, default=None: deciding[key].values[key] if key in deciding else default


def _dry(deciding: Mapping[str, PolicyEntry]) -> frozenset[str]:
    """Return the keys that are only being dry-run, except keys that refine another one, such as `overflow`."""
    return frozenset(key for key, entry in deciding.items() if entry.is_dry and not KEYS[key].needs)
