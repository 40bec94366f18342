"""Decides which messages a batch takes if not all fit: the oldest ones, up to one time for all lanes.

No message in a batch is younger than one left behind. So no lane runs ahead of another in time, and a watermark drops
nothing that could have been read.

Our knowledge of a lane is a list of *fences*. `Fence(7, t, b)` says that the messages before sequence 7 were published
at t or earlier, that those from 7 on were published at t or later, and that b bytes of records lie before 7. Between
two fences we know nothing but the fences' own values, so the position of a time T may be in doubt:

    lane A   0 ........ 400 ........ 900        T lies between fences: 400 messages for sure, up to 900 perhaps
    lane B   0 .. 20 .... T (30) ....... 60     T is the time of a fence: exactly 30

`share` looks for the latest T up to which all lanes together fit into the limit, even if every doubtful message counts.
It returns how much to take, or else questions: stretches of lanes in which it needs more fences, because the batch
would otherwise be too small or a doubt remains. `profiles.py` asks these questions, updates the lanes' profiles with
the answers, and calls `share` again. Fences are kept from batch to batch, and each answer brings hundreds of them, so
one or two questions per lane and batch are enough.

If more messages have the same time than fit (a burst in one record, for example), the lanes share the remaining room in
proportion to their messages. All lanes do so if the times of one lane can't be determined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from pyspark_nsq.lanes import Lane

_ANY_TIME: Final = (1 << 63) - 1  # stands for an unknown time: no message is younger
_ENOUGH: Final = 0.75  # share of the limit above which a fuller batch isn't worth more questions
_WORTH_ASKING: Final = 1 / 8  # share of the largest stretch; smaller ones aren't asked about in the same round

_sequence_of: Final = attrgetter("sequence")
_time_of: Final = attrgetter("time")


class Fence(NamedTuple):
    """A place in a lane; see the top of this module."""

    sequence: int
    time: int  # nanoseconds
    bytes: int


class Question(NamedTuple):
    """A request for more fences in [begin, end)."""

    lane: Lane
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of one batch. None: no limit."""

    rows: int | None = None
    bytes: int | None = None

    def part(self, rows: float, size: float) -> float:
        """Return which part of the limit this is: at most 1 if it fits."""
        return max(rows / self.rows if self.rows else 0.0, size / self.bytes if self.bytes else 0.0)


@dataclass(frozen=True, slots=True)
class Minimum:
    """The minimum for a worthwhile batch: a number of rows, or a time since the last batch."""

    rows: int = 0
    delay: float = 0.0  # seconds

    def is_reached(self, rows: int, *, since_last: float) -> bool:
        return rows >= self.rows or since_last >= self.delay


