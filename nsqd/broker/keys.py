"""Which publishes were made with a key, for a while: a publisher that did not hear the answer may try again.

`--idempotence-window` says for how long a key is remembered, and `--idempotence-keys` how many there are at most. A key
lies in its batch's own record, so that both are saved by one write. After a start, the keys are known from the log
(nsqd/log/recovery/keys.py).

    KeyMemory    slices of an eighth of the window, or of the most keys: [0:00, 1:15) [1:15, 2:30) ...
    TopicKeys      a set for each slice in which the topic got keys, and for each key whose publish waits, its receipt

A key is looked for in all sets of its topic. The oldest slice goes as a whole, so a key is remembered for the window and
at most an eighth of it longer. Times are of the wall clock, in nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from nsqd.broker.batch import Receipt

_PARTS: Final = 8
_LONGEST_AS_IT_IS: Final = 15  # bytes; such a key takes as much memory as a hash
_HASH_SIZE: Final = 14

_COUNT_BITS: Final = 32
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_LET_GO: Final = 64  # keys of settled publishes that a call lets go at least, besides two for each key that it adds
_LOOKED_AT: Final = 2  # entries, for each that is added: so at most half of them are out of date

_SETTLED: Final = Receipt()
_SETTLED.settle()


class Slice:
    """The keys of some time, of all topics."""

    __slots__ = ("begin", "count", "topics")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.count = 0
        self.topics: list[TopicKeys] = []


class KeyMemory:
    """Bounds in time and number what the topics remember."""

    def __init__(self, window: int, most: int) -> None:
        self.window = window  # 0: no key is remembered
        self.longest = window + window // _PARTS  # for which a key may be remembered
        self.count = 0
        self.dropped_early = 0  # keys that were forgotten before their time, because there were too many
        self._most = most
        self._length = max(window // _PARTS, 1)
        self._room = max(most // _PARTS, 1)  # of a slice
        self._slices: list[Slice] = []  # ascending times

    def slice_at(self, timestamp: int) -> Slice:
        """Return the slice for a key of this time, after forgetting what is too old or too much."""
        slices = self._slices
        if slices:
            newest = slices[-1]
            if newest.count < self._room and newest.begin <= timestamp < newest.begin + self._length:
                return newest
        self.forget_old(timestamp)
        place = bisect_right(slices, timestamp, key=_begin_of)
        found = slices[place - 1] if place else None
        if found is None or found.count >= self._room or timestamp >= found.begin + self._length:
            found = Slice(timestamp)
            slices.insert(place, found)
        while self.count + self._room > self._most and slices[0] is not found:
            self.dropped_early += slices[0].count
            self._drop_oldest()
        return found

    def room_of(self, piece: Slice) -> int:
        """Return how many keys the slice still takes."""
        return self._room - piece.count

    def forget_old(self, timestamp: int) -> None:
        while self._slices and self._slices[0].begin + self._length <= timestamp - self.window:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._slices.pop(0)
        self.count -= oldest.count
        for topic in oldest.topics:
            topic.forget_slice(oldest)


class TopicKeys:
    """The keys of one topic. `refusal` tells why its log takes no messages now, or None.

    A publish may still fail until its receipt is settled, which takes long if the disk hangs. Until then the receipt is
    found by the key. Settled receipts are let go from the front, a few with each call: whoever repeats a publish does
    not pay for all others. So a failed one may lie behind another that still waits; it is found, and its key forgotten,
    when somebody asks for it.
    """

    __slots__ = ("_is_indexed", "_memory", "_receipts", "_refusal", "_sets", "_waiting", "repeats")

    def __init__(self, memory: KeyMemory, refusal: Callable[[], str | None]) -> None:
        self.repeats = 0  # publishes that were not made again
        self._memory = memory
        self._refusal = refusal
        self._sets: list[tuple[Slice, set[bytes]]] = []
        self._waiting: deque[tuple[Receipt, list[bytes]]] = deque()  # publishes that may still fail, oldest first
        self._receipts: dict[bytes, Receipt] = {}  # of these, by key
        self._is_indexed = True  # whether the newest of these is there: mostly it is settled before anybody asks

    def __len__(self) -> int:
        return sum([len(keys) for _, keys in self._sets])

    @property
    def unsettled(self) -> int:
        """How many publishes are kept here, because they may still fail or have just been settled."""
        return len(self._waiting)

    def find(self, key: bytes, timestamp: int) -> Receipt | None:
        """Return the receipt of the publish that was made with this key; None: there was none, or it came to nothing."""
        if len(key) > _LONGEST_AS_IT_IS:
            key = _hash(key)
        self._memory.forget_old(timestamp)
        self._let_go(_LET_GO)
        self._index()
        receipt = self._receipts.get(key)
        if receipt is not None and _has_failed(receipt):
            del self._receipts[key]
            self._take_out([key])
        if not self._knows(key):
            return None
        self.repeats += 1
        return self._answer(receipt) if receipt is not None else _SETTLED

    def may_know(self, key: bytes) -> bool:
        """Return whether `find` has to be asked for this key: what is remembered may be too old, or have failed."""
        return bool(self._sets) and self._knows(key if len(key) <= _LONGEST_AS_IT_IS else _hash(key))

    def knows(self, key: bytes, timestamp: int) -> bool:
        """Return whether there was a publish with this key, without counting that as a repeat."""
        self._memory.forget_old(timestamp)
        return self._knows(key if len(key) <= _LONGEST_AS_IT_IS else _hash(key))

    def add(self, key: bytes, timestamp: int, receipt: Receipt) -> None:
        """Remember from now on that this receipt is of the publish with this key."""
        self.add_all([key], timestamp, receipt)

    def add_all(self, keys: Iterable[bytes], timestamp: int, receipt: Receipt) -> None:
        """Remember from now on that this receipt is of the publishes with these keys."""
        kept = [key if len(key) <= _LONGEST_AS_IT_IS else _hash(key) for key in keys]
        self._put(kept, timestamp)
        waiting = self._waiting
        if waiting:
            if waiting[0][0].settled:
                self._let_go(2 * len(kept) + _LET_GO)
            self._index()
        waiting.append((receipt, kept))
        self._is_indexed = False

    def know(self, found: Iterable[tuple[bytes, int]]) -> None:
        """Remember keys that the log has, with their times, the oldest first."""
        for key, timestamp in found:
            self._put([key if len(key) <= _LONGEST_AS_IT_IS else _hash(key)], timestamp)

    def forget(self) -> None:
        """Forget all keys, because the topic was emptied or deleted."""
        for piece, keys in self._sets:
            piece.count -= len(keys)
            piece.topics.remove(self)
            self._memory.count -= len(keys)
        self._sets = []
        self._waiting.clear()
        self._receipts.clear()

    def forget_slice(self, piece: Slice) -> None:
        self._sets = [it for it in self._sets if it[0] is not piece]

    def _put(self, new: list[bytes], timestamp: int) -> None:
        memory = self._memory
        while new:
            piece = memory.slice_at(timestamp)
            if self._sets and self._sets[-1][0] is piece:
                keys = self._sets[-1][1]
            else:
                keys = self._set_of(piece)
            room = memory.room_of(piece)
            before = len(keys)
            keys.update(new[:room])
            grown = len(keys) - before
            piece.count += grown
            memory.count += grown
            new = new[room:]

    def _set_of(self, piece: Slice) -> set[bytes]:
        for known, keys in self._sets:
            if known is piece:
                return keys
        new: set[bytes] = set()
        self._sets.append((piece, new))
        piece.topics.append(self)
        return new

    def _knows(self, key: bytes) -> bool:
        for _, keys in self._sets:  # noqa: SIM110 - a generator expression takes twice as long
            if key in keys:
                return True
        return False

    def _index(self) -> None:
        """Have the receipts of all publishes that wait found by their keys."""
        if not self._is_indexed and self._waiting:
            receipt, keys = self._waiting[-1]
            self._receipts.update(dict.fromkeys(keys, receipt))
        self._is_indexed = True

    def _let_go(self, count: int) -> None:
        """Let go of settled receipts from the front, with at least so many keys, and forget the keys of failed publishes."""
        waiting, receipts = self._waiting, self._receipts
        while waiting and count > 0:
            receipt, keys = waiting[0]
            if not receipt.settled or (receipt.stays and self._refusal() is not None):
                return
            if len(waiting) == 1 and receipt.error is None:  # as a disk that is well leaves it after each turn
                waiting.clear()
                receipts.clear()
                return
            self._index()
            waiting.popleft()
            count -= len(keys)
            own = [key for key in keys if receipts.get(key) is receipt]  # the others failed, and were published again
            for key in own:
                del receipts[key]
            if _has_failed(receipt):
                self._take_out(own)

    def _take_out(self, gone: list[bytes]) -> None:
        for piece, keys in self._sets:
            before = len(keys)
            keys.difference_update(gone)
            piece.count -= before - len(keys)
            self._memory.count -= before - len(keys)

    def _answer(self, receipt: Receipt) -> Receipt:
        """Return a receipt for a second try of this publish."""
        if not receipt.settled or receipt.error is None:
            return receipt
        # The batch is in the log, but was not durable. Once the log takes messages again, it has been proven.
        answer = Receipt()
        answer.settle(self._refusal())
        return answer


class DeferredKeys:
    """Where the messages lie that were published with a key and a delay, so that somebody can take them back.

    An entry goes when its messages no longer wait for their time. Nobody looks at all of them for that: whoever adds one
    looks at two of the others, the oldest first.
    """

    __slots__ = ("_order", "_places", "is_complete")

    def __init__(self, *, is_complete: bool) -> None:
        self.is_complete = is_complete  # otherwise what was published before the start is missing
        self._places: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, key: bytes, start: int, count: int, waits: Callable[[int, int], bool]) -> None:
        """Remember the place of a key. `waits` tells whether one of the messages [start, end) waits for its time."""
        if len(key) > _LONGEST_AS_IT_IS:
            key = _hash(key)
        places, order = self._places, self._order
        for _ in range(min(_LOOKED_AT, len(order))):
            oldest = order.popleft()
            if (place := places.get(oldest)) is None:
                continue
            if waits(*_range_of(place)):
                order.append(oldest)
            else:
                del places[oldest]
        if key not in places:
            order.append(key)
        places[key] = start << _COUNT_BITS | count

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Return the place of the messages with this key, as [start, end); None: it is not known here."""
        place = self._places.get(key if len(key) <= _LONGEST_AS_IT_IS else _hash(key))
        return _range_of(place) if place is not None else None

    def forget(self) -> None:
        self._places.clear()
        self._order.clear()


def _range_of(place: int) -> tuple[int, int]:
    start = place >> _COUNT_BITS
    return start, start + (place & _COUNT_MASK)


def _has_failed(receipt: Receipt) -> bool:
    """Return whether nothing came of this publish, so that its key is free."""
    return receipt.settled and receipt.error is not None and not receipt.stays


def _begin_of(piece: Slice) -> int:
    return piece.begin


def _hash(key: bytes) -> bytes:
    """Return what is remembered of a long key. It is none that a client may give, as those are printable."""
    return b"\0" + blake2b(key, digest_size=_HASH_SIZE).digest()
