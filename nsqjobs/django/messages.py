"""A task as a message: JSON with everything a worker needs, even without the database."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.module_loading import import_string

from nsqjobs.django.api import InvalidTask, Task, TaskResult, TaskResultStatus
from nsqjobs.headers import Job

LIBRARY: Final = "django-tasks"


class Unusable(Exception):
    """The message isn't a task of this program. The text says why."""


def encode(result: TaskResult) -> bytes:
    task = result.task
    document = {
        "id": result.id,
        "task": task.module_path,
        "queue_name": task.queue_name,
        "priority": task.priority,
        "run_after": task.run_after.isoformat() if task.run_after else None,
        "enqueued_at": result.enqueued_at.isoformat() if result.enqueued_at else None,
        "args": result.args,
        "kwargs": result.kwargs,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def headers_of(result: TaskResult) -> dict[str, bytes]:
    """Return the headers of a task, for nsqadmin."""
    return Job(library=LIBRARY, name=result.task.module_path, id=result.id, eta=due_at(result.task)).headers()


def due_at(task: Task) -> float | None:
    """Return when a task may start, in seconds since 1970. A time without a zone is in Django's current zone."""
    time = task.run_after
    if time is None:
        return None
    return float((time if timezone.is_aware(time) else timezone.make_aware(time)).timestamp())


def decode(body: bytes, backend: str) -> TaskResult:
    """Parse a message into its enqueued task. Raise Unusable."""
    try:
        said = json.loads(body)
        run_after = datetime.fromisoformat(said["run_after"]) if said["run_after"] else None
        priority = said.get("priority", 0)  # earlier versions wrote none
        task = task_at(said["task"]).using(
            backend=backend, queue_name=said["queue_name"], priority=priority, run_after=run_after
        )
        return enqueued(
            task,
            said["id"],
            args=said["args"],
            kwargs=said["kwargs"],
            enqueued_at=datetime.fromisoformat(said["enqueued_at"]),
        )
    except Unusable:
        raise
    except InvalidTask as error:
        raise Unusable(f"invalid task: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"not a message of a task: {error!r}") from error


def task_at(path: str) -> Task:
    """Import a task. Raise Unusable if there is none."""
    try:
        task = import_string(path)
    except Exception as error:  # includes errors of the module's import
        raise Unusable(f"no such task: {path}: {error!r}") from error
    if not isinstance(task, Task):
        raise Unusable(f"not a task: {path}")
    return task


def enqueued(
    task: Task, id: str, *, args: list[Any], kwargs: dict[str, Any], enqueued_at: datetime | None
) -> TaskResult:
    """Return the result of a task before its start. Raise TypeError or ValueError if JSON can't hold an argument."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,  # type: ignore[arg-type] # mypy takes the members of Django's enums for tuples
        enqueued_at=enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def set_fields(result: TaskResult, **fields: object) -> None:
    """Set fields of a result, which is frozen except for backends."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