class Profile:
    """Our knowledge of the waiting messages of a lane, from `place` to `end`."""

    def __init__(self, sequence: int) -> None:
        self._fences = [Fence(sequence, 0, 0)]  # sorted by sequence, time and bytes alike
        self._end = sequence
        self._end_time = _ANY_TIME
        self._log: tuple[int, int] | None = None  # (first sequence, bytes) of the whole log, when last seen

    @property
    def place(self) -> int:
        return self._fences[0].sequence

    @property
    def end(self) -> int:
        return self._end

    @property
    def rows(self) -> int:
        return self._end - self.place

    @property
    def unmeasured(self) -> int:
        """The sequence from which on the sizes are unknown; the end, if all are known."""
        return self._fences[-1].sequence

    @property
    def most_bytes(self) -> int | None:
        """An upper bound of the bytes from the place to the end; None: unknown."""
        if self.unmeasured == self._end:
            return self._fences[-1].bytes - self._fences[0].bytes
        return self._log[1] if self._log is not None else None

    @property
    def likely_bytes(self) -> int:
        """An estimate of the bytes from the place to the end; unmeasured messages count as average."""
        unmeasured = self._end - self.unmeasured
        log_first, log_bytes = self._log or (0, 0)
        return self._fences[-1].bytes - self._fences[0].bytes + log_bytes * unmeasured // max(1, self._end - log_first)

    def fences(self) -> list[Fence]:
        """Return the fences from the place to the end. The bytes beyond `unmeasured` count as none."""
        last = self._fences[-1]
        if last.sequence == self._end:
            return self._fences
        return [*self._fences, Fence(self._end, max(self._end_time, last.time), last.bytes)]

    def move_to(self, sequence: int) -> None:
        """Forget everything before this sequence, which must lie in [place, end]."""
        fences = self._fences
        after = bisect_right(fences, sequence, key=_sequence_of)
        if after == len(fences) and fences[-1].sequence < sequence:
            self._fences = [Fence(sequence, fences[-1].time, 0)]  # the sizes up to here are unknown
            return
        before = fences[after - 1]
        if before.sequence < sequence:
            fences[after - 1] = before._replace(sequence=sequence, bytes=_bytes_at(before, fences[after], sequence))
        del fences[: after - 1]

    def extend(self, end: int, time: int | None, log_first: int, log_bytes: int | None) -> None:
        """Record the lane's end, the time of its last message, and the size of its whole log. None: unknown.

        As long as nothing is removed from the log, its growth is the size of the new records, so no question is needed.
        """
        fences, seen = self._fences, self._log
        log = (log_first, log_bytes) if log_bytes is not None else None
        if end < fences[-1].sequence:
            del fences[max(1, bisect_right(fences, end, key=_sequence_of)) :]
        elif end > self._end == fences[-1].sequence and time is not None and seen and log and seen[0] == log[0]:
            last = fences[-1]
            fences.append(Fence(end, max(time, last.time), last.bytes + max(0, log[1] - seen[1])))
        self._end, self._log = end, log
        self._end_time = time if time is not None else _ANY_TIME

    def learn(self, begin: int, end: int, points: Iterable[tuple[int, int, int]]) -> None:
        """Take in the answer to a question: (sequence, time, bytes since `begin`) of points in [begin, end].

        If no point lies inside, the messages count as published at the same time, so that we don't ask again.
        """
        fences = self._fences
        at = bisect_right(fences, begin, key=_sequence_of) - 1
        if at < 0 or fences[at].sequence != begin:
            return  # the profile has moved on since the question
        before = fences[at]
        after = next((fence for fence in fences[at + 1 :] if fence.sequence >= end), None)
        most_time = after.time if after is not None else _ANY_TIME
        most_bytes = after.bytes if after is not None else None
        new: list[Fence] = []
        last = before
        for sequence, time, size in points:
            total = before.bytes + size if most_bytes is None else min(before.bytes + size, most_bytes)
            last = Fence(max(sequence, last.sequence), min(max(time, last.time), most_time), max(total, last.bytes))
            new.append(last)
        if not any(begin < fence.sequence < end for fence in new):
            first = new[0] if new else before
            new = [first, Fence(end, first.time, max(last.bytes, most_bytes or 0))]
        fences[at + 1 : at + 1] = new

    def long_stretches(self, most_bytes: int) -> list[tuple[int, int]]:
        """Return the stretches [begin, end) with more bytes than this that a question could divide."""
        return [
            (before.sequence, after.sequence)
            for before, after in pairwise(self.fences())
            if after.bytes - before.bytes > most_bytes
            and before.time < after.time
            and after.sequence - before.sequence > 1
        ]

    def bytes_between(self, begin: int, end: int) -> Sequence[tuple[int, int]] | None:
        """Return (sequence, bytes since `begin`) at both ends of a range and at all fences inside; None: unknown."""
        fences = self._fences
        if not fences[0].sequence <= begin < end <= fences[-1].sequence:
            return None
        inside = [(fence.sequence, fence.bytes) for fence in fences if begin < fence.sequence < end]
        marks = [(begin, self._bytes_at(begin)), *inside, (end, self._bytes_at(end))]
        return [(sequence, size - marks[0][1]) for sequence, size in marks]

    def _bytes_at(self, sequence: int) -> int:
        at = bisect_left(self._fences, sequence, key=_sequence_of)
        fence = self._fences[at]
        return fence.bytes if fence.sequence == sequence else _bytes_at(self._fences[at - 1], fence, sequence)


def _bytes_at(before: Fence, after: Fence, sequence: int) -> int:
    """Return the bytes before this sequence, as if all messages between the two fences were equally long."""
    span = after.sequence - before.sequence
    return before.bytes + (after.bytes - before.bytes) * (sequence - before.sequence) // span


Shares = dict[Lane, int]


