"""Lanes, offsets, and what to read next: all decisions of the source, without a socket or a clock.

A lane is one log of one topic on one nsqd, `<node>/<topic>/<log>`. Within a lane a sequence always means the same
message, so an offset is the next sequence of each lane, and a micro-batch is a range of sequences of each lane.

Spark stores where a batch ends, but not where the first batch begins. After a crash it asks for the initial offset
again, and by then `latest` would be a different one: the messages in between would be lost. So the end offset of a
batch also stores where new lanes begin, which its start offset doesn't have (`begins`). For the first batch these are
all lanes. If the start offset and `begins` differ, `begins` is right. For example, a first batch that was planned at
100 ends with

    {"v": 1, "lanes": {"a/orders/1": 150}, "begins": {"a/orders/1": 100}}

If it is repeated when `latest` has become 130, it still reads from 100.

A node that has drained reports its lanes as *closed*: nothing is appended any more, and their next sequence is their
last end. The offsets store that end. Once a lane is read up to it, it is complete, and may disappear without a loss.
Its sequence stays in the offsets all the same, because the node may start again, and then the lane continues from
there.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from math import ceil
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pyspark_nsq.errors import BadOption, DataLoss

VERSION: Final = 1
_SMALL: Final = 8  # ranges with less than an eighth of a task's work share a task
_ROUNDING: Final = 1e-6  # tolerance when fractions of a task are added up


class Lane(NamedTuple):
    node: str
    topic: str
    log: str

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, text: str) -> Lane:
        parts = text.split("/")
        if len(parts) != 3 or not all(parts):
            raise BadOption(f"{text!r} is not a lane: expected <node>/<topic>/<log>")
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a lane's log as its nsqd reports it. Messages [first, next) can be read."""

    lane: Lane
    address: str
    first: int
    next: int
    kept: bool = True  # retention is on: messages stay after all channels have finished them
    closed: bool = False  # the node has drained: `next` is the lane's last end, unless the node starts again
    last_time: int | None = None  # publish time of the last message, in nanoseconds
    bytes: int | None = None  # the size of the whole log


@dataclass(frozen=True, slots=True)
class Offsets:
    """The progress in every lane."""

    lanes: Mapping[Lane, int]  # the next sequence of each lane
    begins: Mapping[Lane, int] = field(default_factory=dict)  # where the batch that ends here began new lanes
    initial: bool = False  # the start of the query, before its first batch
    closed: Mapping[Lane, int] = field(default_factory=dict)  # last end of lanes whose node has drained

    def is_complete(self, lane: Lane) -> bool:
        """Return True if the lane is read to its last end, so that nothing is lost if it disappears."""
        return lane in self.closed and self.lanes.get(lane, -1) >= self.closed[lane]

    def to_json(self) -> dict[str, Any]:
        """Return the text that Spark stores. Equal offsets give equal text."""
        written: dict[str, Any] = {"v": VERSION, "lanes": _written(self.lanes)}
        if self.begins:
            written["begins"] = _written(self.begins)
        if self.closed:
            written["closed"] = _written(self.closed)
        if self.initial:
            written["initial"] = True
        return written

    @classmethod
    def from_json(cls, written: object) -> Offsets:
        if not isinstance(written, dict) or written.get("v") != VERSION:
            raise BadOption(f"this is not an offset of version {VERSION}: {json.dumps(written)[:200]}")
        return cls(
            _read(written.get("lanes")),
            _read(written.get("begins", {})),
            bool(written.get("initial", False)),
            _read(written.get("closed", {})),
        )


def _written(lanes: Mapping[Lane, int]) -> dict[str, int]:
    return {str(lane): lanes[lane] for lane in sorted(lanes)}


def _read(written: object) -> dict[Lane, int]:
    if not isinstance(written, dict):
        raise BadOption(f"expected an object of lanes, not {json.dumps(written)[:200]}")
    for lane, sequence in written.items():
        if not isinstance(sequence, int) or isinstance(sequence, bool) or sequence < 0:
            raise BadOption(f"lane {lane}: expected a sequence, not {sequence!r}")
    return {Lane.parse(lane): sequence for lane, sequence in written.items()}


# Start and end


