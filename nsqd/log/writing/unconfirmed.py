"""Tracks the part of a log that its remote copy doesn't certainly have, and the publishers that wait for that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.batch import Receipt

MOST_MARKS: Final = 64


class Unconfirmed:
    """How far a log is confirmed, and what happens when more is.

    Each write leaves a mark: the number of the last change by then, and where the log ended. When that change is confirmed,
    readers of history may see the log up to there.

    While the store is away for hours, marks would pile up. So there are at most MOST_MARKS, and then the last one moves
    with each write. For example, with marks at changes 10, 20 and 30, and a write at 40, they become 10, 20 and 40.
    """

    def __init__(self, checkpoint: tuple[int, int, int]) -> None:
        # (base of a segment, offset in it, sequence): everything before this position is confirmed.
        self.checkpoint = checkpoint
        self._marks: list[tuple[int, tuple[int, int, int]]] = []  # ascending
        self._receipts: list[tuple[int, Receipt]] = []  # ascending

    @property
    def is_empty(self) -> bool:
        return not self._marks

    @property
    def waiting(self) -> int:
        """How many batches wait with their publishers."""
        return len(self._receipts)

    def written(self, position: int, end: tuple[int, int, int], receipts: Iterable[Receipt]) -> None:
        """Note that the log ends here since this change, and settle the receipts when that is confirmed."""
        marks = self._marks
        if len(marks) < MOST_MARKS:
            marks.append((position, end))
        else:
            marks[-1] = position, end
        self._receipts.extend([(position, receipt) for receipt in receipts])

    def expect(self, receipt: Receipt) -> None:
        """Settle this receipt, too, when everything is confirmed that is written. Call this only if something isn't."""
        position, _ = self._marks[-1]
        self._receipts.append((position, receipt))

    def confirmed(self, position: int) -> bool:
        """Advance the checkpoint, and settle the receipts up to it. Return whether it has moved."""
        waiting = self._receipts
        count = bisect_right(waiting, position, key=itemgetter(0))
        settled, self._receipts = waiting[:count], waiting[count:]
        before = self.checkpoint
        marks = self._marks
        passed = bisect_right(marks, position, key=itemgetter(0))
        if passed:
            self.checkpoint = marks[passed - 1][1]
            del marks[:passed]
        for _, receipt in settled:
            receipt.settle()
        return self.checkpoint != before

    def take_receipts(self) -> list[Receipt]:
        """Remove and return the receipts of all publishers that wait for a confirmation."""
        taken, self._receipts = self._receipts, []
        return [receipt for _, receipt in taken]
