"""Reports a worker's runs, and buries failed tasks with their exception: `broker_transport_options = {"report": True}`.

Celery's signals about a task fire in the pool's process that runs it. The worker's main process acknowledges the
message, and has each task's `Request`, which hears of the start and of every kind of end: an exception, a time limit, a
killed process. So we give each task a subclass of its Request, and one connection reports for all processes.

A failed task is acknowledged by Celery. Before that we tell the transport's QoS why it failed, and QoS buries it. A task
that is acknowledged before it runs (the default, without `acks_late`) is no longer in nsqd when it fails.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.job_reports import one_line, shortened
from nsqjobs.reporting import Reporter, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqjobs.addresses import Endpoint

OPTION: Final = "report"

_WORKER: Final = "celery.worker.consumer"  # loaded by workers only
_LIBRARY: Final = "celery"


def report_runs(endpoint: Endpoint) -> None:
    """Have this worker report the runs of its tasks. It has no effect in other programs, and a second time."""
    if _WORKER not in sys.modules:
        return
    from celery import current_app  # kombu may be used without Celery
    from kombu.utils.imports import symbol_by_name

    reporter = Reporter(endpoint)
    for task in current_app.tasks.values():
        request = symbol_by_name(task.Request)
        if not issubclass(request, ReportedRequest):
            task.Request = type("Request", (ReportedRequest, request), {"nsq_reporter": reporter})


class FailedRun:
    """Why a task failed, for QoS. Celery's answer reaches QoS later, in the worker's loop."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.is_withdrawn = False  # it has not failed after all
        self.is_held = False  # QoS buries the message
        self.is_requeued = False


