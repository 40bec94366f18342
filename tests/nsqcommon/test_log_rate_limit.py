from __future__ import annotations

from nsqcommon.log_rate_limit import LogRateLimit


def test_the_first_lines_of_each_while_are_allowed_and_the_others_counted() -> None:
    ration = LogRateLimit()
    assert [ration.allows(0.0) for _ in range(25)] == [True] * 10 + [False] * 15
    assert (ration.left_out, ration.take_suppressed(), ration.take_suppressed()) == (15, 15, 0)
    assert not ration.allows(9.9)
    assert ration.allows(10.0)
    assert ration.left_out == 1
