"""Rates over about a minute from readings every few seconds."""

from __future__ import annotations

from nsqadmin.cluster.node_stats import NodeAnswer, read_stats
from nsqadmin.cluster.pace import Pace, pace_after

STEP = 5.0


def rates_of(*counts: int) -> list[float | None]:
    pace: Pace | None = None
    found = []
    for number, count in enumerate(counts):
        rates = pace.rates(number * STEP, (count,)) if pace is not None else None
        found.append(rates[0] if rates is not None else None)
        pace = pace_after(pace, number * STEP, (count,))
    return found


def test_what_happens_now_and_then_has_a_steady_rate() -> None:
    """Ten a minute, in bursts of two: between two readings it is 24 a minute or none."""
    seen = [rate or 0.0 for rate in rates_of(*(int(number * STEP // 12) * 2 for number in range(100)))[14:]]
    assert min(seen) > 6 / 60
    assert max(seen) < 14 / 60


def test_what_has_ended_is_nothing_after_a_minute() -> None:
    rates = rates_of(*range(0, 100, 10), *([100] * 20))
    assert rates[9] == 2.0
    assert rates[10 + 13] == 0.0


def test_the_first_reading_has_no_rate_and_a_counter_that_begins_anew_has_none_again() -> None:
    assert rates_of(100, 110, 3, 8) == [None, 2.0, 0.0, 1.0]


def answers(*clients: dict[str, int]) -> list[NodeAnswer]:
    """Return a node's answers every 5 s, in which a client has these counts."""
    found: list[NodeAnswer] = []
    for number, counts in enumerate(clients):
        client = {"remote_address": "a:1", "connect_ts": 5, "ready_count": 2, **counts}
        channel = {"channel_name": "c", "requeue_count": counts["requeue_count"], "clients": [client]}
        document = {"topics": [{"topic_name": "t", "channels": [channel]}], "start_time": 1}
        found.append(read_stats("n1:4151", document, at=number * STEP, before=found[-1] if found else None))
    return found


def test_failures_of_a_channel_and_of_a_client_are_counted_over_a_minute() -> None:
    """A failure every ten seconds; between two answers it is 12 a minute or none."""
    read = answers(*({"message_count": number, "requeue_count": number // 2} for number in range(40)))
    for answer in read[13:]:
        part = answer.topics["t"].channels["c"]
        (client,) = part.row.clients or ()
        assert 0.07 < (part.rates.failed or 0.0) < 0.13
        assert 0.07 < (client.requeue_rate or 0.0) < 0.13
        assert 0.07 < (client.timeout_rate or 0.0) < 0.13  # it got twice as many and has none


def test_rates_over_a_minute_fall_to_zero_although_the_answer_stays_the_same() -> None:
    last = {"message_count": 20, "requeue_count": 20}
    read = answers(*({"message_count": it, "requeue_count": it} for it in range(20)), *([last] * 16))
    rates = [answer.topics["t"].channels["c"].rates.failed for answer in read]
    assert rates[19] == 0.2
    assert 0 < (rates[22] or 0.0) < 0.2
    assert rates[-2:] == [0.0, 0.0]
    assert read[-1].topics["t"] is read[-2].topics["t"]
