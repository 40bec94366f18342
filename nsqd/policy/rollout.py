"""Applies a changed policy file to all topics, channels and logs, a few in each turn, so that clients don't wait.

For example, a file with 2,000 patterns and 10,000 topics with 3 channels each need 80 million comparisons, which take
ten seconds in pure Python. A turn makes at most `_COMPARISONS` of them. It may end after any channel, so even a topic
with very many channels doesn't make a turn long.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import trio

from nsqcommon.turn import Turn, in_turn

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker

_COMPARISONS: Final = 20_000  # at most per turn; three milliseconds in pure Python
_NAMES: Final = 100  # at most per turn, even if the file is short


class PolicyStore(Protocol):
    def settings_changed(self, topics: list[str]) -> None: ...


class PolicySource(Protocol):
    topics_left: int

    @property
    def entries(self) -> int:
        """The number of entries in the policy file. Each topic's name is compared with all of them."""


class Rollout:
    """Applies the last change of the policy file. A newer change makes it start over."""

    def __init__(self, policy: PolicySource, broker: Broker, turn: Turn, store: PolicyStore) -> None:
        """We set `policy.topics_left` to the number of topics that still have older rules."""
        self._policy = policy
        self._broker = broker
        self._turn = turn
        self._store = store
        self._steps: Iterator[object] = iter(())
        self._is_under_way = False

    def start(self, nursery: trio.Nursery) -> None:
        """Start over with the first topic, because the policy has changed."""
        names = list(self._broker.topics)
        self._policy.topics_left = len(names)
        self._steps = self._apply_to(names)
        if names and not self._is_under_way:
            self._is_under_way = True
            nursery.start_soon(self._run)

    async def _run(self) -> None:
        while self._policy.topics_left:
            at_once = max(1, min(_NAMES, _COMPARISONS // max(1, self._policy.entries)))
            with in_turn(self._turn):
                for _ in islice(self._steps, at_once):
                    pass
            await trio.lowlevel.checkpoint()
        self._is_under_way = False

    def _apply_to(self, names: list[str]) -> Iterator[object]:
        """Apply the new rules to the topics, with a pause after each topic and channel."""
        for left, name in zip(range(len(names) - 1, -1, -1), names, strict=True):
            self._store.settings_changed([name])
            yield from self._broker.apply_rules_in_steps(name)
            self._broker.apply_retention([name])
            self._policy.topics_left = left
