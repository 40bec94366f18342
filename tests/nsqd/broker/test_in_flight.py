"""Messages in flight: which consumer has them until when, chunk by chunk."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from math import inf
from random import Random

import pytest

from nsqd.broker.batch import hex_ids
from nsqd.broker.consumer import Consumer
from nsqd.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNER, Delivery, InFlight, Place, TouchedDelivery
from nsqd.broker.reclaimer import Reclaimer
from nsqd.broker.stats_records import ClientSnapshot

OFFSET = -1000  # from id to sequence


def consumer() -> Consumer:
    def describe() -> ClientSnapshot:
        raise NotImplementedError

    return Consumer(send=lambda pieces: None, close=lambda: None, describe=describe, msg_timeout=60.0)


def deliver(in_flight: InFlight, owner: Consumer, first: int, count: int, deadline: float = 60.0) -> tuple[bytes, ...]:
    ids = hex_ids(first - OFFSET, count)
    in_flight.add(ids, Delivery(owner, first, count, OFFSET, 1, 0.0, deadline, published_at=0))
    return ids


def test_finished_runs_become_ranges() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    ids = deliver(in_flight, owner, 5, 6)
    assert in_flight.finish(owner, ids[:2]) == (2, [])
    assert in_flight.finish(owner, ids[5:]) == (1, [])
    assert in_flight.finish(owner, (ids[3], ids[2])) == (2, [])
    assert in_flight.take_finished() == [(5, 9), (10, 11)]
    assert in_flight.take_finished() == []
    assert list(in_flight.positions()) == [(9, 1)]


@pytest.mark.parametrize("look", ["snapshot", "oldest", "expire"])
def test_a_look_at_many_makes_no_new_list_of_them_for_the_collector_to_go_over(look: str) -> None:
    in_flight, owner, absent = InFlight(Reclaimer()), consumer(), consumer()
    deliver(in_flight, owner, 0, 12_000)
    gc.collect(1)  # as a broker does twenty times a second
    positions = in_flight.positions() if look == "snapshot" else iter(())
    oldest = in_flight.find_oldest({absent}, {}) if look == "oldest" else iter(())
    next(positions, None), next(oldest, None), next(oldest, None)
    if look == "expire":
        assert in_flight.expire(61.0) == []
    young = [it for generation in (0, 1) for it in gc.get_objects(generation) if isinstance(it, list)]
    assert max(map(len, young), default=0) < 10_000


def test_the_oldest_message_of_each_consumer_counts_from_its_delivery_even_if_it_was_touched() -> None:
    in_flight, busy, idle = InFlight(Reclaimer()), consumer(), consumer()
    for first, at in ((5, 10.0), (9, 20.0), (0, 30.0)):
        in_flight.add(hex_ids(first - OFFSET, 1), Delivery(busy, first, 1, OFFSET, 1, at, 90.0, published_at=0))
    in_flight.touch(busy, hex_ids(5 - OFFSET, 1)[0], 99.0, 39.0)
    assert oldest(in_flight, busy, idle) == {busy: 10.0}
    in_flight.finish(busy, hex_ids(5 - OFFSET, 1))
    assert oldest(in_flight, busy) == {busy: 20.0}


def test_one_who_has_gone_is_in_nobodys_way_to_the_oldest_message() -> None:
    in_flight, gone, here = InFlight(Reclaimer()), consumer(), consumer()
    deliver(in_flight, gone, 0, 3)
    deliver(in_flight, here, 3, 1)
    assert oldest(in_flight, here) == {here: 0.0}


def test_others_have_their_turn_while_the_oldest_messages_are_looked_for() -> None:
    in_flight, long, short = InFlight(Reclaimer()), consumer(), consumer()
    deliver(in_flight, long, 0, 20_000)
    deliver(in_flight, short, 20_000, 1)
    since: dict[Consumer, float] = {}
    assert len(list(in_flight.find_oldest({long, short}, since))) == 5
    assert since.keys() == {long, short}


def oldest(in_flight: InFlight, *holders: Consumer) -> dict[Consumer, float]:
    since: dict[Consumer, float] = {}
    assert list(in_flight.find_oldest(set(holders), since)) == []
    return since


def test_a_run_may_span_deliveries() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    ids = deliver(in_flight, owner, 0, 2) + deliver(in_flight, owner, 2, 2)
    assert in_flight.finish(owner, ids) == (4, [])
    assert len(in_flight) == 0


def test_each_id_of_a_run_that_cannot_be_finished_is_named() -> None:
    in_flight, owner, other = InFlight(Reclaimer()), consumer(), consumer()
    mine, foreign = deliver(in_flight, owner, 0, 1), deliver(in_flight, other, 1, 1)
    unknown = b"f" * 16
    done, failures = in_flight.finish(owner, (*mine, *mine, *foreign, *foreign, unknown))
    assert done == 1
    assert failures == [
        (mine[0], NOT_IN_FLIGHT),
        (foreign[0], NOT_OWNER),
        (foreign[0], NOT_OWNER),
        (unknown, NOT_IN_FLIGHT),
    ]
    assert in_flight.finish(other, foreign) == (1, [])


def test_single_id_of_somebody_else_stays_with_its_owner() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    [message_id] = deliver(in_flight, owner, 0, 1)
    assert in_flight.finish(consumer(), [message_id]) == (0, [(message_id, NOT_OWNER)])
    assert len(in_flight) == 1


def test_overdue_ones_are_taken_out() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    deliver(in_flight, owner, 0, 2, deadline=10.0)
    deliver(in_flight, owner, 2, 1, deadline=20.0)
    assert in_flight.expire(9.9) == []
    assert [sequence for sequence, _ in in_flight.expire(10.0)] == [0, 1]
    assert (in_flight.next_deadline, len(in_flight)) == (20.0, 1)


def test_touched_message_gets_a_deadline_of_its_own() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    ids = deliver(in_flight, owner, 0, 2, deadline=10.0)
    assert in_flight.touch(owner, ids[0], 15.0, 5.0) is None
    assert [sequence for sequence, _ in in_flight.expire(10.0)] == [1]
    assert in_flight.next_deadline == 15.0


def test_lowest_is_never_higher_than_what_is_there() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    assert in_flight.lowest() is None
    deliver(in_flight, owner, 70, 2)
    ids = deliver(in_flight, owner, 5, 2)
    assert in_flight.lowest() == 5
    in_flight.finish(owner, ids)
    assert in_flight.lowest() == 70


def test_messages_that_are_no_neighbours_can_be_one_delivery() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    before = deliver(in_flight, owner, 4, 2)
    ids, places = [b"%016x" % (it - OFFSET) for it in (8, 2, 9)], [8, 2, 9]
    in_flight.add_scattered(ids, places, Delivery(owner, 8, 3, OFFSET, 1, 0.0, 50.0, published_at=0))
    after = deliver(in_flight, owner, 10, 1)
    assert list(in_flight.all()) == [2, 4, 5, 8, 9, 10]
    assert (in_flight.lowest(), in_flight.next_deadline) == (2, 50.0)
    assert in_flight.finish(owner, [ids[2], *after, *before]) == (4, [])
    assert in_flight.take_finished() == [(4, 6), (9, 11)]
    assert [sequence for sequence, _ in in_flight.expire(51.0)] == [8, 2]
    assert in_flight.lowest() is None


def test_clearing_forgets_everything() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    ids = deliver(in_flight, owner, 0, 2)
    in_flight.finish(owner, ids[:1])
    in_flight.clear()
    assert (len(in_flight), in_flight.take_finished(), in_flight.next_deadline) == (0, [], inf)
    assert in_flight.take_out(owner, ids[1]) == NOT_IN_FLIGHT


# Lists


def deliver_at(in_flight: InFlight, owner: Consumer, now: float, first: int, count: int = 1) -> tuple[bytes, ...]:
    ids = hex_ids(first - OFFSET, count)
    in_flight.add(ids, Delivery(owner, first, count, OFFSET, 1, now, now + 60.0, published_at=0))
    return ids


def sequences(places: Iterator[Place | None]) -> list[int]:
    return [place[1] for place in places if place is not None]


def test_the_oldest_delivery_is_listed_first_and_of_one_delivery_the_first_message() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    deliver_at(in_flight, owner, 20.0, 0, 2)
    deliver_at(in_flight, owner, 20.5, 9)
    deliver_at(in_flight, owner, 10.0, 5, 3)
    assert sequences(in_flight.oldest_first(10)) == [5, 6, 7, 0, 1, 9]
    assert sequences(in_flight.oldest_first(2)) == [5, 6]
    assert sequences(in_flight.oldest_first(2, (10_000_000, 6))) == [7, 0]
    assert sequences(in_flight.oldest_first(9, (20_500_000, 9))) == []


def test_a_fin_of_somebody_elses_message_moves_it_nowhere_in_the_list() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    [first] = deliver_at(in_flight, owner, 1.0, 0)
    deliver_at(in_flight, owner, 2.0, 1)
    in_flight.finish(consumer(), [first])
    assert sequences(in_flight.oldest_first(1)) == [0]


def test_only_messages_of_some_consumers_are_listed() -> None:
    in_flight, first, second = InFlight(Reclaimer()), consumer(), consumer()
    for number in range(6):
        deliver_at(in_flight, (first, second)[number % 2], float(number), number)
    assert sequences(in_flight.oldest_first(2, wants=lambda it: it is second)) == [1, 3]
    assert sequences(in_flight.oldest_first(2, (3_000_000, 3), lambda it: it is second)) == [5]


def test_a_place_is_of_one_delivery_and_of_no_later_one_of_the_same_message() -> None:
    in_flight, owner = InFlight(Reclaimer()), consumer()
    [message_id] = deliver_at(in_flight, owner, 1.0, 0)
    [place] = filter(None, in_flight.oldest_first(1))
    in_flight.touch(owner, message_id, 90.0, 30.0)
    touched = in_flight.at(place)
    assert isinstance(touched, TouchedDelivery)
    assert (touched.touched_at, touched.delivered_at, touched.deadline) == (30.0, 1.0, 90.0)
    in_flight.touch(owner, message_id, 95.0, 35.0)
    assert isinstance(again := in_flight.at(place), TouchedDelivery)
    assert again.touched_at == 35.0
    in_flight.take_out(owner, message_id)
    assert in_flight.at(place) is None
    deliver_at(in_flight, owner, 2.0, 0)
    assert in_flight.at(place) is None


def test_others_have_their_turn_while_consumers_are_asked_for_their_names() -> None:
    """A consumer's description takes as long as looking at a dozen messages."""
    in_flight, asked, most = InFlight(Reclaimer()), 0, 0
    for number in range(1_000):
        deliver_at(in_flight, consumer(), float(number), number)

    def wants(_: Consumer) -> bool:
        nonlocal asked
        asked += 1
        return False

    before = 0
    for _ in in_flight.oldest_first(10, wants=wants):
        most, before = max(most, asked - before), asked
    assert (asked, most) == (1_000, 200)


