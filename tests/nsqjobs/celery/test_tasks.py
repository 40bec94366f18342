"""The group of a Celery task: from the call to the publish, and to its retry."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context

from nsqjobs.celery.envelope import decode, publication
from nsqjobs.celery.tasks import GroupedTask


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False, task_cls=GroupedTask)


@pytest.fixture
def sent(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the groups that tasks are sent with."""
    groups: list[Any] = []
    monkeypatch.setattr(app, "send_task", lambda *args, **options: groups.append(options.get("nsq_group")))
    return groups


def test_an_argument_of_the_task_is_its_group(app: Celery, sent: list[Any]) -> None:
    def its_function(account: str, amount: int) -> None: ...

    charge = app.task(nsq_group_by="account")(its_function)
    charge.delay("ana", 5)
    charge.apply_async((), {"amount": 5, "account": "ben"}, countdown=1)
    charge.s("cleo", 5).apply_async()
    charge.apply_async(("ana", 5), nsq_group="dora")
    charge.apply_async(("ana", 5), headers={"nsq-group": "emil"})  # as a retry, whose group stays
    assert sent == ["ana", "ben", "cleo", "dora", None]
    with pytest.raises(ValueError, match="invalid group"):
        charge.delay("x" * 129, 5)


def test_a_function_of_the_arguments_is_its_group(app: Celery, sent: list[Any]) -> None:
    def charge_it(self: Any, account: str, amount: int) -> None: ...

    def refund_it(self: Any, account: str) -> None: ...

    def clean_up_all() -> None: ...

    charge = app.task(bind=True, nsq_group_by=lambda account, amount: account.lower())(charge_it)
    refund = app.task(bind=True, nsq_group_by="account")(refund_it)
    clean_up = app.task(clean_up_all)
    charge.delay("ANA", 5)
    refund.delay("ben")
    clean_up.delay()
    assert sent == ["ana", "ben", None]


def test_a_retry_keeps_the_group() -> None:
    properties = {"delivery_info": {}, "nsq_group": "ana"}
    first = publication({"body": "[]", "headers": {"task": "charge", "id": "1"}, "properties": properties})
    assert first.group == "ana"
    of_worker = decode(first.body)["headers"]
    headers = Context(of_worker, args=(), kwargs={}).as_execution_options()["headers"]
    again = publication({"body": "[]", "headers": {"task": "charge", "id": "1", **headers}, "properties": {}})
    assert again.group == "ana"


def test_a_bad_group_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid group"):
        publication({"body": "[]", "headers": {}, "properties": {"nsq_group": "x" * 129}})
