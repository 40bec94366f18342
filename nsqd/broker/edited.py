"""What a channel knows about its edited copies (edit.py). A channel without any has none of these.

copies      the sequences of its copies
replaced    the messages that they replaced, and that must not run again
unsynced    how the journal undoes an edit whose copy isn't synced yet, for a snapshot
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, bitmap_of_ranges, ranges_in

if TYPE_CHECKING:
    from nsqd.broker.change import Change

_BEYOND: Final = 1 << 64  # all sequences


@final
class EditedMessages:
    """Two bitmaps, so a thousand edits take a few kilobytes.

    They begin at the oldest message that the log still has, in a segment or in a compacted file.
    """

    __slots__ = ("copies", "replaced", "unsynced")

    def __init__(self) -> None:
        self.copies = BitMap64()
        self.replaced = BitMap64()
        self.unsynced: dict[int, list[Change]] = {}  # copy -> changes, in the journal's order

    def add(self, copy: int, replaced: int) -> None:
        """Note that `copy` runs instead of `replaced`. -1: it replaces nothing."""
        self.copies.add(copy)
        if replaced >= 0:
            self.replaced.add(replaced)

    def forget_before(self, first: int, synced: int) -> None:
        """Forget what the log no longer has, and how to undo edits whose copies are synced, before `synced`."""
        self.copies, self.replaced = between(self.copies, first, _BEYOND), between(self.replaced, first, _BEYOND)
        self.unsynced = {copy: changes for copy, changes in self.unsynced.items() if copy >= synced}

    def ranges(self) -> tuple[list[int], list[int]]:
        """Return copies and replaced messages as in the journal: [a, b, c, d ...] for [a, b), [c, d) ..."""
        return list(chain.from_iterable(ranges_in(self.copies))), list(chain.from_iterable(ranges_in(self.replaced)))

    def fill(self, copies: Sequence[int], replaced: Sequence[int]) -> None:
        """Add the ranges of an entry in the journal."""
        self.copies |= bitmap_of_ranges(_pairs(copies))
        self.replaced |= bitmap_of_ranges(_pairs(replaced))

    def cut(self, tail: int) -> bool:
        """Forget everything from `tail` on, because other messages get these sequences. Return whether there were copies.

        What the copies replaced before `tail` is the caller's to forget.
        """
        before, self.copies = len(self.copies), between(self.copies, 0, tail)
        self.replaced = between(self.replaced, 0, tail)
        return len(self.copies) != before


def _pairs(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
