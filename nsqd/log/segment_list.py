"""The list of a log's segments, oldest first, with searches by sequence and by time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.log.retention import Retention
    from nsqd.log.segment import Segment

_base_of: Final = attrgetter("base")


class SegmentList:
    """The segments in order. We write to the last one, `active`. The others are sealed.

    A sealed segment ends where the next one begins. This is only a list: other parts open, write and remove the files.
    """

    def __init__(self, segments: list[Segment], tail: int) -> None:
        self._segments = segments
        self.active: Segment | None = segments[-1] if segments else None
        self.first = segments[0].base if segments else 0  # the oldest sequence; 0 if there was never a message
        self.tail = tail  # the sequence after the last written record
        self._sealed_bytes = sum(segment.size for segment in segments[:-1])

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._segments

    def add(self, segment: Segment) -> None:
        if self.active is not None:
            self._sealed_bytes += self.active.size
        self._segments.append(segment)
        self.active = segment
        self.first = self._segments[0].base

    def holding(self, sequence: int) -> Segment:
        return self._segments[self._place_of(sequence)]

    def starting_with(self, sequence: int) -> list[Segment]:
        """Return the segment that holds the sequence and all later ones."""
        return self._segments[self._place_of(sequence) :]

    def end_of(self, segment: Segment) -> int:
        """Return the sequence at which the segment's records end."""
        place = self._segments.index(segment) + 1
        return self._segments[place].base if place < len(self._segments) else self.tail

    def take_before(self, sequence: int) -> list[Segment]:
        """Remove and return the segments that end at or before the sequence, but never the active one."""
        segments = self._segments
        if len(segments) < 2 or segments[1].base > sequence:
            return []
        place = self._place_of(sequence)
        gone = segments[:place]
        del segments[:place]
        self.first = segments[0].base
        self._sealed_bytes -= sum(segment.size for segment in gone)
        return gone

    def ends_before(self, sequence: int) -> bool:
        """Return whether the oldest segment is sealed and ends at or before the sequence."""
        return len(self._segments) > 1 and self._segments[1].base <= sequence

    def ended_before(self, sequence: int) -> list[tuple[Segment, int]]:
        """Return the sealed segments that end at or before the sequence, each with its end."""
        return [(one, following.base) for one, following in pairwise(self._segments) if following.base <= sequence]

    def unwanted_before(self, retention: Retention, timestamp: int, *, keyed_since: int) -> int:
        """Return the base of the oldest segment that has to stay.

        That's the first one that retention keeps or that has a key newer than `keyed_since`; if none does, it's the
        active one.
        """
        active = self.active
        if active is None:
            return 0
        bytes_behind = self._sealed_bytes + active.size
        for segment in islice(self._segments, len(self._segments) - 1):
            bytes_behind -= segment.size
            if segment.keyed > keyed_since or retention.wants(segment.newest, bytes_behind, timestamp):
                return segment.base
        return active.base

    def older_than(self, timestamp: int) -> int:
        """Return the sequence up to which the sealed segments are known to have only messages before `timestamp`."""
        end = self.first
        for one, following in pairwise(self._segments):
            if not 0 < one.newest < timestamp:
                break
            end = following.base
        return end

    def bytes_from(self, sequence: int) -> int:
        """Return the bytes from this sequence to the tail, as if all messages in its segment had the same size."""
        if self.active is None or sequence >= self.tail:
            return 0
        place = self._place_of(sequence)
        segment = self._segments[place]
        later = sum(it.size for it in self._segments[place + 1 :])
        end = self.end_of(segment)
        return later + segment.size * (end - max(sequence, segment.base)) // max(end - segment.base, 1)

    def bytes_before(self, sequence: int) -> int:
        """Return the bytes in the segments before this sequence, estimated as in `bytes_from`."""
        written = self._sealed_bytes + (self.active.size if self.active is not None else 0)
        return written - self.bytes_from(sequence)

    def _place_of(self, sequence: int) -> int:
        return max(bisect_right(self._segments, sequence, key=_base_of) - 1, 0)
