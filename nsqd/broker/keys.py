"""Remembers the keys of recent publishes, so that a publisher that didn't get the answer can safely retry.

`--idempotence-window` says how long we remember a key, and `--idempotence-keys` how many keys in total. A key is stored
in the record of its batch, so one write saves both. At startup, we read the keys from the log (nsqd/log/keys.py).

    KeyMemory    slices of an eighth of the window, or of `--idempotence-keys`: [0:00, 1:15) [1:15, 2:30) ...
    TopicKeys      one shelf for each slice in which the topic got keys, and the receipts of unsettled publishes
    DeferredKeys     the keys of deferred publishes, which are in no slice (deferred_keys.py)

A lookup goes through all shelves of the topic. The oldest slice is dropped as a whole, so we remember a key for up to an
eighth longer than the window. Keys of deferred publishes stay while any of their messages is deferred, and are dropped
last when there are too many keys. Times are wall-clock nanoseconds.
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
_LONGEST_AS_IT_IS: Final = 15  # bytes; a key of this length takes as much memory as a hash
_HASH_SIZE: Final = 14

_COUNT_BITS: Final = 32
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_DROPPED_PER_CALL: Final = 64  # keys of settled publishes; `add_all` drops two more for each key that it adds

_SETTLED: Final = Receipt()
_SETTLED.settle()


def _nothing_waits(start: int, end: int) -> bool:
    return False


class KeySlice:
    """The keys of one period, over all topics."""

    __slots__ = ("begin", "count", "topics")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.count = 0
        self.topics: list[TopicKeys] = []


class Shelf:
    """One topic's keys in a slice: the remembered ones, and the ones that were forgotten since."""

    __slots__ = ("forgotten", "keys", "piece")

    def __init__(self, piece: KeySlice) -> None:
        self.piece = piece
        self.keys: set[bytes] = set()
        self.forgotten: dict[bytes, int] | None = None  # key -> start and count of its messages, packed

    def free(self, reclaimer: Reclaimer) -> None:
        """Free the shelf's keys. Don't use the shelf afterwards."""
        reclaimer.add(self.keys, self.forgotten or {})


