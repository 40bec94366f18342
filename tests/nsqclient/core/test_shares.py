"""How several topics share one `max_in_flight`: simulated nsqds and handlers, in steps of a millisecond or more."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqclient.core.config import Config
from nsqclient.core.errors import ConfigError
from nsqclient.core.flow import Flow, Seat
from nsqclient.core.shares import TURN, Shares, checked_weights, parts_by_weight
from nsqclient.core.topics import checked_topics

STEP = 0.001  # seconds
LONG_STEP = 0.005  # for simulations of many seconds, and handlers that take at least four of these
LOOK = 0.1  # seconds between two looks of the flow


class Nsqd:
    """An nsqd with messages of one topic, and a consumer's connection to it."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.told: list[int] = []
        self.rdy = 0  # the last one that has reached it
        self.in_flight = 0  # with us
        self.seat = Seat(self.told.append, max_rdy=2500, now=0.0, in_flight=lambda: self.in_flight)


class Topic:
    def __init__(self, simulation: Simulation, weight: float) -> None:
        self.flow = Flow(Config(max_in_flight=0), choose=Random(1).choice)
        self.share = simulation.shares.add(self.flow, weight, self.flow.set_max_in_flight)
        self.nsqds: list[Nsqd] = []
        self.waiting = 0
        self.finished = 0

    @property
    def in_flight(self) -> int:
        return sum(nsqd.in_flight for nsqd in self.nsqds)


class Simulation:
    """A consumer with `handlers`, which take `work` steps for each message. A step takes so many seconds."""

    def __init__(
        self,
        weights: list[float],
        max_in_flight: int | None,
        *,
        nsqds: int = 1,
        handlers: int = 1,
        work: int = 1,
        step: float = STEP,
    ) -> None:
        self.now = 0.0
        self.shares = Shares(max_in_flight, self.now)
        self.topics = [Topic(self, weight) for weight in weights]
        self.queue: deque[Nsqd] = deque()
        self.running: list[tuple[int, Nsqd]] = []  # when it ends
        self.step_number = 0
        self.most = 0  # in flight
        self.highest_sum = 0  # of RDY
        self._handlers = handlers
        self._work = work
        self._seconds = step
        for topic in self.topics:
            for _ in range(nsqds):
                self.join(topic)

    def join(self, topic: Topic) -> None:
        topic.nsqds.append(Nsqd(topic))
        topic.flow.join(topic.nsqds[-1].seat, self.now)
        self.shares.rebalance(self.now)

    def leave(self, topic: Topic) -> None:
        nsqd = topic.nsqds.pop()
        self.queue = deque(it for it in self.queue if it is not nsqd)
        self.running = [it for it in self.running if it[1] is not nsqd]
        topic.waiting += nsqd.in_flight
        nsqd.in_flight = 0
        topic.flow.leave(nsqd.seat, self.now)
        self.shares.rebalance(self.now)

    def step(self) -> None:
        self.now += self._seconds
        self.step_number += 1
        self._write()
        self._deliver()
        self._handle()
        self.shares.tick(self.now)
        if self.step_number % round(LOOK / self._seconds) == 0:
            for topic in self.topics:
                if topic.flow.has_short_turns:
                    topic.flow.redistribute(self.now)

    def run(self, seconds: float) -> list[int]:
        """Return how many messages of each topic were finished meanwhile."""
        before = [topic.finished for topic in self.topics]
        for _ in range(round(seconds / self._seconds)):
            self.step()
        return [topic.finished - count for topic, count in zip(self.topics, before, strict=True)]

    def _write(self) -> None:
        for topic in self.topics:
            for nsqd in topic.nsqds:
                nsqd.seat.mark_sending()
                if nsqd.told:
                    nsqd.rdy = nsqd.told[-1]
                topic.flow.written(nsqd.seat, self.now)
                self.shares.freed(self.now)
        self.highest_sum = max(self.highest_sum, sum(nsqd.rdy for topic in self.topics for nsqd in topic.nsqds))

    def _deliver(self) -> None:
        for topic in self.topics:
            for nsqd in topic.nsqds:
                count = min(max(nsqd.rdy - nsqd.in_flight, 0), topic.waiting)
                if not count:
                    continue
                topic.waiting -= count
                nsqd.in_flight += count
                self.queue.extend([nsqd] * count)
                topic.flow.message_from(nsqd.seat, self.now)
                self.shares.arrived(topic.share, count, self.now)
        self.most = max(self.most, sum(topic.in_flight for topic in self.topics))

    def _handle(self) -> None:
        for entry in [it for it in self.running if it[0] <= self.step_number]:
            self.running.remove(entry)
            entry[1].in_flight -= 1
            entry[1].topic.finished += 1
        while self.queue and len(self.running) < self._handlers:
            self.running.append((self.step_number + self._work, self.queue.popleft()))

    def places(self) -> list[int]:
        return [topic.share.places for topic in self.topics]


