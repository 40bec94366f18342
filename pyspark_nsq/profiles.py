"""What is known of lanes, kept from batch to batch, and asked for when a decision needs more of it.

All decisions are in sharing.py and lanes.py. In a stream that goes on, a lane whose node does not answer just now is left
out of a batch, and does not hold up the others. Where there is no later batch for it, it is waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import Refused, Unreachable
from pyspark_nsq.lanes import Head, Lane, Marks, Range, Span
from pyspark_nsq.reading import PATIENCE
from pyspark_nsq.sharing import Limit, Profile, Question, Shares, share

log = logging.getLogger(__name__)

_POINTS: Final = 250  # in an answer, which then has some ten kilobytes
_ROUNDS: Final = 8  # of questions for one decision; each looks a hundred times closer
_AT_ONCE: Final = 8  # questions
_PAUSE: Final = 0.5  # seconds, until a node that does not answer is asked again
_FINE: Final = 4  # parts of a task that are known one by one, so that it cannot be much too large


Points = Sequence[tuple[int, int, int]]


class _Absent(Exception):
    """This lane cannot be asked now."""

    def __init__(self, lane: Lane, failure: Unreachable) -> None:
        super().__init__(str(lane))
        self.lane = lane
        self.failure = failure


class _Blind(Exception):
    """Times cannot be told, for this batch at least."""


class Profiles:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._profiles: dict[Lane, Profile] = {}

    def share(
        self, heads: Mapping[Lane, Head], spans: Mapping[Lane, Span], limit: Limit, *, goes_on: bool = True
    ) -> Shares:
        """How many rows of what waits in each lane a batch takes; of a lane that is not named, none.

        Raises Unreachable when the stream does not go on after what is there, and a node does not answer for a minute.
        """
        waiting = {lane: self._followed(heads[lane], span) for lane, span in spans.items()}
        try:
            while True:
                try:
                    return self._share(heads, waiting, limit, PATIENCE if not goes_on else 0)
                except _Absent as absent:
                    if not goes_on:
                        raise absent.failure from absent
                    if len(waiting) == 1:  # a batch of it waits until it answers, or fails and says so
                        raise _Blind from absent
                    log.warning("lane %s is left out for now: %s", absent.lane, absent.failure)
                    del waiting[absent.lane]
        except _Blind:
            shares = share(waiting, limit, blind=True)
            assert not isinstance(shares, list)
            return shares

    def part(self, heads: Mapping[Lane, Head], spans: Mapping[Lane, Span], limit: Limit) -> float:
        """How much of a batch waits, as near as that is known without asking."""
        waiting = [self._followed(heads[lane], span) for lane, span in spans.items()]
        return limit.part(sum(it.rows for it in waiting), sum(it.likely_bytes for it in waiting))

    def _share(
        self, heads: Mapping[Lane, Head], waiting: Mapping[Lane, Profile], limit: Limit, patience: float
    ) -> Shares:
        rounds = 0
        while isinstance(answer := share(waiting, limit, settle=rounds == _ROUNDS), list):
            self._ask(heads, waiting, answer, patience)
            rounds += 1
        return answer

    def _followed(self, head: Head, span: Span) -> Profile:
        profile = self._profiles.get(head.lane)
        if profile is None or not profile.place <= span.begin <= profile.end:
            profile = self._profiles[head.lane] = Profile(span.begin)
        profile.move_to(span.begin)
        if span.end == head.next:
            profile.extend(span.end, head.last_time, head.first, head.bytes)
        else:
            profile.extend(span.end, None, head.first, None)
        return profile

    def _ask(
        self,
        heads: Mapping[Lane, Head],
        profiles: Mapping[Lane, Profile],
        questions: Sequence[Question],
        patience: float = 0,
    ) -> None:
        """Lets profiles learn the answers. Raises _Absent or _Blind when there is none."""
        deadline = time.monotonic() + patience

        def answered(question: Question) -> Points:
            while True:
                try:
                    points = self._cluster.points(heads[question.lane], question.begin, question.end, _POINTS)
                except Unreachable as failure:
                    if time.monotonic() >= deadline:
                        raise _Absent(question.lane, failure) from failure
                    time.sleep(_PAUSE)
                except Refused as refused:
                    log.warning("times of lane %s cannot be told: %s", question.lane, refused)
                    raise _Blind from refused
                else:
                    if points is None:
                        raise _Blind
                    return points

        for question, points in zip(questions, _at_once(answered, questions), strict=True):
            profiles[question.lane].learn(question.begin, question.end, points)

    # Tasks

    def marks(
        self, ranges: Sequence[Range], heads: Mapping[Lane, Head], task_bytes: int | None
    ) -> Mapping[Range, Marks]:
        """Where how many bytes lie in each range; asked for if it may have more than a task's."""
        if task_bytes is None:
            return {}
        there = [it for it in ranges if it.end is not None and it.lane in heads]
        return {it: self._marks(it, heads[it.lane], task_bytes) for it in there}

    def _marks(self, whole: Range, head: Head, task_bytes: int) -> Marks:
        begin, end = whole.begin, whole.begin + whole.rows
        known = self._profiles.get(whole.lane)
        marks = known.bytes_between(begin, end) if known is not None else None
        if marks is None and head.bytes is not None and head.bytes <= task_bytes:
            return [(begin, 0), (end, head.bytes)]  # at most
        if marks is not None and (marks[-1][1] <= task_bytes or not _coarse(marks, task_bytes)):
            return marks
        profile = Profile(begin)
        profile.extend(end, None, head.first, None)
        questions = [Question(whole.lane, begin, end)]
        try:
            for _ in range(_ROUNDS):
                self._ask({whole.lane: head}, {whole.lane: profile}, questions)
                questions = [Question(whole.lane, *it) for it in profile.long_stretches(task_bytes // _FINE)]
                if not questions:
                    break
        except (_Absent, _Blind):
            size = (head.bytes or 0) * whole.rows // max(1, head.next - head.first)
            return [(begin, 0), (end, size)]
        return profile.bytes_between(begin, end) or ()


def _coarse(marks: Marks, task_bytes: int) -> bool:
    """Whether much lies between two marks."""
    return any(then - before > task_bytes // _FINE for (_, before), (_, then) in pairwise(marks))


def _at_once(function: Callable[[Question], Points], questions: Sequence[Question]) -> list[Points]:
    if len(questions) == 1:
        return [function(questions[0])]
    with ThreadPoolExecutor(min(_AT_ONCE, len(questions)), thread_name_prefix="nsq points") as pool:
        return list(pool.map(function, questions))