@pytest.mark.parametrize("seed", range(12))
def test_pages_have_what_is_in_flight_all_the_while_exactly_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Messages are delivered, finished, given back, delivered again and touched between any two slices."""
    monkeypatch.setattr("nsqd.broker.in_flight._LOOKED_AT", 25, raising=False)  # the compiled core has no such name
    steady = Churned(Random(seed)).page_through()
    assert len(steady) > 10


class Churned:
    """Hundreds of messages in flight, most of which come and go."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = 0.0
        self._in_flight = InFlight(Reclaimer())
        self._owners = [consumer() for _ in range(3)]
        self._held: dict[int, Consumer] = {}
        self._given_back: list[int] = []
        self._next = 0
        self._leaving: set[int] = set()  # all that were not in flight at some time since the list began
        for _ in range(100):
            self._deliver_new(random.choice((1, 1, 1, 10)))

    def page_through(self) -> set[int]:
        """List all that was in flight at the start. Return what still is, and was all the while."""
        steady, seen, end = set(self._held), list[int](), int(self._now * 1_000_000)
        self._leaving.clear()
        after, page = (-1, -1), self._random.choice((7, 30, 300))
        count = page
        while count == page and after[0] <= end:
            count = 0
            for place in self._in_flight.oldest_first(page, after):
                if place is None:
                    self._churn()
                elif self._in_flight.at(place) is not None:
                    seen.append(place[1])
                if place is not None:
                    assert after < place[:2]
                    count, after = count + 1, place[:2]
            self._churn()
        steady -= self._leaving
        found = [it for it in seen if it in steady]
        assert sorted(found) == sorted(steady)
        return steady

    def _churn(self) -> None:
        for _ in range(self._random.randrange(8)):
            self._now += self._random.choice((0.0, 0.001))
            step = self._random.choice(
                (
                    self._deliver_new,
                    self._finish,
                    self._give_back,
                    self._deliver_again,
                    self._touch,
                    self._finish_anothers,
                )
            )
            step()

    def _deliver_new(self, count: int = 1) -> None:
        owner, first = self._random.choice(self._owners), self._next
        deliver_at(self._in_flight, owner, self._now, first, count)
        self._held.update(dict.fromkeys(range(first, first + count), owner))
        self._next += count
        self._now += self._random.choice((0.0, 0.001))

    def _one(self) -> tuple[int, Consumer, bytes]:
        sequence = self._random.choice(list(self._held))
        return sequence, self._held[sequence], hex_ids(sequence - OFFSET, 1)[0]

    def _finish(self) -> None:
        sequence, owner, message_id = self._one()
        assert self._in_flight.finish(owner, [message_id])[0] == 1
        self._left(sequence)

    def _give_back(self) -> None:
        sequence, owner, message_id = self._one()
        self._in_flight.take_out(owner, message_id)
        self._left(sequence)
        self._given_back.append(sequence)

    def _left(self, sequence: int) -> None:
        del self._held[sequence]
        self._leaving.add(sequence)

    def _deliver_again(self) -> None:
        if self._given_back:
            sequence, owner = self._given_back.pop(), self._random.choice(self._owners)
            deliver_at(self._in_flight, owner, self._now, sequence)
            self._held[sequence] = owner

    def _touch(self) -> None:
        _, owner, message_id = self._one()
        assert self._in_flight.touch(owner, message_id, self._now + 60.0, self._now) is None

    def _finish_anothers(self) -> None:
        _, owner, message_id = self._one()
        stranger = next(it for it in self._owners if it is not owner)
        assert self._in_flight.finish(stranger, [message_id])[0] == 0
