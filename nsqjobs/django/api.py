"""Django's task API: Django's own from 6.0 on, before that the package django-tasks.

They differ only in the names of exceptions.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("django.tasks") is None:  # the package has types
    from django_tasks import exceptions, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    from django.tasks import exceptions, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

TaskResultDoesNotExist = exceptions.TaskResultDoesNotExist
# django-tasks up to 0.12 calls it InvalidTaskError.
InvalidTask: type[Exception] = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
