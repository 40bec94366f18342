"""The held messages of a channel: the cursor has passed them without delivering them, because of their groups.

groups.py decides which messages are held, and when it is their turn. Here are the two containers for millions of them:

    HeldMessages    which messages are held, as a bitmap; the ledger has one for each channel
    HeldQueue       the order of one group's held messages

A queue is only an index. An entry whose message is no longer held is *stale*: for example, the message was cancelled, and
we can't search a queue of a million entries for it. We drop the entry when we reach it. A message that has left `held`
never comes back: from then on, it waits among the retries or the deferred ones. So an entry can't become valid again,
and unlike the entries of queue_members.py, it needs no generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, bitmap_of_ranges, in_pieces, ranges_in

_NONE: Final = BitMap64()  # never changed
_MORE: Final = 0x80  # the bit of a byte that says that another byte of the same number follows
_LOW: Final = 0x7F
_DROPPED: Final = 4_096  # bytes that were read, before we drop them


class HeldMessages:
    """The sequences that are held, and how much of that the journal doesn't know yet.

    The bitmap costs up to two bytes for each message. There is none until the first message is held, because most
    channels never hold any.
    """

    __slots__ = ("_delivered", "_new", "_sequences", "has_news", "total")

    def __init__(self) -> None:
        self.total = 0  # number of messages
        self.has_news = False  # whether messages were held or delivered since the last `take_news`
        self._sequences: BitMap64 | None = None
        self._new: list[tuple[int, int]] = []  # ranges held since the last `take_news`
        self._delivered: BitMap64 | None = None  # delivered since then, for the first time

    def __contains__(self, sequence: int) -> bool:
        return self._sequences is not None and sequence in self._sequences

    def add(self, start: int, end: int) -> None:
        """Hold [start, end), which the cursor has just passed."""
        if self._sequences is None:
            self._sequences = BitMap64()
        self._sequences.add_range(start, end)
        self.total += end - start
        if self._new and self._new[-1][1] == start:
            start = self._new.pop()[0]
        self._new.append((start, end))
        self.has_news = True

    def fill(self, sequences: BitMap64) -> None:
        """Hold these messages, which the journal knows to be held. Nothing else may be held yet."""
        if sequences:
            self._sequences, self.total = sequences, len(sequences)

    def deliver(self, start: int, end: int) -> None:
        """Take out [start, end), all of which are held, because a consumer gets them."""
        assert self._sequences is not None
        self._sequences.remove_range(start, end)
        self.total -= end - start
        if self._delivered is None:
            self._delivered = BitMap64()
        self._delivered.add_range(start, end)
        self.has_news = True

    def deliver_all(self, sequences: BitMap64) -> None:
        """Do the same as `deliver` with messages that aren't neighbours."""
        assert self._sequences is not None
        self._sequences -= sequences
        self.total -= len(sequences)
        self._delivered = sequences if self._delivered is None else self._delivered | sequences
        self.has_news = True

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out the wanted messages that are held, and return them."""
        here = self.among(wanted)
        if self._sequences is not None and here:
            self._sequences -= here
            self.total -= len(here)
        return here

    def all(self) -> BitMap64:
        """Return all of them. The bitmap is yours."""
        return self._all().copy()

    def _all(self) -> BitMap64:
        return self._sequences if self._sequences is not None else _NONE

    def among(self, wanted: BitMap64) -> BitMap64:
        """Return the wanted messages that are held."""
        return self._all() & wanted

    def from_place(self, start: int) -> BitMap64:
        """Return the messages from `start` on that are held."""
        return between(self._all(), start, (self._all().max() if self.total else 0) + 1)

    def first(self, count: int, end: int) -> BitMap64:
        """Return the first `count` of them, but none from `end` on."""
        found = self._all()[:count]
        return between(found, 0, end) if found and found.max() >= end else found

    def count_before(self, end: int) -> int:
        return self._all().range_cardinality(0, end)

    def run_end(self, start: int, end: int) -> int:
        """Return the end of the run of neighbours that are held, from `start` up to `end`."""
        sequences, stop = self._all(), start + 1
        while stop < end and stop in sequences:
            stop += 1
        return stop

    def lowest(self) -> int | None:
        return self._all().min() if self.total else None

    def sequences(self) -> Iterator[list[int]]:
        """Return the current sequences, in lists of a few thousand."""
        return in_pieces(self._all())

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Return the current sequences as ascending [start, end) ranges."""
        return ranges_in(self._all())

    def clear(self) -> None:
        self.total = 0
        self._sequences = self._delivered = None
        self._new = []
        self.has_news = False

    # The journal

    def take_news(self, finished: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the ranges that were held since the last call, and the messages that were delivered.

        Without the ones that are `finished`, because the journal learns of those anyway.
        """
        held, self._new = self._new, []
        delivered, self._delivered = self._delivered, None
        self.has_news = False
        if delivered is None:
            return held, []
        return held, list(delivered - bitmap_of_ranges(finished))


class HeldQueue:
    """The held messages of one group, in ascending order, and perhaps stale entries of messages that aren't held now.

    For each entry but the first, we keep only its distance to the one before, in groups of seven bits. For example, if
    every hundredth message is of this group, a message costs one byte here.
    """

    __slots__ = ("_at", "_last", "_packed", "count", "first")

    def __init__(self) -> None:
        self.count = 0  # entries
        self.first = -1  # the sequence of the first entry, if there is one
        self._last = -1
        self._packed: bytearray | None = None  # most groups have at most one entry
        self._at = 0  # where the distance from the first to the second entry begins

    def append(self, sequence: int) -> None:
        """Add a message that comes after all others in this queue."""
        self.count += 1
        if self.count == 1:
            self.first = self._last = sequence
            return
        if self._packed is None:
            self._packed = bytearray()
        distance = sequence - self._last
        self._last = sequence
        while distance > _LOW:
            self._packed.append(distance & _LOW | _MORE)
            distance >>= 7
        self._packed.append(distance)

    def pop(self) -> None:
        """Remove the first entry."""
        self.count -= 1
        packed = self._packed
        if not self.count or packed is None:
            self.first, self._packed, self._at = -1, None, 0
            return
        at, shift = self._at, 0
        while (byte := packed[at]) & _MORE:
            self.first += (byte & _LOW) << shift
            shift += 7
            at += 1
        self.first += byte << shift
        self._at = at + 1
        if self._at > _DROPPED:
            del packed[: self._at]  # cheap: a bytearray only moves its beginning
            self._at = 0
