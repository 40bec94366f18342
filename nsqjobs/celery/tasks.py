"""A task class whose tasks have the option `nsq_group_by`:

app = Celery("shop", broker="nsq://127.0.0.1:4150", task_cls="nsqjobs.celery.tasks:GroupedTask")

@app.task(acks_late=True, nsq_group_by="account")
def charge(account, amount): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task

from nsqcommon.wire.groups import GROUP as HEADER
from nsqjobs.groups import GROUP, group_of

if TYPE_CHECKING:
    from nsqjobs.groups import GroupBy


class GroupedTask(Task):
    """A task that finds the group of each call by its arguments, unless the call says `nsq_group`."""

    nsq_group_by: GroupBy | None = None  # the name of an argument, or a function of all arguments

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """Send the task. Raise ValueError for an invalid group."""
        by = type(self).nsq_group_by  # not of the instance, where a function would become a method
        # A retry has the header of the call before.
        if by is not None and options.get(GROUP) is None and HEADER not in (options.get("headers") or {}):
            options[GROUP] = group_of(by, self.run, args or (), kwargs or {})
        return super().apply_async(args, kwargs, *more, **options)
