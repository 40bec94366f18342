"""Keeps lane profiles from batch to batch, and asks nsqd for more data when a decision needs it.

All decisions are in sharing.py and lanes.py. In an ongoing stream, a lane whose node doesn't answer is left out of the
batch, so that it doesn't delay the others. If there will be no later batch, we wait for the node.
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
from pyspark_nsq.source.reading import PATIENCE
from pyspark_nsq.source.sharing import Limit, Profile, Question, Shares, share

log = logging.getLogger(__name__)

_POINTS: Final = 250  # in an answer, which then takes some ten kilobytes
_ROUNDS: Final = 8  # of queries for one decision; each is a hundred times finer
_AT_ONCE: Final = 8  # queries at the same time
_PAUSE: Final = 0.5  # seconds until we ask a silent node again
_FINE: Final = 4  # marks in a task's bytes, at least, so that a task can't become much too large


Points = Sequence[tuple[int, int, int]]  # see `Cluster.points`


class _Absent(Exception):
    """A lane's node doesn't answer now."""

    def __init__(self, lane: Lane, failure: Unreachable) -> None:
        super().__init__(str(lane))
        self.lane = lane
        self.failure = failure


class _Blind(Exception):
    """The times of a lane's messages can't be determined, at least for this batch."""


class Profiles:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._profiles: dict[Lane, Profile] = {}

    def share(
        self, heads: Mapping[Lane, Head], spans: Mapping[Lane, Span], limit: Limit, *, goes_on: bool = True
    ) -> Shares:
        """Return how many of the waiting rows of each lane a batch takes. Lanes missing in the result give none.

        If this is the stream's last batch, raises Unreachable when a node doesn't answer for a minute.
        """
        waiting = {lane: self._followed(heads[lane], span) for lane, span in spans.items()}
        try:
            while True:
                try:
                    return self._share(heads, waiting, limit, PATIENCE if not goes_on else 0)
                except _Absent as absent:
                    if not goes_on:
                        raise absent.failure from absent
                    if len(waiting) == 1:  # its tasks wait for the node, or fail with an error that names it
                        raise _Blind from absent
                    log.warning("lane %s is left out for now: %s", absent.lane, absent.failure)
                    del waiting[absent.lane]
        except _Blind:
            shares = share(waiting, limit, blind=True)
            assert not isinstance(shares, list)
            return shares

    def part(self, heads: Mapping[Lane, Head], spans: Mapping[Lane, Span], limit: Limit) -> float:
        """Return how many batches the waiting messages would fill, estimated without querying any node."""
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
        """Ask the questions, and update the profiles with the answers.

        Raises _Absent or _Blind when there is no answer.
        """
        deadline = time.monotonic() + patience

        def ask_one(question: Question) -> Points:
            while True:
                try:
                    points = self._cluster.points(heads[question.lane], question.begin, question.end, _POINTS)
                except Unreachable as failure:
                    if time.monotonic() >= deadline:
                        raise _Absent(question.lane, failure) from failure
                    time.sleep(_PAUSE)
                except Refused as refused:
                    log.warning("the times of lane %s are not known: %s", question.lane, refused)
                    raise _Blind from refused
                else:
                    if points is None:
                        raise _Blind
                    return points

        for question, points in zip(questions, _at_once(ask_one, questions), strict=True):
            profiles[question.lane].learn(question.begin, question.end, points)

    # Tasks

    def marks(
        self, ranges: Sequence[Range], heads: Mapping[Lane, Head], task_bytes: int | None
    ) -> Mapping[Range, Marks]:
        """Return how the bytes are spread over each range.

        Queries nodes if a range may fill more than one task.
        """
        if task_bytes is None:
            return {}
        readable = [it for it in ranges if it.end is not None and it.lane in heads]
        return {it: self._marks(it, heads[it.lane], task_bytes) for it in readable}

    def _marks(self, whole: Range, head: Head, task_bytes: int) -> Marks:
        begin, end = whole.begin, whole.begin + whole.rows
        known = self._profiles.get(whole.lane)
        marks = known.bytes_between(begin, end) if known is not None else None
        if marks is None and head.bytes is not None and head.bytes <= task_bytes:
            return [(begin, 0), (end, head.bytes)]  # an upper bound
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
    """Return whether any two neighbouring marks are further apart than a fourth of a task's bytes."""
    return any(then - before > task_bytes // _FINE for (_, before), (_, then) in pairwise(marks))


def _at_once(function: Callable[[Question], Points], questions: Sequence[Question]) -> list[Points]:
    if len(questions) == 1:
        return [function(questions[0])]
    with ThreadPoolExecutor(min(_AT_ONCE, len(questions)), thread_name_prefix="nsq points") as pool:
        return list(pool.map(function, questions))
