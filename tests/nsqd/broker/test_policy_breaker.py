"""The breaker looks at the last minute, and not before it has seen enough."""

from __future__ import annotations

from nsqd.broker.policy import FEWEST, Breaker


def test_it_trips_from_its_share_on() -> None:
    breaker = Breaker(0.5)
    breaker.delivered(100, 0.0)
    breaker.buried(49, 1.0)
    assert not breaker.has_tripped(1.0)
    breaker.buried(1, 2.0)
    assert breaker.has_tripped(2.0)


def test_few_deliveries_say_nothing() -> None:
    breaker = Breaker(0.1)
    breaker.delivered(FEWEST - 1, 0.0)
    breaker.buried(FEWEST - 1, 0.0)
    assert not breaker.has_tripped(0.0)
    breaker.delivered(1, 0.0)
    assert breaker.has_tripped(0.0)


def test_what_is_older_than_a_minute_does_not_count() -> None:
    breaker = Breaker(0.5)
    breaker.delivered(50, 0.0)
    breaker.buried(50, 0.0)
    breaker.delivered(60, 30.0)
    assert not breaker.has_tripped(61.0)
    breaker.buried(30, 61.0)
    assert breaker.has_tripped(61.0)


def test_it_begins_anew_when_it_is_told_to() -> None:
    breaker = Breaker(0.5)
    breaker.delivered(50, 0.0)
    breaker.buried(50, 0.0)
    breaker.reset()
    assert not breaker.has_tripped(0.0)
