from __future__ import annotations

from nsqcommon.durations import MILLISECOND, SECOND
from nsqd.remote.cost import monthly_costs


def test_a_month_has_thirty_days() -> None:
    idle, delayed, waited_for = monthly_costs(50 * MILLISECOND, SECOND)
    assert idle.endswith("at most 259,200 GET a month, 0.10 $ at S3 Standard")
    assert delayed.endswith("a slot each 1s: at most 2,592,000 PUT a month, 12.96 $ at S3 Standard")
    assert waited_for.endswith("a slot each 50ms: at most 51,840,000 PUT a month, 259.20 $ at S3 Standard")
