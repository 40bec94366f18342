from __future__ import annotations

from typing import TYPE_CHECKING

from nsqjobs.django import nsq_group_by
from nsqjobs.django.api import TaskContext
from tests.nsqjobs.django.conftest import HAS_TASKS

if TYPE_CHECKING or not HAS_TASKS:
    from django_tasks import task
else:
    from django.tasks import task

ran: list[object] = []


@task(queue_name="mails")
def send(order: int) -> int:
    ran.append(order)
    return order + 1


@task(queue_name="mails")
@nsq_group_by("account")
def charge(account: str, amount: int) -> None:
    ran.append((account, amount))


@task(queue_name="mails", takes_context=True)
@nsq_group_by("account")
def charge_in_context(context: TaskContext, account: str) -> None:
    ran.append(account)


@task(queue_name="mails")
@nsq_group_by(lambda account: account.lower())
def refund(account: str) -> None:
    ran.append(account)


@task(queue_name="mails")
def fail() -> None:
    raise SystemExit("no such order")


@task(backend="reporting", queue_name="mails")
def fail_once() -> int:
    ran.append("fail_once")
    if ran.count("fail_once") == 1:
        raise ValueError("no such order")
    return 7


@task(backend="forgetful")
def forget() -> None:
    ran.append("forgotten")


@task(queue_name="mails")
def return_what_is_no_json() -> object:
    return object()
