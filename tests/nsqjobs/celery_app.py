"""The tasks that the tests of Celery's transport run, in workers that are started as `celery -A tests.nsqjobs.celery_app`.

The broker's URL is in the environment. What a task has to tell it appends to a file, as one line.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

BROKER = "NSQ_TEST_BROKER"
SETTINGS = "NSQ_TEST_SETTINGS"  # JSON


_made: list[Celery] = []


def make_app(url: str, **settings: Any) -> Celery:
    """Return an app, for a worker or for a test that sends to one."""
    app = Celery("jobs", broker=url, set_as_current=False)
    app.conf.update(
        result_backend="rpc://",
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=True,
        **settings,
    )
    _made.append(app)
    return app


def close_apps() -> None:
    """Close all connections of all apps. An app does not close the one for its results, which would connect for ever."""
    while _made:
        app = _made.pop()
        consumer = app.backend.result_consumer
        if consumer._connection is not None:
            consumer.stop()
        app.close()


app = make_app(os.environ.get(BROKER, "nsq://127.0.0.1:4150"), **json.loads(os.environ.get(SETTINGS, "{}")))


def tell(path: str, line: object) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="note")
def note(path: str, line: object) -> None:
    tell(path, line)


@app.task(name="when", bind=True)
def when(self: Any, path: str) -> None:
    """Tell the time, and the number of the retry."""
    tell(path, f"{self.request.retries} {time.time()}")


@app.task(name="again", bind=True, max_retries=5)
def again(self: Any, path: str, times: int, countdown: float) -> str:
    tell(path, f"{self.request.retries} {time.time()}")
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    return "done"


@app.task(name="replace", bind=True)
def replace(self: Any, path: str) -> None:
    raise self.replace(when.si(path).set(countdown=0.5, queue="shared"))


@app.task(name="reject", acks_late=True)
def reject(requeue: bool = False) -> None:
    raise Reject("no use", requeue=requeue)


@app.task(name="fail", bind=True, acks_late=True, max_retries=1)
def fail(self: Any, text: str, *, retry: bool = False) -> None:
    error = ValueError(text)
    if retry:
        raise self.retry(exc=error, countdown=0.1)
    raise error


@app.task(name="vanish", acks_late=True)
def vanish() -> None:
    """Kill the process of the pool."""
    os.kill(os.getpid(), 9)


@app.task(name="linger", acks_late=True, time_limit=1)
def linger() -> None:
    time.sleep(60)


@app.task(name="fail_early")
def fail_early() -> None:
    raise ValueError("acknowledged before")


@app.task(name="hold", bind=True, acks_late=True)
def hold(self: Any, path: str, until: str) -> None:
    """Tell that it has begun, wait until there is a file, and tell that it is done."""
    tell(path, f"begun {os.getpid()} {self.request.id}")
    deadline = time.monotonic() + 60
    while not Path(until).exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # there is nobody who could wake it
    tell(path, f"done {self.request.id}")
