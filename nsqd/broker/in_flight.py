"""The messages of a channel that are in flight, without their bodies. `Channel.expire` handles timeouts.

A *delivery* is some messages of a batch, mostly neighbours, that one consumer received together; they share a deadline.
One dictionary maps each message's wire id to its delivery. So adding a delivery and removing a run of FINs are as fast as
`dict` itself, and no message needs a Python object of its own.

There is also a bitmap of the sequences in flight, because a request about a million messages can't search the
deliveries for each one. We only update the bitmap when it is needed. Until then, new deliveries are one open range,
because messages are mostly delivered in order, and finished messages wait for `take_finished` anyway.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, repeat
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, in_pieces
from nsqd.broker.reclaimer import SpareList

if TYPE_CHECKING:
    from nsqd.broker.consumer import Consumer
    from nsqd.broker.reclaimer import Reclaimer

_LOOKED_AT: Final = 5_000  # messages whose deadlines are checked before other work may run; a few milliseconds
_PLACED_AT_ONCE: Final = 2_000  # messages whose places are computed before other work may run; a few milliseconds
_COST_OF_CONSUMER: Final = 10  # to ask for its name takes as long as computing so many places
_NEVER: Final = (1 << 62) - 1  # microseconds, and a sequence; above all that occur
NOT_IN_FLIGHT: Final = b"ID not in flight"
NOT_OWNER: Final = b"client does not own message"


class Delivery:
    """Messages of a batch that one consumer received together.

    A message's sequence is its id plus `offset`. For example, if the ids 100 to 102 have the sequences 5 to 7, `offset`
    is -95. `left` is the number of messages still in flight. `first` is the sequence of the first message, even if that
    one is finished.
    """

    __slots__ = ("attempts", "consumer", "deadline", "delivered_at", "first", "left", "offset", "published_at")

    def __init__(
        self,
        consumer: Consumer,
        first: int,
        count: int,
        offset: int,
        attempts: int,
        delivered_at: float,
        deadline: float,
        published_at: int,
    ) -> None:
        self.consumer = consumer
        self.first = first
        self.left = count
        self.offset = offset
        self.attempts = attempts
        self.delivered_at = delivered_at
        self.deadline = deadline
        self.published_at = published_at  # wall clock, nanoseconds

    def sequence_of(self, message_id: bytes) -> int:
        return int(message_id, 16) + self.offset


class TouchedDelivery(Delivery):
    """A message whose consumer has asked for more time. The others don't have this field, so it costs them nothing."""

    __slots__ = ("touched_at",)

    def __init__(self, former: Delivery, sequence: int, deadline: float, touched_at: float) -> None:
        super().__init__(
            former.consumer,
            sequence,
            1,
            former.offset,
            former.attempts,
            former.delivered_at,
            deadline,
            former.published_at,
        )
        self.touched_at = touched_at  # the last time


Place = tuple[int, int, bytes]  # a message in flight: when it was delivered in microseconds, its sequence, its id


