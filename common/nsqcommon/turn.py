"""Turns: everything enters a daemon's cores one at a time, and leaves with all decisions written and sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Turn(Protocol):
    """Surrounds each entry into a daemon's cores."""

    def begin(self) -> float:
        """Take the time of this turn and return it."""

    def finish(self) -> None:
        """Write, deliver and, through `Poller.flush`, send everything that was decided."""


@contextmanager
def in_turn(turn: Turn) -> Iterator[float]:
    """Enter the cores: `with in_turn(turn) as now:`. Do not await inside.

    The turn is finished also if the body raises: decisions that were made before must not wait for the next turn.
    """
    now = turn.begin()
    try:
        yield now
    finally:
        turn.finish()