class Edge(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class At:
    """The first message published at this time or later; if there is none, the end of the lane."""

    time: str  # RFC 3339
    required: bool = False  # it is an error if there is no such message


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """A bound for each of these lanes, and `others` for unnamed lanes."""

    lanes: Mapping[Lane, int | Edge | At]
    others: Edge
    closed: Mapping[Lane, int] = field(default_factory=dict)  # as in `Offsets`

    def complete(self, heads: Container[Lane]) -> dict[Lane, int]:
        """Return the ends of lanes that no node has any more, and that were read to their last end by the offsets."""
        return {lane: end for lane, end in self.closed.items() if lane not in heads and self.lanes.get(lane) == end}


Bound = Edge | At | LaneBounds

FindTime = Callable[[Head, str], int]  # see `Cluster.sequence_at`


def parse_bound(text: str, *, others: Edge, option: str, required: bool = False) -> Bound:
    """Parse `earliest`, `latest`, or JSON: offsets as Spark stores them, or only their lanes.

    `required` applies to times: then a lane without a message of that time or later is an error.
    """
    if text.strip().lower() in tuple(Edge):
        return Edge(text.strip().lower())
    try:
        written = json.loads(text)
    except ValueError as error:
        raise BadOption(f'{option}: expected "earliest", "latest" or JSON, not {text!r} ({error})') from None
    if not isinstance(written, dict):
        raise BadOption(f"{option}: expected an object of lanes, not {text!r}")
    closed: dict[Lane, int] = {}
    if "lanes" in written:
        if written.get("v") != VERSION:
            raise BadOption(f"{option}: this is not an offset of version {VERSION}: {text!r}")
        closed = _read(written.get("closed", {}))
        written = written["lanes"]
        if not isinstance(written, dict):
            raise BadOption(f"{option}: expected an object of lanes, not {text!r}")
    lanes = {Lane.parse(lane): _place(option, lane, place, required) for lane, place in written.items()}
    return LaneBounds(lanes, others, closed)


def _place(option: str, lane: str, place: object, required: bool) -> int | Edge | At:
    if isinstance(place, int) and not isinstance(place, bool) and place >= 0:
        return place
    if isinstance(place, str):
        return Edge(place) if place in tuple(Edge) else At(parse_time(place, f"{option}: lane {lane}"), required)
    raise BadOption(f'{option}: lane {lane}: expected a sequence, "earliest", "latest" or a time, not {place!r}')


def parse_times(text: str, *, others: Edge, option: str, required: bool = False) -> LaneBounds:
    """Parse a JSON object of times by lane; see `parse_time`."""
    try:
        written = json.loads(text)
    except ValueError as error:
        raise BadOption(f"{option}: expected JSON, not {text!r} ({error})") from None
    if not isinstance(written, dict):
        raise BadOption(f"{option}: expected an object of times by lane, not {text!r}")
    return LaneBounds(
        {
            Lane.parse(lane): At(parse_time(str(time), f"{option}: lane {lane}"), required)
            for lane, time in written.items()
        },
        others,
    )


def parse_time(text: str, option: str) -> str:
    """Return a time in nsqd's form, RFC 3339. The text is the same, or a number of milliseconds since 1970."""
    if re.fullmatch(r"[0-9]{1,16}", text):
        return datetime.fromtimestamp(int(text) / 1000, UTC).isoformat()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadOption(
            f"{option}: expected a time with its zone, as 2026-03-01T12:00:00Z, or milliseconds since 1970, not {text!r}"
        )
    return moment.isoformat()


def resolve(
    bound: Bound, heads: Mapping[Lane, Head], find_time: FindTime, *, option: str, lossless: bool
) -> dict[Lane, int]:
    """Return the bound's sequence in each lane.

    Raises BadOption when a lane is unknown or ends before its bound. Raises DataLoss when retention has already removed
    the message there, if `lossless`.
    """
    if isinstance(bound, LaneBounds):
        complete = bound.complete(heads)
        for lane in bound.lanes:
            if lane not in heads and lane not in complete:
                raise BadOption(f"{option}: there is no lane {lane}; there are: {', '.join(map(str, heads)) or 'none'}")
    return {lane: _resolve_one(bound, head, find_time, option, lossless) for lane, head in heads.items()}


def _resolve_one(bound: Bound, head: Head, find_time: FindTime, option: str, lossless: bool) -> int:
    place = bound.lanes.get(head.lane, bound.others) if isinstance(bound, LaneBounds) else bound
    if isinstance(place, At):
        found = find_time(head, place.time)
        if place.required and found >= head.next:
            raise BadOption(f"{option}: lane {head.lane} has no message of {place.time} or later")
        return found
    if isinstance(place, Edge):
        return head.first if place is Edge.EARLIEST else head.next
    if place > head.next:
        raise BadOption(f"{option}: lane {head.lane} ends at {head.next}, before {place}")
    if place < head.first and lossless:
        raise removed_by_retention(head, place)
    return place


# The next batch


class Span(NamedTuple):
    """Unread messages [begin, end) of a lane."""

    begin: int
    end: int


# Decides how many of the waiting messages of each lane a batch takes. None: no batch for now, because it isn't
# worthwhile yet.
ChooseRows = Callable[[Mapping[Lane, Span]], Mapping[Lane, int] | None]


def all_rows(waiting: Mapping[Lane, Span]) -> dict[Lane, int]:
    return {lane: span.end - span.begin for lane, span in waiting.items()}


def advance(
    start: Offsets,
    heads: Mapping[Lane, Head],
    *,
    vanished: Mapping[Lane, str],
    choose_rows: ChooseRows = all_rows,
    targets: Mapping[Lane, int] | None = None,
    lossless: bool = True,
) -> Offsets:
    """Return the end of a batch that begins at `start`; `start` itself when there is nothing to read or to store.

    Lanes that `start` doesn't have begin with their first message. With `targets`, no lane is read beyond its target,
    and lanes without one aren't read. `vanished` has lanes that are certainly gone, and why: they leave the offsets, or
    raise DataLoss if `lossless`. A lane without a head that isn't among them keeps its sequence.
    """
    lost = [lane for lane in start.lanes if lane in vanished and lane not in heads and not start.is_complete(lane)]
    if lost and lossless:
        raise DataLoss(unreadable(lost[0], start.lanes[lost[0]], vanished[lost[0]], end=start.closed.get(lost[0])))
    known = {lane: sequence for lane, sequence in start.lanes.items() if lane not in lost}
    new = {
        lane: head.first for lane, head in heads.items() if lane not in known and (targets is None or lane in targets)
    }
    places = known | new
    waiting = _waiting(places, heads, targets, lossless=lossless)
    closed = last_ends(start, heads, places)
    taken = choose_rows(waiting) if waiting else {}
    # New begins, losses and closed lanes are stored at once, if necessary in a batch without rows.
    if taken is None and not (start.initial or lost or new or closed != start.closed):
        return start
    taken = taken or {}
    ends = {
        lane: max(place, heads[lane].first) + taken[lane] if taken.get(lane) else place
        for lane, place in places.items()
    }
    begins = dict(places) if start.initial else new
    if not lost and not begins and ends == start.lanes and closed == start.closed:
        return start
    return Offsets(ends, begins, closed=closed)


def _waiting(
    places: Mapping[Lane, int], heads: Mapping[Lane, Head], targets: Mapping[Lane, int] | None, *, lossless: bool
) -> dict[Lane, Span]:
    """Return each lane's unread messages, up to its target if there are any."""
    waiting: dict[Lane, Span] = {}
    for lane, place in places.items():
        head = heads.get(lane)
        if head is None:
            continue
        if place < head.first and lossless:
            raise removed_by_retention(head, place)
        until = head.next if targets is None else min(head.next, targets.get(lane, place))
        if until > max(place, head.first):
            waiting[lane] = Span(max(place, head.first), until)
    return waiting


def last_ends(start: Offsets, heads: Mapping[Lane, Head], lanes: Container[Lane]) -> dict[Lane, int]:
    """Return the last end of the closed lanes among these.

    Once its node starts again, a lane isn't closed.
    """
    known = {lane: end for lane, end in start.closed.items() if lane not in heads}
    known |= {lane: head.next for lane, head in heads.items() if head.closed}
    return {lane: end for lane, end in known.items() if lane in lanes}


def skipped(start: Offsets, end: Offsets, heads: Mapping[Lane, Head]) -> int:
    """Count the messages between two offsets that are known to be gone.

    A vanished lane counts up to its last end, if it was closed, and otherwise as one message.
    """
    count = 0
    for lane, begin in {**start.lanes, **end.begins}.items():
        until = end.lanes.get(lane)
        if until is None:
            count += max(1, start.closed.get(lane, 0) - begin)
        elif lane in heads:
            count += max(0, min(until, heads[lane].first) - begin)
    return count


# The plan of a batch


@dataclass(frozen=True, slots=True)
class Range:
    """Messages [begin, end) of a lane.

    A range without an address can't be read, because the lane has vanished. Without an end, it stands for the whole
    rest of the lane.
    """

    lane: Lane
    address: str
    begin: int
    end: int | None

    @property
    def rows(self) -> int:
        return self.end - self.begin if self.end is not None else 1


class NotThere(DataLoss):
    """No nsqd that answers has a lane that we have to read."""

    def __init__(self, lane: Lane, place: int, end: int | None = None) -> None:
        super().__init__(unreadable(lane, place, "none of the nsqd that answer has it", end=end))
        self.lane = lane


def plan(start: Offsets, end: Offsets, addresses: Mapping[Lane, str], *, lost: Container[Lane] = ()) -> list[Range]:
    """Return the ranges between two offsets, to be read at these `addresses`.

    Raises DataLoss when the offsets do not belong together, and NotThere when a lane has no address and is not `lost`.
    """
    ranges: list[Range] = []
    if start == end:  # a batch without data; its `begins` belong to the previous batch
        return []
    # An initial offset may differ from the one in the batch's first plan, so only the end counts.
    lanes = end.lanes.keys() if start.initial else start.lanes.keys() | end.lanes.keys()
    for lane in sorted(lanes):
        begin = end.begins.get(lane, start.lanes.get(lane))
        if begin is None:
            raise DataLoss(f"lane {lane}: the offsets do not say where to begin; was the checkpoint written by hand?")
        until = end.lanes.get(lane)
        if until is None:
            ranges.append(Range(lane, "", begin, None))
            continue
        if begin > until:
            raise DataLoss(
                f"lane {lane}: the batch begins at {begin}, after its end at {until}; is the checkpoint another's?"
            )
        if begin == until:
            continue
        address = addresses.get(lane, "" if lane in lost else None)
        if address is None:
            raise NotThere(lane, begin, end.closed.get(lane))
        ranges.append(Range(lane, address, begin, until))
    return ranges


# (sequence, bytes since the beginning) along a range, from its beginning to its end. Empty: the sizes are unknown.
Marks = Sequence[tuple[int, int]]


def split_into_tasks(
    ranges: Iterable[Range],
    rows_per_task: int,
    *,
    bytes_per_task: int | None = None,
    marks: Mapping[Range, Marks] = MappingProxyType({}),
) -> list[tuple[Range, ...]]:
    """Divide ranges among tasks: a long range is split into parts of about the same work, short ones share a task."""
    tasks: list[tuple[Range, ...]] = []
    small: list[Range] = []
    together = 0.0
    for whole in ranges:
        works = _works(whole, rows_per_task, bytes_per_task, marks.get(whole, ()))
        work = works[-1][1]
        if work * _SMALL >= 1 - _ROUNDING:
            tasks += [(part,) for part in _parts(whole, works)]
            continue
        if (together + work) * _SMALL > 1 + _ROUNDING and small:
            tasks.append(tuple(small))
            small, together = [], 0
        small.append(whole)
        together += work
    if small:
        tasks.append(tuple(small))
    return tasks


def _works(whole: Range, rows: int, size: int | None, marks: Marks) -> list[tuple[int, float]]:
    """Return (sequence, work up to there) along a range. 1.0 is the work of one task, full of rows or of bytes."""
    if len(marks) < 2 or size is None:
        return [(whole.begin, 0.0), (whole.begin + whole.rows, whole.rows / rows)]
    works = [(whole.begin, 0.0)]
    for (begin, bytes_before), (end, bytes_then) in pairwise(marks):
        works.append((end, works[-1][1] + max((end - begin) / rows, (bytes_then - bytes_before) / size)))
    return works


def _parts(whole: Range, works: Sequence[tuple[int, float]]) -> Sequence[Range]:
    if whole.end is None or not whole.address:
        return (whole,)
    count = max(1, ceil(works[-1][1] - _ROUNDING))
    inner = (_place_of(works[-1][1] * part / count, works) for part in range(1, count))
    borders = sorted({whole.begin, *inner, whole.end})
    return [Range(whole.lane, whole.address, begin, end) for begin, end in pairwise(borders)]


def _place_of(work: float, works: Sequence[tuple[int, float]]) -> int:
    """Return the sequence at which that much work is done, as if work were even between two marks."""
    at = max(1, bisect_left(works, work, key=lambda mark: mark[1]))
    (begin, before), (end, then) = works[at - 1], works[at]
    return begin + int((end - begin) * (work - before) / (then - before) + _ROUNDING) if then > before else end


# Messages


def removed_by_retention(head: Head, place: int) -> DataLoss:
    return DataLoss(
        f"lane {head.lane}: messages [{place}, {head.first}) were removed by retention before they were read; "
        f"failOnDataLoss=false goes on at {head.first}"
    )


def unreadable(lane: Lane, place: int, why: str, *, end: int | None = None) -> str:
    """Say which messages of a lane can't be read, why, and how to continue without them."""
    what = f"everything from {place} on" if end is None else f"{end - place:,} messages [{place}, {end})"
    return f"lane {lane}: {what} cannot be read: {why}; failOnDataLoss=false leaves the lane out"
