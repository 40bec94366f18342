"""Wakes up one task that sleeps until it has work."""

from __future__ import annotations

from typing import Any

import trio


class Wakeup:
    """An event that one task can wait for repeatedly. That's cheaper than a new `trio.Event` each time.

    You may set it from anywhere on trio's loop, and before the loop runs, but not from another thread. Setting it
    several times wakes the task once.
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
        """Forget an earlier `set`. Call this when you're about to check for work anyway."""
        self.is_set = False

    async def wait(self) -> None:
        """Wait until the wakeup is set, and clear it.

        This is always a checkpoint. If the wait is cancelled, nothing changes.
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