class InFlight:
    """All deliveries of one channel, and the messages finished since the last `take_finished`."""

    __slots__ = (
        "_checked",
        "_entries",
        "_finished",
        "_finished_ranges",
        "_open_end",
        "_open_start",
        "_reclaimer",
        "_sequences",
        "_spare_deliveries",
        "_spare_ids",
        "_to_check",
        "next_deadline",
    )

    def __init__(self, reclaimer: Reclaimer) -> None:
        self._reclaimer = reclaimer
        self._entries: dict[bytes, Delivery] = {}
        self._finished: dict[int, list[bytes]] = {}  # offset -> ids
        self._finished_ranges: list[tuple[int, int]] = []  # the finished messages that `_sequences` no longer has
        self._sequences = BitMap64()  # in flight, except the open range, but including the ones in `_finished`
        self._open_start = self._open_end = 0  # the latest deliveries, in order
        self._to_check: list[bytes] = []  # the messages that `expire` is checking
        self._spare_ids, self._spare_deliveries = SpareList(), SpareList()
        self._checked = 0  # how many of `_to_check` are checked already
        self.next_deadline = inf  # never after the earliest deadline, but perhaps before it

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, ids: Sequence[bytes], delivery: Delivery) -> None:
        if len(ids) == 1:
            self._entries[ids[0]] = delivery
        else:
            self._entries.update(dict.fromkeys(ids, delivery))
        first = delivery.first
        if first != self._open_end:
            self._close_range()
            self._open_start = first
        self._open_end = first + delivery.left
        if delivery.deadline < self.next_deadline:
            self.next_deadline = delivery.deadline

    def add_scattered(self, ids: Sequence[bytes], sequences: Sequence[int], delivery: Delivery) -> None:
        """Do the same as `add` with messages that aren't neighbours."""
        self._entries.update(dict.fromkeys(ids, delivery))
        self._close_range()
        self._sequences.update(sequences)
        self.next_deadline = min(self.next_deadline, delivery.deadline)

    def finish(self, consumer: Consumer, ids: Sequence[bytes]) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Remove the messages that this consumer has finished. Return their number, and (id, reason) of the failures.

        We remove all ids first, because nearly always all of them are valid. If not, `_finish_some` puts back the
        messages of other consumers.
        """
        if len(ids) == 1:  # the usual case if a consumer has only a few messages in flight
            delivery = self._entries.pop(ids[0], None)
            if delivery is None or delivery.consumer is not consumer:
                return self._finish_some(consumer, ids, [delivery])
            delivery.left -= 1
            finished = self._finished.get(delivery.offset)
            if finished is None:
                self._finished[delivery.offset] = [ids[0]]
            else:
                finished.append(ids[0])
            return 1, []
        deliveries = list(map(self._entries.pop, ids, repeat(None)))
        first = deliveries[0]
        if first is not None and first.consumer is consumer and deliveries.count(first) == len(ids):
            first.left -= len(ids)
            self._finished.setdefault(first.offset, []).extend(ids)
            return len(ids), []
        return self._finish_some(consumer, ids, deliveries)

    def _finish_some(
        self, consumer: Consumer, ids: Sequence[bytes], deliveries: Sequence[Delivery | None]
    ) -> tuple[int, list[tuple[bytes, bytes]]]:
        done, failures = 0, []
        for message_id, delivery in zip(ids, deliveries, strict=True):
            if delivery is None and message_id in self._entries:  # the second FIN of an id that was just put back
                failures.append((message_id, NOT_OWNER))
            elif delivery is None:
                failures.append((message_id, NOT_IN_FLIGHT))
            elif delivery.consumer is not consumer:
                self._entries[message_id] = delivery
                failures.append((message_id, NOT_OWNER))
            else:
                delivery.left -= 1
                self._finished.setdefault(delivery.offset, []).append(message_id)
                done += 1
        return done, failures

    def take_out(self, consumer: Consumer, message_id: bytes) -> Delivery | bytes:
        """Remove a consumer's message without finishing it. Return its delivery, or the reason if that fails."""
        delivery = self.find(consumer, message_id)
        if isinstance(delivery, Delivery):
            del self._entries[message_id]
            delivery.left -= 1
            self._close_range()
            self._sequences.discard(delivery.sequence_of(message_id))
        return delivery

    def touch(self, consumer: Consumer, message_id: bytes, deadline: float, now: float) -> bytes | None:
        """Set a new deadline for one message. Return the reason if that fails, otherwise None."""
        delivery = self.find(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        delivery.left -= 1
        sequence = delivery.sequence_of(message_id)
        self._entries[message_id] = TouchedDelivery(delivery, sequence, deadline, now)
        self.next_deadline = min(self.next_deadline, deadline)
        return None

    def find(self, consumer: Consumer, message_id: bytes) -> Delivery | bytes:
        delivery = self._entries.get(message_id)
        if delivery is None:
            return NOT_IN_FLIGHT
        if delivery.consumer is not consumer:
            return NOT_OWNER
        return delivery

    def owner(self, message_id: bytes) -> Consumer | None:
        """Return the consumer of this message, or None if it is not in flight."""
        delivery = self._entries.get(message_id)
        return delivery.consumer if delivery is not None else None

    def at(self, place: Place) -> Delivery | None:
        """Return the delivery that `oldest_first` has found, or None if it is over, even if there is a later one."""
        since, _, message_id = place
        delivery = self._entries.get(message_id)
        return delivery if delivery is not None and microseconds_of(delivery) == since else None

    @property
    def is_looking(self) -> bool:
        """Whether `expire` has more messages to check, so that it must be called again right away."""
        return bool(self._to_check)

    def expire(self, now: float) -> list[tuple[int, Delivery]]:
        """Remove the messages that have timed out. Return their (sequence, delivery), the oldest delivery first.

        A call checks some thousands of messages and leaves the rest to the next calls. Before `next_deadline`, it
        checks none. If consumers finish their work in time, that means one round of checks per message timeout.
        """
        if not self._to_check:
            if now < self.next_deadline:
                return []
            self._to_check.extend(self._entries)  # instead of creating a new list: see SpareList
            self.next_deadline = inf
            if len(self._to_check) > _LOOKED_AT:
                return []  # enough for this call: copying a million ids takes as long as checking some thousands
        expired: list[tuple[int, Delivery]] = []
        entries, next_deadline = self._entries, self.next_deadline
        stop = self._checked + _LOOKED_AT
        for message_id in self._to_check[self._checked : stop]:
            delivery = entries.get(message_id)
            if delivery is None:
                continue
            if delivery.deadline > now:
                next_deadline = min(next_deadline, delivery.deadline)
                continue
            del entries[message_id]
            delivery.left -= 1
            expired.append((delivery.sequence_of(message_id), delivery))
        self.next_deadline = next_deadline
        self._checked = stop
        if stop >= len(self._to_check):
            self._reclaimer.add(self._to_check)
            self._to_check = []
            self._checked = 0
        if expired:
            self._close_range()
            self._sequences.difference_update(BitMap64([sequence for sequence, _ in expired]))
        return expired

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return the given sequences that are in flight."""
        self._settle()
        return self._sequences & sequences

    def all(self) -> BitMap64:
        """Return all sequences in flight. The bitmap is yours."""
        self._settle()
        return self._sequences.copy()

    def before(self, end: int) -> BitMap64:
        """Return the sequences before `end` that are in flight."""
        self._settle()
        return between(self._sequences, 0, end)

    def lowest(self) -> int | None:
        """Return the lowest sequence in flight, or None if nothing is in flight."""
        if not self._entries:
            return None
        self._settle()
        return self._sequences.min()

    def find_oldest(self, holders: set[Consumer], since: dict[Consumer, float]) -> Iterator[None]:
        """Find the delivery time of each consumer's oldest message in flight, and put it into `since`.

        This goes through the messages in the order of delivery, and stops as soon as it has a time for each of the
        `holders`. It yields after every few thousand messages, so that other work can run.
        """
        deliveries = list(islice(self._entries.values(), _LOOKED_AT))
        if _note_oldest(deliveries, holders, since) or len(self._entries) <= _LOOKED_AT:
            return
        yield
        deliveries = self._spare_deliveries.take()
        deliveries.extend(self._entries.values())
        for start in range(0, len(deliveries), _LOOKED_AT):
            if _note_oldest(deliveries[start : start + _LOOKED_AT], holders, since):
                break
            yield
        self._reclaimer.add(deliveries)

    def oldest_first(
        self, count: int, after: tuple[int, int] = (-1, -1), wants: Callable[[Consumer], bool] | None = None
    ) -> Iterator[Place | None]:
        """Yield the next `count` messages, at least one, after a (since, sequence), the oldest delivery first.

        With `wants`, only those of consumers for which it returns True. It also yields None now and then, so that other
        work can run.

        A message keeps its place as long as it is in flight, even if its consumer touches it. One that is delivered
        again gets a later place. So if you page through them, you meet each message that is in flight all the while
        exactly once, whatever comes and goes. Most entries are in this order already, but not all: a FIN of someone
        else's message puts it at the end. So we look at all of them, and keep the earliest.
        """
        entries = self._entries
        ids, deliveries = self._spare_ids.take(), self._spare_deliveries.take()
        ids.extend(entries)
        deliveries.extend(entries.values())
        found: list[Place] = []
        wanted: dict[Consumer, bool] = {}
        left = _PLACED_AT_ONCE
        latest, last = _NEVER, (_NEVER, _NEVER)  # once there are more than enough, the last place that counts
        for start in range(0, len(ids), _LOOKED_AT):
            looked: Delivery | None = None
            since, passes = 0, True
            for message_id, delivery in zip(
                ids[start : start + _LOOKED_AT], deliveries[start : start + _LOOKED_AT], strict=True
            ):
                if delivery is not looked:
                    looked = delivery
                    since = microseconds_of(delivery)
                    passes = since < after[0] or since > latest
                    if wants is not None and not passes:
                        consumer = delivery.consumer
                        if consumer not in wanted:
                            wanted[consumer] = wants(consumer)
                            left -= _COST_OF_CONSUMER
                        passes = not wanted[consumer]
                if not passes:
                    left -= 1
                    sequence = delivery.sequence_of(message_id)
                    if after < (since, sequence) < last:
                        found.append((since, sequence, message_id))
                        if len(found) >= 2 * count:
                            found.sort()
                            del found[count:]
                            latest = found[-1][0]
                            last = latest, found[-1][1]
                if left <= 0:
                    left = _PLACED_AT_ONCE
                    yield None
            yield None
        self._reclaimer.add(ids, deliveries)
        found.sort()
        yield from found[:count]

    def positions(self) -> Iterator[tuple[int, int]]:
        """Return an iterator over (sequence, attempts) of all messages in flight, as of this call.

        For a million messages, the call takes a few milliseconds, and the iteration half a second.
        """
        ids, deliveries = self._spare_ids.take(), self._spare_deliveries.take()
        ids.extend(self._entries)
        deliveries.extend(self._entries.values())
        ids.reverse()
        deliveries.reverse()
        return _positions(ids, deliveries)

    def attempts_before(self, end: int) -> dict[int, int]:
        """Return the attempts of each message in flight before `end`, by sequence.

        This goes through all messages in flight, which takes a few milliseconds for a hundred thousand.
        """
        if not self._entries:
            return {}
        numbers = _numbers(len(self._entries)).unpack(unhexlify(b"".join(self._entries)))
        return {
            sequence: delivery.attempts
            for number, delivery in zip(numbers, self._entries.values(), strict=True)
            if (sequence := number + delivery.offset) < end
        }

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all messages in flight, in lists of a few thousand."""
        self._settle()
        return in_pieces(self._sequences)

    def take_finished(self) -> list[tuple[int, int]]:
        """Return the sequences finished since the last call, as ascending [start, end) ranges."""
        if not self._finished and not self._finished_ranges:
            return []
        self._settle()
        ranges, self._finished_ranges = self._finished_ranges, []
        return sorted(ranges) if len(ranges) > 1 else ranges

    def _settle(self) -> None:
        """Bring the bitmap up to date."""
        self._close_range()
        if not self._finished:
            return
        for offset, ids in self._finished.items():
            for start, end in _ranges(ids, offset):
                self._sequences.remove_range(start, end)
                self._finished_ranges.append((start, end))
        self._finished.clear()

    def _close_range(self) -> None:
        if self._open_start < self._open_end:
            self._sequences.add_range(self._open_start, self._open_end)
            self._open_start = self._open_end

    def clear(self) -> None:
        self._reclaimer.add(self._entries, self._to_check)
        self._entries = {}
        self._finished.clear()
        self._finished_ranges = []
        self._sequences.clear()
        self._open_start = self._open_end
        self._to_check = []
        self._checked = 0
        self.next_deadline = inf


def microseconds_of(delivery: Delivery) -> int:
    """Return when the messages were delivered, in whole microseconds: a place in a list has to be exact."""
    return int(delivery.delivered_at * 1_000_000)


def _note_oldest(deliveries: Sequence[Delivery], holders: set[Consumer], since: dict[Consumer, float]) -> bool:
    """Move each consumer of these deliveries from `holders` to `since`. Return whether `holders` is empty now."""
    last: Delivery | None = None
    for delivery in deliveries:
        if delivery is not last:
            last = delivery
            if delivery.consumer in holders:
                holders.remove(delivery.consumer)
                since[delivery.consumer] = delivery.delivered_at
    return not holders


def _positions(ids: list[bytes], deliveries: list[Delivery]) -> Iterator[tuple[int, int]]:
    """Yield (sequence, attempts) from the last to the first, and drop each entry: freeing a million at once stalls."""
    while ids:
        delivery = deliveries.pop()
        yield delivery.sequence_of(ids.pop()), delivery.attempts


@lru_cache(maxsize=512)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}Q")


def _ranges(ids: list[bytes], offset: int) -> list[tuple[int, int]]:
    numbers = sorted(_numbers(len(ids)).unpack(unhexlify(b"".join(ids))))
    first, last = numbers[0] + offset, numbers[-1] + offset
    if last - first + 1 == len(numbers):  # no gaps, because no id occurs twice: each is finished only once
        return [(first, last + 1)]
    ranges = []
    start = previous = first
    for number in numbers[1:]:
        sequence = number + offset
        if sequence != previous + 1:
            ranges.append((start, previous + 1))
            start = sequence
        previous = sequence
    ranges.append((start, previous + 1))
    return ranges
