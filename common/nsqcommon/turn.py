"""Turns: inputs enter a daemon's cores one at a time, and each turn ends with its decisions written and sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Turn(Protocol):
    """How a daemon begins and finishes each entry into its cores."""

    def begin(self) -> float:
        """Read the clock for this turn and return the time."""

    def finish(self) -> None:
        """Write, deliver and, through `Poller.flush`, send everything that the turn decided."""


@contextmanager
def in_turn(turn: Turn) -> Iterator[float]:
    """Enter the cores: `with in_turn(turn) as now:`. Do not await inside.

    The turn finishes even if the body raises, because decisions made before the error must not wait for the next turn.
    """
    now = turn.begin()
    try:
        yield now
    finally:
        turn.finish()
