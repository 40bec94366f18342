"""Messages in flight: which consumer has them until when, chunk by chunk."""

from __future__ import annotations

import gc
from math import inf

import pytest

from nsqd.broker.batch import hex_ids
from nsqd.broker.consumer import Consumer
from nsqd.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNER, Delivery, InFlight
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
    in_flight.touch(busy, hex_ids(5 - OFFSET, 1)[0], 99.0)
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
    assert in_flight.touch(owner, ids[0], 15.0) is None
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
