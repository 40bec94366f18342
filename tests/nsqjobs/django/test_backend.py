"""NsqBackend without an nsqd: what it publishes and stores, and how a message is run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from django.db import DatabaseError, DataError

from nsqclient import ConnectError
from nsqjobs.django import NsqBackend, results
from nsqjobs.django.api import (
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
)
from nsqjobs.django.groups import NsqTask
from nsqjobs.django.models import StoredResult
from nsqjobs.django.running import handle
from nsqjobs.held import HeldMessage
from tests.nsqjobs.django.tasks import (
    charge,
    charge_in_context,
    fail,
    fail_once,
    forget,
    ran,
    refund,
    return_what_is_no_json,
    send,
)
from tests.nsqjobs.held import FakeHeld
from tests.nsqjobs.link import FakeLink

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


def backend(alias: str = "default") -> NsqBackend:
    it = task_backends[alias]
    assert isinstance(it, NsqBackend)
    return it


def run(link: FakeLink, alias: str = "default") -> list[Any]:
    """Run the task that was published last, and return how its message was answered."""
    held = FakeHeld(link.published[-1][1])
    handle(cast(HeldMessage, held), backend(alias), "worker")
    return held.said


# Enqueueing


def test_a_task_is_published_to_the_topic_of_its_queue(link: FakeLink) -> None:
    result = send.enqueue(1)
    [(topic, _, delay, headers)] = link.published
    assert (topic, delay) == ("mails", 0)
    assert headers["job-library"] == b"django-tasks"
    assert headers["job-name"].endswith(b"tasks.send")
    assert headers["job-id"] == result.id.encode()
    assert send.get_result(result.id).status == "READY"


def test_run_after_is_a_delay_of_nsqds(link: FakeLink) -> None:
    due = datetime.now(UTC) + timedelta(hours=2)
    result = send.using(run_after=due).enqueue(1)
    [(_, _, delay, headers)] = link.published
    assert 7190 < delay <= 7200
    assert int(headers["job-eta"]) == round(due.timestamp() * 1000)
    assert backend().get_result(result.id).task.run_after == due


def test_what_nsqd_does_not_take_leaves_no_result(link: FakeLink) -> None:
    link.error = ConnectError("refused")
    with pytest.raises(ConnectError):
        send.enqueue(1)
    assert not StoredResult.objects.exists()


@pytest.mark.parametrize(("priority", "topic"), [(-100, "mails.low"), (0, "mails"), (1, "mails.high")])
def test_a_priority_has_its_topic(link: FakeLink, priority: int, topic: str) -> None:
    result = send.using(priority=priority).enqueue(1)
    assert link.published[0][0] == topic
    assert run(link) == ["finish"]
    assert backend().get_result(result.id).task.priority == priority


def test_a_message_of_an_earlier_version_has_no_priority(link: FakeLink) -> None:
    result = send.enqueue(1)
    said = json.loads(link.published[0][1])
    del said["priority"]
    held = FakeHeld(json.dumps(said).encode())
    handle(cast(HeldMessage, held), backend(), "worker")
    assert held.said == ["finish"]
    assert backend().get_result(result.id).return_value == 2


def test_priorities_may_be_switched_off(link: FakeLink) -> None:
    assert NsqBackend.supports_priority
    with pytest.raises(InvalidTask):
        forget.using(priority=10)


def test_the_group_of_a_task_is_an_argument_or_given_with_the_call(link: FakeLink) -> None:
    charge.enqueue("ana", 5)
    charge.enqueue(amount=5, account="ben")
    cast(NsqTask, charge).using(nsq_group="cleo", priority=10).enqueue("ana", 5)
    cast(NsqTask, charge).using(nsq_group="cleo").using(priority=10).enqueue("ana", 5)
    charge_in_context.enqueue("dora")
    refund.enqueue("ANA")
    send.enqueue(1)
    cast(NsqTask, send).using(nsq_group="emil").enqueue(1)
    assert link.groups == ["ana", "ben", "cleo", "cleo", "dora", "ana", None, "emil"]
    assert run(link) == ["finish"]


def test_a_bad_group_is_refused_before_anything_is_stored(link: FakeLink) -> None:
    with pytest.raises(ValueError, match="invalid group"):
        charge.enqueue("x" * 129, 5)
    assert not StoredResult.objects.exists()


def test_an_argument_that_is_no_json_is_refused_before_anything_is_stored(link: FakeLink) -> None:
    with pytest.raises(TypeError):
        send.enqueue(cast(int, object()))
    assert not StoredResult.objects.exists()


def test_a_signal_tells_what_was_enqueued(link: FakeLink) -> None:
    told: list[str] = []

    def receive(sender: object, task_result: Any, **_: object) -> None:
        told.append(task_result.id)

    task_enqueued.connect(receive)
    try:
        result = send.enqueue(1)
    finally:
        task_enqueued.disconnect(receive)
    assert told == [result.id]


# Results


def test_results_need_the_option(link: FakeLink) -> None:
    result = forget.enqueue()
    assert not StoredResult.objects.exists()
    assert backend().supports_get_result
    assert not backend("forgetful").supports_get_result
    with pytest.raises(NotImplementedError):
        forget.get_result(result.id)


def test_a_result_that_does_not_exist(link: FakeLink) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result("nobody")


# Running


def test_a_task_runs_and_its_result_is_stored(link: FakeLink) -> None:
    result = send.enqueue(1)
    assert run(link) == ["finish"]
    result.refresh()
    assert result.return_value == 2
    assert result.attempts == 1
    assert result.enqueued_at
    assert result.started_at
    assert result.finished_at
    assert result.enqueued_at <= result.started_at <= result.finished_at


def test_a_task_that_has_ended_does_not_run_again(link: FakeLink) -> None:
    send.enqueue(1)
    assert run(link) == run(link) == ["finish"]
    assert ran == [1]


def test_a_task_without_results_runs_again(link: FakeLink) -> None:
    forget.enqueue()
    assert run(link, "forgetful") == run(link, "forgetful") == ["finish"]
    assert ran == ["forgotten", "forgotten"]


def test_a_task_runs_though_its_transaction_is_not_committed_yet(link: FakeLink) -> None:
    result = send.enqueue(1)
    StoredResult.objects.all().delete()
    assert run(link) == ["finish"]
    assert send.get_result(result.id).return_value == 2


@pytest.mark.parametrize(
    ("task", "error"), [(fail, SystemExit), (return_what_is_no_json, TypeError)], ids=["exits", "no JSON"]
)
def test_a_task_that_fails_is_done(link: FakeLink, task: Any, error: type[BaseException]) -> None:
    result = task.enqueue()
    assert run(link) == ["finish"]
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].exception_class is error
    assert "Traceback" in result.errors[0].traceback


def test_a_receiver_that_fails_is_not_the_tasks_failure(link: FakeLink) -> None:
    def receive(sender: object, **_: object) -> None:
        raise KeyError

    task_finished.connect(receive)
    try:
        send.enqueue(1)
        assert run(link) == ["finish"]
    finally:
        task_finished.disconnect(receive)


def test_a_task_waits_for_a_database_that_is_away(link: FakeLink, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(result: object) -> None:
        raise DatabaseError("gone")

    send.enqueue(1)
    monkeypatch.setattr(results, "recall", fail)
    assert run(link) == [("give back", 5.0, False)]
    assert not ran


def test_a_result_that_the_database_refuses_comes_back_a_limited_number_of_times(
    link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(result: object) -> None:
        raise DataError("unsupported Unicode escape sequence")

    send.enqueue(1)
    monkeypatch.setattr(results, "store", refuse)
    assert run(link) == [("give back", 5.0, True)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "tests.nsqjobs.django.tasks.gone"}, "no such task: tests.nsqjobs.django.tasks.gone"),
        ({"task": "os.getpid"}, "not a task: os.getpid"),
        ({"enqueued_at": "yesterday"}, "not a message of a task: ValueError"),
    ],
)
def test_a_message_that_is_no_task_is_buried(link: FakeLink, changes: dict[str, object], reason: str) -> None:
    send.enqueue(1)
    held = FakeHeld(json.dumps({**json.loads(link.published[0][1]), **changes}).encode())
    handle(cast(HeldMessage, held), backend(), "worker")
    [(verb, said)] = held.said
    assert verb == "bury"
    assert said.startswith(reason)


# Checks


def test_checks_name_what_is_wrong_in_the_settings() -> None:
    assert not list(backend().check())
    assert [it.id for it in backend("mistaken").check()] == ["nsqjobs.E001", "nsqjobs.E002"]


def test_a_check_finds_a_queue_with_the_topic_of_another_ones_priorities() -> None:
    queues = ["mails", "mails.high", "other"]
    [error] = NsqBackend("it", {"QUEUES": queues}).check()
    assert error.id == "nsqjobs.E004"
    assert "tasks of mails with a priority would be in the topic of the queue mails.high" in error.msg
    assert not list(NsqBackend("it", {"QUEUES": queues, "OPTIONS": {"priority": False}}).check())


# Reports


def run_reported(link: FakeLink, *, attempts: int = 1) -> list[Any]:
    held = FakeHeld(link.published[-1][1], attempts=attempts)
    handle(cast(HeldMessage, held), backend("reporting"), "worker")
    return held.said


@pytest.mark.usefixtures("reporter")
def test_a_reported_failure_is_buried_and_runs_again_when_it_is_kicked(link: FakeLink) -> None:
    result = fail_once.enqueue()
    assert run_reported(link) == [("bury", "ValueError: no such order")]
    assert fail_once.get_result(result.id).status == "FAILED"
    assert run_reported(link) == ["finish"]  # nsqd counts a kicked message's attempts from 1
    again = fail_once.get_result(result.id)
    assert (again.status, again.return_value, len(again.errors)) == ("SUCCESSFUL", 7, 1)


@pytest.mark.usefixtures("reporter")
def test_a_reported_failure_whose_answer_was_lost_is_buried_without_running(link: FakeLink) -> None:
    fail_once.enqueue()
    run_reported(link)
    assert run_reported(link, attempts=2) == [("bury", "ValueError: no such order")]
    assert ran == ["fail_once"]


@pytest.mark.usefixtures("reporter")
def test_a_success_whose_answer_was_lost_does_not_run_again(link: FakeLink) -> None:
    fail_once.enqueue()
    run_reported(link)
    run_reported(link)
    assert run_reported(link) == ["finish"]
    assert ran == ["fail_once", "fail_once"]
