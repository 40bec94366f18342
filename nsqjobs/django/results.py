"""Results in the database, if the app is installed: written when a task is enqueued, starts and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps

from nsqjobs.django.api import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from nsqjobs.django.messages import enqueued, set_fields, task_at

if TYPE_CHECKING:
    from nsqjobs.django.models import StoredResult


def is_installed() -> bool:
    return apps.is_installed("nsqjobs.django")


def add(result: TaskResult) -> None:
    """Store a task's result before publishing the task."""
    _model().objects.create(id=result.id, **_fields_of(result))


def remove(result: TaskResult) -> None:
    """Delete the result of a task that could not be published."""
    _model().objects.filter(id=result.id).delete()


def load(id: str) -> TaskResult:
    """Return a stored result. Raise TaskResultDoesNotExist, or Unusable if the program no longer has the task."""
    row = _model().objects.filter(id=id).first()
    if row is None:
        raise TaskResultDoesNotExist(id)
    return _read(row)


def recall(result: TaskResult) -> None:
    """Add the stored data of earlier attempts to a result from a message.

    A task may start before its enqueuing transaction is committed, so there may be none.
    """
    row = _model().objects.filter(id=result.id).first()
    if row is not None:
        _apply(result, row)


def store(result: TaskResult) -> None:
    """Store a task's state."""
    state = {
        "status": result.status,
        "started_at": result.started_at,
        "last_attempted_at": result.last_attempted_at,
        "finished_at": result.finished_at,
        "return_value": result._return_value,
        "errors": [
            {"exception_class_path": it.exception_class_path, "traceback": it.traceback} for it in result.errors
        ],
        "worker_ids": result.worker_ids,
    }
    rows = _model().objects
    if not rows.filter(id=result.id).update(**state):  # one statement, where update_or_create takes four
        rows.update_or_create(id=result.id, defaults=state, create_defaults={**_fields_of(result), **state})


def _model() -> type[StoredResult]:
    from nsqjobs.django.models import StoredResult  # models can only be imported after all apps

    return StoredResult


def _fields_of(result: TaskResult) -> dict[str, Any]:
    task = result.task
    return {
        "task_path": task.module_path,
        "queue_name": task.queue_name,
        "priority": task.priority,
        "backend": result.backend,
        "arguments": {"args": result.args, "kwargs": result.kwargs},
        "run_after": task.run_after,
        "enqueued_at": result.enqueued_at,
    }


def _read(row: StoredResult) -> TaskResult:
    task = task_at(row.task_path).using(
        backend=row.backend, queue_name=row.queue_name, priority=row.priority, run_after=row.run_after
    )
    result = enqueued(task, row.id, **row.arguments, enqueued_at=row.enqueued_at)
    _apply(result, row)
    return result


def _apply(result: TaskResult, row: StoredResult) -> None:
    set_fields(
        result,
        status=TaskResultStatus(row.status),
        started_at=row.started_at,
        last_attempted_at=row.last_attempted_at,
        finished_at=row.finished_at,
        errors=[TaskError(**it) for it in row.errors],
        worker_ids=list(row.worker_ids),
        _return_value=row.return_value,
    )