def share(
    profiles: Mapping[Lane, Profile], limit: Limit, *, blind: bool = False, settle: bool = False
) -> Shares | list[Question]:
    """Return how many rows of each lane a batch takes, or the questions to ask first.

    The rows fit into the limit, as far as the sizes of messages are known, but there is at least one row. `blind`: the
    times of messages are unknown. `settle`: ask no more questions, but take less where there is a doubt.
    """
    waiting = {lane: profile for lane, profile in profiles.items() if profile.rows}
    if limit.bytes is not None and not blind and not settle and (questions := _unmeasured(waiting, limit.bytes)):
        return questions
    spans = {lane: (profile.rows, profile.likely_bytes) for lane, profile in waiting.items()}
    if limit.part(sum(rows for rows, _ in spans.values()), sum(size for _, size in spans.values())) <= 1:
        return {lane: profile.rows for lane, profile in waiting.items()}
    if blind:
        return _in_proportion(spans, limit, 0, 0, turn=sum(profile.place for profile in waiting.values()))
    fences = {lane: profile.fences() for lane, profile in waiting.items()}
    if len(fences) == 1:
        ((lane, only),) = fences.items()
        return _of_one(lane, only, limit, settle)
    return _level(fences, limit, settle)


def _unmeasured(waiting: Mapping[Lane, Profile], most: int) -> list[Question]:
    """Return the questions about sizes. There are none if even the lanes' whole logs would fit."""
    sizes = [profile.most_bytes for profile in waiting.values()]
    if None not in sizes and sum(size or 0 for size in sizes) <= most:
        return []
    return [
        Question(lane, profile.unmeasured, profile.end)
        for lane, profile in waiting.items()
        if profile.unmeasured < profile.end
    ]


def _of_one(lane: Lane, fences: Sequence[Fence], limit: Limit, settle: bool) -> Shares | list[Question]:
    """Decide for a single waiting lane: there are no other lanes' times to match, so only sizes matter."""
    start = fences[0]
    rows = fences[-1].sequence - start.sequence
    if limit.rows is not None:
        rows = min(rows, limit.rows)
    most = start.bytes + limit.bytes if limit.bytes is not None else None
    for before, after in pairwise(fences):
        if most is None or before.sequence - start.sequence >= rows:
            break
        if after.bytes <= most:
            continue
        # This stretch doesn't fit into the bytes. If the limit of rows ends inside it too, that end may still fit, but
        # its bytes are unknown, so we treat the stretch alike.
        if before.bytes - start.bytes >= _ENOUGH * (most - start.bytes):
            rows = before.sequence - start.sequence
        elif before.time < after.time and after.sequence - before.sequence > 1 and not settle:
            return [Question(lane, before.sequence, after.sequence)]
        else:  # a single record, which no question divides
            fitting = (most - before.bytes) * (after.sequence - before.sequence) // (after.bytes - before.bytes)
            rows = min(rows, before.sequence - start.sequence + fitting)
        break
    return {lane: max(1, rows)}


# Up to one time in all lanes


class _Cut(NamedTuple):
    """The position of a time in a lane: between `low` and `most`. The messages of exactly this time end at `high`."""

    low: Fence
    most: Fence
    high: Fence

    @property
    def is_open(self) -> bool:
        return self.low.sequence < self.most.sequence


def _cut(fences: Sequence[Fence], time: int) -> _Cut:
    first = bisect_left(fences, time, key=_time_of)
    behind = bisect_right(fences, time, key=_time_of)
    if first < behind:
        return _Cut(fences[first], fences[first], fences[behind - 1])
    low, most = fences[max(0, first - 1)], fences[min(first, len(fences) - 1)]
    if first == 0:
        most = low
    return _Cut(low, most, most)


class _Sums:
    """Adds up the content of a batch that takes each lane up to some fence, and compares it with the limit."""

    def __init__(self, fences: Mapping[Lane, Sequence[Fence]], limit: Limit) -> None:
        self._limit = limit
        self._rows = sum(one[0].sequence for one in fences.values())
        self._bytes = sum(one[0].bytes for one in fences.values())

    def amount(self, ends: Iterable[Fence]) -> tuple[int, int]:
        rows, size = -self._rows, -self._bytes
        for end in ends:
            rows += end.sequence
            size += end.bytes
        return rows, size

    def part(self, ends: Iterable[Fence]) -> float:
        return self._limit.part(*self.amount(ends))


