"""The sparklines of a task."""

from __future__ import annotations

from nsqadmin.jobs.run_book import HISTORY_SLOTS
from nsqadmin.pages.jobs import runs_spark


def test_the_runs_of_a_task_are_counted_by_the_minute() -> None:
    drawn = runs_spark((*[0] * (HISTORY_SLOTS - 2), 1, 4), "failed")
    assert drawn is not None
    assert (drawn.label, drawn.kind) == ("failed a minute: from 0 to 8 in 12 min, rising", "failed")


def test_without_runs_or_without_reports_there_is_none() -> None:
    assert runs_spark((0,) * HISTORY_SLOTS, "ended") is None
    assert runs_spark((), "ended") is None
