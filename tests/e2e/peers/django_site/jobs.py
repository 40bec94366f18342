from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

from nsqjobs.django.api import TaskContext

if find_spec("django.tasks"):
    from django.tasks import task
else:
    from django_tasks import task

QUEUE = os.environ["NSQ_QUEUE"]


def note(line: str) -> None:
    with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


@task(queue_name=QUEUE)
def add(x: int, y: int) -> int:
    return x + y


@task(queue_name=QUEUE)
async def add_async(x: int, y: int) -> int:
    return x + y


@task(queue_name=QUEUE)
def fail() -> None:
    raise ValueError("no such order")


@task(queue_name=QUEUE, takes_context=True)
def attempt(context: TaskContext) -> int:
    return context.attempt


@task(queue_name=QUEUE)
def tell_time() -> float:
    return time.time()


@task(queue_name=QUEUE)
def linger(name: str, seconds: float) -> None:
    note(f"begin {name}")
    time.sleep(seconds)
    note(f"end {name}")


@task(queue_name=QUEUE)
def wait_for_file(name: str, path: str) -> None:
    note(f"begin {name}")
    while not Path(path).exists():
        time.sleep(0.01)
    note(f"end {name}")