def _level(fences: Mapping[Lane, Sequence[Fence]], limit: Limit, settle: bool) -> Shares | list[Question]:
    sums = _Sums(fences, limit)
    times = sorted({fence.time for one in fences.values() for fence in one})
    # The earliest time takes nothing, so there is one that fits.
    fitting = bisect_right(times, 1.0, key=lambda time: sums.part(_cut(one, time).most for one in fences.values()))
    time = times[fitting - 1]
    cuts = {lane: _cut(one, time) for lane, one in fences.items()}
    doubts = [Question(lane, it.low.sequence, it.most.sequence) for lane, it in cuts.items() if it.is_open]
    if sums.part(it.high for it in cuts.values()) > 1:  # too many messages have exactly this time
        if doubts and not settle:
            return doubts
        return _share_instant(fences, cuts, limit, sums)
    ends = {lane: it.low if it.is_open else it.high for lane, it in cuts.items()}
    if not settle and sums.part(ends.values()) < _ENOUGH and (following := _following(fences, ends, limit)):
        return following
    if doubts and not settle:
        return doubts
    taken = {lane: end.sequence - fences[lane][0].sequence for lane, end in ends.items()}
    if any(taken.values()):
        return taken
    return _share_instant(fences, {lane: _Cut(one[0], one[0], one[-1]) for lane, one in fences.items()}, limit, sums)


def _following(fences: Mapping[Lane, Sequence[Fence]], ends: Mapping[Lane, Fence], limit: Limit) -> list[Question]:
    """Return questions about the stretches after these ends: a larger batch would end inside one of them."""
    parts: list[tuple[float, Question]] = []
    for lane, end in ends.items():
        after = bisect_right(fences[lane], end)
        if after < len(fences[lane]):
            begin, until = end, fences[lane][after]
            rows = until.sequence - begin.sequence
            if rows and begin.time < until.time:
                part = limit.part(rows, until.bytes - begin.bytes)
                parts.append((part, Question(lane, begin.sequence, until.sequence)))
    largest = max((part for part, _ in parts), default=0.0)
    return [question for part, question in parts if part >= largest * _WORTH_ASKING]


def _share_instant(
    fences: Mapping[Lane, Sequence[Fence]], cuts: Mapping[Lane, _Cut], limit: Limit, sums: _Sums
) -> Shares:
    """Take all older messages, and as many of those with exactly this time as still fit."""
    older = {lane: it.low.sequence - fences[lane][0].sequence for lane, it in cuts.items()}
    spans = {
        lane: (it.high.sequence - it.low.sequence, it.high.bytes - it.low.bytes)
        for lane, it in cuts.items()
        if it.high.sequence > it.low.sequence and not it.is_open
    }
    rows, size = sums.amount(it.low for it in cuts.values())
    turn = sum(one[0].sequence for one in fences.values())
    added = _in_proportion(spans, limit, rows, size, turn=turn)
    return {lane: rows + added.get(lane, 0) for lane, rows in older.items()}


def _in_proportion(spans: Mapping[Lane, tuple[int, int]], limit: Limit, rows: int, size: int, *, turn: int) -> Shares:
    """Divide the room left by `rows` and `size` among the lanes, each with its (rows, bytes).

    Each lane gets one row, and the rest is divided in proportion. When fewer rows fit than there are lanes, the lanes
    take turns: `turn` grows with each row that was ever taken.
    """
    total = sum(count for count, _ in spans.values())
    total_bytes = sum(size for _, size in spans.values())
    most = total if limit.rows is None else min(total, limit.rows - rows)
    if limit.bytes is not None and total_bytes:
        most = min(most, max(0, limit.bytes - size) * total // total_bytes)
    most = max(most, 0 if rows else 1)
    lanes = sorted(spans)
    if most < len(lanes):
        first = turn % len(lanes)
        chosen = (lanes[first:] + lanes[:first])[:most]
        return dict.fromkeys(chosen, 1)
    rest, others = most - len(lanes), max(1, total - len(lanes))
    taken = {lane: 1 + (spans[lane][0] - 1) * rest // others for lane in lanes}
    left = most - sum(taken.values())  # fewer than there are lanes, because each share was rounded down
    for lane in sorted(lanes, key=lambda it: -((spans[it][0] - 1) * rest % others))[:left]:
        taken[lane] += 1
    return taken
