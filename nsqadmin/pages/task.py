"""The jobs of one task."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.jobs.instances import Finder
from nsqadmin.pages.error import missing_job

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.jobs.instances import QueuedJobs
    from nsqadmin.jobs.retries import Retries
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.messages.service import Messages
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_MOST_REASONS: Final = 5


def routes(services: Services, painter: Painter) -> list[Route]:
    if services.jobs is None or services.messages is None:
        return []
    pages = _TaskPages(services.jobs, services.messages, services.retries, painter)
    return [Route("GET", "/jobs/task", pages.task)]


class _TaskPages:
    def __init__(self, jobs: Jobs, messages: Messages, retries: Retries | None, painter: Painter) -> None:
        self._jobs = jobs
        self._retries = retries
        self._messages = messages
        self._finder = Finder(jobs, messages)
        self._painter = painter

    async def task(self, request: Request) -> Response:
        """Show the jobs of the task `name=` that are buried, deferred or in flight."""
        identity, name = identity_of(request), request.query_params.get("name", "")
        snapshot = await self._painter.picture(request)
        shown = await self._jobs.shown(identity)
        row = next((it for it in shown.tasks if it.name == name), None)
        if row is None:
            text = "No queue that you may look into has a job of this name now, and no worker has reported one."
            return await missing_job(self._painter, request, f"No task {name[:100]}" if name else "No task", text)
        channels = [it for it in self._jobs.channels(identity) if (it.topic, it.name) in row.queues]
        found = await self._finder.of_task(name, channels, identity)
        running = {(it.topic, it.id): it for it in self._jobs.book.running() if it.name == name}
        failures = [
            it for it in self._jobs.book.failures() if it.name == name and identity.may(Right.PAYLOAD, it.topic)
        ]
        buried = {(it.channel.topic, _job_id(one)) for it in found for one in it.buried}
        return self._painter.page(
            request,
            "task.html",
            snapshot,
            current="Jobs",
            scope="jobs",
            row=row,
            shown=shown,
            queues=found,
            reasons={(it.channel.topic, it.channel.name): self._reasons(it, identity) for it in found},
            running=running,
            retries={
                (it.topic, it.name): self._retries.of(it.topic, it.name, name) if self._retries else []
                for it in channels
            },
            others=[it for it in failures if (it.topic, it.id) not in buried][:20],
        )

    def _reasons(self, queue: QueuedJobs, identity: Identity) -> list[tuple[str, str, int]]:
        """Return the most frequent reasons of a queue's failed jobs: text, name in addresses, and number."""
        sight = self._messages.buried.sight(queue.channel, identity)
        counts = Counter(it.reason for it in queue.buried if it.reason)
        return [(reason, sight.name(reason), count) for reason, count in counts.most_common(_MOST_REASONS)]


def _job_id(one: Any) -> str:
    job = one.message.job if one.message is not None else None
    return job.id if job is not None else ""
