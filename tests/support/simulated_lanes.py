"""Lanes that exist only as times and sizes of records, with the answers that nsqd would give about them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from pyspark_nsq.lanes import Lane
from pyspark_nsq.source.sharing import Limit, Profile, Question, share


class Record(NamedTuple):
    time: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    size: int


class SimulatedLane:
    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self._firsts = list(accumulate((record.count for record in records), initial=0))
        self._positions = list(accumulate((record.size for record in records), initial=0))

    @property
    def end(self) -> int:
        return self._firsts[-1]

    @property
    def bytes(self) -> int:
        return self._positions[-1]

    @property
    def last_time(self) -> int | None:
        return self.records[-1].time if self.records else None

    def time_of(self, sequence: int) -> int:
        return self.records[self._record_of(sequence)].time

    def up_to(self, time: int) -> int:
        """Return where the messages end that were published by then."""
        return self._firsts[bisect_right(self.records, time, key=lambda record: record.time)]

    def bytes_between(self, begin: int, end: int) -> int:
        return self._position_of(end) - self._position_of(begin)

    def points(self, begin: int, end: int, most: int) -> list[tuple[int, int, int]]:
        """Return the points that `/topic/log?points=` would return."""
        first, last = self._record_of(begin), self._record_of(end - 1)
        inner = range(first + 1, last)
        count = min((most - 4) // 2, len(inner))
        chosen = [inner[(2 * number + 1) * len(inner) // (2 * count)] for number in range(count)]
        found: list[tuple[int, int, int]] = []
        for record in (first, *chosen, last):
            for sequence in self._firsts[record : record + 2]:
                at = min(max(sequence, begin), end)
                point = (at, self.records[record].time, self.bytes_between(begin, at))
                if not found or point > found[-1]:
                    found.append(point)
        return found

    def _record_of(self, sequence: int) -> int:
        return bisect_right(self._firsts, sequence) - 1

    def _position_of(self, sequence: int) -> int:
        if sequence == self.end:
            return self.bytes
        at = self._record_of(sequence)
        record = self.records[at]
        return self._positions[at] + record.size * (sequence - self._firsts[at]) // record.count


class Reading:
    """Takes batch after batch from lanes, with simulated answers of nsqd."""

    def __init__(self, lanes: dict[Lane, SimulatedLane], *, points: int = 100) -> None:
        self.lanes = lanes
        self.places = dict.fromkeys(lanes, 0)
        self.profiles = {lane: Profile(0) for lane in lanes}
        self.points = points
        self.questions = 0
        self.rounds = 0

    @property
    def rows_left(self) -> int:
        return sum(lane.end - self.places[name] for name, lane in self.lanes.items())

    def take(self, limit: Limit, *, blind: bool = False) -> dict[Lane, range]:
        for name, lane in self.lanes.items():
            self.profiles[name].move_to(self.places[name])
            self.profiles[name].extend(lane.end, lane.last_time, 0, lane.bytes)
        self.rounds = 0
        while isinstance(answer := share(self.profiles, limit, blind=blind), list):
            self.rounds += 1
            assert self.rounds < 40
            for question in answer:
                self._answer(question)
        taken = {name: range(self.places[name], self.places[name] + rows) for name, rows in answer.items() if rows}
        self.places |= {name: span.stop for name, span in taken.items()}
        return taken

    def _answer(self, question: Question) -> None:
        self.questions += 1
        assert question.begin < question.end
        points = self.lanes[question.lane].points(question.begin, question.end, self.points)
        self.profiles[question.lane].learn(question.begin, question.end, points)

    def bytes_of(self, taken: dict[Lane, range]) -> int:
        return sum(self.lanes[name].bytes_between(span.start, span.stop) for name, span in taken.items())

    def check_level(self, taken: dict[Lane, range]) -> None:
        newest = max(self.lanes[name].time_of(span.stop - 1) for name, span in taken.items())
        for name, place in self.places.items():
            if place < self.lanes[name].end:
                assert newest <= self.lanes[name].time_of(place), f"{name} is left behind"
