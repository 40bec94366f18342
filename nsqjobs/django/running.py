"""Runs one received task."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import time
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, close_old_connections
from django.utils import timezone

from nsqcommon.job_reports import one_line, shortened
from nsqjobs.django import results
from nsqjobs.django.api import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from nsqjobs.django.messages import LIBRARY, Unusable, decode, set_fields
from nsqjobs.reporting import Run

if TYPE_CHECKING:
    from nsqjobs.django.backend import NsqBackend
    from nsqjobs.held import HeldMessage
    from nsqjobs.reporting import Reporter

log = logging.getLogger(__name__)

_AGAIN: Final = 5.0  # seconds before a message comes back if its result couldn't be stored


def handle(held: HeldMessage, backend: NsqBackend, worker_id: str) -> None:
    """Run the task of a message and answer the message. Raise nothing."""
    reporter, run = backend.reporter, None
    try:
        close_old_connections()
        result = decode(held.body, backend.alias)
        if backend.stores_results:
            results.recall(result)
        if result.is_finished and not (reporter is not None and _was_kicked(held, result)):
            # The worker died, or lost nsqd, before it could report the end.
            _answer(held, _last_line(result), buries=reporter is not None)
            return
        if reporter is not None:
            reporter.start(run := _reported_run(held, result))
        error = _run(result, backend, worker_id)
        _answer(held, "" if error is None else one_line(error), buries=reporter is not None)
        if reporter is not None and run is not None:
            _report(reporter, run, error)
    except Unusable as error:
        log.error("a message was buried: %s", error)
        held.bury(str(error))
    except BaseException as error:  # any error: the message needs an answer, because it is touched until it gets one
        log.exception("requeuing a task for %g seconds", _AGAIN)
        held.give_back(_AGAIN, count=not _is_about_database(error))
        if reporter is not None and run is not None:
            reporter.retrying(run, error, outcome="requeued")
    finally:
        with suppress(DatabaseError, InterfaceError):
            close_old_connections()


def _was_kicked(held: HeldMessage, result: TaskResult) -> bool:
    """Return True if an operator lets a failed task run again: then nsqd counts its attempts from 1.

    If nsqd is killed in the moment when we bury the message, this is a first attempt, too, and the task runs again.
    """
    return result.status == TaskResultStatus.FAILED and held.attempts == 1


def _answer(held: HeldMessage, error: str, *, buries: bool) -> None:
    if error and buries:
        held.bury(error)
    else:
        held.finish()


def _last_line(result: TaskResult) -> str:
    """Return the stored error of a failed task; empty for another one."""
    if result.status != TaskResultStatus.FAILED or not result.errors:
        return ""
    return shortened((result.errors[-1].traceback.strip().splitlines() or ["failed"])[-1])


def _reported_run(held: HeldMessage, result: TaskResult) -> Run:
    return Run(
        library=LIBRARY,
        name=result.task.module_path,
        id=result.id,
        topic=held.topic,
        started_at=time(),
        message=held.id,
        attempts=held.attempts,
    )


def _report(reporter: Reporter, run: Run, error: BaseException | None) -> None:
    if error is None:
        reporter.succeeded(run)
    else:
        reporter.failed(run, error, outcome="buried")


def _is_about_database(error: BaseException) -> bool:
    """Return True if the task isn't to blame: a database may be down for long.

    A value that the database refuses (PostgreSQL takes no NUL character) is refused each time. So that attempt counts,
    and after the last one the message is buried.
    """
    return isinstance(error, DatabaseError | InterfaceError) and not isinstance(error, DataError | IntegrityError)


def _run(result: TaskResult, backend: NsqBackend, worker_id: str) -> BaseException | None:
    """Run the task and store its result. Return the task's error, if any."""
    now = timezone.now()
    started = result.started_at or now
    set_fields(result, status=TaskResultStatus.RUNNING, started_at=started, last_attempted_at=now, finished_at=None)
    result.worker_ids.append(worker_id)
    _store(result, backend)
    task_started.send_robust(type(backend), task_result=result)  # an error in a receiver isn't the task's
    try:
        value = normalize_json(_call(result))
    except BaseException as error:  # includes SystemExit, which must end only the task
        result.errors.append(_as_error(error))
        set_fields(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        _store(result, backend)
        task_finished.send_robust(type(backend), task_result=result)  # here, so that receivers find the error
        return error
    else:
        set_fields(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        _store(result, backend)
        task_finished.send_robust(type(backend), task_result=result)
        return None


def _call(result: TaskResult) -> Any:
    context = (TaskContext(task_result=result),) if result.task.takes_context else ()
    return result.task.call(*context, *result.args, **result.kwargs)


def _store(result: TaskResult, backend: NsqBackend) -> None:
    if backend.stores_results:
        results.store(result)


def _as_error(error: BaseException) -> TaskError:
    kind = type(error)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
    )
