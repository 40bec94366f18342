"""The retry queue of a channel: messages to be delivered again, first come first served.

queue_members.py explains how entries are packed, and how one is removed from the middle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Final

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, in_pieces
from nsqd.broker.queue_members import (
    ATTEMPTS_BITS,
    ATTEMPTS_MASK,
    DROPPED_AT_ONCE,
    DROPPED_WITH_EACH,
    FEW,
    PASSED_OVER,
    SEQUENCE_BITS,
    SEQUENCE_MASK,
    Members,
    changes_of,
    dropped_with,
    noted,
    plain,
    with_attempts,
)
from nsqd.broker.reclaimer import MANY, Reclaimer

_LEFT_OVER_AT_ONCE: Final = 5_000  # stale entries to skip while looking for the first valid one


class RetryQueue:
    """Messages that wait for redelivery, first come first served. A *position* is a sequence with its attempts."""

    __slots__ = ("_former", "_queue", "_reclaimer", "members", "passed")

    def __init__(self, reclaimer: Reclaimer) -> None:
        self._reclaimer = reclaimer
        self._queue: deque[int] = deque()  # generation, sequence, attempts
        # The entries before the ones in `_queue`, while we drop stale ones. None instead of an empty deque, because
        # that takes 800 bytes, and there are thousands of channels.
        self._former: deque[int] | None = None
        self.members = Members()  # deliveries read `members.count`, because `len()` of the queue would be one more call
        self.passed = 0  # stale entries dropped while looking for the first position; channels stop after too many

    def __len__(self) -> int:
        return self.members.count

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.members.sequences

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (sequence, attempts so far) of each position."""
        return filter(None, _valid_retries(chain(self._former or (), self._queue), self.members))

    def copy(self) -> Iterator[tuple[int, int]]:
        """Return an iterator over the positions as of this call, in ascending order.

        This copies only bitmaps, because the garbage collector would traverse a copied list of a million entries.
        """
        return with_attempts(self.members.sequences.copy(), self.members.attempts.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the current sequences, in lists of a few thousand."""
        return in_pieces(self.members.sequences)

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return the given sequences that are in this queue."""
        return self.members.sequences & sequences

    def note_changes(self, *, wanted: bool) -> None:
        """Note from now on which sequences come and go, or stop that."""
        self.members = noted(self.members) if wanted else plain(self.members)

    def changes(self) -> BitMap64:
        """Return the sequences that have come or gone since the last call."""
        return changes_of(self.members)

    def lowest(self) -> int | None:
        """Return the lowest sequence, or None if the queue is empty."""
        return self.members.sequences.min() if self.members.count else None

    @property
    def entries(self) -> int:
        """The number of entries, including stale ones: `turn` has to go through this many to see them all."""
        return len(self._former or ()) + len(self._queue)

    def add(self, sequence: int, attempts: int) -> None:
        self._queue.append(self._add_member(sequence, attempts))
        if self._former:
            self._drop_some(DROPPED_WITH_EACH)

    def _add_member(self, sequence: int, attempts: int) -> int:
        """Add a position to the members, and return its entry."""
        attempts &= ATTEMPTS_MASK
        generation = self.members.add(sequence, attempts)
        return (generation << SEQUENCE_BITS | sequence) << ATTEMPTS_BITS | attempts

    def turn(self, count: int, wanted: Container[int]) -> list[int]:
        """Move the first `count` entries to the end. Take out and return wanted messages that were never delivered.

        To visit every entry, call this until the counts add up to the initial `entries`, even if entries are added or
        removed in between.
        """
        taken: list[int] = []
        for _ in range(min(count, self.entries)):
            packed = (self._former or self._queue).popleft()
            if not self._is_valid(packed):
                continue
            sequence = _retry_sequence(packed)
            if packed & ATTEMPTS_MASK or sequence not in wanted:
                self._queue.append(packed)
            else:
                taken.append(sequence)
                self.members.remove(sequence, sequence + 1, 0)
        if not self.members.count:
            self.clear()
        return taken

    def attempts_of(self, sequence: int) -> int:
        """Return how many attempts this message has had."""
        return self.members.attempts.get(sequence)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out the wanted sequences that are in this queue, and return them."""
        if here := self.members.take_out(wanted):
            self._drop_some(min(DROPPED_WITH_EACH * len(here), DROPPED_AT_ONCE))
        return here

    def _drop_some(self, most: int) -> None:
        """If many entries are stale, check up to `most` entries, from the last one, and drop the stale ones."""
        count = self.members.count
        if not count:
            self.clear()
        elif not self._former and (len(self._queue) - count) * 2 > len(self._queue) + FEW:
            self._former, self._queue = self._queue, deque()
        former, queue = self._former, self._queue
        if not former:
            return
        if most <= FEW:
            for _ in range(min(most, len(former))):
                packed = former.pop()
                if self._is_valid(packed):
                    queue.appendleft(packed)
            return
        some = [former.pop() for _ in range(min(most, len(former)))]
        generations = [packed >> (SEQUENCE_BITS + ATTEMPTS_BITS) for packed in some]
        sequences = [packed >> ATTEMPTS_BITS & SEQUENCE_MASK for packed in some]
        queue.extendleft(compress(some, self.members.which_count(sequences, generations)))

    def replace_before(self, end: int, positions: Sequence[tuple[int, int]]) -> None:
        """Replace all positions before `end` with these (sequence, attempts), which go to the front."""
        members = self.members
        taken = members.take_out(between(members.sequences, 0, end))
        if not members.count:
            self.clear()
        sequences = [sequence for sequence, _ in positions]
        attempts = [number & ATTEMPTS_MASK for _, number in positions]
        entries = [
            (generation << SEQUENCE_BITS | sequence) << ATTEMPTS_BITS | number
            for sequence, number, generation in zip(
                sequences, attempts, members.add_all(sequences, attempts), strict=True
            )
        ]
        (self._former or self._queue).extendleft(reversed(entries))
        self._drop_some(dropped_with(len(taken) + len(entries), self.entries))

    def peek(self) -> tuple[int, int]:
        packed = self._first()[0]
        return _retry_sequence(packed), packed & ATTEMPTS_MASK

    def next_ones(self, count: int) -> list[tuple[int, int]]:
        """Return about the first `count` positions, as (sequence, attempts so far)."""
        if not self.members.count:
            return []
        queue = self._first()
        rest = self._queue if queue is self._former else ()
        some = islice(chain(queue, rest), count + _LEFT_OVER_AT_ONCE)
        return list(islice(filter(None, _valid_retries(some, self.members)), count))

    def pop_run(self, limit: int, end: int) -> tuple[int, int, int]:
        """Take out up to `limit` neighbours before `end` with equal attempts. Return (first, end, attempts)."""
        queue = self._first()
        packed = queue.popleft()
        first, attempts = _retry_sequence(packed), packed & ATTEMPTS_MASK
        stop = min(first + limit, end)
        sequence = first + 1
        step = 1 << ATTEMPTS_BITS  # to the entry of the next sequence with the same generation and attempts
        while sequence < stop and queue and queue[0] == packed + step:
            if self.members.generations and not self._is_valid(queue[0]):
                break
            packed = queue.popleft()
            sequence += 1
        self.members.remove(first, sequence, attempts)
        if not self.members.count:
            self.clear()
        return first, sequence, attempts

    def _first(self) -> deque[int]:
        """Return the deque that starts with the first position. Don't call this on an empty queue.

        After thousands of stale entries we stop searching and move the lowest sequence to the front instead, because
        the rest of the search could take longer than a turn may.
        """
        queue = self._former or self._queue
        if not self.members.generations:  # nothing was taken out, so nothing is stale
            return queue
        for _ in range(_LEFT_OVER_AT_ONCE):
            if self._is_valid(queue[0]):
                return queue
            queue.popleft()
            self.passed += 1
            if not queue:
                queue = self._queue
        lowest = self.members.sequences.min()
        attempts = self.members.attempts.get(lowest)
        self.take_out(BitMap64((lowest,)))
        queue = self._former or self._queue
        queue.appendleft(self._add_member(lowest, attempts))
        return queue

    def _is_valid(self, packed: int) -> bool:
        """Return False if the entry is stale."""
        return self.members.counts(_retry_sequence(packed), packed >> (SEQUENCE_BITS + ATTEMPTS_BITS))

    def clear(self) -> None:
        if self.entries > MANY:
            self._reclaimer.add(self._queue, self._former or [])
            self._queue = deque()
        else:
            self._queue.clear()
        self._former = None
        self.members.clear()


def _retry_sequence(packed: int) -> int:
    """Return the sequence of an entry of a queue."""
    return packed >> ATTEMPTS_BITS & SEQUENCE_MASK


def _valid_retries(entries: Iterable[int], members: Members) -> Iterator[tuple[int, int] | None]:
    """Yield the positions of the valid entries, and None after every few thousand stale ones."""
    passed = 0
    for packed in entries:
        sequence = _retry_sequence(packed)
        if members.counts(sequence, packed >> (SEQUENCE_BITS + ATTEMPTS_BITS)):
            yield sequence, packed & ATTEMPTS_MASK
            continue
        passed += 1
        if passed % PASSED_OVER == 0:
            yield None