def busy(simulation: Simulation) -> Simulation:
    for topic in simulation.topics:
        topic.waiting = 10**9
    return simulation


@pytest.mark.parametrize(("nsqds", "handlers", "work"), [(1, 1, 1), (1, 9, 20), (3, 2, 3)])
def test_topics_with_messages_have_their_parts(nsqds: int, handlers: int, work: int) -> None:
    simulation = busy(Simulation([8, 1], 9 * nsqds, nsqds=nsqds, handlers=handlers, work=work))
    simulation.run(3)
    assert simulation.places() == [8 * nsqds, nsqds]
    high, low = simulation.run(10)
    assert high / low == pytest.approx(8, rel=0.05)
    assert simulation.most == 9 * nsqds


def test_a_part_that_is_smaller_than_the_number_of_nsqds_goes_round() -> None:
    """Each time it goes on, it waits for the answer to a message, and for the flow's next look."""
    simulation = busy(Simulation([8, 1], 9, nsqds=3, handlers=2, work=3))
    simulation.run(3)
    assert simulation.places() == [8, 1]
    high, low = simulation.run(10)
    assert 8 <= high / low < 11
    assert simulation.most == 9


def test_parts_of_three() -> None:
    simulation = busy(Simulation([5, 3, 2], 100, nsqds=2, handlers=4))
    simulation.run(3)
    assert simulation.places() == [50, 30, 20]


def test_the_share_of_an_idle_topic_goes_to_the_others_and_comes_back() -> None:
    simulation = Simulation([8, 1], 9, handlers=9, work=50)
    high, low = simulation.topics
    low.waiting = 10**9
    simulation.run(3)
    assert simulation.places() == [1, 8], "one place stays, so that the next message comes at once"
    high.waiting = 10**9
    simulation.run(0.2)  # four times the time of a handler
    assert simulation.places() == [8, 1]
    assert simulation.most == 9
    high.waiting = 0
    simulation.run(3)
    assert simulation.places() == [1, 8]


def test_a_topic_with_few_messages_leaves_what_it_does_not_use() -> None:
    simulation = Simulation([1, 1], 100, handlers=100, work=10)
    few, many = simulation.topics
    many.waiting = 10**9
    for _ in range(50):
        few.waiting += 1
        simulation.run(0.1)
    assert few.finished == 50
    assert simulation.places() == [2, 98]
    for _ in range(20):
        few.waiting += 2
        simulation.run(0.1)
    assert simulation.places() == [4, 96]
    few.waiting = 1000
    simulation.run(0.05)
    assert simulation.places() == [50, 50]


def test_a_message_now_and_then_takes_the_places_only_while_it_is_handled() -> None:
    simulation = Simulation([8, 1], 9, handlers=9, work=10)
    rare, many = simulation.topics
    many.waiting = 10**9
    simulation.run(3)
    before = many.finished
    simulation.run(3)
    alone = many.finished - before
    for _ in range(3):
        rare.waiting += 1
        simulation.run(1)
    assert rare.finished == 3
    assert many.finished - before - alone > 0.8 * alone


