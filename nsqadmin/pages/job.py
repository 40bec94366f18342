"""The page of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, require
from nsqadmin.jobs.instances import Finder
from nsqadmin.pages.error import missing_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    if services.jobs is None or services.messages is None:
        return []
    pages = _JobPages(services.jobs, Finder(services.jobs, services.messages), painter)
    return [
        Route("GET", "/jobs/job", pages.job),
        Route("GET", "/jobs/{id}", pages.by_id),
    ]


class _JobPages:
    def __init__(self, jobs: Jobs, finder: Finder, painter: Painter) -> None:
        self._jobs = jobs
        self._finder = finder
        self._painter = painter

    async def job(self, request: Request) -> Response:
        """Show the job named by `topic=`, `id=` and optionally `channel=`."""
        arguments = request.query_params
        topic, id = arguments.get("topic", ""), arguments.get("id", "")
        identity = require(request, Right.PAYLOAD, topic)
        channel = self._jobs.channel(identity, topic, arguments.get("channel", ""))
        return await self._job(request, identity, channel, id)

    async def by_id(self, request: Request) -> Response:
        """Show the job with this id, wherever it is."""
        identity, id = identity_of(request), str(request.path_params["id"])
        topics = await self._finder.topics_of(id, identity)
        channel = self._jobs.channel(identity, topics[0], "") if topics else None
        return await self._job(request, identity, channel, id, others=topics[1:])

    async def _job(
        self, request: Request, identity: Identity, channel: Channel | None, id: str, others: Sequence[str] = ()
    ) -> Response:
        view = await self._finder.job(channel, id, identity) if channel is not None and id else None
        if view is None or channel is None:
            text = "It is not buried, deferred or with a worker, and neither the history nor a report has it."
            return await missing_job(self._painter, request, f"No job {id[:100]}", text)
        return self._painter.page(
            request,
            "job.html",
            await self._painter.picture(request),
            current="Jobs",
            view=view,
            others=others,
            no_run=identity.why_not(Right.OPERATE, channel.topic),
        )
