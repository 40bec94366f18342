"""How sides take turns, and what becomes of their runs."""

from __future__ import annotations

import math

import pytest

from bench.report import at_least
from bench.runner import Compared, Measured, chosen, in_turns
from bench.work import Failed


def test_each_run_begins_with_another_side() -> None:
    assert [*in_turns("ab", 3)] == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert [side for _, side in in_turns("abc", 2)] == [*"abc", *"bca"]


def compared(costs: float = math.nan) -> Compared:
    """Compare a machine that is half as fast in its second run."""
    speed = (1.0, 0.5)
    return Compared(
        {
            "ours": lambda number: {"pub": Measured(300 * speed[number], costs)},
            "theirs": lambda number: {"pub": Measured(100 * speed[number], 2 * costs)},
        },
        runs=2,
    )


def test_a_ratio_is_that_of_runs_beside_each_other() -> None:
    row = compared().row("pub", "publish", "ours", "theirs", demand=at_least(2))
    assert (row.values, row.other_values, row.unit) == ((300, 150), (100, 50), "msg/s")
    assert (row.ratio, row.is_met, row.note) == (3, True, "")


def test_a_side_may_stand_alone() -> None:
    row = compared().row("pub", "publish", "ours", unit="MB/s")
    assert (row.values, row.other, row.ratio, row.unit) == ((300, 150), "", None, "MB/s")


def test_processor_time_is_noted_where_it_is_known() -> None:
    assert compared(0.5).row("pub", "publish", "ours", "theirs").note == "processor 0.50 µs, 1.00 µs a message"


def test_rows_are_chosen_in_the_order_of_the_table() -> None:
    assert chosen("c,a", ["a", "b", "c"]) == ["a", "c"]
    assert chosen("", ["a", "b"]) == ["a", "b"]
    with pytest.raises(Failed, match="unknown rows: d; known: a, b"):
        chosen("a,d", ["a", "b"])
