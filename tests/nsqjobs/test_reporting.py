"""Reports about runs: what is sent, what is dropped, and that no job ever waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from nsqcommon.job_reports import MOST_EVENTS, MOST_TRACEBACK, JobReport, State, encode
from nsqjobs.addresses import parse_url
from nsqjobs.reporting import Reporter, Run, RunLog


def run(number: int = 0) -> Run:
    return Run(library="celery", name="charge", id=f"id-{number}", topic="mails", started_at=time.time())


@pytest.fixture
def log() -> RunLog:
    return RunLog("here", 7)


def taken(log: RunLog, now: float = 0.0) -> list[JobReport]:
    return list(log.take(now))


def states(reports: list[JobReport]) -> list[str]:
    return [event.state.value for report in reports for event in report.events]


def end(log: RunLog, it: Run, *, traceback: str = "") -> None:
    log.end(it, State.FAILED, outcome="buried", error="ValueError: x", traceback=traceback)


def test_a_long_run_has_two_events(log: RunLog) -> None:
    it = run()
    log.start(it)
    assert states(taken(log)) == ["started"]
    end(log, it)
    (report,) = taken(log)
    (event,) = report.events
    assert (event.state, event.worker, event.topic, event.error) == ("failed", "here:7", "mails", "ValueError: x")
    assert taken(log) == []


def test_a_short_run_has_one_event(log: RunLog) -> None:
    it = run()
    log.start(it)
    end(log, it)
    assert states(taken(log)) == ["failed"]


def test_only_the_first_end_of_a_run_counts(log: RunLog) -> None:
    it = run()
    log.start(it)
    end(log, it)
    end(log, it)
    assert states(taken(log)) == ["failed"]


def test_what_runs_is_repeated(log: RunLog) -> None:
    """So nsqadmin knows it that was started later, and forgets what has ended unseen."""
    log.start(run())
    (first,) = taken(log, now=0.0)
    assert taken(log, now=5.0) == []
    (second,) = taken(log, now=10.0)
    assert first.is_whole
    assert second.is_whole
    assert states([second]) == ["started"]


def test_an_idle_worker_is_silent(log: RunLog) -> None:
    for now in (0.0, 10.0, 20.0):
        assert taken(log, now=now) == []


def test_too_many_ends_are_dropped_and_counted(log: RunLog) -> None:
    for number in range(10_100):
        it = run(number)
        log.start(it)
        end(log, it)
    reports = taken(log)
    assert sum(len(report.events) for report in reports) == 10_000
    assert reports[-1].dropped == 100


def test_long_tracebacks_are_bounded_together_and_split_up(log: RunLog) -> None:
    for number in range(1_000):
        it = run(number)
        log.start(it)
        end(log, it, traceback="x" * 20_000)
    reports = taken(log)
    events = [event for report in reports for event in report.events]
    assert sum(len(event.traceback) for event in events) <= 4 << 20
    assert len(events) + reports[-1].dropped == 1_000
    assert max(sum(len(event.traceback) for event in report.events) for report in reports) < 300 << 10
    assert all(len(event.traceback) <= MOST_TRACEBACK for event in events)


def test_after_a_lost_report_the_worker_says_what_still_runs(log: RunLog) -> None:
    """Otherwise a run whose end is lost would seem to run forever."""
    it = run()
    log.start(it)
    taken(log)
    end(log, it)
    (lost,) = taken(log)
    log.lost(lost)
    (report,) = taken(log)
    assert (report.is_whole, report.events, report.dropped) == (True, (), 1)


def test_a_worker_that_stops_runs_nothing(log: RunLog) -> None:
    log.start(run())
    taken(log)
    log.forget_all()
    (report,) = taken(log)
    assert (report.is_whole, report.events) == (True, ())


def test_a_report_has_a_bounded_number_of_events(log: RunLog) -> None:
    for number in range(3_500):
        log.start(run(number))
    reports = taken(log)
    assert states(reports) == ["started"] * 3_500
    assert all(len(report.events) <= MOST_EVENTS for report in reports)
    assert not any(report.is_whole for report in reports)


# The reporter


def test_a_job_waits_for_nothing_without_an_nsqd() -> None:
    reporter = Reporter(parse_url("nsq://127.0.0.1:1"))
    began = time.process_time()
    for number in range(1_000):
        it = run(number)
        reporter.start(it)
        reporter.failed(it, ValueError("x"), outcome="buried")
    spent = time.process_time() - began
    assert spent < 1.0  # of the processor's time: a millisecond each would be a lot
    reporter.close()


def test_a_forked_process_reports_only_its_own_runs() -> None:
    reporter = Reporter(parse_url("nsq://127.0.0.1:1"))
    parents = run()
    reporter.start(parents)
    child = os.fork()
    if not child:  # pragma: no cover
        reporter.succeeded(parents)  # no effect
        own = replace(run(1))
        reporter.start(own)
        reporter.succeeded(own)
        found = [event.id for report in reporter._log.take(0.0) for event in report.events]
        os._exit(0 if found in (["id-1"], []) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    reporter.close()


@pytest.mark.parametrize("text", ["\x00" * 8_000, "я" * 4_000, "\udcff" * 8_000])
def test_no_message_is_larger_than_nsqd_takes(log: RunLog, text: str) -> None:
    for number in range(40):
        it = run(number)
        log.start(it)
        end(log, it, traceback=text)
    for number in range(1_000):
        log.start(replace(run(number), id=f"{number}-" + "ж" * 240, name="ж" * 255))
    reports = taken(log)
    assert max(len(encode(it)) for it in reports) < 1 << 20
    assert len({it.id for report in reports for it in report.events if it.state is State.STARTED}) == 1_000
    assert states(reports).count("failed") == 40


def test_a_process_with_too_many_running_jobs_for_a_message_repeats_them(log: RunLog) -> None:
    for number in range(MOST_EVENTS + 1):
        log.start(run(number))
    taken(log)
    repeated = taken(log, now=60.0)
    assert states(repeated) == ["started"] * (MOST_EVENTS + 1)
    assert not any(it.is_whole for it in repeated)


def test_a_job_runs_without_its_report_if_no_thread_can_start() -> None:
    program = """
import threading
from nsqjobs.addresses import parse_url
from nsqjobs.reporting import Reporter, Run
threading.stack_size(1 << 40)  # no machine has this much
reporter = Reporter(parse_url("nsq://127.0.0.1:1", max_attempts=0))
it = Run(library="celery", name="charge", id="1", topic="mails", started_at=1.0)
reporter.start(it)
reporter.failed(it, ValueError("x"), outcome="buried")
reporter.close()
print("done")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr
