"""Turns: a daemon calls its cores only in a turn, and writes and sends their decisions when the turn finishes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Turn(Protocol):
    """Begins and finishes a daemon's turns."""

    def begin(self) -> float:
        """Begin a turn: read the clock and return the time."""

    def finish(self) -> None:
        """Write, deliver and, through `Poller.flush`, send everything that the turn decided."""


@contextmanager
def in_turn(turn: Turn) -> Iterator[float]:
    """Begin a turn, and finish it after the block: `with in_turn(turn) as now:`. Don't await in the block.

    The turn finishes even if the block raises, because decisions made before the error must not wait for the next turn.
    """
    now = turn.begin()
    try:
        yield now
    finally:
        turn.finish()
