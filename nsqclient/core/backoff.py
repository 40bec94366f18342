"""Backoff: when a consumer slows down and speeds up again. One automaton for each consumer.

    level 0 --failed--> level 1, waiting --expired--> level 1, testing --failed--> level 2, waiting
                                                                       --succeeded--> level 0

While the automaton waits, answers change nothing, so many failures at once count as one. The answer to the test message
decides.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqclient.core.config import BackoffStrategy

_TEST_AGAIN: Final = 1.0  # seconds until the next attempt if no nsqd was there for a test message
# 2.0 ** 1024 would overflow. Only a multiplier of 0 lets the level grow that far: other pauses reach their limit first.
_MOST_DOUBLINGS: Final = 1000


class Signal(Enum):
    """What the answer to a message means for backoff."""

    SUCCEEDED = auto()
    FAILED = auto()
    NEITHER = auto()  # requeued without backoff, or given up


class BackoffStep(Enum):
    """What the consumer has to do next."""

    NOTHING = auto()
    WAIT = auto()  # send RDY 0 to all nsqds and wait until `until`
    END = auto()  # send the full RDY to all nsqds


class Backoff:
    """The state of one consumer's backoff."""

    __slots__ = ("_longest", "_pause", "level", "pause", "until")

    def __init__(
        self, strategy: BackoffStrategy, *, multiplier: float, longest: float, random: Callable[[], float]
    ) -> None:
        self._pause = _pauses(strategy, multiplier, random)
        self._longest = longest
        self.level = 0
        self.until: float | None = None  # when the wait ends; None: not waiting
        self.pause = 0.0  # the length of the wait in seconds

    @property
    def active(self) -> bool:
        return self.level > 0 or self.until is not None

    def signal(self, signal: Signal, now: float) -> BackoffStep:
        """Record the answer to a message, and return what to do next."""
        if self.until is not None or self._pause is None:
            return BackoffStep.NOTHING
        before = self.level
        if signal is Signal.SUCCEEDED and self.level:
            self.level -= 1
        elif signal is Signal.FAILED and self._longest > 0 and self._pause(self.level + 1) <= self._longest:
            self.level += 1
        if self.level == 0:
            return BackoffStep.END if before else BackoffStep.NOTHING
        self.pause = min(self._pause(self.level), self._longest)
        self.until = now + self.pause
        return BackoffStep.WAIT

    def tested(self, now: float, *, has_begun: bool) -> None:
        """End the wait. `has_begun`: some nsqd was asked for a test message."""
        self.until = None if has_begun else now + _TEST_AGAIN

    def clear(self) -> None:
        """End the wait, because the consumer stops."""
        self.until = None


def _pauses(strategy: BackoffStrategy, multiplier: float, random: Callable[[], float]) -> Callable[[int], float] | None:
    """Return a function that computes the pause (seconds) from the level, or None for a consumer without backoff."""
    if callable(strategy):
        return strategy
    if strategy == "exponential":
        return lambda level: multiplier * 2.0 ** min(level, _MOST_DOUBLINGS)
    if strategy == "full_jitter":
        return lambda level: random() * multiplier * 2.0 ** min(level, _MOST_DOUBLINGS)
    return None
