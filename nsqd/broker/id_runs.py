"""Finds the sequence of a deferred message by its id, if it was published since the start of nsqd.

It is separate from topic.py because it is pure: numbers in, numbers out.

Ids are counted per node and sequences per topic, and both ascend. Their difference changes only when another topic gets
messages in between. So we store *runs* of messages with the same difference. For example, if only one topic gets
messages, it has a single run, however many there are.

    ids         100 101 102         250 251
    sequences     0   1   2           3   4        two runs: ids 100-102 from sequence 0, ids 250-251 from sequence 3
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

_FEW: Final = 64  # runs; up to this many we don't check whether they are still needed
_LOOKED_AT: Final = 4  # runs to check for each one that is added


class DeferredIds:
    """The runs, oldest first. If a message is in none of them, search the log.

    Stale runs, which have no deferred message left, are dropped once there are twice as many runs (plus 64) as after the
    last clean-up. Each `add` checks a few, and moves the ones to keep to the front:

        kept │ stale │ not checked yet
             _kept   _seen

    So there are never more than about three times as many runs as waiting messages, plus a few.
    """

    __slots__ = ("_bases", "_ends", "_kept", "_most", "_seen", "_starts")

    def __init__(self) -> None:
        self._starts = array("Q")  # the first id of each run
        self._ends = array("Q")  # one past its last id
        self._bases = array("Q")  # the sequence of its first id
        self._most = _FEW
        self._kept = 0
        self._seen = 0

    def __len__(self) -> int:
        return len(self._starts) - self._seen + self._kept

    def add(self, base_id: int, base_sequence: int, count: int, waits: Callable[[int, int], bool]) -> None:
        """Add a batch, which must come after all earlier ones.

        `waits(start, end)` returns whether any message in [start, end) is still deferred.
        """
        if self._starts and self._starts[-1] + base_sequence == base_id + self._bases[-1]:
            self._ends[-1] = base_id + count
            return
        self._starts.append(base_id)
        self._ends.append(base_id + count)
        self._bases.append(base_sequence)
        if self._seen or len(self._starts) > self._most:
            self._drop_some_stale(waits)

    def find(self, message_id: int) -> int | None:
        """Return the sequence of this message, or None if it is in no run."""
        place = bisect_right(self._starts, message_id, self._seen) - 1
        if place < self._seen:
            place = bisect_right(self._starts, message_id, 0, self._kept) - 1
        if place < 0 or message_id >= self._ends[place]:
            return None
        return self._bases[place] + message_id - self._starts[place]

    def _drop_some_stale(self, waits: Callable[[int, int], bool]) -> None:
        """Check the next few runs, and drop the ones without a deferred message."""
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
