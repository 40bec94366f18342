"""The messages that consumers hold right now, as positions without bodies.

A *delivery* is a chunk of neighbouring messages that one consumer got at one time; they share a deadline. One
dictionary leads from a message's wire id to its delivery. So a chunk is entered, and a run of FINs taken out, at the
speed of `dict`, without a Python object for each message.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, repeat
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.broker.consumer import Consumer

_PIECE: Final = 2_000  # sequences; copying them takes a fraction of a millisecond
NOT_IN_FLIGHT: Final = b"ID not in flight"
NOT_OWNER: Final = b"client does not own message"


class Delivery:
    """Neighbouring messages given to one consumer at one time. A message's sequence is its id plus `offset`.

    `left` of them are still in flight. `first` stays, even if the first message is finished: it bounds the others.
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


class InFlight:
    """All deliveries of one channel, and which messages were finished since the last `take_finished`."""

    __slots__ = ("_entries", "_finished", "next_deadline")

    def __init__(self) -> None:
        self._entries: dict[bytes, Delivery] = {}
        self._finished: dict[int, list[bytes]] = {}  # offset -> ids
        self.next_deadline = inf  # no later than the first deadline; it may be too early

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, ids: Sequence[bytes], delivery: Delivery) -> None:
        if len(ids) == 1:
            self._entries[ids[0]] = delivery
        else:
            self._entries.update(dict.fromkeys(ids, delivery))
        if delivery.deadline < self.next_deadline:
            self.next_deadline = delivery.deadline

    def finish(self, consumer: Consumer, ids: Sequence[bytes]) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Take out the messages that this consumer has finished. Return how many, and (id, reason) of the others.

        All are taken out first, which is right nearly always; `_finish_some` puts back what another consumer has.
        """
        if len(ids) == 1:  # the usual case of a consumer with few messages in hand
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
            if delivery is None and message_id in self._entries:  # named twice, and put back the first time
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
        """Take out one message of this consumer, to be queued again. Return its delivery, or why it cannot be taken."""
        delivery = self.find(consumer, message_id)
        if isinstance(delivery, Delivery):
            del self._entries[message_id]
            delivery.left -= 1
        return delivery

    def touch(self, consumer: Consumer, message_id: bytes, deadline: float) -> bytes | None:
        """Give one message a deadline of its own. Return why that is not possible, or None."""
        delivery = self.find(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        delivery.left -= 1
        sequence = delivery.sequence_of(message_id)
        own = Delivery(
            consumer,
            sequence,
            1,
            delivery.offset,
            delivery.attempts,
            delivery.delivered_at,
            deadline,
            delivery.published_at,
        )
        self._entries[message_id] = own
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
        """Return the consumer that has this message, or None if it is not in flight."""
        delivery = self._entries.get(message_id)
        return delivery.consumer if delivery is not None else None

    def ids_of(self, consumer: Consumer) -> list[bytes]:
        """Return everything that this consumer has, in the order of delivery. This looks at all deliveries."""
        return [message_id for message_id, delivery in self._entries.items() if delivery.consumer is consumer]

    def expire(self, now: float) -> list[tuple[int, Delivery]]:
        """Take out every message whose deadline has come, as (sequence, delivery), the oldest delivery first.

        This looks at all deliveries, but only when the earliest deadline has really come. With consumers that finish
        their work, that is about once in a message timeout.
        """
        if now < self.next_deadline:
            return []
        overdue = []
        for message_id, delivery in self._entries.items():
            if delivery.deadline <= now:
                overdue.append((message_id, delivery))
        expired = []
        for message_id, delivery in overdue:
            del self._entries[message_id]
            delivery.left -= 1
            expired.append((delivery.sequence_of(message_id), delivery))
        self.next_deadline = min((delivery.deadline for delivery in set(self._entries.values())), default=inf)
        return expired

    def holds(self, sequence: int) -> bool:
        """Return whether this message is in flight. This looks at all deliveries."""
        entries = self._entries
        return any(entries.get(b"%016x" % (sequence - it.offset)) is it for it in set(entries.values()))

    def lowest(self) -> int | None:
        """Return a sequence that no message in flight is below; None: none is in flight."""
        return min((delivery.first for delivery in set(self._entries.values())), default=None)

    def held_since(self) -> dict[Consumer, float]:
        """Return for each consumer when it got the oldest of the messages that it still has."""
        since: dict[Consumer, float] = {}
        for delivery in set(self._entries.values()):
            got = since.get(delivery.consumer)
            if got is None or delivery.delivered_at < got:
                since[delivery.consumer] = delivery.delivered_at
        return since

    def positions(self) -> Iterator[tuple[int, int]]:
        """Yield (sequence, attempts) of everything in flight."""
        for message_id, delivery in self._entries.items():
            yield delivery.sequence_of(message_id), delivery.attempts

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of everything in flight now, in pieces. Copying 100,000 takes a millisecond."""
        entries = iter(self._entries.copy().items())
        return iter(lambda: [delivery.sequence_of(i) for i, delivery in islice(entries, _PIECE)], [])

    def take_finished(self) -> list[tuple[int, int]]:
        """Return the sequences finished since the last call, as ascending [start, end) ranges."""
        ranges: list[tuple[int, int]] = []
        for offset, ids in self._finished.items():
            ranges += _ranges(ids, offset)
        self._finished.clear()
        return sorted(ranges) if len(ranges) > 1 else ranges

    def clear(self) -> None:
        self._entries.clear()
        self._finished.clear()
        self.next_deadline = inf


@lru_cache(maxsize=512)
def _numbers(count: int) -> Struct:
    return Struct(f">{count}Q")


def _ranges(ids: list[bytes], offset: int) -> list[tuple[int, int]]:
    numbers = sorted(_numbers(len(ids)).unpack(unhexlify(b"".join(ids))))
    first, last = numbers[0] + offset, numbers[-1] + offset
    if last - first + 1 == len(numbers):  # no holes: each id is finished only once
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
