"""Headers that make a message a job."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.messages.jobs import QueuedJob, hint_for, job_in, job_json, tasks_of, without_job
from nsqadmin.messages.model import Message, message_json
from nsqjobs.headers import Job

HEADERS = {
    "job-library": "celery",
    "job-name": "shop.send",
    "job-id": "4711",
    "job-retries": "2",
    "job-eta": "1767225600500",
    "tenant": "eu",
}


def message(headers: dict[str, str]) -> Message:
    return Message(node="n:1", id="1", timestamp=1.0, size=1, body=b"x", headers=headers)


def test_a_job_is_read_from_its_headers() -> None:
    assert job_in(HEADERS) == QueuedJob(name="shop.send", id="4711", library="celery", retries=2, eta=1767225600.5)
    assert without_job(HEADERS) == {"tenant": "eu"}


def test_the_headers_are_those_that_job_libraries_write() -> None:
    job = Job(library="taskiq", name="a:b", id="x", retries=3, eta=12.25)
    headers = {name: value.decode() for name, value in job.headers().items()}
    assert job_in(headers) == QueuedJob(name="a:b", id="x", library="taskiq", retries=3, eta=12.25)
    assert without_job(headers) == {}


@pytest.mark.parametrize("headers", [{}, {"tenant": "eu"}, {"job-id": "1"}, {"job-name": ""}])
def test_other_messages_are_no_jobs_and_stay_as_they_are(headers: dict[str, str]) -> None:
    assert job_in(headers) is None
    assert without_job(headers) == headers
    assert "job" not in message_json(message(headers), most=None)


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "9" * 16, "9" * 400, "٣", "999999999999999"])
def test_an_eta_that_is_no_time_is_left_out(value: str) -> None:
    job = job_in({"job-name": "x", "job-eta": value})
    assert job is not None
    assert job.eta is None


def test_a_message_has_its_job_in_json_beside_all_headers() -> None:
    document = message_json(message(HEADERS), most=None)
    assert document["headers"] == HEADERS
    assert document["job"] == {
        "name": "shop.send",
        "id": "4711",
        "library": "celery",
        "retries": 2,
        "eta": 1767225600.5,
    }
    assert job_json(QueuedJob(name="x")) == {"name": "x"}


def test_tasks_are_counted() -> None:
    jobs = [QueuedJob(name="b"), None, QueuedJob(name="a"), QueuedJob(name="b"), QueuedJob(name="c")]
    assert tasks_of(jobs) == (("b", 2), ("a", 1), ("c", 1))
    assert tasks_of([None]) == ()


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["shop.send"], "header.job-name = shop.send"),
        (["a b"], 'header.job-name = "a b"'),
        (['a"b', "c"], "header.job-name = c"),
        ([None], ""),
        ([], ""),
    ],
)
def test_a_search_for_jobs_is_offered(names: list[Any], hint: str) -> None:
    assert hint_for(QueuedJob(name=it) if it else None for it in names) == hint
