"""Decides what happens after a worker exits: restart it, leave it down, or give up altogether.

It stands alone because it is pure: no processes, no clock, no waiting. worker_process.py acts on its decisions.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from nsqcommon.entry import HELD_SIGNALS
from nsqcommon.startup import TakenOver

STEADY: Final = 10.0  # seconds; an exit before that is a quick death
FIRST_PAUSE: Final = 0.5  # seconds, after the second quick death in a row
LONGEST_PAUSE: Final = 30.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker's process exited. A status of -9 means that signal 9 killed it."""

    status: int
    lived: float  # seconds

    @property
    def is_orderly(self) -> bool:
        """Whether the process stopped cleanly, or was killed by a stop signal.

        A stop signal kills a process that has no handler for it yet. That's fine, because nothing can be lost so early.
        """
        return self.status == 0 or -self.status in HELD_SIGNALS

    def __str__(self) -> str:
        if self.status < 0:
            return f"was killed by {_name_of_signal(-self.status)}"
        return f"ended with exit status {self.status}"


class Next(Enum):
    START = auto()
    REST = auto()  # it has drained, an operator has stopped just this worker, or another machine goes on with its node
    GIVE_UP = auto()  # it can't start; the last line of its log says why


def next_after(ending: Ending, *, is_renewed: bool, has_been_ready: bool, stands_by: bool = False) -> Next:
    """Decide what to do after a worker's exit. `is_renewed` means that we stopped it in order to restart it.

    With `stands_by` a worker that another process has taken over from is started again, as a standby.

    If a worker exits with an error and has never been ready, we give up, as a single nsqd would. Once it has been ready,
    we keep restarting it: the other workers have clients, and must not go down because of this worker's full disk.
    """
    if is_renewed:
        return Next.START
    if ending.status == TakenOver.exit_status:
        return Next.START if stands_by else Next.REST
    if ending.status == 0:
        return Next.REST
    if ending.status > 0 and not has_been_ready:
        return Next.GIVE_UP
    return Next.START


class Pauses:
    """The pauses before a worker's restarts: none, unless it keeps dying soon after each start."""

    def __init__(self) -> None:
        self._quick_deaths = 0

    def pause_after(self, ending: Ending) -> float:
        """Return the seconds to wait before the next start: 0, 0.5, 1, 2, ... 30 after quick deaths in a row."""
        self._quick_deaths = self._quick_deaths + 1 if ending.lived < STEADY else 0
        if self._quick_deaths < 2:
            return 0.0
        doublings = min(self._quick_deaths - 2, 10)  # ten already exceed the longest pause
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**doublings)


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
