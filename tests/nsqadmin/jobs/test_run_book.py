"""What is kept of workers' reports, and what is not."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

import pytest

from nsqadmin.jobs.run_book import (
    HISTORY_SLOTS,
    HISTORY_STEP,
    MOST_BYTES,
    MOST_FAILURES,
    MOST_TASKS,
    FailureRate,
    History,
    RunBook,
    TaskRuns,
    percentile,
)
from nsqcommon.job_reports import JobEvent, JobReport, State


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> RunBook:
    return RunBook(clock)


def event(state: State, id: str = "1", **more: Any) -> JobEvent:
    known = {
        "name": "charge",
        "library": "celery",
        "topic": "shop",
        "channel": "jobs",
        "worker": "h:1",
        "started_at": 1.0,
    }
    return JobEvent(state=state, id=id, **{**known, **more})


def tell(book: RunBook, *events: JobEvent, worker: str = "h:1", is_whole: bool = False, dropped: int = 0) -> None:
    book.observe(JobReport(worker=worker, events=events, is_whole=is_whole, dropped=dropped))


def charge(book: RunBook) -> TaskRuns:
    (found,) = (it for it in book.tasks() if it.name == "charge")
    return found


def test_a_job_runs_from_its_start_to_its_end(book: RunBook) -> None:
    tell(book, event(State.STARTED))
    assert charge(book).running == 1
    assert book.running_job("shop", "1") is not None
    tell(book, event(State.SUCCEEDED, ms=20.0))
    assert charge(book).running == 0
    assert (charge(book).succeeded, charge(book).times) == (1, (20.0,))
    assert book.success_of("shop", "1") is not None


def test_jobs_of_a_worker_that_falls_silent_run_no_more(book: RunBook, clock: Clock) -> None:
    tell(book, event(State.STARTED))
    clock.now += 30
    assert charge(book).running == 1
    clock.now += 10
    assert charge(book).running == 0


def test_a_worker_that_repeats_what_it_runs_ends_the_rest(book: RunBook) -> None:
    tell(book, event(State.STARTED, "1"), event(State.STARTED, "2"))
    tell(book, event(State.STARTED, "2"), is_whole=True)
    assert [it.id for it in book.running()] == ["2"]
    tell(book, is_whole=True)
    assert charge(book).running == 0


def test_done_a_minute_is_the_last_minute(book: RunBook, clock: Clock) -> None:
    for _ in range(12):
        tell(book, event(State.SUCCEEDED, ms=1.0), event(State.FAILED), event(State.RETRYING))
        clock.now += 5
    assert 22 <= charge(book).done_a_minute <= 24  # a retry isn't done
    clock.now += 60
    assert charge(book).done_a_minute == 0
    assert (charge(book).failed, charge(book).retried) == (12, 12)


def test_failures_are_bounded_by_number_and_the_newest_stay(book: RunBook) -> None:
    for number in range(MOST_FAILURES + 5):
        tell(book, event(State.FAILED, str(number), error="ValueError: x"))
    kept = list(book.failures())
    assert len(kept) == MOST_FAILURES
    assert kept[0].id == str(MOST_FAILURES + 4)
    assert book.failures_of("shop", "4") == ()
    assert len(book.failures_of("shop", "5")) == 1


def test_failures_are_bounded_by_memory(book: RunBook) -> None:
    for number in range(6_000):
        tell(book, event(State.FAILED, str(number), traceback="x" * 8_000))
    assert book.bytes <= MOST_BYTES
    assert 3_000 < len(list(book.failures())) < 4_000


def test_all_failures_of_a_job_are_kept_in_order(book: RunBook) -> None:
    tell(book, event(State.RETRYING, retries=0), event(State.RETRYING, retries=1), event(State.FAILED, retries=2))
    assert [it.retries for it in book.failures_of("shop", "1")] == [0, 1, 2]


def test_task_names_are_bounded_and_the_rest_is_counted(book: RunBook) -> None:
    for number in range(MOST_TASKS + 3):
        tell(book, event(State.SUCCEEDED, name=f"task-{number}", ms=1.0))
    assert len(list(book.tasks())) == MOST_TASKS
    assert book.unlisted == 3


def test_what_workers_dropped_is_added_up(book: RunBook) -> None:
    tell(book, dropped=3)
    tell(book, dropped=5)
    tell(book, worker="h:2", dropped=1)
    assert book.dropped == 6


def test_percentiles() -> None:
    times = tuple(float(it) for it in range(1, 101))
    assert percentile(times, 0.5) == 51.0
    assert percentile(times, 0.95) == 96.0
    assert percentile((), 0.5) is None


def test_running_jobs_are_bounded_over_all_workers_and_that_is_said(book: RunBook, clock: Clock) -> None:
    for number in range(12):
        starts = [event(State.STARTED, f"{number}-{it}", traceback="x" * 8_000) for it in range(1_000)]
        tell(book, *starts, worker=f"h:{number}")
    running = list(book.running())
    assert len(running) == 10_000
    assert not any(it.traceback for it in running)
    assert book.is_running_cut
    clock.now += 60
    tell(book, event(State.STARTED, "new"), worker="h:new")  # the others have fallen silent
    assert [it.id for it in book.running()] == ["new"]
    assert not book.is_running_cut


def test_failures_are_bounded_by_memory_whatever_text_is_long(book: RunBook) -> None:
    wide = "\U0001f600" * 250
    for number in range(10_000):
        text = f"{number}{wide}"
        tell(book, event(State.FAILED, text, error=wide + text, message=text, outcome=wide + text))
    kept = sum(getsizeof(text) for it in book.failures() for text in (it.id, it.error, it.message, it.outcome))
    assert 0 < kept <= MOST_BYTES


def test_a_job_that_is_retried_for_ever_shows_its_last_failures(book: RunBook) -> None:
    for number in range(150):
        tell(book, event(State.RETRYING, error=f"ValueError: {number}"))
    assert [it.error for it in book.failures_of("shop", "1")] == [f"ValueError: {it}" for it in range(50, 150)]


def test_runs_of_the_last_twelve_minutes_are_counted_by_half_minutes(book: RunBook, clock: Clock) -> None:
    tell(book, event(State.SUCCEEDED, "1"), event(State.FAILED, "2"), event(State.RETRYING, "3"))
    clock.now += HISTORY_STEP
    tell(book, event(State.SUCCEEDED, "4"))
    runs = charge(book)
    assert (runs.done_lately, runs.failed_lately) == ((2, 1), (1, 0))  # nothing is known of the time before the start
    clock.now += HISTORY_STEP * (HISTORY_SLOTS - 2)
    assert (len(charge(book).done_lately), charge(book).done_lately[:2]) == (HISTORY_SLOTS, (2, 1))
    clock.now += HISTORY_STEP
    assert sum(charge(book).done_lately) == 1
    clock.now += 1_000_000
    assert sum(charge(book).done_lately) == 0


def test_a_clock_that_is_set_back_loses_no_run(clock: Clock) -> None:
    history = History()
    history.count(clock.now, has_failed=False)
    history.count(clock.now - 1000, has_failed=True)
    assert [sum(runs) for runs in history.until(clock.now)] == [2, 1]


def test_the_history_of_a_thousand_tasks_takes_less_than_half_a_megabyte() -> None:
    history = History()
    assert (getsizeof(history) + getsizeof(history._counts)) * MOST_TASKS < 500_000


def test_the_rate_of_failures_is_that_since_the_last_question(book: RunBook, clock: Clock) -> None:
    rate = FailureRate(book, clock)
    tell(book, event(State.FAILED, "1"), event(State.FAILED, "2"), event(State.RETRYING, "3"))
    clock.now += 4
    assert (rate.since_last(), rate.since_last()) == (0.5, 0.0)


def test_what_raised_without_being_buried_can_be_run_again_until_it_succeeds(book: RunBook) -> None:
    tell(book, event(State.FAILED, "buried", outcome="buried"), event(State.FAILED, "early", outcome="finished"))
    tell(book, event(State.RETRYING, "again", outcome="sent again"), event(State.FAILED, "twice", outcome="finished"))
    tell(book, event(State.FAILED, "twice", outcome="buried", started_at=2.0))
    assert [it.id for it in book.raised()] == ["early"]
    assert charge(book).raised == 1
    tell(book, event(State.SUCCEEDED, "early", started_at=3.0))
    assert not list(book.raised())
    tell(book, event(State.FAILED, "early", outcome="finished", started_at=4.0))
    assert [it.id for it in book.raised()] == ["early"]
