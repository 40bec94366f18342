"""A walk through the history of all nodes in time order: decides what to read next, and collects the hits.

Each node has a lane: a range of sequences, read in part. We return a hit once no unread message can come before it, so
the order holds over all nodes:

    n1   first ······· at ■■■■■■■■■■ border     ■ has been read
    n2   first ·· at ■■■■■■■■■■■■■■■ border     the lane whose edge is nearest to the start is read next

If a lane fails, it is closed with a reason, and the other lanes continue. A cursor says where each lane stands, as a
plain text for a URL: `36811-41000@n1:4151@1f0c2d` for [at, border) at n1, in the log with this id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nsqadmin.messages.model import Gap, Message, NodeLog, SearchResult

_MOST_LANES: Final = 1000
_MOST_GAPS: Final = 1000  # to remember
_LARGEST_STEP: Final = 4000  # messages
_PLACE: Final = re.compile(r"(\d{1,18})-(\d{1,18})@([^\s@]{1,300})(?:@([A-Za-z0-9_.-]{1,64}))?").fullmatch


class BadCursor(ValueError):
    """The text isn't a cursor; the message says why."""


class Place(NamedTuple):
    """The position of a search on one node."""

    at: int
    border: int
    log: str = ""


_NOWHERE: Final[Mapping[str, Place]] = {}


@dataclass(slots=True)
class Lane:
    """The part of one node that was read: backward from `border` to `first`, or forward from `border` to `end`."""

    node: str
    first: int
    end: int
    border: int  # where the search began
    at: int  # how far it is
    step: int  # messages to read next
    log: str = ""  # id of the log; empty: unknown
    edge: float | None = None  # time of the outermost message read
    hits: list[Message] = field(default_factory=list)  # found but not returned yet; the next one is first
    reason: str = ""  # why the node can't be read any further; empty if it can


class Walk:
    def __init__(
        self,
        lanes: Sequence[Lane],
        silent: Sequence[NodeLog] = (),
        *,
        newest_first: bool = True,
        before: Mapping[str, Place] = _NOWHERE,
    ) -> None:
        """`silent` are nodes whose range is unknown, and `before` says where an earlier step ended."""
        self.lanes = tuple(lanes)
        self.newest_first = newest_first
        self.gaps: list[Gap] = []
        self._silent = tuple(silent)
        self._before = before

    # Reading

    def next_lanes(self) -> list[Lane]:
        """Return the lanes to read now: all that haven't started, or else the one that delays the others."""
        opened = [lane for lane in self.lanes if self._is_open(lane)]
        beginning = [lane for lane in opened if lane.edge is None]
        return beginning or sorted(opened, key=self._edge)[-1:]

    def range_of(self, lane: Lane) -> tuple[int, int]:
        """Return the range [first, end) to read next."""
        if self.newest_first:
            return max(lane.first, lane.at - lane.step), lane.at
        return lane.at, min(lane.end, lane.at + lane.step)

    def add(self, lane: Lane, hits: Sequence[Message], first: int, end: int, edge: float | None) -> None:
        """Add the result for the range [first, end): hits by sequence, and its outermost time."""
        lane.at = first if self.newest_first else end
        lane.edge = lane.edge if edge is None else edge
        lane.hits += reversed(hits) if self.newest_first else hits
        lane.step = min(lane.step * 2, max(lane.step, _LARGEST_STEP))

    def lose(self, lane: Lane, first: int) -> None:
        """Record that retention has removed everything before `first`."""
        if self.newest_first:
            self.add_gap(Gap(node=lane.node, first=lane.first, end=min(first, lane.at), reason="removed by retention"))
            lane.first = first
            lane.at = max(lane.at, first)
            lane.border = max(lane.border, first)
        else:
            self.add_gap(Gap(node=lane.node, first=lane.at, end=first, reason="removed by retention"))
            lane.at = min(first, lane.end)

    def add_gap(self, gap: Gap) -> None:
        if len(self.gaps) < _MOST_GAPS:
            self.gaps.append(gap)

    # Hits

    def take(self, most: int) -> list[Message]:
        """Return up to `most` hits that no unread message can precede."""
        edges = [self._edge(lane) for lane in self.lanes if self._is_open(lane)]
        border = max(edges, default=float("-inf"))
        ready = [
            (self._key(hit.timestamp), lane.node, place, hit)
            for lane in self.lanes
            for place, hit in enumerate(lane.hits)
        ]
        ready.sort(key=lambda it: (-it[0], it[1], it[2]))
        taken = [hit for key, _, _, hit in ready[:most] if key >= border]
        handed_out = {(hit.node, hit.sequence) for hit in taken}
        for lane in self.lanes:
            lane.hits = [hit for hit in lane.hits if (hit.node, hit.sequence) not in handed_out]
        return taken

    def found(self, messages: Sequence[Message]) -> SearchResult:
        """Return the messages and the progress of the walk."""
        stopped = tuple(NodeLog(node=lane.node, reason=lane.reason) for lane in self.lanes if lane.reason)
        edges = [lane.edge for lane in self.lanes if not self._is_done(lane) and lane.edge is not None]
        is_waiting = any(lane.hits for lane in self.lanes)
        return SearchResult(
            messages=tuple(messages),
            newest_first=self.newest_first,
            looked=sum(abs(lane.border - lane.at) for lane in self.lanes),
            total=sum(lane.border - lane.first if self.newest_first else lane.end - lane.border for lane in self.lanes),
            reached=(max(edges) if self.newest_first else min(edges)) if edges else None,
            cursor=self._cursor(),
            goes_on=is_waiting or any(self._is_open(lane) for lane in self.lanes),
            silent=(*self._silent, *stopped),
            gaps=tuple(self.gaps),
        )

    def _cursor(self) -> str:
        """Return the position of each lane; for a silent node, its previous position."""
        places = {lane.node: Place(self._place(lane), lane.border, lane.log) for lane in self.lanes}
        return " ".join(
            f"{at}-{border}@{node}{'@' if log else ''}{log}"
            for node, (at, border, log) in {**self._before, **places}.items()
        )

    def _place(self, lane: Lane) -> int:
        """Return where to continue, before the hits that were found but not returned."""
        if not lane.hits:
            return lane.at
        sequence = lane.hits[0].sequence or 0
        return sequence + 1 if self.newest_first else sequence

    def _is_done(self, lane: Lane) -> bool:
        return lane.at <= lane.first if self.newest_first else lane.at >= lane.end

    def _is_open(self, lane: Lane) -> bool:
        return not lane.reason and not self._is_done(lane)

    def _key(self, timestamp: float) -> float:
        return timestamp if self.newest_first else -timestamp

    def _edge(self, lane: Lane) -> float:
        return float("inf") if lane.edge is None else self._key(lane.edge)


def parse_cursor(text: str) -> Mapping[str, Place]:
    """Return the position on each node. Raise BadCursor."""
    places: dict[str, Place] = {}
    for word in text.split():
        found = _PLACE(word)
        if found is None or len(places) == _MOST_LANES:
            raise BadCursor(f"expected at-border@node@log, got {word[:40]!r}")
        places[found[3]] = Place(int(found[1]), int(found[2]), found[4] or "")
    return places
