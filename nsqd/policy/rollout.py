"""Hands a changed policy file to all topics, channels and logs: some in each turn, because clients must not wait for it.

Say the file has 2,000 patterns, and nsqd has 10,000 topics with 3 channels each. Then 80 million comparisons are due,
which take ten seconds in pure Python. A turn makes some thousands of them, whether one topic has all the channels or
each topic has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import trio

from nsqcommon.turn import Turn, in_turn

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker

_COMPARISONS: Final = 20_000  # in one turn at most: three milliseconds in pure Python
_NAMES: Final = 100  # in one turn at most, however short the file is


class PolicyStore(Protocol):
    def settings_changed(self, topics: list[str]) -> None: ...


class PolicySource(Protocol):
    topics_left: int

    @property
    def entries(self) -> int:
        """How many entries each name is compared with."""


class Rollout:
    """The last change of the policy file, on its way to the topics. A newer one starts over."""

    def __init__(self, policy: PolicySource, broker: Broker, turn: Turn, store: PolicyStore) -> None:
        """Set up, with nothing to do yet. `policy.topics_left` tells how many topics still follow an older file."""
        self._policy = policy
        self._broker = broker
        self._turn = turn
        self._store = store
        self._steps: Iterator[object] = iter(())
        self._is_under_way = False

    def start(self, nursery: trio.Nursery) -> None:
        """Begin again with the first topic, because the policy has changed."""
        names = list(self._broker.topics)
        self._policy.topics_left = len(names)
        self._steps = self._take_over(names)
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

    def _take_over(self, names: list[str]) -> Iterator[object]:
        """Yield after each topic and each channel that follows the new file."""
        for left, name in zip(range(len(names) - 1, -1, -1), names, strict=True):
            self._store.settings_changed([name])
            yield from self._broker.taking_rules(name)
            self._broker.let_go([name])
            self._policy.topics_left = left
