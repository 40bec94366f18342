"""The topics whose clients the next sweep asks for."""

from __future__ import annotations

from nsqadmin.cluster.model import NOTHING_YET, Stall, Totals
from nsqadmin.upstream.interest import Interest
from tests.support.picture import channel, channel_node, snapshot, topic

CROWDED = snapshot(totals=Totals(client_count=1001))
NOW = 1000.0


def is_in_all(interest: Interest, *, now: float = NOW) -> bool:
    return interest.is_in_all(CROWDED, few=1000, now=now)


def test_nobody_is_asked_for_before_it_is_known_how_many_there_are() -> None:
    assert not Interest().is_in_all(NOTHING_YET, few=1000, now=NOW)


def test_all_are_asked_for_where_they_are_few() -> None:
    assert Interest().is_in_all(snapshot(totals=Totals(client_count=1000)), few=1000, now=NOW)


def test_all_are_asked_for_while_somebody_looks_at_all() -> None:
    interest = Interest()
    assert not is_in_all(interest)
    interest.look_at("", NOW)
    assert is_in_all(interest, now=NOW + 59)
    assert not is_in_all(interest, now=NOW + 61)


def test_what_is_looked_at_comes_first_and_then_what_waits_most() -> None:
    interest = Interest()
    interest.look_at("looked", NOW)
    interest.look_at("long ago", NOW - 100)
    waiting = [
        topic(channel(channel_node(depth=depth, client_count=clients), topic=name), name=name)
        for name, depth, clients in (("little", 1, 1), ("much", 9, 1), ("without consumers", 99, 0), ("nothing", 0, 1))
    ]
    assert interest.topics(snapshot(*waiting), NOW) == ("looked", "much", "little")


def test_first_come_consumers_that_finish_nothing_even_if_nothing_waits() -> None:
    taken = snapshot().taken_at
    still, moves = Stall(since=taken - 31), Stall(since=taken - 29)
    asked = [
        topic(channel(channel_node(depth=depth, client_count=1), topic=name, stall=stall), name=name)
        for name, depth, stall in (("busy", 9, moves), ("stuck", 0, still), ("idle", 0, moves))
    ]
    assert Interest().topics(snapshot(*asked), NOW) == ("stuck", "busy")
