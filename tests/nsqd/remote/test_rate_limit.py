"""What nobody waits for is spaced by its size."""

from __future__ import annotations

from itertools import count

from nsqd.remote.rate_limit import RateLimit


def test_what_nobody_waits_for_takes_no_more_than_its_rate() -> None:
    limit = RateLimit(1000.0)
    assert limit.start(5000, 7.0) == 7.0, "the first one leaves at once"
    assert [limit.start(500, now) for now in (7.0, 8.0, 20.0, 20.0)] == [12.0, 12.5, 20.0, 20.5]


def test_a_long_wait_is_many_short_pauses() -> None:
    limit, times = RateLimit(1000.0), count(7.0, 0.125)
    limit.start(2000, 7.0)
    pauses = [*limit.pauses(1, times.__next__)]
    assert len(pauses) == 15, "one at each look until two seconds are over"
    assert max(pauses) == 0.25
