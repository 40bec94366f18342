"""The keys of deferred publishes, and where their messages lie, so that somebody can take them back.

A key is needed for the window, as any other, and beyond it as long as one of its messages waits for its time. Nobody
looks at all keys to see which of them are needed no longer: whoever adds one looks at a few others, in turn.

    due in     5 min    1 h    published: 20 min ago    window: 10 min
    key "a"      x                needed: its message waits
    key "b"  (delivered)          not needed, and gone when its turn comes

Keys come here as TopicKeys remembers them: long ones hashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqd.broker.split_dict import SplitDict

if TYPE_CHECKING:
    from nsqd.broker.reclaimer import Reclaimer

_COUNT_BITS: Final = 32
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << _TIME_BITS) - 1
_MILLISECOND: Final = 1_000_000  # nanoseconds
_STILL_NEEDED: Final = 8  # keys in a row, after which it is not worth looking at more of them

Waits = Callable[[int, int], bool]  # returns whether one of the messages [start, end) waits for its time


class DeferredKeys:
    """Each entry packs the start of the messages, the time of their publication in milliseconds, and their count."""

    __slots__ = ("_left_behind", "_leftovers", "_order", "_places", "_window", "is_complete")

    def __init__(self, window: int, *, is_complete: bool, reclaimer: Reclaimer) -> None:
        self.is_complete = is_complete  # otherwise some are missing that only the log knows
        self._window = window
        self._leftovers = reclaimer
        self._places = SplitDict()
        self._order: deque[bytes] | None = None  # in which the entries are looked at; None: there was no key yet
        self._left_behind = SplitDict()  # keys in that order that have no entry now; the numbers mean nothing

    def __len__(self) -> int:
        return self._places.count

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def add(self, key: bytes, start: int, count: int, published: int) -> None:
        """Remember the place of a key's messages, and when they were published (nanoseconds; 0: longer ago)."""
        if not self._was_left_behind(key) and key not in self._places:
            if self._order is None:  # most topics never have one, and an empty deque takes 800 bytes
                self._order = deque()
            self._order.append(key)
        self._places.put(key, (start << _TIME_BITS | published // _MILLISECOND + 1) << _COUNT_BITS | count)

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Return the place of the messages with this key, as [start, end); None: it is not known here."""
        place = self._places.get(key)
        return _range_of(place) if place is not None else None

    def find_published(self, key: bytes, published: int) -> tuple[int, int] | None:
        """Return what `find` does, if these messages were published then; None: they are others."""
        place = self._places.get(key)
        if place is None or place >> _COUNT_BITS & _TIME_MASK != published // _MILLISECOND + 1:
            return None
        return _range_of(place)

    def is_needed(self, key: bytes, now: int, waits: Waits) -> bool:
        place = self._places.get(key)
        if place is None:
            return False
        published = (place >> _COUNT_BITS & _TIME_MASK) * _MILLISECOND
        return now < published + self._window or waits(*_range_of(place))

    def remove(self, key: bytes) -> None:
        if self._places.pop(key) is not None:
            self._left_behind.put(key, 0)

    def _was_left_behind(self, key: bytes) -> bool:
        """Return whether a key was left behind; now it is no longer."""
        left = self._left_behind
        return left.count > 0 and left.pop(key) is not None

    def drop_unneeded(self, most: int, now: int, waits: Waits) -> None:
        """Look at up to so many keys, fewer if all of them are needed, and drop those that are not."""
        order, needed = self._order, 0
        if order is None:
            return
        for _ in range(min(most, len(order))):
            key = order.popleft()
            if self._was_left_behind(key):
                continue
            if self.is_needed(key, now, waits):
                order.append(key)
                needed += 1
                if needed == _STILL_NEEDED:
                    return
            else:
                self._places.pop(key)

    def drop_oldest(self) -> None:
        """Drop about the oldest key, though it may be needed."""
        while self._order:
            key = self._order.popleft()
            if self._places.pop(key) is not None:
                self.is_complete = False
                return
            self._left_behind.pop(key)

    def clear(self) -> None:
        self._leftovers.add(*self._places.parts, self._order or [], *self._left_behind.parts)
        self._places, self._order, self._left_behind = SplitDict(), None, SplitDict()


def _range_of(place: int) -> tuple[int, int]:
    start = place >> (_COUNT_BITS + _TIME_BITS)
    return start, start + (place & _COUNT_MASK)
