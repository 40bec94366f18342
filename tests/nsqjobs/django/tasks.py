from __future__ import annotations

from typing import TYPE_CHECKING

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
def fail() -> None:
    raise SystemExit("no such order")


@task(backend="forgetful")
def forget() -> None:
    ran.append("forgotten")


@task(queue_name="mails")
def return_what_is_no_json() -> object:
    return object()
