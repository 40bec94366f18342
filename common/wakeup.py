"""One task that sleeps until somebody says that there is something to do."""

from __future__ import annotations

from typing import Any

import trio


class Wakeup:
    """An event for a single task that can be waited for again and again. It costs less than making new events.

    May be set from anywhere on the loop, also before the loop runs. Setting it several times wakes the task once.
    """

    __slots__ = ("_task", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._task: trio.lowlevel.Task | None = None

    def set(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        else:
            self.is_set = True

    def clear(self) -> None:
        """Forget an earlier `set`; for a loop that is about to look at everything anyway."""
        self.is_set = False

    async def wait(self) -> None:
        """Return once after each `set`, or after several of them. This is a checkpoint; a cancelled wait takes nothing."""
        if self.is_set:
            await trio.lowlevel.checkpoint()
            self.is_set = False
            return
        assert self._task is None
        self._task = trio.lowlevel.current_task()

        def abort(raise_cancel: Any) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
