"""How a limited batch is shared: it fits, it makes progress, it is level in time, and no lane starves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_nsq.lanes import Lane
from pyspark_nsq.source.sharing import Limit, Profile, Question, share
from tests.support.simulated_lanes import Reading, Record, SimulatedLane

A, B, C = (Lane(node, "orders", "log") for node in "abc")


def lanes(shortest_step: int = 0) -> st.SearchStrategy[dict[Lane, SimulatedLane]]:
    step = st.integers(shortest_step, 3) | st.integers(shortest_step, 1000)
    records = st.tuples(step, st.integers(1, 40), st.integers(60, 500))
    return st.lists(st.lists(records, max_size=60).map(simulated), min_size=1, max_size=4).map(
        lambda found: {Lane(f"node{number}", "t", "l"): lane for number, lane in enumerate(found)}
    )


def simulated(records: list[tuple[int, int, int]]) -> SimulatedLane:
    times = accumulate(step for step, _, _ in records)
    return SimulatedLane([Record(time, *it[1:]) for time, it in zip(times, records, strict=True)])


@settings(deadline=None)
@given(lanes(), st.integers(1, 500), st.sampled_from([6, 10, 100]))
def test_every_batch_fits_goes_on_and_is_level(found: dict[Lane, SimulatedLane], rows: int, points: int) -> None:
    reading = Reading(found, points=points)
    while left := reading.rows_left:
        taken = reading.take(Limit(rows))
        assert min(left, rows * 0.75) - 1 <= sum(map(len, taken.values())) <= rows
        assert taken
        reading.check_level(taken)
    assert reading.places == {name: lane.end for name, lane in found.items()}


@settings(deadline=None)
@given(lanes(shortest_step=1), st.none() | st.integers(1, 500), st.integers(300, 20_000))
def test_bytes_are_a_limit_too(found: dict[Lane, SimulatedLane], rows: int | None, size: int) -> None:
    reading = Reading(found)
    while reading.rows_left:
        taken = reading.take(Limit(rows, size))
        count = sum(map(len, taken.values()))
        assert 1 <= count <= (rows or count)
        # A message counts as long as the others of its record; and one is taken, however long it is.
        longest = max(record.size // record.count + 1 for lane in found.values() for record in lane.records)
        assert count == 1 or reading.bytes_of(taken) <= size + len(found) * longest
        reading.check_level(taken)


def test_one_lane_has_no_more_bytes_than_fit_though_its_rows_are_limited_too() -> None:
    name = Lane("a", "t", "l")
    reading = Reading({name: SimulatedLane([Record(number, 1, 1000) for number in range(10_000)])}, points=6)
    taken = reading.take(Limit(1500, 100_000))
    assert 75 <= len(taken[name]) <= 100


@settings(deadline=None)
@given(lanes(), st.integers(1, 100), st.none() | st.integers(300, 20_000))
def test_where_times_cannot_be_told_all_lanes_go_on_in_proportion(
    found: dict[Lane, SimulatedLane], rows: int, size: int | None
) -> None:
    reading = Reading(found)
    waited = dict.fromkeys(found, 0)
    while reading.rows_left:
        waiting = {name: found[name].end - place for name, place in reading.places.items() if place < found[name].end}
        taken = reading.take(Limit(rows, size), blind=True)
        assert 1 <= sum(map(len, taken.values())) <= rows
        assert not reading.questions
        for name in waiting:
            waited[name] = 0 if name in taken else waited[name] + 1
            assert waited[name] <= len(found), f"{name} starves"
        if size is None and rows >= sum(waiting.values()):
            assert {name: len(span) for name, span in taken.items()} == waiting


def every(milliseconds: float, count: int, *, start: float = 0.0, batch: int = 1, size: int = 256) -> SimulatedLane:
    step = milliseconds * 1e6 * batch
    return SimulatedLane([Record(int(start * 1e9 + n * step), batch, size * batch) for n in range(count // batch)])


def test_a_lane_alone_is_taken_by_the_row_and_without_a_question() -> None:
    reading = Reading({A: every(1, 2500)})
    assert [reading.take(Limit(1000))[A] for _ in range(3)] == [range(1000), range(1000, 2000), range(2000, 2500)]
    assert reading.questions == 0


def test_what_fits_is_taken_without_a_question() -> None:
    reading = Reading({A: every(1, 1000), B: every(3, 100)})
    assert reading.take(Limit(1100, 300_000)) == {A: range(1000), B: range(100)}
    assert reading.questions == 0


def test_a_burst_larger_than_the_limit_is_shared_in_proportion() -> None:
    burst = {A: SimulatedLane([Record(5, 6000, 600_000)]), B: SimulatedLane([Record(5, 3000, 300_000)])}
    reading = Reading(burst)
    assert reading.take(Limit(900)) == {A: range(600), B: range(300)}
    assert reading.take(Limit(900)) == {A: range(600, 1200), B: range(300, 600)}


def test_a_batch_costs_few_questions() -> None:
    reading = Reading({A: every(1 / 3, 120_000, batch=10), B: every(50, 800), C: every(500, 80)}, points=250)
    batches = 0
    while reading.rows_left:
        reading.check_level(reading.take(Limit(5000, 1 << 30)))
        batches += 1
        assert reading.rounds <= 5
    assert 120_880 / 5000 <= batches <= 120_880 / 5000 / 0.75 + 1
    assert reading.questions <= 2.5 * batches


def test_a_limit_of_bytes_is_kept_where_messages_grow() -> None:
    records = [Record(n, 10, 1000) for n in range(1000)] + [Record(1000 + n, 1, 1_000_000) for n in range(100)]
    reading = Reading({A: SimulatedLane(records)})
    while reading.rows_left:
        taken = reading.take(Limit(None, 10_000_000))
        assert reading.bytes_of(taken) <= 10_000_000


def test_a_message_larger_than_the_limit_goes_alone() -> None:
    reading = Reading({A: SimulatedLane([Record(n, 1, 1_000_000) for n in range(3)])})
    assert [reading.take(Limit(100, 1000))[A] for _ in range(3)] == [range(1), range(1, 2), range(2, 3)]


@dataclass
class Growing:
    """A lane as its head reports it from time to time."""

    profile: Profile
    end: int = 0
    size: int = 0

    def grow(self, rows: int, size: int, *, first: int = 0) -> None:
        self.end += rows
        self.size += size
        self.profile.extend(self.end, self.end * 1000, first, self.size)


def test_a_lane_that_is_followed_is_measured_without_questions() -> None:
    lane = Growing(Profile(0))
    lane.grow(0, 0)
    for _ in range(5):
        lane.grow(10, 1000)
        assert lane.profile.most_bytes == 1000
        assert share({A: lane.profile}, Limit(None, 1000)) == {A: 10}
        lane.profile.move_to(lane.end)
    lane.grow(10, -3000, first=20)  # retention removed more than was published
    assert share({A: lane.profile}, Limit(None, 1000)) == [Question(A, 50, 60)]


def test_nothing_is_asked_where_the_whole_log_would_fit() -> None:
    profile = Profile(70)
    profile.extend(100, 5, 0, 5000)
    assert share({A: profile}, Limit(None, 5000)) == {A: 30}
    assert share({A: profile}, Limit(None, 4999)) == [Question(A, 70, 100)]


def test_a_stretch_that_cannot_be_read_counts_as_one_instant() -> None:
    broken, whole = Profile(0), Profile(0)
    broken.extend(1000, 50, 0, 1000)
    whole.extend(1000, 60, 0, 1000)
    found = {A: broken, B: whole}
    answer = share(found, Limit(100))
    for _ in range(9):
        if not isinstance(answer, list):
            break
        for question in answer:
            found[question.lane].learn(question.begin, question.end, [])
        answer = share(found, Limit(100))
    assert answer == {A: 50, B: 50}


def test_when_nobody_answers_any_more_less_is_taken_and_something_is() -> None:
    found = {A: Profile(0), B: Profile(0)}
    for profile in found.values():
        profile.extend(1000, 50, 0, 1000)
    assert isinstance(share(found, Limit(100)), list)
    assert share(found, Limit(100), settle=True) == {A: 50, B: 50}


@example(0)
@given(st.integers(0, 999))
def test_a_place_between_two_fences_keeps_what_is_known(place: int) -> None:
    lane = every(1, 1000, batch=10)
    profile = Profile(0)
    profile.extend(1000, lane.last_time, 0, lane.bytes)
    profile.learn(0, 1000, lane.points(0, 1000, 60))
    marks = profile.bytes_between(place, 1000)
    assert marks is not None
    profile.move_to(place)
    assert (profile.place, profile.rows, profile.most_bytes) == (place, 1000 - place, marks[-1][1])
    assert profile.bytes_between(place, 1000) == marks
    assert profile.bytes_between(0, 1000) == (marks if place == 0 else None)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_with_fewer_rows_than_lanes_they_take_turns(rows: int) -> None:
    reading = Reading({Lane(str(n), "t", "l"): every(1, 100) for n in range(5)})
    for _ in range(5):
        reading.take(Limit(rows), blind=True)
    assert max(reading.places.values()) - min(reading.places.values()) <= 1
