"""What follows when a worker has ended: it starts again, stays down, or the whole gives up. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from nsqcommon.entry import HELD_SIGNALS

STEADY: Final = 10.0  # seconds; a worker that lived for less has died quickly
FIRST_PAUSE: Final = 0.5  # seconds, after the second quick death in a row
LONGEST_PAUSE: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker's process has ended. A negative status is the number of the signal that killed it."""

    status: int
    lived: float  # seconds

    @property
    def is_orderly(self) -> bool:
        """Whether a process that was asked to stop has done so.

        One that was asked in the first moments of its life is killed, as it has no handler yet; it had nothing to lose.
        """
        return self.status == 0 or -self.status in HELD_SIGNALS

    def __str__(self) -> str:
        if self.status < 0:
            return f"was killed by {_name_of_signal(-self.status)}"
        return f"ended with exit status {self.status}"


class Next(Enum):
    START = auto()
    REST = auto()  # it has drained, or somebody has stopped just this one
    GIVE_UP = auto()  # it cannot start: the last line of its log says why


def next_after(ending: Ending, *, is_renewed: bool, has_been_ready: bool) -> Next:
    """Decide what follows. `is_renewed`: the worker ended only to be started again.

    A worker that cannot start ends the whole, like a single nsqd, but only at the very first start. Later the others
    have clients, which must not lose them because one disk is full.
    """
    if is_renewed:
        return Next.START
    if ending.status == 0:
        return Next.REST
    if ending.status > 0 and not has_been_ready:
        return Next.GIVE_UP
    return Next.START


class Pauses:
    """The pauses before a worker's starts: none, unless it keeps dying soon after its start."""

    def __init__(self) -> None:
        self._quick_deaths = 0

    def pause_after(self, ending: Ending) -> float:
        """Return the seconds to wait before the next start: 0, 0.5, 1, 2, ... 30 while it dies quickly."""
        self._quick_deaths = self._quick_deaths + 1 if ending.lived < STEADY else 0
        if self._quick_deaths < 2:
            return 0.0
        doublings = min(self._quick_deaths - 2, 10)  # more would be beyond the longest pause anyway
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**doublings)


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
