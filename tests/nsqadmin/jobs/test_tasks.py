"""Rows of tasks: what is exact, what is a lower bound or an estimate, and what is unknown, which is never 0."""

from __future__ import annotations

from collections import Counter

import pytest

from nsqadmin.jobs.run_book import TaskRuns
from nsqadmin.jobs.survey import Kind, KindReading, QueueReading
from nsqadmin.jobs.tasks import NONE, UNKNOWN, Quantity, TaskRow, Trust, queue_rows, task_rows
from tests.support.picture import channel, channel_node


def queue(topic: str = "shop", **kinds: KindReading) -> QueueReading:
    known = {kind: kinds.get(kind.name.lower(), KindReading()) for kind in Kind}
    return QueueReading(topic=topic, channel="jobs", kinds=known, libraries={"charge": "celery"})


def reading(
    count: int, *, of: int | None = None, read: int | None = None, retrying: int = 0, silent: bool = False
) -> KindReading:
    return KindReading(
        total=of if of is not None else count,
        read=read if read is not None else (of if of is not None else count),
        by_task=Counter({"charge": count}),
        retrying=Counter({"charge": retrying}),
        missing={"n2:4151": "it does not answer"} if silent else {},
    )


def runs(**figures: object) -> TaskRuns:
    known = {"topic": "shop", "channel": "jobs", "name": "charge", "library": "celery", "succeeded": 1, "failed": 0}
    known |= {"retried": 0, "done_a_minute": 5, "times": (10.0, 20.0), "running": 2}
    return TaskRuns(**{**known, **figures})  # type: ignore[arg-type]


def charge(*queues: QueueReading, reported: tuple[TaskRuns, ...] = ()) -> TaskRow:
    (found,) = task_rows(queues, reported)
    return found


def test_numbers_of_all_queues_are_added_up() -> None:
    row = charge(queue("a", buried=reading(2)), queue("b", buried=reading(3)))
    assert row.failed == Quantity(5)
    assert row.queues == (("a", "jobs"), ("b", "jobs"))


def test_deferred_jobs_are_scheduled_or_retrying() -> None:
    row = charge(queue(deferred=reading(5, retrying=2)))
    assert (row.scheduled, row.retrying) == (Quantity(3), Quantity(2))


def test_what_is_not_read_to_the_end_is_a_lower_bound() -> None:
    assert charge(queue(buried=reading(2, silent=True))).failed == Quantity(2, Trust.AT_LEAST)


def test_what_is_not_read_is_unknown_and_not_0() -> None:
    row = charge(queue(buried=reading(0, silent=True), waiting=reading(1)))
    assert row.failed == UNKNOWN


def test_what_waits_is_an_estimate_by_its_share_of_a_sample() -> None:
    assert charge(queue(waiting=reading(500, of=100_000, read=2_000))).waiting == Quantity(25_000, Trust.ABOUT)


def test_what_waits_is_exact_if_all_was_read() -> None:
    assert charge(queue(waiting=reading(5, of=8, read=8))).waiting == Quantity(5)


def test_a_task_that_is_not_in_the_sample_may_still_wait() -> None:
    row = charge(queue(waiting=reading(0, of=100_000, read=2_000), buried=reading(1)))
    assert row.waiting == UNKNOWN


def test_without_reports_nothing_is_known_about_runs() -> None:
    row = charge(queue(in_flight=reading(4)))
    assert (row.running, row.done_a_minute, row.p50, row.is_reported) == (None, None, None, False)
    assert row.in_flight == Quantity(4)


def test_reports_bring_runs_and_times() -> None:
    row = charge(queue(in_flight=reading(4)), reported=(runs(),))
    assert (row.running, row.done_a_minute, row.p50, row.p95) == (2, 5, 0.02, 0.02)


def test_a_task_that_is_only_reported_has_a_row() -> None:
    row = charge(reported=(runs(),))
    assert (row.name, row.libraries, row.failed) == ("charge", ("celery",), NONE)


def test_tasks_that_fail_come_first() -> None:
    kinds = {kind: KindReading() for kind in Kind}
    kinds[Kind.BURIED] = KindReading(total=2, read=2, by_task=Counter({"z": 2}))
    kinds[Kind.WAITING] = KindReading(total=9, read=9, by_task=Counter({"a": 9}))
    rows = task_rows([QueueReading(topic="t", channel="jobs", kinds=kinds, libraries={})], ())
    assert [row.name for row in rows] == ["z", "a"]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Quantity(1), Quantity(2), Quantity(3)),
        (Quantity(1), UNKNOWN, Quantity(1, Trust.AT_LEAST)),
        (Quantity(0), UNKNOWN, UNKNOWN),
        (UNKNOWN, UNKNOWN, UNKNOWN),
        (Quantity(1, Trust.ABOUT), Quantity(2), Quantity(3, Trust.ABOUT)),
        (Quantity(1, Trust.ABOUT), Quantity(2, Trust.AT_LEAST), Quantity(3, Trust.AT_LEAST)),
    ],
)
def test_a_sum_is_trusted_like_its_worst_part(one: Quantity, other: Quantity, both: Quantity) -> None:
    assert one + other == both
    assert other + one == both


def test_a_reported_task_without_room_in_the_survey_is_unknown_and_not_0() -> None:
    """Its first report came after the survey, which had no room for its name."""
    flooded = KindReading(total=5, read=5, by_task=Counter({"charge": 2}), unlisted=3)
    rows = {it.name: it for it in task_rows([queue(buried=flooded, waiting=flooded)], [runs(name="late")])}
    assert (rows["late"].failed, rows["late"].waiting) == (UNKNOWN, UNKNOWN)
    assert rows["late"].scheduled == Quantity(0)


# Errors


def test_errors_that_differ_in_a_number_are_one_top_error() -> None:
    buried = reading(65)
    buried.errors["charge"] = Counter(
        {f"ValueError: {400 + it}.53 is too much": 1 for it in range(60)} | {"KeyError": 5}
    )
    row = charge(queue(buried=buried))
    assert (row.error, row.error_count) == ("ValueError: *.* is too much", 60)


# Queues


def test_a_queue_has_the_numbers_that_its_tasks_add_up_to() -> None:
    """They were read after the snapshot: messages have come and gone since."""
    seen = channel(
        channel_node(depth=1, in_flight_count=2, deferred_count=1, buried_count=98), topic="shop", name="jobs"
    )
    read = queue(waiting=reading(0), in_flight=reading(0), deferred=reading(4), buried=reading(100))
    (row,) = queue_rows([seen], [read])
    assert (row.waiting, row.in_flight, row.deferred, row.buried) == (0, 0, 4, 100)


def test_a_queue_that_was_not_read_to_the_end_has_the_numbers_of_the_snapshot() -> None:
    seen = channel(channel_node(depth=9, buried_count=98), topic="shop", name="jobs")
    read = queue(waiting=reading(2, silent=True), buried=reading(40, silent=True))
    (row,) = queue_rows([seen], [read])
    assert (row.waiting, row.buried) == (9, 98)
    assert queue_rows([seen], [])[0].buried == 98
