"""Finds repeated ids in two passes. It stands alone because the trick works for any numbers, not only for an import's.

An import has millions of ids, and a set of them would take too much memory. But a queue's ids mostly ascend, and an id
higher than all before it must be new. So the first pass collects only the others, the suspects, and the second pass
remembers which suspects it has seen. For example, in 5 7 6 7 the suspects are 6 and 7, and the second 7 is a repeat.
"""

from __future__ import annotations


class RepeatSurvey:
    """The first pass: collects the suspects. `highest` is the highest id of the queues before this one, if any."""

    def __init__(self, highest: int = -1) -> None:
        self.highest = highest
        self.suspects: set[int] = set()

    def note(self, number: int) -> None:
        if number > self.highest:
            self.highest = number
        else:
            self.suspects.add(number)


class RepeatFilter:
    """The second pass: tells the first occurrence of a suspect from its repeats."""

    def __init__(self, survey: RepeatSurvey) -> None:
        self._suspects = survey.suspects
        self._met: set[int] = set()

    def is_repeated(self, number: int) -> bool:
        """Return whether an earlier call had the same number."""
        if number not in self._suspects:
            return False
        if number in self._met:
            return True
        self._met.add(number)
        return False
