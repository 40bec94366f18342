"""Messages that come after their window was closed are counted, or are an error, but are never ignored silently."""

from __future__ import annotations

from typing import Any

import pytest

from nsqpipe.late import LateRows
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Late
from pyspark_nsq.reports import late_rows_of


def report(*dropped: int) -> dict[str, Any]:
    return {"stateOperators": [{"numRowsDroppedByWatermark": rows} for rows in dropped]}


def test_those_of_all_state_operators_count() -> None:
    assert [late_rows_of(it) for it in (report(2, 3), report(0), report(), {})] == [5, 0, 0, 0]


def test_they_are_told_by_query() -> None:
    late = LateRows()
    for query, rows in (("aggregate", 1200), ("windows", 0), ("aggregate", 34)):
        late.observe(query, report(rows))
    assert late.summary() == "aggregate: at least 1,234 late rows were dropped"
    assert not late.is_error
    late.check()


def test_they_are_an_error_where_that_is_asked_for() -> None:
    late = LateRows(Late.ERROR)
    late.observe("aggregate", report(0))
    late.check()
    late.observe("aggregate", report(7))
    assert late.is_error
    with pytest.raises(PipeFailed, match="aggregate: at least 7 late rows were dropped, as their windows were closed"):
        late.check()
