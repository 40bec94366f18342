"""What a policy file says about a topic: the one that is obeyed, and the one that is only tried.

As for a channel (channel_policy.py), there are two: one decides, and of the other one `TopicDryRun` counts the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, final

from nsqd.broker.limits import Headroom, count_cause, drops, excess, excess_with, refuses

if TYPE_CHECKING:
    from nsqd.broker.limits import AnyRules, LimitReached, Usage
    from nsqd.broker.rules import TopicRules


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
        """Count for messages that were admitted: so many, with so many bytes."""
        if (full := self.policy.admit(count, size)) is not None:
            count_cause(self._counts, f"{full.rule}, dry run", count)

    def holds(self, held: Usage) -> None:
        """Count for what the topic holds after bounds were applied to its channels."""
        if self.policy.drops:
            beyond = self.policy.excess(held)
            count_cause(self._counts, "overflow, dry run", beyond - self._beyond)
            self._beyond = beyond
