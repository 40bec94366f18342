"""Searches the history of all nodes in bounded steps: backward from the newest message, or forward from a place.

`Walk` decides what to read next and in which order to return hits; this module reads. A node that sends nothing for too
long, or nonsense, is named and skipped, and the search continues without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.messages.model import Gap, Message, NodeLog, SearchResult
from nsqadmin.messages.reading import ANOTHER_LOG, Unreadable, gap_in, message_in, next_in, nodes_with, of_log
from nsqadmin.messages.walk import Lane, Place, Walk, parse_cursor

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Node, Snapshot
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.looking import Looking, Seen
    from nsqadmin.messages.reading import Reader

NEWEST: Final = "latest"
OLDEST: Final = "earliest"
_FIRST_STEP: Final = 500  # messages
_MOST_BYTES: Final = 8 << 20  # of the hits of one read
_MOST_BYTES_OF_STEP: Final = 32 << 20  # of the hits of one step
_MOST_GAPS: Final = 1000  # of one read
_MOST_PATIENCE: Final = 5.0  # seconds that a node may send nothing
_MOST_AFTERWARDS: Final = 0.25  # seconds to look at what has arrived when a read's time is up


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The parameters of a search."""

    topic: str
    wanted: Filter
    identity: Identity
    place: str = NEWEST  # forward from here; `latest`: backward from the newest message
    node: str = ""  # only there
    cursor: str = ""  # where an earlier step ended
    limit: int = 50  # hits
    seconds: float = 2.0
    with_bodies: bool = True  # hits include their bodies

    @property
    def newest_first(self) -> bool:
        return self.place == NEWEST

    @property
    def patience(self) -> float:
        return min(self.seconds * 0.75, _MOST_PATIENCE)


@dataclass(slots=True)
class _Piece:
    """The data read from a range of one node."""

    at: int  # read up to here
    hits: list[Message] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of the first and the last message
    size: int = 0  # of the hits' bodies
    last: int = 0  # read up to here, and perhaps not looked at yet

    def see(self, ready: Sequence[Seen[None]], *, with_bodies: bool) -> None:
        """Add messages that have been looked at, in their order."""
        for _, message, is_wanted in ready:
            assert message is not None
            self.times[1:] = [message.timestamp]
            self.at = (message.sequence or 0) + 1
            if is_wanted:
                self.hits.append(message if with_bodies else replace(message, body=None, decoded=None))
                self.size += message.held if with_bodies else 0


