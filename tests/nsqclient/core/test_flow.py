"""The shares of RDY: exact, never too much in sum, and no connection is forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqclient.core.config import Config
from nsqclient.core.flow import Flow, Seat


class Nsqd:
    """The other end, which acts on the RDY that has reached it."""

    def __init__(self, *, max_rdy: int = 2500, now: float = 0.0) -> None:
        self.told: list[int] = []
        self.read = 0  # how many of those it has read
        self.seat = Seat(self.told.append, max_rdy=max_rdy, now=now)
        self.taken = 0

    @property
    def goes_by(self) -> int:
        return self.told[self.read - 1] if self.read else 0

    def take(self) -> None:
        self.seat.mark_sending()
        self.taken = len(self.told)


def flow_of(nsqds: list[Nsqd], max_in_flight: int | None, **settings: object) -> Flow:
    flow = Flow(Config(max_in_flight=max_in_flight, **settings), choose=random.Random(1).choice)  # type: ignore[arg-type]
    for nsqd in nsqds:
        flow.join(nsqd.seat, 0.0)
        write_all(flow, nsqds)
    return flow


def write_all(flow: Flow, nsqds: list[Nsqd]) -> None:
    """Write until no connection has anything left to write."""
    for _ in range(3):
        for nsqd in nsqds:
            nsqd.take()
            flow.written(nsqd.seat, 0.0)


def rdys(nsqds: list[Nsqd]) -> list[int]:
    return [nsqd.seat.rdy for nsqd in nsqds]


@pytest.mark.parametrize(
    ("max_in_flight", "count", "shares"),
    [
        (None, 1, [1]),
        (None, 3, [1, 1, 1]),
        (8, 3, [2, 3, 3]),
        (9, 6, [1, 1, 1, 2, 2, 2]),
        (6, 2, [3, 3]),
        (1, 3, [0, 0, 1]),
        (0, 2, [0, 0]),
        (5, 1, [5]),
    ],
)
def test_everything_is_shared_out(max_in_flight: int | None, count: int, shares: list[int]) -> None:
    nsqds = [Nsqd() for _ in range(count)]
    flow_of(nsqds, max_in_flight)
    assert sorted(rdys(nsqds)) == shares


def test_who_gets_less_is_told_before_who_gets_more() -> None:
    first, second = Nsqd(), Nsqd()
    flow = flow_of([first], 6)
    flow.join(second.seat, 0.0)
    assert (first.told, second.told) == ([6, 3], [])
    first.take()
    flow.written(first.seat, 0.0)
    assert second.told == [3]


def test_what_is_told_while_older_words_leave_counts_still() -> None:
    first, second = Nsqd(), Nsqd()
    flow = flow_of([], 6)
    flow.join(first.seat, 0.0)
    first.take()  # RDY 6 has been sent,
    flow.join(second.seat, 0.0)  # RDY 3 is not
    flow.written(first.seat, 0.0)
    assert second.told == []
    first.take()
    flow.written(first.seat, 0.0)
    assert second.told == [3]


def test_a_loss_is_shared_by_the_others() -> None:
    nsqds = [Nsqd() for _ in range(3)]
    flow = flow_of(nsqds, 8)
    flow.leave(nsqds.pop(0).seat, 0.0)
    assert rdys(nsqds) == [4, 4]


def test_each_has_one_where_none_was_chosen_whoever_comes_and_goes() -> None:
    nsqds = [Nsqd() for _ in range(3)]
    flow = flow_of(nsqds, None)
    flow.retire(nsqds[0].seat, 0.0)
    new = Nsqd()
    flow.join(new.seat, 0.0)
    write_all(flow, [*nsqds, new])
    assert rdys([*nsqds, new]) == [0, 1, 1, 1]
    flow.leave(nsqds[1].seat, 0.0)
    assert rdys([nsqds[2], new]) == [1, 1]


def test_who_retires_leaves_its_share_to_others_as_soon_as_it_has_heard() -> None:
    first, second = Nsqd(), Nsqd()
    flow = flow_of([first, second], 6)
    flow.retire(first.seat, 0.0)
    assert rdys([first, second]) == [0, 3]
    write_all(flow, [first])
    assert rdys([first, second]) == [0, 6]
    flow.leave(first.seat, 0.0)
    assert rdys([second]) == [6]


def test_a_test_of_one_that_retires_is_made_with_another() -> None:
    nsqds = [Nsqd() for _ in range(2)]
    flow = flow_of(nsqds, 6)
    flow.hold(0.0)
    write_all(flow, nsqds)
    flow.test_one(0.0)
    tested = next(nsqd for nsqd in nsqds if nsqd.seat.rdy)
    flow.retire(tested.seat, 1.0)
    write_all(flow, nsqds)
    assert sorted(rdys(nsqds)) == [0, 1]
    assert tested.seat.rdy == 0


def test_a_lower_limit_of_an_nsqd_is_kept() -> None:
    nsqds = [Nsqd(max_rdy=7)]
    flow_of(nsqds, 5000)
    assert rdys(nsqds) == [7]


def test_backoff_leaves_one_and_returns_all() -> None:
    nsqds = [Nsqd() for _ in range(3)]
    flow = flow_of(nsqds, 6)
    flow.hold(1.0)
    assert rdys(nsqds) == [0, 0, 0]
    assert not flow.test_one(1.0)  # the nsqds do not know yet
    write_all(flow, nsqds)
    assert flow.test_one(2.0)
    assert sorted(rdys(nsqds)) == [0, 0, 1]
    flow.release(3.0)
    write_all(flow, nsqds)
    assert rdys(nsqds) == [2, 2, 2]


def test_a_test_that_finds_nothing_moves_on() -> None:
    nsqds = [Nsqd() for _ in range(3)]
    flow = flow_of(nsqds, 6)
    flow.hold(0.0)
    write_all(flow, nsqds)
    flow.test_one(0.0)
    tested = set()
    for second in range(0, 100, 5):
        tested |= {at for at, nsqd in enumerate(nsqds) if nsqd.seat.rdy}
        flow.redistribute(float(second))
        write_all(flow, nsqds)
    assert tested == {0, 1, 2}


def test_a_test_whose_only_nsqd_goes_is_made_with_the_next_that_comes() -> None:
    gone, back = Nsqd(), Nsqd()
    flow = flow_of([gone], 6)
    flow.hold(0.0)
    write_all(flow, [gone])
    flow.test_one(1.0)
    flow.leave(gone.seat, 2.0)
    flow.join(back.seat, 3.0)
    assert rdys([back]) == [1]


def test_who_comes_while_backoff_waits_gets_nothing() -> None:
    flow = flow_of([], 6)
    flow.hold(0.0)
    new = Nsqd()
    flow.join(new.seat, 1.0)
    assert rdys([new]) == [0]


@given(st.integers(2, 12), st.integers(1, 11))
def test_with_too_many_nsqds_each_has_its_turn(count: int, max_in_flight: int) -> None:
    max_in_flight = min(max_in_flight, count - 1)
    nsqds = [Nsqd() for _ in range(count)]
    flow = flow_of(nsqds, max_in_flight, low_rdy_idle_timeout=10, rdy_redistribute_interval=5, rdy_policy="even")
    visited: set[int] = set()
    now = 0.0
    while now <= count * (10 + 5):
        visited |= {at for at, nsqd in enumerate(nsqds) if nsqd.seat.rdy}
        now += 5
        flow.redistribute(now)
        write_all(flow, nsqds)
        assert sum(rdys(nsqds)) == max_in_flight
    assert visited == set(range(count))


def test_a_busy_one_gives_up_its_turn_in_the_end() -> None:
    nsqds = [Nsqd() for _ in range(2)]
    flow = flow_of(nsqds, 1, low_rdy_timeout=30, rdy_policy="even")
    busy = next(nsqd for nsqd in nsqds if nsqd.seat.rdy)
    for second in range(1, 31):
        flow.message_from(busy.seat, float(second))
        flow.redistribute(float(second))
        assert busy.seat.rdy == 1
    flow.redistribute(31.0)
    assert busy.seat.rdy == 0


def test_adaptive_shares_follow_the_load() -> None:
    busy, idle = Nsqd(), Nsqd()
    nsqds = [busy, idle]
    flow = flow_of(nsqds, 10, rdy_policy="adaptive")
    flow.message_from(busy.seat, 20.0)
    busy.seat.starved = True
    flow.redistribute(20.0)
    write_all(flow, nsqds)
    assert rdys(nsqds) == [9, 1]
    flow.message_from(idle.seat, 21.0)
    write_all(flow, nsqds)
    assert rdys(nsqds) == [5, 5]


class Lives(RuleBasedStateMachine):
    """Whatever happens in whatever order, the nsqds together never act on more than `max_in_flight`."""

    def __init__(self) -> None:
        super().__init__()
        self.nsqds: list[Nsqd] = []
        self.retired: list[Nsqd] = []
        self.now = 0.0
        self.allowed = 0
        self.is_testing = False
        self.flow = Flow(Config(), choose=random.Random(0).choice)

    @initialize(max_in_flight=st.none() | st.integers(0, 20), policy=st.sampled_from(["even", "adaptive"]))
    def begin(self, max_in_flight: int | None, policy: str) -> None:
        config = Config(max_in_flight=max_in_flight, rdy_policy=policy)  # type: ignore[arg-type]
        self.flow = Flow(config, choose=random.Random(0).choice)
        self.allowed = self.flow.max_in_flight

    @rule(max_rdy=st.sampled_from([1, 3, 2500]))
    def join(self, max_rdy: int) -> None:
        if len(self.nsqds) < 6:
            self.nsqds.append(Nsqd(max_rdy=max_rdy, now=self.now))
            self.flow.join(self.nsqds[-1].seat, self.now)
            self.allowed = max(self.allowed, self.flow.max_in_flight)

    def _with_one(self, data: st.DataObject, act: Callable[[Nsqd], object]) -> None:
        if self.nsqds:
            act(data.draw(st.sampled_from(self.nsqds)))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        def act(nsqd: Nsqd) -> None:
            self.nsqds.remove(nsqd)
            self.flow.leave(nsqd.seat, self.now)

        self._with_one(data, act)

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        def act(nsqd: Nsqd) -> None:
            self.nsqds.remove(nsqd)
            self.retired.append(nsqd)
            self.flow.retire(nsqd.seat, self.now)

        self._with_one(data, act)

    @rule(data=st.data())
    def one_that_has_retired_takes_or_writes_or_goes(self, data: st.DataObject) -> None:
        if self.retired:
            nsqd = data.draw(st.sampled_from(self.retired))
            match data.draw(st.sampled_from(["takes", "writes", "goes"])):
                case "takes":
                    nsqd.take()
                case "writes":
                    self._write(nsqd)
                case "goes":
                    self.retired.remove(nsqd)
                    self.flow.leave(nsqd.seat, self.now)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self._with_one(data, Nsqd.take)

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self._with_one(data, self._write)

    def _write(self, nsqd: Nsqd) -> None:
        """Send what was taken, and let it be read at once: one RDY after the other."""
        while nsqd.read < nsqd.taken:
            nsqd.read += 1
            self.check_sum()
        self.flow.written(nsqd.seat, self.now)

    @rule(data=st.data())
    def message(self, data: st.DataObject) -> None:
        self._with_one(data, lambda nsqd: self.flow.message_from(nsqd.seat, self.now))

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0]))
    def redistribute(self, seconds: float) -> None:
        self.now += seconds
        self.flow.redistribute(self.now)

    @rule(count=st.integers(0, 20))
    def set_max_in_flight(self, count: int) -> None:
        self.flow.set_max_in_flight(count, self.now)
        # What was allowed before stays allowed until every nsqd knows of less.
        self.allowed = max(count, self.flow.believed)

    @rule()
    def hold(self) -> None:
        self.flow.hold(self.now)
        self.is_testing = False

    @rule()
    def test_one(self) -> None:
        if self.flow._is_held:
            self.is_testing |= self.flow.test_one(self.now)

    @rule()
    def release(self) -> None:
        self.flow.release(self.now)
        self.is_testing = False

    @rule()
    def everything_is_heard(self) -> None:
        for _ in range(4):
            for nsqd in (*self.nsqds, *self.retired):
                nsqd.take()
                nsqd.read = nsqd.taken
                self.flow.written(nsqd.seat, self.now)
        self.allowed = self.flow.max_in_flight
        if self.is_testing:
            assert sum(rdys(self.nsqds)) == bool(self.nsqds and self.flow.max_in_flight)
        if not self.flow._is_held:
            possible = sum(sorted((nsqd.seat.max_rdy for nsqd in self.nsqds), reverse=True))
            if all(nsqd.seat.max_rdy == 2500 for nsqd in self.nsqds):
                assert sum(rdys(self.nsqds)) == min(self.flow.max_in_flight if self.nsqds else 0, possible) or any(
                    nsqd.seat.is_idle for nsqd in self.nsqds
                )

    @invariant()
    def check_sum(self) -> None:
        assert sum(nsqd.goes_by for nsqd in (*self.nsqds, *self.retired)) <= self.allowed

    @invariant()
    def who_has_retired_is_told_nothing_more(self) -> None:
        assert all(nsqd.seat.rdy == 0 for nsqd in self.retired)

    @invariant()
    def nobody_is_told_more_than_it_takes(self) -> None:
        assert all(max(nsqd.told, default=0) <= nsqd.seat.max_rdy for nsqd in self.nsqds)


TestLives = Lives.TestCase
