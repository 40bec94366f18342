"""The keys of deferred publishes with the sequences of their messages, so that you can cancel messages by their key.

A key is needed for the idempotence window, like any other, and after that while any of its messages is still deferred.
We never scan all keys for unneeded ones: each insert checks a few others in turn.

For example, 20 minutes after these publishes, with a window of 10 minutes:

    key "a"   its message is due in 5 minutes     needed
    key "b"   its message was delivered           not needed, and removed at its next check

Keys arrive in the form in which `TopicKeys` stores them: long ones are hashed.
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
_STILL_NEEDED: Final = 8  # after this many needed keys in one call, checking more isn't worth it

Waits = Callable[[int, int], bool]  # (start, end): returns whether any message in [start, end) is still deferred


class DeferredKeys:
    """Maps each key to one packed integer: the first sequence of its messages, their publish time and their count."""

    __slots__ = ("_order", "_places", "_reclaimer", "_removed", "_window", "is_complete")

    def __init__(self, window: int, *, is_complete: bool, reclaimer: Reclaimer) -> None:
        self.is_complete = is_complete  # False: some keys are only in the log
        self._window = window
        self._reclaimer = reclaimer
        self._places = SplitDict()
        self._order: deque[bytes] | None = None  # in which the entries are checked; None: no key so far
        self._removed = SplitDict()  # used as a set: keys that are still in `_order`, but have no entry

    def __len__(self) -> int:
        return self._places.count

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def add(self, key: bytes, start: int, count: int, published: int) -> None:
        """Add a key with its messages. `published` is their publish time in nanoseconds; 0: long ago."""
        if not self._was_removed(key) and key not in self._places:
            if self._order is None:  # most topics never have a key, and an empty deque takes 800 bytes
                self._order = deque()
            self._order.append(key)
        # The publish time is rounded up to the next millisecond, so that a key never expires too early.
        self._places.put(key, (start << _TIME_BITS | published // _MILLISECOND + 1) << _COUNT_BITS | count)

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Return the range (start, end) of this key's messages, or None if the key is unknown."""
        place = self._places.get(key)
        return _range_of(place) if place is not None else None

    def find_published(self, key: bytes, published: int) -> tuple[int, int] | None:
        """Return the same as `find` if the messages were published at this time, otherwise None."""
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
            self._removed.put(key, 0)

    def _was_removed(self, key: bytes) -> bool:
        """Return whether this key was removed, and forget that it was."""
        removed = self._removed
        return removed.count > 0 and removed.pop(key) is not None

    def drop_unneeded(self, most: int, now: int, waits: Waits) -> None:
        """Check up to `most` keys, and drop the unneeded ones. Stops early after a few needed ones."""
        order, needed = self._order, 0
        if order is None:
            return
        for _ in range(min(most, len(order))):
            key = order.popleft()
            if self._was_removed(key):
                continue
            if self.is_needed(key, now, waits):
                order.append(key)
                needed += 1
                if needed == _STILL_NEEDED:
                    return
            else:
                self._places.pop(key)

    def drop_oldest(self) -> None:
        """Drop one of the oldest keys, even if it is still needed."""
        while self._order:
            key = self._order.popleft()
            if self._places.pop(key) is not None:
                self.is_complete = False
                return
            self._removed.pop(key)

    def clear(self) -> None:
        self._reclaimer.add(*self._places.parts, self._order or [], *self._removed.parts)
        self._places, self._order, self._removed = SplitDict(), None, SplitDict()


def _range_of(place: int) -> tuple[int, int]:
    start = place >> (_COUNT_BITS + _TIME_BITS)
    return start, start + (place & _COUNT_MASK)