class ReportedRequest:
    """Goes before a Request class of Celery."""

    nsq_reporter: Reporter
    _nsq_run: Run | None = None  # None: it hasn't begun, or its end was reported
    _nsq_failed: FailedRun | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap `on_success`: Celery derives a class for each task, with an `on_success` that doesn't call ours."""
        super().__init_subclass__(**kwargs)
        if "on_success" in cls.__dict__:
            cls.on_success = _reporting_success(cls.__dict__["on_success"])  # type: ignore[attr-defined]  # of Request

    def on_accepted(self: Any, pid: int, time_accepted: float) -> None:
        self._nsq_run = _run_of(self, pid)
        self.nsq_reporter.start(self._nsq_run)
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]  # of Request

    def reject(self: Any, requeue: bool = False) -> None:
        if self._nsq_failed is not None:
            self._nsq_failed.is_requeued = requeue
        super().reject(requeue)  # type: ignore[misc]

    def on_retry(self: Any, exc_info: Any) -> None:
        super().on_retry(exc_info)  # type: ignore[misc]
        cause = getattr(exc_info.exception, "exc", None) or exc_info.exception
        self._nsq_retrying(_text_of(cause), exc_info.traceback)

    def on_timeout(self: Any, soft: bool, timeout: float) -> None:
        if soft:
            super().on_timeout(soft, timeout)  # type: ignore[misc]
            return
        failed = self._nsq_fails(f"TimeLimitExceeded: {timeout}")
        super().on_timeout(soft, timeout)  # type: ignore[misc]
        self._nsq_ended(failed, "")

    def on_failure(self: Any, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        from billiard.exceptions import Terminated  # type: ignore[import-untyped]  # it has no types
        from celery.exceptions import Ignore, Reject, Retry

        error = exc_info.exception
        error = getattr(error, "exc", error) if type(error).__name__ == "ExceptionWithTraceback" else error
        if isinstance(error, Retry | MemoryError):
            return super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
        if isinstance(error, Ignore) and not isinstance(error, Reject):
            answer = super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
            self._nsq_succeeded(outcome="ignored")
            return answer
        is_cancelled = getattr(self, "_already_cancelled", False)  # the connection broke: nsqd delivers it again
        if isinstance(error, Terminated) or self._already_revoked or is_cancelled:
            answer = super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
            if is_cancelled:
                self._nsq_retrying("Terminated: the connection broke", "", outcome="requeued")
            else:
                self._nsq_end("failed", "Terminated: revoked while it ran", outcome="revoked")
            return answer
        failed = self._nsq_fails(_text_of(error))
        answer = super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
        self._nsq_ended(failed, str(exc_info.traceback or ""))
        return answer

    def _success_was_stored(self: Any) -> Any:
        """Return Celery's answer. If the task had succeeded before its process died, it must not be buried."""
        found = super()._success_was_stored()  # type: ignore[misc]
        if found and self._nsq_failed is not None:
            self._nsq_failed.is_withdrawn = True
        return found

    def _retry_worker_lost(self: Any, exc: Any, exc_info: Any) -> Any:
        """Return True if Celery has sent the task again, as it does for a lost process on request."""
        failed: FailedRun = self._nsq_failed
        failed.is_withdrawn = True
        is_sent = super()._retry_worker_lost(exc, exc_info)  # type: ignore[misc]
        if is_sent:
            self._nsq_retrying(failed.reason, str(exc_info.traceback or ""))
        else:
            failed.is_withdrawn = False
        return is_sent

    def _nsq_fails(self: Any, reason: str) -> FailedRun:
        """Have QoS bury the message instead of acknowledging it."""
        failed = self._nsq_failed = FailedRun(reason)
        message = self.message
        qos: Any = getattr(message.channel, "qos", None)
        if not self.acknowledged and hasattr(qos, "fail"):  # another broker has none
            failed.is_held = qos.fail(message.delivery_tag, failed)
        return failed

    def _nsq_ended(self: Any, failed: FailedRun, traceback: str) -> None:
        if failed.is_withdrawn:
            self._nsq_succeeded()
        elif failed.is_requeued:
            self._nsq_retrying(failed.reason, traceback, outcome="requeued")
        else:
            self._nsq_end("failed", failed.reason, traceback, outcome="buried" if failed.is_held else "finished")

    def _nsq_retrying(self: Any, reason: str, traceback: str, outcome: str = "sent again") -> None:
        self._nsq_end("retrying", reason, traceback, outcome=outcome)

    def _nsq_end(self: Any, what: str, reason: str, traceback: str = "", *, outcome: str) -> None:
        run, self._nsq_run = self._nsq_run, None
        if run is not None:
            getattr(self.nsq_reporter, what)(run, reason, outcome=outcome, traceback=str(traceback or ""))

    def _nsq_succeeded(self: Any, *, outcome: str = "finished", seconds: float | None = None) -> None:
        run, self._nsq_run = self._nsq_run, None
        if run is not None:
            self.nsq_reporter.succeeded(run, outcome=outcome, ms=None if seconds is None else seconds * 1000)


def _reporting_success(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def reporting(self: Any, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        answer = on_success(self, failed__retval__runtime, **kwargs)
        failed, _, runtime = failed__retval__runtime
        if not failed:  # otherwise it has called `on_failure`
            self._nsq_succeeded(seconds=runtime)
        return answer

    return reporting


def _run_of(request: Any, pid: int) -> Run:
    from time import time

    message = request.message
    try:
        delivery = message.channel.qos.get(message.delivery_tag)
        topic, id, attempts = delivery.topic, delivery.id, delivery.attempts
    except (AttributeError, KeyError):  # another broker's, or acknowledged when it arrived
        topic, id, attempts = str(message.delivery_tag).partition(" ")[0], "", 1
    retries = request.request_dict.get("retries")
    return Run(
        library=_LIBRARY,
        name=str(request.name),
        id=str(request.id),
        topic=topic,
        started_at=time(),
        message=id,
        attempts=attempts,
        retries=retries if isinstance(retries, int) else 0,
        pid=pid,
    )


def _text_of(error: object) -> str:
    return one_line(error) if isinstance(error, BaseException) else shortened(str(error))
