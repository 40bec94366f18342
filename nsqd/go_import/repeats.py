"""Which ids come twice, found without remembering all of them.

A queue's ids mostly ascend. One that is higher than all before it is new; only the others, the suspects, can be
repetitions. So a first pass finds the suspects, and a second one remembers which of them it has met.
"""

from __future__ import annotations


class Survey:
    """The first pass; `highest` is that of other queues which count as read before."""

    def __init__(self, highest: int = -1) -> None:
        self.highest = highest
        self.suspects: set[int] = set()

    def note(self, number: int) -> None:
        if number > self.highest:
            self.highest = number
        else:
            self.suspects.add(number)


class Seen:
    """The second pass."""

    def __init__(self, survey: Survey) -> None:
        self._suspects = survey.suspects
        self._met: set[int] = set()

    def is_repeated(self, number: int) -> bool:
        """Whether the number was asked for before."""
        if number not in self._suspects:
            return False
        if number in self._met:
            return True
        self._met.add(number)
        return False
