"""The group of a task: `charge.using(nsq_group="ana").enqueue(...)`, or by an argument of its function:

    @task
    @nsq_group_by("account")
    def charge(account: str, amount: int) -> None: ...

Django's decorator takes no options of a backend, so ours stands below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from nsqjobs.django.api import Task
from nsqjobs.groups import GROUP_BY, GroupBy, group_of, group_text

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqTask(Task):
    """A task that may have a group."""

    nsq_group: str | None = None

    def using(self, *, nsq_group: str | None = None, **changes: Any) -> Self:
        """Return the task with another group, and Django's changes."""
        task = Task.using(self, **changes)  # super() needs the class from before `slots`
        return task if nsq_group is None else replace(task, nsq_group=nsq_group)


def nsq_group_by(by: GroupBy) -> Callable[[FunctionT], FunctionT]:
    """Decorate a task's function: `by` names the argument that is the group, or returns it for all arguments."""

    def decorated(function: FunctionT) -> FunctionT:
        setattr(function, GROUP_BY, by)
        return function

    return decorated


def group_of_task(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the group of a task with these arguments, or None. Raise ValueError for an invalid one."""
    given = task.nsq_group if isinstance(task, NsqTask) else None
    by = getattr(task.func, GROUP_BY, None)
    if given is not None or by is None:
        return group_text(given)
    if task.takes_context and not callable(by):
        args = (None, *args)
    return group_of(by, task.func, args, kwargs)