def test_a_topic_without_nsqds_has_no_place() -> None:
    simulation = Simulation([8, 1], 9, nsqds=0)
    high, low = simulation.topics
    simulation.join(low)
    simulation.run(0.1)
    assert simulation.places() == [0, 9]
    simulation.join(high)
    busy(simulation).run(0.1)
    assert simulation.places() == [8, 1]
    simulation.leave(high)
    simulation.run(0.1)
    assert simulation.places() == [0, 9]


@pytest.mark.parametrize("work", [1, 6])
def test_with_a_single_place_topics_take_turns_by_weight(work: int) -> None:
    simulation = busy(Simulation([8, 1], 1, work=work, step=LONG_STEP))
    high, low = simulation.run(20)
    assert high / low == pytest.approx(8, rel=0.05)
    assert simulation.most == 1


def test_slow_handlers_do_not_change_the_turns() -> None:
    """Each message takes longer than a topic without messages waits for its next turn."""
    simulation = busy(Simulation([3, 1], 1, work=round(1.5 * TURN / LONG_STEP), step=LONG_STEP))
    high, low = simulation.run(60)
    assert high / low == pytest.approx(3, rel=0.2)


def test_a_small_weight_is_exact() -> None:
    simulation = busy(Simulation([100, 1], 9, handlers=9, work=5))
    high, low = simulation.run(20)
    assert high / low == pytest.approx(100, rel=0.2)
    assert simulation.most == 9


def test_an_idle_topic_costs_little_even_of_a_single_place() -> None:
    simulation = Simulation([8, 1], 1, step=LONG_STEP)
    high, low = simulation.topics
    low.waiting = 10**9
    simulation.run(5)
    alone = busy(Simulation([1], 1, step=LONG_STEP)).run(20)[0]
    assert simulation.run(20)[1] > 0.8 * alone
    high.waiting = 1
    simulation.run(1.5 * TURN)
    assert high.finished == 1


def test_an_idle_topic_does_not_make_up_for_its_time() -> None:
    simulation = Simulation([1, 1], 1, step=LONG_STEP)
    first, second = simulation.topics
    second.waiting = 10**9
    simulation.run(20)
    first.waiting = 10**9
    simulation.run(2)
    counts = simulation.run(10)
    assert counts[0] / counts[1] == pytest.approx(1, rel=0.1)


def test_idle_topics_do_not_make_up_for_their_time_together() -> None:
    simulation = Simulation([1, 1, 1], 1, step=LONG_STEP)
    first, _, third = simulation.topics
    third.waiting = 10**9
    simulation.run(30)
    first.waiting = 10**9
    simulation.run(2)
    counts = simulation.run(10)
    assert counts[0] / counts[2] == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("weights", "most"), [([1, 1], 3), ([3, 2], 4), ([2, 1, 1], 5), ([8, 1], 10), ([1, 1, 1], 4), ([5, 3, 2], 7)]
)
def test_a_place_that_is_left_over_goes_round(weights: list[float], most: int) -> None:
    simulation = busy(Simulation(weights, most, handlers=most, work=4, step=LONG_STEP))
    simulation.run(2)
    counts = simulation.run(30)
    parts = [count / sum(counts) for count in counts]
    assert parts == pytest.approx([weight / sum(weights) for weight in weights], rel=0.05)
    assert simulation.most == most
    told = sum(len(nsqd.told) for topic in simulation.topics for nsqd in topic.nsqds)
    assert told < 4 * len(weights) * 32, "RDY changes every second, not with each message"


