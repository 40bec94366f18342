"""Finds repeated ids without remembering all ids.

A queue's ids mostly ascend. An id higher than all before it is new; only the others, the suspects, can be repetitions.
So a first pass collects the suspects, and a second pass remembers which of them it has met. For 5 7 6 7, the suspects
are 6 and 7, and the second 7 is a repetition.
"""

from __future__ import annotations


class RepeatSurvey:
    """The first pass. `highest` is the highest id of other queues that count as read before this one."""

    def __init__(self, highest: int = -1) -> None:
        self.highest = highest
        self.suspects: set[int] = set()

    def note(self, number: int) -> None:
        if number > self.highest:
            self.highest = number
        else:
            self.suspects.add(number)


class RepeatFilter:
    """The second pass."""

    def __init__(self, survey: RepeatSurvey) -> None:
        self._suspects = survey.suspects
        self._met: set[int] = set()

    def is_repeated(self, number: int) -> bool:
        """Return whether this number was passed before."""
        if number not in self._suspects:
            return False
        if number in self._met:
            return True
        self._met.add(number)
        return False
