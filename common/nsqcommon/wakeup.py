"""A wake-up for one task that sleeps until there is something to do."""

from __future__ import annotations

from typing import Any

import trio


class Wakeup:
    """An event on which a single task can wait again and again, cheaper than making new events.

    May be set from anywhere on trio's loop, and before the loop runs, but not from another thread. Setting it several
    times wakes the task once.
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
        """Forget an earlier `set`; for a loop that is about to examine everything anyway."""
        self.is_set = False

    async def wait(self) -> None:
        """Return after `set` was called, once for any number of calls.

        This is a checkpoint. A cancelled wait leaves the wake-up unchanged.
        """
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
