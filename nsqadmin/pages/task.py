"""The jobs of one task."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.jobs.instances import Finder
from nsqadmin.messages.reason_groups import most_frequent
from nsqadmin.pages.error import missing_job

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.jobs.instances import QueuedJobs
    from nsqadmin.jobs.retries import Retries
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.messages.service import Messages
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services
    from nsqcommon.job_reports import JobEvent

_MOST_REASONS: Final = 5
_MOST_REPORTED: Final = 20  # failures of a queue that aren't buried


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
        listed = next((it for it in shown.tasks if it.name == name), None)
        row = listed or self._jobs.unlisted(name, identity)
        channels = [it for it in self._jobs.channels(identity) if row is not None and (it.topic, it.name) in row.queues]
        found = await self._finder.of_task(name, channels, identity)
        if row is None or (listed is None and all(it.is_empty and not it.missing for it in found)):
            text = "No queue that you may look into has a job of this name now, and no worker has reported one."
            if shown.unlisted_jobs:
                text = "None was found among the jobs that could be read. There are too many task names to list them."
            return await missing_job(self._painter, request, f"No task {name[:100]}" if name else "No task", text)
        running = {(it.topic, it.id): it for it in self._jobs.book.running() if it.name == name}
        held = {(it.channel.topic, job.id) for it in found for job in it.jobs}
        others = [
            it
            for it in self._jobs.book.failures()
            if it.name == name and identity.may(Right.PAYLOAD, it.topic) and (it.topic, it.id) not in held
        ]
        return self._painter.page(
            request,
            "task.html",
            snapshot,
            current="Jobs",
            scope="jobs",
            row=row,
            shown=shown,
            queues=found,
            reasons={(it.channel.topic, it.channel.name): _reasons(it) for it in found},
            running=running,
            retries={
                (it.topic, it.name): self._retries.of(it.topic, it.name, name) if self._retries else []
                for it in channels
            },
            others=_by_queue(others),
            raised={(it.topic, it.id) for it in self._jobs.book.raised()},
        )


def _by_queue(events: Iterable[JobEvent]) -> list[tuple[tuple[str, str], list[JobEvent]]]:
    """Return the newest events of each queue."""
    found: dict[tuple[str, str], list[JobEvent]] = {}
    for it in events:
        found.setdefault((it.topic, it.channel), []).append(it)
    return [(queue, some[:_MOST_REPORTED]) for queue, some in found.items()]


def _reasons(queue: QueuedJobs) -> list[tuple[str, int]]:
    """Return the most frequent errors of a queue's failed jobs, and patterns of several."""
    return most_frequent(Counter(it.reason for it in queue.buried if it.reason), _MOST_REASONS)
