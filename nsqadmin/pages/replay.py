"""Publishing a range of history once more: the range, and the consequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, identity_of, require
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.publish import REFUSED, number_in
from nsqadmin.pages.published import published_page
from nsqadmin.parts.messages import messages_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.messages.model import ReplayPlan
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _ReplayPages(services, painter)
    return [
        Route("GET", "/actions/replay", pages.confirm_replay),
        Route("POST", "/actions/replay", pages.replay),
    ]


class _ReplayPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    async def confirm_replay(self, request: Request) -> Response:
        try:
            values = dict(request.query_params)
            if "first" not in values:
                return await self._range_form(request, values.get("topic", ""))
            return await self._replay_page(request, await self._plan(request, values))
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)

    async def _range_form(self, request: Request, topic: str) -> Response:
        require(request, Right.PAYLOAD, topic)
        require(request, Right.PUBLISH)
        snapshot = await self._painter.picture(request)
        if snapshot.topic(topic) is None:
            raise HttpError(404, "TOPIC_NOT_FOUND", details={"reason": f"there is no topic {topic}"})
        logs = [log for log in await messages_of(self._services).logs(topic) if log.next > log.first]
        return self._painter.page(request, "replay.html", snapshot, topic=topic, ranges=logs)

    async def replay(self, request: Request) -> Response:
        try:
            form = await form_of(request)
            plan = await self._plan(request, form)
            if plan.must_type and form.get("typed") != plan.must_type:
                problem = f"Nothing was published: type “{plan.must_type}” to confirm."
                return await self._replay_page(request, plan, problem=problem, status=400)
            receipt = await messages_of(self._services).replay(plan, caller_of(request))
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)
        detail = f"{numbers.several(receipt.published, 'message')} to {plan.target}"
        if receipt.skipped:
            detail += f"; {numbers.several(receipt.skipped, 'message')} could no longer be read"
        again = ""
        if receipt.continue_at is not None:
            again = self._links.action(
                "replay",
                topic=plan.topic,
                node=plan.node,
                first=receipt.continue_at,
                end=plan.end,
                target=plan.target,
                log=plan.log,
            )
        return await published_page(
            self._painter,
            request,
            headline=plan.title,
            count=receipt.published,
            detail=f"{detail}.",
            failure=receipt.error,
            original=receipt.original_error,
            done=self._links.topic(plan.target, tab="messages"),
            again=again,
        )

    async def _plan(self, request: Request, values: Mapping[str, str]) -> ReplayPlan:
        topic = values.get("topic", "")
        first, end = number_in(values, "first", 0), number_in(values, "end", 0)
        return await messages_of(self._services).plan_replay(
            topic,
            values.get("node", ""),
            first,
            end,
            values.get("target", "") or topic,
            identity_of(request),
            log=values.get("log", ""),
        )

    async def _replay_page(
        self, request: Request, plan: ReplayPlan, *, problem: str = "", status: int = 200
    ) -> Response:
        snapshot = await self._painter.picture(request)
        return self._painter.page(request, "replay.html", snapshot, status=status, plan=plan, problem=problem)
