"""Workers that would free places of a queue too early."""

from __future__ import annotations

import json
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import celery
import pytest
from celery.exceptions import WorkerShutdown

from nsqclient import ConnectError
from nsqclient.blocking import BlockingProducer
from nsqjobs.celery.http import policy_of
from nsqjobs.celery.places import check_worker, early_tasks
from nsqjobs.celery.routing import lasting


class Producer:
    """Asks nsqds, each of which has a policy for the channel; or an answer of its own."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[str] = []
        self._answers = answers

    def ask_all(self, method: str, target: str) -> dict[str, Any]:
        self.asked.append(target)
        return {
            str(number): (200, json.dumps({"channel": it}).encode()) if isinstance(it, dict) else it
            for number, it in enumerate(self._answers)
        }


def value(it: object, *, dry_run: bool = False) -> dict[str, object]:
    return {"value": it, "line": 1, "dry_run": dry_run}


def task(*, late: bool) -> Any:
    return SimpleNamespace(acks_late=late)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pretend that this is a worker with these tasks."""
    tasks: dict[str, Any] = {"celery.chord": task(late=False), "shop.late": task(late=True)}
    monkeypatch.setitem(sys.modules, "celery.worker.consumer", ModuleType("consumer"))
    monkeypatch.setattr(celery, "current_app", SimpleNamespace(tasks=tasks))
    return tasks


def check(*answers: Any) -> Producer:
    producer = Producer(*answers)
    check_worker(cast(BlockingProducer, producer), "mails", [lasting("mails")])
    return producer


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        ({"max_in_flight": value(3)}, "max_in_flight = 3"),
        ({"max_in_flight_per_group": value(1)}, "max_in_flight_per_group = 1"),
        ({"order": value("group"), "share": value("group")}, 'order = "group"'),
    ],
)
def test_it_does_not_start(
    tasks: dict[str, Any], caplog: pytest.LogCaptureFixture, policy: dict[str, Any], limit: str
) -> None:
    tasks |= {"shop.charge": task(late=False), "shop.refund": task(late=False)}
    with pytest.raises(WorkerShutdown) as caught:
        check({}, policy)
    assert caught.value.code == 1
    assert caplog.messages == [
        f"queue mails has {limit} in nsqd's policy, but shop.charge and 1 more would be acknowledged, and free a place,"
        " before running: set task_acks_late = True, or acks_late=True for each task"
    ]


@pytest.mark.parametrize(
    "policy",
    [{}, {"max_in_flight": value(3, dry_run=True)}, {"share": value("group")}, {"max_attempts": value(5)}, (404, b"")],
)
def test_it_starts_if_there_is_no_such_limit(tasks: dict[str, Any], policy: Any) -> None:
    tasks["shop.charge"] = task(late=False)
    assert check(policy).asked == ["/config/policy?topic=mails&channel=jobs"]


def test_it_starts_with_late_tasks(tasks: dict[str, Any]) -> None:
    assert check({"max_in_flight": value(3)}).asked == []


def test_it_starts_if_nsqd_can_not_be_asked(tasks: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    tasks["shop.charge"] = task(late=False)
    check(ConnectError("HTTP port 4151: connection refused"))
    assert [(level, text) for _, level, text in caplog.record_tuples] == [
        (logging.WARNING, "can't ask for the policy of mails/jobs: HTTP port 4151: connection refused")
    ]


def test_a_program_that_is_no_worker_is_not_checked(tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tasks["shop.charge"] = task(late=False)
    monkeypatch.delitem(sys.modules, "celery.worker.consumer")
    assert check({"max_in_flight": value(3)}).asked == []


def test_celerys_own_tasks_do_not_count() -> None:
    assert early_tasks({"a": task(late=True), "b": task(late=False), "celery.x": task(late=False)}) == ["b"]


def test_what_is_only_tried_is_not_in_force() -> None:
    producer = Producer({"order": value("group"), "max_in_flight": value(3, dry_run=True)}, {"max_attempts": value(5)})
    assert policy_of(cast(BlockingProducer, producer), "mails", "jobs") == {"order": "group", "max_attempts": 5}