class KeyMemory:
    """Limits the age and the number of the topics' keys."""

    def __init__(self, window: int, most: int, reclaimer: Reclaimer) -> None:
        self.reclaimer = reclaimer
        self.window = window  # 0: don't remember keys
        self.longest = window + window // _PARTS  # the longest time that a key may be remembered
        self.count = 0
        self.dropped_early = 0  # keys that were forgotten before the window's end, because there were too many
        self._most = most
        self._length = max(window // _PARTS, 1)
        self._room = max(most // _PARTS, 1)  # keys in a slice
        self._slices: list[KeySlice] = []  # oldest first
        self._deferring: OrderedDict[TopicKeys, None] = OrderedDict()  # topics with keys of deferred publishes

    def slice_at(self, timestamp: int) -> KeySlice:
        """Return the slice for a key of this time. Before that, forget keys if they are too old or too many."""
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
        """Return how many more keys the slice can take."""
        return self._room - piece.count

    def forget_old(self, timestamp: int) -> None:
        while self._slices and self._slices[0].begin + self._length <= timestamp - self.window:
            self._drop(self._slices[0])

    @property
    def has_room_for_deferred(self) -> bool:
        """Whether we can remember the key of another deferred publish without forgetting any key."""
        return self.count + self._reserved() < self._most

    def count_deferred(self, topic: TopicKeys, change: int) -> None:
        """Update the total after the number of a topic's deferred keys has changed by `change`, which may be negative.

        If there are too many keys now, make room.
        """
        self.count += change
        if change > 0:
            self._deferring[topic] = None
            newest = self._slices[-1] if self._slices else None
            if self.count + self._reserved() > self._most:
                self._make_room(self._reserved(), newest)

    def forget_deferring(self, topic: TopicKeys) -> None:
        self._deferring.pop(topic, None)

    def _reserved(self) -> int:
        """Return the room that deferred publishes must leave for the newest slice of other keys."""
        return self._room - self._slices[-1].count if self._slices else self._room

    def _make_room(self, room: int, kept: KeySlice | None) -> None:
        """Make room for `room` keys: forget the oldest slices except `kept`, and then keys of deferred publishes."""
        while self.count + room > self._most:
            others = [piece for piece in self._slices if piece is not kept]
            if others:
                self.dropped_early += others[0].count
                self._drop(others[0])
            elif self._deferring:
                topic = next(iter(self._deferring))
                self._deferring.move_to_end(topic)  # so that the next one to go is another topic's
                self.dropped_early += topic.forget_oldest_deferred()
            else:
                return

    def _drop(self, piece: KeySlice) -> None:
        self._slices.remove(piece)
        self.count -= piece.count
        for topic in piece.topics:
            topic.forget_slice(piece)


class TopicKeys:
    """The keys of one topic. `refusal` returns why its log currently refuses messages, or None.

    **Deferred publishes.** Once we know where its messages are in the log, the key of a deferred publish moves from its
    slice to `deferred`. It is known for the window, and after that while any of its messages is still deferred. Methods
    call their argument `waits` to find out whether any message in a range is still deferred.

    **Unsettled publishes.** Until its receipt is settled, a publish may still fail; this takes long if the disk hangs.
    Until then, we can find the receipt by the key. We drop settled receipts from the front, a few per call, so that no
    single call takes long. A failed receipt may be stuck behind an unsettled one; in that case, `find` notices the
    failure and forgets the key.

    **Cancelled publishes.** When all messages of a publish are cancelled, its key is forgotten. The log still has the
    key, so we journal that, and keep the messages' place in a shelf as long as a restart would find the key.
    """

    __slots__ = ("_is_indexed", "_memory", "_receipts", "_refusal", "_shelves", "_waiting", "deferred", "repeats")

    def __init__(self, memory: KeyMemory, refusal: Callable[[], str | None], *, is_new: bool = True) -> None:
        """`is_new`: the topic has no messages yet, so there are no deferred publishes to find in its log."""
        self.repeats = 0  # publishes that were ignored because their key was known
        self.deferred = DeferredKeys(memory.window, is_complete=is_new, reclaimer=memory.reclaimer)
        self._memory = memory
        self._refusal = refusal
        self._shelves: list[Shelf] = []
        # Publishes that may still fail, oldest first. None until the first one, because most topics never see a key.
        self._waiting: deque[tuple[Receipt, list[bytes]]] | None = None
        self._receipts: dict[bytes, Receipt] = {}  # of these publishes, by key
        # Whether `_receipts` has the newest publish. We add it late, because it is usually settled before we need it.
        self._is_indexed = True

    def __len__(self) -> int:
        return len(self.deferred) + sum([len(it.keys) + len(it.forgotten or ()) for it in self._shelves])

    @property
    def unsettled(self) -> int:
        """The number of publishes that may still fail, or have only just been settled."""
        return len(self._waiting or ())

    def find(self, key: bytes, timestamp: int, waits: Waits = _nothing_waits) -> Receipt | None:
        """Return the receipt of an earlier publish with this key, and count a repeat. None if there wasn't any.

        Failed publishes don't count.
        """
        key = _stored_form(key)
        self._memory.forget_old(timestamp)
        self._drop_settled(_DROPPED_PER_CALL)
        self._index()
        receipt = self._receipts.get(key)
        if receipt is not None and _has_failed(receipt):
            del self._receipts[key]
            self._remove([key])
        if not self._knows(key, timestamp, waits):
            return None
        self.repeats += 1
        return self._answer(receipt) if receipt is not None else _SETTLED

    def may_know(self, key: bytes) -> bool:
        """Check a key quickly: if this returns False, `find` would return None; otherwise call `find` to be sure."""
        if len(key) > _LONGEST_AS_IT_IS:
            key = _hash(key)
        for shelf in self._shelves:
            if key in shelf.keys:
                return True
        return key in self.deferred

    def knows(self, key: bytes, timestamp: int, waits: Waits = _nothing_waits) -> bool:
        """Return whether there was a publish with this key. This doesn't count as a repeat."""
        self._memory.forget_old(timestamp)
        return self._knows(_stored_form(key), timestamp, waits)

    def add(self, key: bytes, timestamp: int, receipt: Receipt) -> None:
        """Remember this key, with the receipt of its publish."""
        self.add_all([key], timestamp, receipt)

    def add_all(self, keys: Iterable[bytes], timestamp: int, receipt: Receipt) -> None:
        """Remember these keys, with the receipt that their publishes share."""
        kept = [key if len(key) <= _LONGEST_AS_IT_IS else _hash(key) for key in keys]  # quicker than `_stored_form`
        self._put(kept, timestamp)
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        if waiting:
            if waiting[0][0].settled:
                self._drop_settled(2 * len(kept) + _DROPPED_PER_CALL)
            if waiting and not self._is_indexed:
                self._index()
        waiting.append((receipt, kept))
        self._is_indexed = False

    def know(self, found: Iterable[tuple[bytes, int]]) -> None:
        """Remember keys from the log, given with their times, oldest first."""
        for key, timestamp in found:
            self._put([_stored_form(key)], timestamp)

    # Deferred publishes

    def defer(self, key: bytes, start: int, count: int, published: int) -> None:
        """Move the key of a deferred publish from its slice to `deferred`, now that its messages are in the log."""
        key = _stored_form(key)
        for shelf in reversed(self._shelves):
            if key in shelf.keys:
                shelf.keys.remove(key)
                self._count_on(shelf, -1)
                break
        self._remember_deferred(key, start, count, published)

    def _remember_deferred(self, key: bytes, start: int, count: int, published: int) -> None:
        before = len(self.deferred)
        self.deferred.add(key, start, count, published)
        self._memory.count_deferred(self, len(self.deferred) - before)

    def defer_part(self, key: bytes, start: int, count: int, published: int) -> None:
        """Remember a part of a deferred publish that compaction has split. Only used when nsqd starts.

        If we already know other parts, the range grows. But if a slice that began after this publish has the key, the
        key belongs to a later publish: it was free by then, because this publish's messages had been due before. In
        that case, we don't need their place.
        """
        stored, end = _stored_form(key), start + count
        if any(shelf.piece.begin > published and stored in shelf.keys for shelf in self._shelves):
            return
        if (known := self.deferred.find_published(stored, published)) is not None:
            start, end = min(start, known[0]), max(end, known[1])
        self.defer(key, start, end - start, published)

    def learn_deferred(self, key: bytes, start: int, count: int) -> bool:
        """Remember a deferred publish from before the restart. Return False if there is no room."""
        if not self._memory.has_room_for_deferred:
            return False
        self._remember_deferred(_stored_form(key), start, count, 0)
        return True

    def deferred_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the range (start, end) of the messages deferred with this key, or None if it is unknown."""
        return self.deferred.find(_stored_form(key))

    def drop_unneeded(self, most: int, timestamp: int, waits: Waits) -> None:
        """Check up to `most` keys of deferred publishes, and forget the unneeded ones."""
        if before := len(self.deferred):
            self.deferred.drop_unneeded(most, timestamp, waits)
            if len(self.deferred) != before:
                self._note_fewer_deferred(before)

    def forget_oldest_deferred(self) -> int:
        """Forget the key of one deferred publish, because there are too many. Return 1, or 0 if there was none left."""
        before = len(self.deferred)
        self.deferred.drop_oldest()
        self._note_fewer_deferred(before)
        return before - len(self.deferred)

    def _note_fewer_deferred(self, before: int) -> None:
        self._memory.count_deferred(self, len(self.deferred) - before)
        if not self.deferred:
            self._memory.forget_deferring(self)

    # Forgetting

    def forget_key(self, key: bytes, start: int, count: int, timestamp: int) -> None:
        """Forget the key of a publish, because all of its `count` messages from `start` on were cancelled."""
        key = _stored_form(key)
        self._remove([key])
        if key in self.deferred:
            before = len(self.deferred)
            self.deferred.remove(key)
            self._note_fewer_deferred(before)
        self._put_forgotten(key, start, count, timestamp)

    def know_forgotten(self, found: Iterable[tuple[bytes, int, int, int]]) -> None:
        """Add keys that were forgotten before the restart, given as (key, start, count, publish time)."""
        for key, start, count, timestamp in found:
            self._put_forgotten(_stored_form(key), start, count, timestamp)

    def forgotten_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the range (start, end) of the cancelled messages that last used this key.

        Returns None if the key isn't a forgotten one.
        """
        key = _stored_form(key)
        places = [it.forgotten[key] for it in self._shelves if it.forgotten is not None and key in it.forgotten]
        if not places:
            return None
        start = max(places) >> _COUNT_BITS
        return start, start + (max(places) & _COUNT_MASK)

    def forgotten_starts(self) -> list[int]:
        """Return the first sequences of the publishes whose forgotten keys a restart would still find."""
        return [it >> _COUNT_BITS for shelf in self._shelves for it in (shelf.forgotten or {}).values()]

    def forget(self) -> None:
        """Forget all keys, because the topic is being emptied or deleted."""
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
        if (earlier := forgotten.get(key)) is not None:  # keep the earlier entry as well, under a name that no key has
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

    def _remove(self, gone: list[bytes]) -> None:
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
        self.deferred.remove(key)  # because the caller may be about to publish with this key
        self._note_fewer_deferred(before)
        return False

    # Publishes that may still fail

    def _index(self) -> None:
        """Add the newest unsettled publish to `_receipts`, if it isn't there yet."""
        if not self._is_indexed and self._waiting:
            receipt, keys = self._waiting[-1]
            self._receipts.update(dict.fromkeys(keys, receipt))
        self._is_indexed = True

    def _drop_settled(self, count: int) -> None:
        """Drop settled receipts from the front until `count` keys are gone. Forget the keys of failed publishes."""
        waiting, receipts = self._waiting, self._receipts
        while waiting and count > 0:
            receipt, keys = waiting[0]
            if not receipt.settled or (receipt.stays and self._refusal() is not None):
                return
            if len(waiting) == 1 and receipt.error is None:  # the usual case while the disk is healthy
                waiting.clear()
                receipts.clear()
                return
            self._index()
            waiting.popleft()
            count -= len(keys)
            own = [key for key in keys if receipts.get(key) is receipt]  # another publish may have some of the keys now
            for key in own:
                del receipts[key]
            if _has_failed(receipt):
                self._remove(own)

    def _answer(self, receipt: Receipt) -> Receipt:
        """Return the receipt for a repeat of this publish."""
        if not receipt.settled or receipt.error is None:
            return receipt
        # The batch is in the log, but its sync has failed. Once the log accepts messages again, it is durable after all.
        answer = Receipt()
        answer.settle(self._refusal())
        return answer


def _has_failed(receipt: Receipt) -> bool:
    """Return whether this publish has failed for good, so that its key is free again."""
    return receipt.settled and receipt.error is not None and not receipt.stays


def _begin_of(piece: KeySlice) -> int:
    return piece.begin


def _stored_form(key: bytes) -> bytes:
    return key if len(key) <= _LONGEST_AS_IT_IS else _hash(key)


def _hash(key: bytes) -> bytes:
    """Return the hash that we store instead of a long key. It can't equal a client's key, because those are printable."""
    return b"\0" + blake2b(key, digest_size=_HASH_SIZE).digest()
