"""A middleware that reports a worker's runs, and has failed tasks buried.

taskiq's retry middlewares send a task again with its id. If none of them has, the task has failed. The delivery is then
buried when taskiq acknowledges it.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any, Final

from taskiq import TaskiqMiddleware
from taskiq.exceptions import NoResultError

from nsqcommon.job_reports import one_line
from nsqjobs.reporting import Reporter, Run
from nsqjobs.taskiq.formatter import current_delivery
from nsqjobs.taskiq.labels import retries_of
from nsqjobs.taskiq.runs import TaskRun, current_run

if TYPE_CHECKING:
    from taskiq import TaskiqMessage, TaskiqResult

LIBRARY: Final = "taskiq"


class Reports(TaskiqMiddleware):
    """Goes before all other middlewares, so that it learns of an error after them."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def close(self) -> None:
        """Report that nothing runs here any more. It may wait for a moment."""
        self._reporter.close()

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        delivery = current_delivery.get()
        if delivery is not None:
            received = delivery.message
            run = Run(
                library=LIBRARY,
                name=message.task_name,
                id=message.task_id,
                topic=received.topic,
                started_at=time(),
                message=received.id,
                attempts=received.attempts,
                retries=retries_of(message.labels),
            )
            delivery.run = TaskRun(run, self._reporter)
            current_run.set(delivery.run)
            self._reporter.start(run)
        return message

    async def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        run = current_run.get()
        if run is None or isinstance(exception, NoResultError):  # the task itself wants no result
            return
        run.error = exception
        # A retry middleware has sent the task, here or to a schedule source: then there is no result.
        run.is_sent_again = run.is_sent_again or isinstance(result.error, NoResultError)
        if not run.is_sent_again:
            run.failure = one_line(exception)

    async def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        run = current_run.get()
        if run is None:
            return
        if run.is_sent_again:
            self._reporter.retrying(run.run, run.error or "", outcome="sent again")
        elif run.error is not None:
            self._reporter.failed(run.run, run.error, outcome="finished" if _is_acknowledged() else "buried")
        else:
            self._reporter.succeeded(run.run)


def _is_acknowledged() -> bool:
    delivery = current_delivery.get()
    return delivery is not None and delivery.message.answered in ("finished", "lost")
