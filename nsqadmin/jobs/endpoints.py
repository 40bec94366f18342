"""The endpoints for jobs: `jobs*` under `/api/v2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqadmin.access import Right
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, json_answer, require
from nsqadmin.messages.model import message_json
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.jobs.instances import Finder, JobView
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.jobs.tasks import Quantity, TaskRow


def routes(jobs: Jobs, finder: Finder) -> list[Route]:
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
                "unlisted_jobs": shown.unlisted_jobs,
                "taken_at": shown.taken_at,
            }
        )

    async def job(request: Request) -> Response:
        """Send what is known of the job that `topic=`, `id=` and optionally `channel=` name."""
        topic, id, name = (request.query_params.get(it, "") for it in ("topic", "id", "channel"))
        identity = require(request, Right.PAYLOAD, topic)
        channel = jobs.channel(identity, topic, name)
        view = await finder.job(channel, id, identity) if channel is not None and id else None
        if view is None:
            raise HttpError(404, "JOB_NOT_FOUND")
        return json_answer(job_json(view))

    return [Route("GET", "/api/v2/jobs", tasks), Route("GET", "/api/v2/jobs/job", job)]


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
        "raised": task.raised if task.is_reported else None,
    }


def job_json(view: JobView) -> dict[str, Any]:
    message, queued = view.message, view.queued
    return {
        "topic": view.topic,
        "channel": view.channel,
        "id": view.id,
        "name": view.name,
        "library": view.library,
        "state": view.state,
        "is_reported": view.is_reported,
        "worker": view.worker,
        "error": view.error,
        "traceback": view.traceback,
        "arguments": to_json(view.arguments),
        "timeline": to_json(view.timeline),
        "message": message_json(message, most=None) if message is not None else None,
        "buried": [it.pick for it in queued.buried],
        "deferred": [it.pick for it in queued.deferred],
        "missing": [{"node": node, "reason": why} for node, why in queued.missing],
    }


def _quantity(it: Quantity) -> dict[str, Any]:
    return {"value": it.value, "trust": it.trust.value}
