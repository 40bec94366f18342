"""A backlog lists all unfinished messages of a channel, as an undo record for emptying, moving or deleting it.

    finished, except `requeued` and `deferred`     not delivered yet, except `finished`     not released yet
    ────────────────────────────────────────── next ────────────────────────────────── end ──────────────────────

Take the backlog before you empty the channel. If that was a mistake, restore the backlog: all of its messages wait
again as before, and messages from `end` on are left alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The waiting messages before `end`. Messages in flight count as requeued."""

    next: int  # all earlier messages were delivered at least once
    end: int  # the channel's messages end here
    finished: Sequence[tuple[int, int]]  # ascending ranges in [next, end), without messages of the lists below
    requeued: Sequence[tuple[int, int]]  # (sequence, attempts so far), in the order of delivery
    deferred: Sequence[tuple[int, int, int]]  # (sequence, attempts so far, due in milliseconds of the wall clock)
    buried: Sequence[tuple[int, int]] = ()  # ascending ranges; these don't wait, see `restore_backlog`
    copies: Sequence[
        tuple[int, int, int]
    ] = ()  # like `deferred`, or due 0; edited copies in a paused topic, from `end` on

    @property
    def count(self) -> int:
        """The number of waiting messages."""
        finished = sum(end - start for start, end in self.finished)
        apart = sum(sequence < self.next for sequence in self.exceptions()) + len(self.copies)
        return self.end - self.next - finished + apart

    def exceptions(self) -> list[int]:
        """Return the sequences of the requeued and deferred messages."""
        return [sequence for sequence, _ in self.requeued] + [sequence for sequence, _, _ in self.deferred]

    def count_among(self, sequences: Iterable[int]) -> int:
        """Return how many of these messages are waiting."""
        if not (asked := list(sequences)):
            return 0
        exceptions = set(self.exceptions())
        return sum(s in exceptions or (self.next <= s < self.end and not is_in(s, self.finished)) for s in asked)

    def count_among_ranges(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Return how many messages in these ranges are waiting. The ranges must be within [next, end)."""
        finished = sum(end - start for start, end in self.finished)
        return sum(end - start for start, end in joined([*ranges, *self.finished])) - finished


class Restored(NamedTuple):
    restored: int  # messages that wait as in the backlog, or are in flight
    gone: int  # messages that are no longer in the log


class RedeliveryCounts(NamedTuple):
    redelivered: int  # messages that wait again now
    waiting: int  # messages that were still waiting, in flight or buried
    gone: int  # messages that are no longer in the log


def is_in(sequence: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether the sequence is in one of these ascending ranges."""
    place = bisect_right(ranges, (sequence, inf)) - 1
    return place >= 0 and sequence < ranges[place][1]


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges that overlap or touch. Returns them in ascending order, without empty ones."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif start < end:
            found.append((start, end))
    return found


def without(ranges: Iterable[tuple[int, int]], sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return these ascending ranges without the given sequences."""
    found: list[tuple[int, int]] = []
    apart = sorted(sequences)
    place = 0
    for start, end in ranges:
        while place < len(apart) and apart[place] < end:
            if start <= apart[place]:
                if start < apart[place]:
                    found.append((start, apart[place]))
                start = apart[place] + 1
            place += 1
        if start < end:
            found.append((start, end))
    return found


def from_place(ranges: Iterable[tuple[int, int]], sequence: int) -> list[tuple[int, int]]:
    """Return these ranges without the parts before `sequence`."""
    return [(max(start, sequence), end) for start, end in ranges if end > sequence]