def test_a_topic_that_did_not_use_its_places_does_not_make_up_for_it() -> None:
    simulation = Simulation([1, 1], 3, handlers=3, work=4, step=LONG_STEP)
    first, second = simulation.topics
    second.waiting = 10**9
    for _ in range(100):
        first.waiting += 1
        simulation.run(0.2)
    first.waiting = 10**9
    simulation.run(2)
    counts = simulation.run(20)
    assert counts[0] / counts[1] == pytest.approx(1, rel=0.1)


def test_a_place_that_goes_to_and_fro_between_two_topics_is_also_for_a_third() -> None:
    simulation = Simulation([2, 1, 1], 3, handlers=3, work=4, step=LONG_STEP)
    first, second, _ = simulation.topics
    first.waiting = second.waiting = 10**9
    simulation.run(5)
    busy(simulation).run(3)
    counts = simulation.run(12)
    assert [count / sum(counts) for count in counts] == pytest.approx([0.5, 0.25, 0.25], rel=0.1)


def test_without_a_max_in_flight_there_is_one_for_each_connection() -> None:
    simulation = busy(Simulation([1, 1], None, nsqds=3, handlers=6))
    simulation.run(2)
    assert simulation.places() == [3, 3]


def test_a_pause_and_a_new_limit() -> None:
    simulation = busy(Simulation([2, 1], 9, handlers=3))
    simulation.run(2)
    simulation.shares.set_max_in_flight(0, simulation.now)
    simulation.run(0.1)
    assert simulation.run(1) == [0, 0]
    assert simulation.places() == [0, 0]
    simulation.shares.set_max_in_flight(30, simulation.now)
    simulation.run(2)
    assert simulation.places() == [20, 10]


def test_backoff_holds_all_topics_and_tests_one() -> None:
    simulation = Simulation([8, 1], 9)
    high, low = simulation.topics
    low.waiting = 10**9
    simulation.run(2)
    simulation.shares.hold(simulation.now)
    simulation.run(0.1)
    assert simulation.run(1) == [0, 0]
    before = low.finished
    while not simulation.shares.test_one(simulation.now):
        simulation.step()
    for _ in range(1000):
        simulation.step()
        if low.in_flight:
            break
    assert (high.in_flight, low.in_flight) == (0, 1), "high was tested first, and had nothing"
    simulation.shares.release(simulation.now)
    simulation.run(1)
    assert low.finished > before + 100
    assert simulation.most <= 9


def test_backoff_tests_a_topic_whose_place_an_idle_one_is_about_to_get() -> None:
    """With one place and slow handlers, the turn of an idle topic begins while a message of the other one is handled.

    Then that message's handler fails. The idle topic gets the place, but no message for the test.
    """
    simulation = Simulation([1, 1], 1, work=round(2 * TURN / STEP))
    active, idle = simulation.topics
    active.waiting = 10**9
    for _ in range(round(5 * TURN / STEP)):
        simulation.step()
        if simulation.running and simulation.places() == [0, 0]:
            break
    simulation.shares.hold(simulation.now)
    simulation.run(3)
    before = active.finished
    assert simulation.shares.test_one(simulation.now)
    simulation.run(3)
    assert (active.finished - before, idle.in_flight) == (1, 0)
    assert simulation.most == 1


def test_a_test_during_backoff_is_not_ended_by_the_turn_of_another_topic() -> None:
    simulation = busy(Simulation([1, 1], 1, work=10))
    simulation.run(1)
    for _ in range(10):
        simulation.shares.hold(simulation.now)
        simulation.run(0.1)
        before = sum(topic.finished for topic in simulation.topics)
        assert simulation.shares.test_one(simulation.now)
        simulation.run(0.05)
        assert sum(topic.finished for topic in simulation.topics) > before
    simulation.shares.release(simulation.now)
    first, second = simulation.run(10)
    assert first / second == pytest.approx(1, rel=0.1)
    assert simulation.most == 1


