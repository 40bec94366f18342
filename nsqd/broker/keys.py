"""Which publishes were made with a key, for a while: a publisher that did not hear the answer may try again.

`--idempotence-window` says for how long a key is remembered, and `--idempotence-keys` how many there are at most. A key
lies in its batch's own record, so that both are saved by one write. After a start, the keys are known from the log
(nsqd/log/keys.py).

    KeyMemory    slices of an eighth of the window, or of the most keys: [0:00, 1:15) [1:15, 2:30) ...
    TopicKeys      a shelf for each slice in which the topic got keys, and for each key whose publish waits, its receipt
    DeferredKeys     the keys of deferred publishes, in no slice (deferred_keys.py)

A key is looked for on all shelves of its topic. The oldest slice goes as a whole, so a key is remembered for the window
and at most an eighth of it longer. Keys of deferred publishes are remembered as long as a message waits, and go last
when there are too many. Times are of the wall clock, in nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from nsqd.broker.batch import Receipt
from nsqd.broker.deferred_keys import DeferredKeys, Waits

if TYPE_CHECKING:
    from nsqd.broker.reclaimer import Reclaimer

_PARTS: Final = 8
_LONGEST_AS_IT_IS: Final = 15  # bytes; such a key takes as much memory as a hash
_HASH_SIZE: Final = 14

_COUNT_BITS: Final = 32
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_LET_GO: Final = 64  # keys of settled publishes that a call lets go at least, besides two for each key that it adds

_SETTLED: Final = Receipt()
_SETTLED.settle()


def _nothing_waits(start: int, end: int) -> bool:
    return False


class KeySlice:
    """The keys of some time, of all topics."""

    __slots__ = ("begin", "count", "topics")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.count = 0
        self.topics: list[TopicKeys] = []


class Shelf:
    """What one topic has in a slice: the keys that are known, and those that were forgotten again."""

    __slots__ = ("forgotten", "keys", "piece")

    def __init__(self, piece: KeySlice) -> None:
        self.piece = piece
        self.keys: set[bytes] = set()
        self.forgotten: dict[bytes, int] | None = None  # with the packed places of their messages

    def free(self, reclaimer: Reclaimer) -> None:
        """Have its keys freed; nobody uses the shelf afterwards."""
        reclaimer.add(self.keys, self.forgotten or {})


class KeyMemory:
    """Bounds in time and number what the topics remember."""

    def __init__(self, window: int, most: int, reclaimer: Reclaimer) -> None:
        self.reclaimer = reclaimer
        self.window = window  # 0: no key is remembered
        self.longest = window + window // _PARTS  # for which a key may be remembered
        self.count = 0
        self.dropped_early = 0  # keys that were forgotten before their time, because there were too many
        self._most = most
        self._length = max(window // _PARTS, 1)
        self._room = max(most // _PARTS, 1)  # of a slice
        self._slices: list[KeySlice] = []  # ascending times
        self._deferring: OrderedDict[TopicKeys, None] = OrderedDict()  # topics with keys of deferred publishes

    def slice_at(self, timestamp: int) -> KeySlice:
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
            found = KeySlice(timestamp)
            slices.insert(place, found)
        self._make_room(self._room, found)
        return found

    def room_of(self, piece: KeySlice) -> int:
        """Return how many keys the slice still takes."""
        return self._room - piece.count

    def forget_old(self, timestamp: int) -> None:
        while self._slices and self._slices[0].begin + self._length <= timestamp - self.window:
            self._drop(self._slices[0])

    @property
    def has_room_for_deferred(self) -> bool:
        """Whether the key of one more deferred publish can be remembered without forgetting another key."""
        return self.count + self._spare() < self._most

    def deferred(self, topic: TopicKeys, change: int) -> None:
        """Take note that the topic has so many more keys of deferred publishes, or fewer."""
        self.count += change
        if change > 0:
            self._deferring[topic] = None
            newest = self._slices[-1] if self._slices else None
            if self.count + self._spare() > self._most:
                self._make_room(self._spare(), newest)

    def no_longer_deferring(self, topic: TopicKeys) -> None:
        self._deferring.pop(topic, None)

    def _spare(self) -> int:
        """Return the room that deferred publishes have to leave, so that the latest others are remembered beside them."""
        return self._room - self._slices[-1].count if self._slices else self._room

    def _make_room(self, room: int, kept: KeySlice | None) -> None:
        """Forget what has to go for so many keys: the oldest slices except `kept`, and keys of deferred publishes last."""
        while self.count + room > self._most:
            others = [piece for piece in self._slices if piece is not kept]
            if others:
                self.dropped_early += others[0].count
                self._drop(others[0])
            elif self._deferring:
                topic = next(iter(self._deferring))
                self._deferring.move_to_end(topic)  # the next time it is another topic's turn
                self.dropped_early += topic.forget_oldest_deferred()
            else:
                return

    def _drop(self, piece: KeySlice) -> None:
        self._slices.remove(piece)
        self.count -= piece.count
        for topic in piece.topics:
            topic.forget_slice(piece)


class TopicKeys:
    """The keys of one topic. `refusal` tells why its log takes no messages now, or None.

    The key of a deferred publish lies in `deferred` from the moment in which its place in the log is known, and in no
    slice: it is known for the window, and beyond it as long as one of its messages waits for its time. Where a method
    takes `waits`, that tells whether one of the messages [start, end) does.

    A publish may still fail until its receipt is settled, which takes long if the disk hangs. Until then the receipt is
    found by the key. Settled receipts are let go from the front, a few with each call: whoever repeats a publish does
    not pay for all others. So a failed one may lie behind another that still waits; it is found, and its key forgotten,
    when somebody asks for it.

    A key is forgotten again when all messages of its publish were taken back. The log still has it, so the journal is
    told, and a shelf keeps the place for as long as a start would find the key in the log.
    """

    __slots__ = ("_is_indexed", "_memory", "_receipts", "_refusal", "_shelves", "_waiting", "deferred", "repeats")

    def __init__(self, memory: KeyMemory, refusal: Callable[[], str | None], *, is_new: bool = True) -> None:
        """`is_new`: nothing was published to the topic before, so there are no deferred publishes to learn of."""
        self.repeats = 0  # publishes that were not made again
        self.deferred = DeferredKeys(memory.window, is_complete=is_new, reclaimer=memory.reclaimer)
        self._memory = memory
        self._refusal = refusal
        self._shelves: list[Shelf] = []
        # Publishes that may still fail, oldest first. Most topics never have one with a key: None, until there is one.
        self._waiting: deque[tuple[Receipt, list[bytes]]] | None = None
        self._receipts: dict[bytes, Receipt] = {}  # of these, by key
        self._is_indexed = True  # whether the newest of these is there: mostly it is settled before anybody asks

    def __len__(self) -> int:
        return len(self.deferred) + sum([len(it.keys) + len(it.forgotten or ()) for it in self._shelves])

    @property
    def unsettled(self) -> int:
        """How many publishes are kept here, because they may still fail or have just been settled."""
        return len(self._waiting or ())

    def find(self, key: bytes, timestamp: int, waits: Waits = _nothing_waits) -> Receipt | None:
        """Return the receipt of the publish that was made with this key; None: there was none, or it came to nothing."""
        key = _remembered(key)
        self._memory.forget_old(timestamp)
        self._let_go(_LET_GO)
        self._index()
        receipt = self._receipts.get(key)
        if receipt is not None and _has_failed(receipt):
            del self._receipts[key]
            self._take_out([key])
        if not self._knows(key, timestamp, waits):
            return None
        self.repeats += 1
        return self._answer(receipt) if receipt is not None else _SETTLED

    def may_know(self, key: bytes) -> bool:
        """Return whether `find` has to be asked for this key: what is remembered may be too old, or have failed."""
        if len(key) > _LONGEST_AS_IT_IS:
            key = _hash(key)
        for shelf in self._shelves:
            if key in shelf.keys:
                return True
        return key in self.deferred

    def knows(self, key: bytes, timestamp: int, waits: Waits = _nothing_waits) -> bool:
        """Return whether there was a publish with this key, without counting that as a repeat."""
        self._memory.forget_old(timestamp)
        return self._knows(_remembered(key), timestamp, waits)

    def add(self, key: bytes, timestamp: int, receipt: Receipt) -> None:
        """Remember from now on that this receipt is of the publish with this key."""
        self.add_all([key], timestamp, receipt)

    def add_all(self, keys: Iterable[bytes], timestamp: int, receipt: Receipt) -> None:
        """Remember from now on that this receipt is of the publishes with these keys."""
        kept = [key if len(key) <= _LONGEST_AS_IT_IS else _hash(key) for key in keys]  # quicker than `_remembered`
        self._put(kept, timestamp)
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        if waiting:
            if waiting[0][0].settled:
                self._let_go(2 * len(kept) + _LET_GO)
            if waiting and not self._is_indexed:
                self._index()
        waiting.append((receipt, kept))
        self._is_indexed = False

    def know(self, found: Iterable[tuple[bytes, int]]) -> None:
        """Remember keys that the log has, with their times, the oldest first."""
        for key, timestamp in found:
            self._put([_remembered(key)], timestamp)

    # Of deferred publishes

    def defer(self, key: bytes, start: int, count: int, published: int) -> None:
        """Remember where the messages of a deferred publish lie, whose key is known until now as any other."""
        key = _remembered(key)
        for shelf in reversed(self._shelves):
            if key in shelf.keys:
                shelf.keys.remove(key)
                self._count_on(shelf, -1)
                break
        self._remember_deferred(key, start, count, published)

    def _remember_deferred(self, key: bytes, start: int, count: int, published: int) -> None:
        before = len(self.deferred)
        self.deferred.add(key, start, count, published)
        self._memory.deferred(self, len(self.deferred) - before)

    def defer_part(self, key: bytes, start: int, count: int, published: int) -> None:
        """Remember a part of a deferred publish of before the start.

        The other parts, which were carried forward by themselves, may be known. Where a slice that began later knows the
        key, a later publish has it. Then the messages of this one were due before the stop, and nobody needs their place.
        """
        remembered, end = _remembered(key), start + count
        if any(shelf.piece.begin > published and remembered in shelf.keys for shelf in self._shelves):
            return
        if (known := self.deferred.find_published(remembered, published)) is not None:
            start, end = min(start, known[0]), max(end, known[1])
        self.defer(key, start, end - start, published)

    def learn_deferred(self, key: bytes, start: int, count: int) -> bool:
        """Remember a deferred publish of before the start. Return False if there is no room."""
        if not self._memory.has_room_for_deferred:
            return False
        self._remember_deferred(_remembered(key), start, count, 0)
        return True

    def deferred_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the place of the messages that were published with this key and a delay; None: it is not known."""
        return self.deferred.find(_remembered(key))

    def drop_unneeded(self, most: int, timestamp: int, waits: Waits) -> None:
        """Look at up to so many keys of deferred publishes, and forget those that are not needed."""
        if before := len(self.deferred):
            self.deferred.drop_unneeded(most, timestamp, waits)
            if len(self.deferred) != before:
                self._note_fewer_deferred(before)

    def forget_oldest_deferred(self) -> int:
        """Forget the key of one deferred publish, because there are too many. Return how many it was: 1, or none is left."""
        before = len(self.deferred)
        self.deferred.drop_oldest()
        self._note_fewer_deferred(before)
        return before - len(self.deferred)

    def _note_fewer_deferred(self, before: int) -> None:
        self._memory.deferred(self, len(self.deferred) - before)
        if not self.deferred:
            self._memory.no_longer_deferring(self)

    # Forgetting

    def forget_key(self, key: bytes, start: int, count: int, timestamp: int) -> None:
        """Forget the key of a publish whose messages, the `count` from `start` on, were all taken back."""
        key = _remembered(key)
        self._take_out([key])
        if key in self.deferred:
            before = len(self.deferred)
            self.deferred.remove(key)
            self._note_fewer_deferred(before)
        self._put_forgotten(key, start, count, timestamp)

    def know_forgotten(self, found: Iterable[tuple[bytes, int, int, int]]) -> None:
        """Take keys that were forgotten before the start: each with the start and the count of its messages, and its time."""
        for key, start, count, timestamp in found:
            self._put_forgotten(_remembered(key), start, count, timestamp)

    def forgotten_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the place of the messages with which this key was forgotten, the last time; None: it was not."""
        key = _remembered(key)
        places = [it.forgotten[key] for it in self._shelves if it.forgotten is not None and key in it.forgotten]
        if not places:
            return None
        start = max(places) >> _COUNT_BITS
        return start, start + (max(places) & _COUNT_MASK)

    def forgotten_starts(self) -> list[int]:
        """Return where the publishes begin whose keys were forgotten, as far as a start would find them in the log."""
        return [it >> _COUNT_BITS for shelf in self._shelves for it in (shelf.forgotten or {}).values()]

    def forget(self) -> None:
        """Forget all keys, because the topic was emptied or deleted."""
        for shelf in self._shelves:
            self._count_on(shelf, -len(shelf.keys) - len(shelf.forgotten or ()))
            shelf.piece.topics.remove(self)
            shelf.free(self._memory.reclaimer)
        self._shelves = []
        before = len(self.deferred)
        self.deferred.clear()
        self._note_fewer_deferred(before)
        self._memory.reclaimer.add(self._waiting or [], self._receipts)
        self._waiting, self._receipts = None, {}

    def forget_slice(self, piece: KeySlice) -> None:
        for shelf in self._shelves:
            if shelf.piece is piece:
                shelf.free(self._memory.reclaimer)
        self._shelves = [it for it in self._shelves if it.piece is not piece]

    # The shelves

    def _put(self, new: list[bytes], timestamp: int) -> None:
        memory = self._memory
        while new:
            piece = memory.slice_at(timestamp)
            if self._shelves and self._shelves[-1].piece is piece:
                keys = self._shelves[-1].keys
            else:
                keys = self._shelf_of(piece).keys
            room = memory.room_of(piece)
            before = len(keys)
            keys.update(new[:room])
            grown = len(keys) - before
            piece.count += grown
            memory.count += grown
            new = new[room:]

    def _put_forgotten(self, key: bytes, start: int, count: int, timestamp: int) -> None:
        shelf = self._shelf_of(self._memory.slice_at(timestamp))
        if shelf.forgotten is None:
            shelf.forgotten = {}
        forgotten = shelf.forgotten
        before = len(forgotten)
        if (earlier := forgotten.get(key)) is not None:  # under a name that no key has
            forgotten[b"\1%d" % (earlier >> _COUNT_BITS)] = earlier
        forgotten[key] = start << _COUNT_BITS | count
        self._count_on(shelf, len(forgotten) - before)

    def _shelf_of(self, piece: KeySlice) -> Shelf:
        if self._shelves and self._shelves[-1].piece is piece:
            return self._shelves[-1]
        for known in self._shelves:
            if known.piece is piece:
                return known
        new = Shelf(piece)
        self._shelves.append(new)
        piece.topics.append(self)
        return new

    def _count_on(self, shelf: Shelf, change: int) -> None:
        shelf.piece.count += change
        self._memory.count += change

    def _take_out(self, gone: list[bytes]) -> None:
        for shelf in self._shelves:
            before = len(shelf.keys)
            shelf.keys.difference_update(gone)
            self._count_on(shelf, len(shelf.keys) - before)

    def _has(self, key: bytes) -> bool:
        for shelf in self._shelves:  # noqa: SIM110 - a generator expression takes twice as long
            if key in shelf.keys:
                return True
        return False

    def _knows(self, key: bytes, timestamp: int, waits: Waits) -> bool:
        if self._has(key):
            return True
        if key not in self.deferred:
            return False
        if self.deferred.is_needed(key, timestamp, waits):
            return True
        before = len(self.deferred)
        self.deferred.remove(key)  # a publish with this key may come next
        self._note_fewer_deferred(before)
        return False

    # Publishes that may still fail

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

    def _answer(self, receipt: Receipt) -> Receipt:
        """Return a receipt for a second try of this publish."""
        if not receipt.settled or receipt.error is None:
            return receipt
        # The batch is in the log, but was not durable. Once the log takes messages again, it has been proven.
        answer = Receipt()
        answer.settle(self._refusal())
        return answer


def _has_failed(receipt: Receipt) -> bool:
    """Return whether nothing came of this publish, so that its key is free."""
    return receipt.settled and receipt.error is not None and not receipt.stays


def _begin_of(piece: KeySlice) -> int:
    return piece.begin


def _remembered(key: bytes) -> bytes:
    return key if len(key) <= _LONGEST_AS_IT_IS else _hash(key)


def _hash(key: bytes) -> bytes:
    """Return what is remembered of a long key. It is none that a client may give, as those are printable."""
    return b"\0" + blake2b(key, digest_size=_HASH_SIZE).digest()
