"""The state and the timeline of a job, from its messages and its reports."""

from __future__ import annotations

from typing import Any

from nsqadmin.jobs.instances import QueuedJobs, state_of, timeline_of
from nsqadmin.messages.buried import Burial
from nsqadmin.messages.deferred import Deferral
from nsqadmin.messages.model import Message
from nsqcommon.job_reports import JobEvent, State
from tests.support.picture import channel

NOW = 2_000.0


def event(state: State, at: float, ms: float = 500.0, **more: Any) -> JobEvent:
    known = {"name": "charge", "id": "1", "library": "celery", "topic": "t", "channel": "jobs", "worker": "h:1"}
    return JobEvent(state=state, started_at=at, ms=ms, **{**known, **more})


def message(at: float, retries: int = 0) -> Message:
    headers = {"job-name": "charge", "job-id": "1", "job-retries": str(retries)}
    return Message(node="n1:4151", id=f"{at:016.0f}", timestamp=at, size=2, body=b"{}", headers=headers)


def burial(at: float) -> Burial:
    return Burial(node="n1:4151", sequence=1, attempts=1, id="1", buried_at=at, reason="ValueError: x", client="w")


def deferral(due: float, retries: int) -> Deferral:
    place = {"node": "n1:4151", "sequence": 2, "attempts": 0, "log": "l", "due": due, "after": "x"}
    return Deferral(**place, message=message(1_500.0, retries))  # type: ignore[arg-type]


def queued(**lists: Any) -> QueuedJobs:
    return QueuedJobs(channel=channel(), **lists)


def state(
    it: QueuedJobs, last: JobEvent | None = None, success: JobEvent | None = None, running: JobEvent | None = None
) -> str:
    return state_of(it, last, success, running)[0]


def test_a_buried_job_has_failed_whatever_was_reported() -> None:
    assert state(queued(buried=(burial(1_900),)), running=event(State.STARTED, 1_999)) == "Failed"


def test_a_deferred_job_is_scheduled_or_retrying() -> None:
    assert state(queued(deferred=(deferral(2_500, 0),))) == "Scheduled"
    assert state(queued(deferred=(deferral(2_500, 1),))) == "Retrying"


def test_the_last_report_counts_when_the_message_is_gone() -> None:
    failed, done = event(State.FAILED, 1_000), event(State.SUCCEEDED, 1_500)
    assert state(queued(), last=failed, success=done) == "Done"
    assert state(queued(), last=event(State.FAILED, 1_600), success=done) == "Failed"
    assert state(queued(), last=event(State.RETRYING, 1_600), success=done) == "Retrying"


def test_without_reports_a_job_that_is_nowhere_may_wait_or_be_done() -> None:
    assert state(queued()) == "Waiting, or done"


def test_a_time_line_is_in_order_and_ends_with_what_is_due() -> None:
    failures = (event(State.RETRYING, 1_100, error="ValueError: x"), event(State.FAILED, 1_300, error="KeyError: y"))
    found = timeline_of(
        queued(buried=(burial(1_400),), deferred=(deferral(3_000, 1),)),
        (message(1_000), message(1_200, 1)),
        failures,
        None,
        None,
    )
    assert [it.text for it in found] == [
        "Sent",
        "Started by h:1",
        "Raised after 500 ms, runs again",
        "Sent again, retry 1",
        "Started by h:1",
        "Failed after 500 ms",
        "Buried",
        "Sent again, retry 1",
        "Due",
    ]
    assert found[2].detail == "ValueError: x"
    assert [it.at for it in found] == sorted(it.at for it in found)
