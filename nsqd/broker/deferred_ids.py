"""Where the message of an id lies, among those that were published with a delay since the start.

Ids are counted for the whole node and sequences for each topic, and within a topic both ascend. So the difference
between them stays the same until another topic gets messages in between, and one *run* stands for all messages with the
same difference: a topic that is published to alone has a single run, whatever the number of its messages.

    ids         100 101 102         250 251
    sequences     0   1   2           3   4        runs: 100 to 102 from 0 on, 250 to 251 from 3 on
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

_FEW: Final = 64  # runs that are kept without asking whether anything in them still waits
_LOOKED_AT: Final = 4  # runs, for each that is added


class DeferredIds:
    """The runs, oldest first. What is not in a run has to be looked for in the log.

    There are at most some three times as many runs as messages that wait, and a few: when there are twice as many, those
    of which nothing waits any more are dropped. Whoever adds a run looks at a few of them. Those that stay move to the
    front:

        kept │ out of date │ not looked at yet
             _kept         _seen
    """

    __slots__ = ("_bases", "_ends", "_kept", "_most", "_seen", "_starts")

    def __init__(self) -> None:
        self._starts = array("Q")  # the first id of each run
        self._ends = array("Q")  # behind its last id
        self._bases = array("Q")  # the sequence of its first id
        self._most = _FEW
        self._kept = 0
        self._seen = 0

    def __len__(self) -> int:
        return len(self._starts) - self._seen + self._kept

    def add(self, base_id: int, base_sequence: int, count: int, waits: Callable[[int, int], bool]) -> None:
        """Take note of a batch, which lies behind all earlier ones.

        `waits` tells whether a message of the sequences [start, end) waits for its time.
        """
        if self._starts and self._starts[-1] + base_sequence == base_id + self._bases[-1]:
            self._ends[-1] = base_id + count
            return
        self._starts.append(base_id)
        self._ends.append(base_id + count)
        self._bases.append(base_sequence)
        if self._seen or len(self._starts) > self._most:
            self._drop_those_without(waits)

    def find(self, message_id: int) -> int | None:
        """Return the sequence of this message; None: it is not known here."""
        place = bisect_right(self._starts, message_id, self._seen) - 1
        if place < self._seen:
            place = bisect_right(self._starts, message_id, 0, self._kept) - 1
        if place < 0 or message_id >= self._ends[place]:
            return None
        return self._bases[place] + message_id - self._starts[place]

    def _drop_those_without(self, waits: Callable[[int, int], bool]) -> None:
        """Look at the next few runs, and drop those of which nothing waits."""
        starts, ends, bases = self._starts, self._ends, self._bases
        for seen in range(self._seen, min(self._seen + _LOOKED_AT, len(starts))):
            start, end, base = starts[seen], ends[seen], bases[seen]
            if waits(base, base + end - start):
                starts[self._kept], ends[self._kept], bases[self._kept] = start, end, base
                self._kept += 1
            self._seen = seen + 1
        if self._seen == len(starts):
            for column in (starts, ends, bases):
                del column[self._kept :]
            self._most = 2 * self._kept + _FEW
            self._kept = self._seen = 0
