"""Turns: what enters the cores of a daemon does so one at a time, and leaves with everything decided, written and sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Turn(Protocol):
    def begin(self) -> float:
        """Take the time of this turn and return it."""

    def finish(self) -> None:
        """Write, deliver and, through `Poller.flush`, send everything that was decided."""


@contextmanager
def in_turn(turn: Turn) -> Iterator[float]:
    """Enter the cores: `with in_turn(turn) as now:`. No await inside.

    The turn is finished also when the body raises: what was decided before must not wait for whoever comes next.
    """
    now = turn.begin()
    try:
        yield now
    finally:
        turn.finish()