class Searcher:
    """Searches, on trio."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def search(
        self, snapshot: Snapshot, search: Search, report: Callable[[SearchResult], None] | None = None
    ) -> SearchResult:
        """Do one step: return when there are enough hits, when the time is up, or at the end of the history.

        `report` gets the news every few thousand messages. Raise BadCursor.
        """
        deadline = trio.current_time() + search.seconds
        walk = await self._open(snapshot, search)
        messages: list[Message] = []
        size = 0
        before, is_last = [lane.at for lane in walk.lanes], False
        while True:
            new = walk.take(search.limit - len(messages))
            messages += new
            size += sum(message.held for message in new if message.readable is not None)
            if report is not None:
                report(walk.found(new))
            lanes = walk.next_lanes()
            is_full = len(messages) >= search.limit or size >= _MOST_BYTES_OF_STEP
            is_late = trio.current_time() >= deadline
            has_moved = before != [lane.at for lane in walk.lanes]
            if not lanes or is_full or (is_late and (has_moved or is_last)):
                return walk.found(messages)
            # Otherwise steps that are too short for slow bodies would begin at the same place for ever. A read that wasn't
            # finished has left a range that can be.
            is_last = is_late
            async with trio.open_nursery() as nursery:
                for lane in lanes:
                    nursery.start_soon(self._read_on, walk, lane, search, deadline)

    # The start

    async def _open(self, snapshot: Snapshot, search: Search) -> Walk:
        places = parse_cursor(search.cursor)
        lanes: list[Lane] = []
        silent: list[NodeLog] = []

        async def begin(node: Node) -> None:
            with trio.move_on_after(search.patience) as scope:
                try:
                    log = await self._reader.log(node, search.topic)
                    if log.reason:
                        silent.append(log)
                    else:
                        lanes.append(await self._lane(log, search, places))
                except Unreadable as error:
                    silent.append(NodeLog(node=node.address, reason=str(error)))
            if scope.cancelled_caught:
                silent.append(NodeLog(node=node.address, reason=_sent_nothing(search.patience)))

        async with trio.open_nursery() as nursery:
            for node in nodes_with(snapshot, search.topic, search.node):
                nursery.start_soon(begin, node)
        lanes.sort(key=lambda lane: lane.node)
        silent.sort(key=lambda log: log.node)
        return Walk(lanes, silent, newest_first=search.newest_first, before=places)

    async def _lane(self, log: NodeLog, search: Search, places: Mapping[str, Place]) -> Lane:
        if (place := places.get(log.node)) is not None:
            if place.log and log.log and place.log != log.log:
                raise Unreadable(ANOTHER_LOG)
            at, border = (min(max(it, log.first), log.next) for it in (place.at, place.border))
        else:
            at = border = await self._place(log, search)
        is_all = search.wanted.is_empty
        step = min(search.limit, _FIRST_STEP) if is_all else _FIRST_STEP
        return Lane(log.node, log.first, log.next, border, at, step, log.log)

    async def _place(self, log: NodeLog, search: Search) -> int:
        """Return the sequence where the search begins. Raise Unreadable."""
        if search.place == NEWEST:
            return log.next
        if search.place == OLDEST:
            return log.first
        async with aclosing(
            self._reader.lines(log.node, search.topic, search.place, f"&limit=1{of_log(log.log)}")
        ) as lines:
            async for line in lines:
                if "gap" in line:
                    return gap_in(log.node, line).first
                return next_in(line) if "next" in line else message_in(log.node, line).sequence or 0
        return log.next

    # One read

    async def _read_on(self, walk: Walk, lane: Lane, search: Search, deadline: float) -> None:
        """Read the lane's next range. If a node doesn't send it in time, ask again for smaller pieces."""
        first, end = walk.range_of(lane)
        piece = _Piece(first, last=first)
        looking = self._reader.look(search.identity, search.topic, search.wanted)
        began = trio.current_time()
        most = min(search.patience, max(deadline - began, 0.1))
        try:
            with trio.move_on_after(most) as scope:
                await self._read(lane, end, search, piece, looking)
            if scope.cancelled_caught:  # what has arrived still counts
                with trio.move_on_after(_MOST_AFTERWARDS):
                    await looking.work()
                piece.see(looking.take(), with_bodies=search.with_bodies)
        except Unreadable as error:
            await self._after_failure(walk, lane, search, str(error))
            return
        is_whole = piece.at >= end
        if is_whole or (not walk.newest_first and piece.at > first):
            edge = None if not piece.times else min(piece.times) if walk.newest_first else max(piece.times)
            walk.add(lane, piece.hits, first, piece.at, edge)
            for gap in piece.gaps:
                walk.add_gap(gap)
        elif piece.at > first and lane.step > 1:
            lane.step = max(1, (piece.at - first) // 4)  # so many surely take no longer than the rest of the time
        elif most >= search.patience:
            lane.reason = _sent_nothing(most)

    async def _read(self, lane: Lane, end: int, search: Search, piece: _Piece, looking: Looking[None]) -> None:
        """Read on up to `end`, or up to as many hits as fit into memory. Raise Unreadable."""
        more = f"&to={end}{of_log(lane.log)}"
        while piece.at < end:
            began_at = piece.at
            piece.last = began_at
            async with aclosing(self._reader.lines(lane.node, search.topic, str(piece.at), more)) as lines:
                async for line in lines:
                    if await self._took(lane, line, end, search, piece, looking):
                        return
            piece.see(await looking.rest(), with_bodies=search.with_bodies)
            if piece.at == began_at:
                raise Unreadable("its answer lacks the requested data")

    async def _took(
        self, lane: Lane, line: dict[str, object], end: int, search: Search, piece: _Piece, looking: Looking[None]
    ) -> bool:
        """Add a line to the piece. Return True if the piece is full."""
        if "next" in line:
            piece.see(await looking.rest(), with_bodies=search.with_bodies)
            piece.at = piece.last = max(piece.at, min(next_in(line), end))
            return False
        if "gap" in line:
            piece.see(await looking.rest(), with_bodies=search.with_bodies)
            gap = gap_in(lane.node, line)
            piece.gaps.append(gap)
            piece.at = piece.last = max(piece.at, min(gap.end, end))
            if len(piece.gaps) > _MOST_GAPS:
                raise Unreadable(f"more than {_MOST_GAPS:,} gaps")
            return False
        message = message_in(lane.node, line, lane.log)
        if not piece.last <= (message.sequence or 0) < end:
            raise Unreadable(f"its answer has message {message.sequence}, which is not in [{piece.last}, {end})")
        piece.last = (message.sequence or 0) + 1
        piece.see(await looking.add(None, message), with_bodies=search.with_bodies)
        return piece.size >= _MOST_BYTES and piece.at < end

    async def _after_failure(self, walk: Walk, lane: Lane, search: Search, reason: str) -> None:
        """If retention has removed the range in the meantime, continue after it; otherwise close the lane."""
        log = NodeLog(node=lane.node, reason=reason)
        with trio.move_on_after(search.patience):
            log = await self._reader.log_at(lane.node, search.topic)
        if not log.reason and log.log == lane.log and log.first > (lane.first if walk.newest_first else lane.at):
            walk.lose(lane, log.first)
        else:
            lane.reason = reason


def _sent_nothing(seconds: float) -> str:
    return f"it has sent nothing for {seconds:.3g} s"
