"""What is said of each consumer, by its own figures and by those of its peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsqadmin.cluster.model import Client
from nsqadmin.diagnosis.clients import Condition, judged
from tests.support.picture import NOW, channel, channel_node, client

BUSY = {"ready_count": 10, "in_flight_count": 4, "finish_rate": 50.0, "requeue_rate": 0.0}
FULL = {**BUSY, "in_flight_count": 10}
LONG_AGO = NOW - 3600


def one(name: str = "c", **fields: Any) -> Client:
    return client(client_id=name, hostname=name, **{"connect_time": LONG_AGO, **BUSY, **fields})


def words(*clients: Client, depth: int = 5) -> list[tuple[str, str]]:
    found = judged(channel(channel_node(depth=depth, clients=clients)), NOW)
    return [(it.client.client_id, it.word) for it in found]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "OK"),
        ({"finish_rate": None}, "new"),
        ({"in_flight_count": 10, "finish_rate": 0.0, "oldest_in_flight": 31.0}, "stuck"),
        ({"in_flight_count": 10, "finish_rate": 0.0, "oldest_in_flight": 2.0}, "OK"),  # it has just got them
        ({"in_flight_count": 10, "finish_rate": 0.0, "oldest_in_flight": 2.0, "timeout_rate": 0.1}, "stuck"),
        ({"in_flight_count": 10, "finish_rate": 0.0}, "stuck"),
        ({"in_flight_count": 10, "finish_rate": 0.0, "reports_touches": False}, "can't tell"),
        ({"in_flight_count": 10, "finish_rate": 0.0, "reports_touches": False, "oldest_in_flight": 90.0}, "can't tell"),
        ({"in_flight_count": 10, "finish_rate": 0.0, "reports_touches": False, "timeout_rate": 0.1}, "stuck"),
        ({"in_flight_count": 10, "finish_rate": 0.0, "connect_time": NOW - 5}, "OK"),
        ({"in_flight_count": 0, "ready_count": 0, "finish_rate": 0.0}, "RDY 0"),
        ({"finish_rate": 6.5, "requeue_rate": 3.5}, "failing 35 %"),
        ({"finish_rate": 9.0, "requeue_rate": 1.0}, "OK"),
        ({"finish_rate": 0.0, "requeue_rate": 0.01}, "OK"),  # one requeue in a minute is no rate
        ({"in_flight_count": 0, "finish_rate": 0.0}, "idle"),
    ],
)
def test_a_consumer_is_judged_by_its_own_figures(fields: dict[str, Any], word: str) -> None:
    assert words(one(**fields)) == [("c", word)]


def test_rdy_0_is_nothing_where_nothing_waits() -> None:
    assert words(one(ready_count=0, in_flight_count=0, finish_rate=0.0), depth=0) == [("c", "idle")]


def test_slow_is_who_lags_behind_its_peers_with_full_hands() -> None:
    slow = one("slow", **{**FULL, "finish_rate": 12.0})
    assert dict(words(one("a"), one("b"), slow))["slow"] == "slow"
    assert dict(words(one("a"), one("b"), one("c", **{**FULL, "finish_rate": 13.0})))["c"] == "OK"
    assert dict(words(one("a"), slow))["slow"] == "OK"  # two are no measure of each other


def test_who_asks_for_nothing_is_no_measure_for_the_others() -> None:
    resting = [one(f"r{at}", ready_count=0, in_flight_count=0, finish_rate=0.0) for at in range(5)]
    assert dict(words(one("a"), one("b"), one("slow", **{**FULL, "finish_rate": 1.0}), *resting))["slow"] == "slow"


def test_the_worst_is_first() -> None:
    found = words(
        one("ok"),
        one("idle", in_flight_count=0, finish_rate=0.0),
        one("fails-little", finish_rate=6.0, requeue_rate=4.0),
        one("fails-much", finish_rate=2.0, requeue_rate=8.0),
        one("rdy", ready_count=0, in_flight_count=0, finish_rate=0.0),
        one("stuck", in_flight_count=10, finish_rate=0.0),
        one("new", finish_rate=None),
    )
    assert [name for name, _ in found] == ["stuck", "rdy", "fails-much", "fails-little", "idle", "new", "ok"]


def test_consumers_of_nodes_that_were_not_asked_are_left_out() -> None:
    rows = channel_node(clients=(one(),)), channel_node("n2:4151", clients=None, client_count=3)
    found = judged(channel(*rows, ready_count=None), NOW)
    assert [it.condition for it in found] == [Condition.OK]


def test_of_the_consumers_of_a_silent_node_nothing_is_known() -> None:
    rows = (
        channel_node(depth=5, clients=(one("a"),)),
        channel_node("n2:4151", clients=(replace(one("b"), node="n2:4151"),)),
    )
    found = judged(channel(*rows, silent=("n2:4151",)), NOW)
    assert [(it.client.client_id, it.word) for it in found] == [("b", "unknown"), ("a", "OK")]


def test_ten_thousand_consumers_are_judged_quickly() -> None:
    crowd = channel(channel_node(depth=5, clients=tuple(one(str(at), **FULL) for at in range(10_000))))
    assert len(judged(crowd, NOW)) == 10_000  # a median for each of them would take minutes


def test_who_holds_a_place_of_a_limit_that_is_reached_has_full_hands() -> None:
    holder = one("a", in_flight_count=1, ready_count=100, finish_rate=0.0, oldest_in_flight=40.0)
    other = one("b", in_flight_count=0, ready_count=100, finish_rate=0.0)
    row = channel_node(depth=5, max_in_flight=1, clients=(holder, other))
    assert [it.word for it in judged(channel(row), NOW)] == ["idle", "OK"]
    full = replace(row, in_flight_full_since=NOW - 40)
    assert [it.word for it in judged(channel(full), NOW)] == ["stuck", "idle"]