def test_a_pause_during_backoff_holds_for_the_tested_topic_too() -> None:
    simulation = busy(Simulation([1, 1], 4))
    simulation.run(1)
    simulation.shares.hold(simulation.now)
    simulation.run(0.1)
    assert simulation.shares.test_one(simulation.now)
    simulation.shares.set_max_in_flight(0, simulation.now)
    simulation.run(0.1)
    assert simulation.run(1) == [0, 0]
    simulation.shares.set_max_in_flight(4, simulation.now)
    assert sum(simulation.run(1)) > 0


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_never_too_much_and_everything_is_done(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
    most = data.draw(st.integers(1, 12))
    most_nsqds = data.draw(st.integers(1, 3))
    simulation = Simulation(weights, most, nsqds=0, handlers=data.draw(st.integers(1, 5)))
    for _ in range(data.draw(st.integers(1, 8))):
        topic = data.draw(st.sampled_from(simulation.topics))
        match data.draw(st.sampled_from(["messages", "join", "leave"])):
            case "messages":
                topic.waiting += data.draw(st.integers(1, 100))
            case "join" if len(topic.nsqds) < most_nsqds:
                simulation.join(topic)
            case "leave" if topic.nsqds:
                simulation.leave(topic)
        simulation.run(data.draw(st.sampled_from([0.001, 0.01, 0.3])))
    for topic in simulation.topics:
        if not topic.nsqds:
            simulation.join(topic)
    for _ in range(60_000):
        if not any(topic.waiting or topic.in_flight for topic in simulation.topics):
            break
        simulation.step()
    assert [topic.waiting + topic.in_flight for topic in simulation.topics] == [0] * len(weights)
    assert simulation.highest_sum <= most
    if most_nsqds == 1:  # a second nsqd of a topic has its part of RDY before the first one's messages are answered
        assert simulation.most <= most


def test_what_one_does_not_demand_goes_to_the_others_by_weight() -> None:
    inf = float("inf")
    assert parts_by_weight(9, [8, 1], [inf, inf]) == [8, 1]
    assert parts_by_weight(9, [8, 1], [1, inf]) == [1, 8]
    assert parts_by_weight(12, [1, 1, 4], [inf, 2, 2]) == [8, 2, 2]
    assert parts_by_weight(12, [1, 3], [2, 2]) == [3, 9], "what is left over is by weight, too"
    assert parts_by_weight(12, [1, 3], [4, 2]) == [4, 8]
    assert parts_by_weight(12, [1, 1, 4], [3, 1, 2]) == [3, 1.8, 7.2]
    assert parts_by_weight(0, [1, 1], [inf, 1]) == [0, 0]
    assert parts_by_weight(5, [], []) == []


@pytest.mark.parametrize(
    "weights", [[8], [8, 1, 1], [8, 0], [8, -1], [8, "x"], [8, None], [8, True], [8, float("nan")], "81", 8]
)
def test_weights_are_numbers_one_for_each_topic(weights: object) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_weights(weights, ["orders.high", "orders"])
    assert str(caught.value) == (
        f"invalid weights ! {weights!r}, expected a number from 1e-06 to 1e+06 for each of orders.high, orders"
    )


@pytest.mark.parametrize("weights", [[1e308, 1e308], [5e-324, 1], [10**400, 1]])
def test_weights_with_infinite_sums_or_quotients_are_refused(weights: object) -> None:
    with pytest.raises(ConfigError, match="expected a number from 1e-06 to 1e"):
        checked_weights(weights, ["orders.high", "orders"])


def test_weights_are_equal_by_default() -> None:
    assert checked_weights(None, ["a", "b"]) == [1, 1]
    assert checked_weights([8, 0.5], ["a", "b"]) == [8, 0.5]


@pytest.mark.parametrize("topics", [[], ["a", "a"], {"a", "b"}, b"ab", ["a", 5], ["a", ["b"]], None, 5])
def test_topics_are_different_names_in_order(topics: Any) -> None:
    with pytest.raises(ConfigError, match="expected the name of one topic, or a list of different ones"):
        checked_topics(topics)
