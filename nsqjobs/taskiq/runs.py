"""The run of a task that the current asyncio task handles, for reports."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqjobs.reporting import Reporter, Run

current_run: Final[ContextVar[TaskRun | None]] = ContextVar("current_run", default=None)


class TaskRun:
    """One run of a task."""

    def __init__(self, run: Run, reporter: Reporter) -> None:
        self.run = run
        self._reporter = reporter
        self.error: BaseException | None = None  # retry middlewares replace the one in the result
        self.failure = ""  # why it has failed for good; empty: it hasn't
        self.is_sent_again = False

    def has_ended_early(self, error: BaseException | None) -> None:
        """Record that taskiq stopped handling the task. No effect after its end: a middleware or a stop interfered."""
        self._reporter.retrying(self.run, error or "not finished by this worker", outcome="requeued")


def note_sent(task_id: str) -> None:
    """Record that a task was sent, maybe by the run of the same task."""
    run = current_run.get()
    if run is not None and run.run.id == task_id:
        run.is_sent_again = True
