"""One task that sleeps until somebody says that there is something to do. An event that can be used again, and costs less."""

from __future__ import annotations

from typing import Any

import trio


class Wakeup:
    __slots__ = ("_is_set", "_task")

    def __init__(self) -> None:
        self._is_set = False
        self._task: trio.lowlevel.Task | None = None

    def set(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        else:
            self._is_set = True

    async def wait(self) -> None:
        """Returns once after each `set`, or several of them. A checkpoint. For one task at a time."""
        if self._is_set:
            self._is_set = False
            await trio.lowlevel.checkpoint()
            return
        assert self._task is None
        self._task = trio.lowlevel.current_task()

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
