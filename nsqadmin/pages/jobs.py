"""All tasks of job queues, a row for each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.jobs.run_book import HISTORY_STEP
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.sparks import Spark, spark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.jobs.tasks import TaskRow
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_STATES = ("all", "failed", "retrying", "scheduled", "running", "waiting")


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        services.view.look_at()
        snapshot = await painter.picture(request)
        wanted = request.query_params.get("filter", "").strip()
        state = word_of(request, "state", _STATES)
        jobs = services.jobs
        shown = await jobs.shown(identity_of(request)) if jobs is not None else None
        tasks = list(matching(shown.tasks, wanted, state)) if shown is not None else []
        return painter.page(
            request,
            "jobs.html",
            snapshot,
            current="Jobs",
            scope="jobs",
            shown=shown,
            tasks=tasks,
            wanted=wanted,
            state=state,
            states=_STATES,
            runs_spark=runs_spark,
        )

    return [Route("GET", "/jobs", page)]


def runs_spark(runs: tuple[int, ...], word: str) -> Spark | None:
    """Draw the runs of each half minute. `word` says how they ended."""
    drawn = spark([count * 60 / HISTORY_STEP for count in runs], HISTORY_STEP)
    return replace(drawn, label=f"{word} a minute: {drawn.label}", kind=word) if drawn is not None else None


def matching(tasks: Iterable[TaskRow], wanted: str, state: str) -> Iterable[TaskRow]:
    """Return the tasks that have all words in their name, library or queues, and perhaps jobs in this state."""
    words = wanted.lower().split()
    return (it for it in tasks if all(word in _text_of(it) for word in words) and _has(it, state))


def _text_of(task: TaskRow) -> str:
    return " ".join((task.name, *task.libraries, *(f"{topic}/{channel}" for topic, channel in task.queues))).lower()


def _has(task: TaskRow, state: str) -> bool:
    """Return True if a task may have jobs in this state: what is unknown is not ruled out."""
    if state == "all":
        return True
    if state == "running":
        return task.running != 0 if task.is_reported else task.in_flight.value != 0
    if state == "failed" and task.raised:
        return True
    quantity = {
        "failed": task.failed,
        "retrying": task.retrying,
        "scheduled": task.scheduled,
        "waiting": task.waiting,
    }[state]
    return quantity.value != 0
