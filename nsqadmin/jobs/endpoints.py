"""The endpoints for jobs: `jobs*` under `/api/v2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, json_answer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.jobs.service import Jobs
    from nsqadmin.jobs.tasks import Quantity, TaskRow


def routes(jobs: Jobs) -> list[Route]:
    async def tasks(request: Request) -> Response:
        """Send all tasks and queues that the user may see."""
        shown = await jobs.shown(identity_of(request))
        return json_answer(
            {
                "tasks": [task_json(it) for it in shown.tasks],
                "queues": to_json(shown.queues),
                "hidden": list(shown.hidden),
                "missing": [{"node": node, "reason": why} for node, why in (*shown.missing, *shown.troubles)],
                "dropped_reports": shown.dropped,
                "unlisted_reports": shown.unlisted,
                "taken_at": shown.taken_at,
            }
        )

    return [Route("GET", "/api/v2/jobs", tasks)]


def task_json(task: TaskRow) -> dict[str, Any]:
    """Return a task. A number that isn't exact says so, and an unknown one is null."""
    return {
        "name": task.name,
        "libraries": list(task.libraries),
        "queues": [{"topic": topic, "channel": channel} for topic, channel in task.queues],
        "is_reported": task.is_reported,
        "waiting": _quantity(task.waiting),
        "in_flight": _quantity(task.in_flight),
        "running": task.running,
        "scheduled": _quantity(task.scheduled),
        "retrying": _quantity(task.retrying),
        "failed": _quantity(task.failed),
        "done_a_minute": task.done_a_minute,
        "p50": task.p50,
        "p95": task.p95,
        "error": task.error,
        "error_count": task.error_count,
    }


def _quantity(it: Quantity) -> dict[str, Any]:
    return {"value": it.value, "trust": it.trust.value}
