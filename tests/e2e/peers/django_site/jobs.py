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


def note(line: str) -> None:
    with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


@task
def add(x: int, y: int) -> int:
    return x + y


@task
async def add_async(x: int, y: int) -> int:
    return x + y


@task
def fail() -> None:
    raise ValueError("no such order")


@task(takes_context=True)
def attempt(context: TaskContext) -> int:
    return context.attempt


@task
def tell_time() -> float:
    return time.time()


@task
def linger(queue: str, name: str, seconds: float) -> None:
    note(f"{queue} begin {name}")
    time.sleep(seconds)
    note(f"{queue} end {name}")


@task
def wait_for_file(queue: str, name: str, path: str) -> None:
    note(f"{queue} begin {name}")
    while not Path(path).exists():
        time.sleep(0.01)
    note(f"{queue} end {name}")
