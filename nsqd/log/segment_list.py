"""A log's segments, oldest first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.log.segment import Segment

_base_of: Final = attrgetter("base")


class SegmentList:
    """The last one, `active`, is written on; the others are sealed, and each ends where the next one begins."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self.active: Segment | None = segments[-1] if segments else None

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._segments

    @property
    def first(self) -> int:
        """The oldest sequence; 0 if there never was a message."""
        return self._segments[0].base if self._segments else 0

    def add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self.active = segment

    def holding(self, sequence: int) -> Segment:
        return self._segments[self._place_of(sequence)]

    def starting_with(self, sequence: int) -> list[Segment]:
        """The one that holds the sequence, and all later ones."""
        return self._segments[self._place_of(sequence) :]

    def next_base(self, segment: Segment) -> int | None:
        """Where the one after it begins; None: it is the active one."""
        place = self._segments.index(segment) + 1
        return self._segments[place].base if place < len(self._segments) else None

    def take_before(self, sequence: int) -> list[Segment]:
        """Takes those out that end at or before the sequence; never the active one."""
        place = self._place_of(sequence)
        gone = self._segments[:place]
        del self._segments[:place]
        return gone

    def _place_of(self, sequence: int) -> int:
        return max(bisect_right(self._segments, sequence, key=_base_of) - 1, 0)
