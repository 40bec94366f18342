"""Retrying the failed jobs of a task: the plan to confirm, and how far it is."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Severity
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, require
from nsqadmin.jobs.retries import MOST_READ, NAME, STOP, CannotRetry
from nsqadmin.jobs.retry import RetryWanted, in_words
from nsqadmin.jobs.tasks import Trust
from nsqadmin.messages.buried_actions import DEFAULT_RATE, parse_rate
from nsqadmin.messages.lists import BadRequest
from nsqadmin.messages.selection_plan import who_receives
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.publish import number_in
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel
    from nsqadmin.http.responses import Caller
    from nsqadmin.jobs.retries import Retries
    from nsqadmin.jobs.retry import FailedReading, Retry
    from nsqadmin.jobs.tasks import Quantity
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_REFUSED: Final = "Nothing was retried"
_LONGEST_TOKEN: Final = 64
_PATIENCE: Final = 1.0  # seconds that an answer waits for the end, so that a short retry needs no second look


def routes(services: Services, painter: Painter) -> list[Route]:
    if services.retries is None:
        return []
    pages = _RetryPages(services.retries, painter)
    return [
        Route("GET", f"/actions/{NAME}", pages.plan),
        Route("POST", f"/actions/{NAME}", pages.begin),
        Route("POST", f"/actions/{STOP}", pages.stop),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a form asks for, and what there is."""

    channel: Channel
    wanted: RetryWanted
    reading: FailedReading

    @property
    def count(self) -> Quantity:
        return self.reading.count(self.wanted.reason)

    @property
    def title(self) -> str:
        most = self.wanted.limit
        value = self.count.value
        words = numbers.several(most, "failed job") if most and (value is None or most < value) else ""
        return f"Retry {words or in_words(self.count, 'failed job')} of {self.wanted.task}"


class _RetryPages:
    def __init__(self, retries: Retries, painter: Painter) -> None:
        self._retries = retries
        self._painter = painter

    async def plan(self, request: Request) -> Response:
        """Show the consequences."""
        try:
            return await self._form(request, await self._plan(request, dict(request.query_params)))
        except HttpError as error:
            return await refusal_page(self._painter, request, error, _REFUSED)

    async def begin(self, request: Request) -> Response:
        try:
            form = await form_of(request)
            token = form.get("token", "")[:_LONGEST_TOKEN]
            if (begun := await run_trio(self._begun, token, caller_of(request))) is not None:
                require(request, Right.PAYLOAD, begun.wanted.topic)
                return await self._receipt(request, begun)
            plan = await self._plan(request, form)
            if not plan.count.value and plan.count.trust is Trust.EXACT:
                reason = "No job of this task is buried on the nodes that answer."
                raise HttpError(404, "NOTHING_FOUND", details={"reason": reason})
            retry = await run_trio(self._retries.begin, plan.wanted, plan.reading, caller_of(request), token)
            await run_trio(self._retries.wait_or_note, retry, _PATIENCE, caller_of(request))
            return await self._receipt(request, retry)
        except (HttpError, CannotRetry) as error:
            return await refusal_page(self._painter, request, _refusal(error), _REFUSED)

    async def stop(self, request: Request) -> Response:
        try:
            form = await form_of(request)
            topic = form.get("topic", "")
            require(request, Right.PAYLOAD, topic)
            require(request, Right.OPERATE, topic)
            retry = await run_trio(self._retries.stop, topic, form.get("retry", ""), caller_of(request).name)
            await run_trio(self._retries.wait, retry, _PATIENCE)
            return await self._receipt(request, retry)
        except (HttpError, CannotRetry) as error:
            return await refusal_page(self._painter, request, _refusal(error), "Nothing was stopped")

    async def _begun(self, token: str, caller: Caller) -> Retry | None:
        """Return the retry that this form has begun before, once it has ended or after a moment."""
        retry = self._retries.begun(token, caller)
        if retry is not None:
            await self._retries.wait(retry, _PATIENCE)
        return retry

    async def _plan(self, request: Request, values: Mapping[str, str]) -> _Plan:
        """Read what a form asks for. Raise 400, 403, 404."""
        topic, task = values.get("topic", ""), values.get("task", "")
        identity = require(request, Right.PAYLOAD, topic)
        channel = (await self._painter.picture(request)).channel(topic, values.get("channel", ""))
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND", details={"reason": "This channel does not exist any more."})
        try:
            wanted = RetryWanted(
                topic=topic,
                channel=channel.name,
                task=task,
                reason=values.get("reason", ""),
                rate=parse_rate(values.get("rate", f"{DEFAULT_RATE:g}")),
                limit=number_in(values, "limit", 0),
            )
        except BadRequest as error:
            raise HttpError(400, "INVALID_REQUEST", details={"reason": f"{error}."}) from error
        reading = await run_trio(self._retries.reading, channel, task, identity)
        return _Plan(channel=channel, wanted=wanted, reading=reading)

    async def _form(self, request: Request, plan: _Plan) -> Response:
        return self._painter.page(
            request,
            "retry.html",
            await self._painter.picture(request),
            plan=plan,
            title=plan.title,
            rate=f"{plan.wanted.rate:g}" if plan.wanted.rate else "",
            consequences=tuple(_consequences(plan)),
            is_empty=plan.count.value == 0,
            token=secrets.token_hex(16),
            back=self._painter.links.to("/jobs/task", name=plan.wanted.task),
        )

    async def _receipt(self, request: Request, retry: Retry) -> Response:
        wanted = retry.wanted
        return self._painter.page(
            request,
            "retry.html",
            await self._painter.picture(request),
            retry=retry,
            title=f"Retry failed jobs of {wanted.task}",
            result=retry.result,
            back=self._painter.links.to("/jobs/task", name=wanted.task),
        )


def _refusal(error: HttpError | CannotRetry) -> HttpError:
    if isinstance(error, HttpError):
        return error
    return HttpError(error.status, "CANNOT_RETRY", details={"reason": str(error)})


def _consequences(plan: _Plan) -> Iterator[Consequence]:
    reading, wanted, count = plan.reading, plan.wanted, plan.count
    for node, why in sorted(reading.missing.items()):
        if node in reading.silent:
            text = f"{node} did not report its buried messages: {why}. Its jobs stay buried."
        else:
            text = f"{node} was not read to the end: {why}. Jobs that were not found stay buried."
        yield Consequence(text=text, severity=Severity.WARNING)
    if count.value == 0:
        yield Consequence(text="No job of this task is buried on the other nodes.", severity=Severity.WARNING)
        return
    if reading.after:
        text = (
            f"The number is an estimate from the first {reading.looked:,} of {reading.total:,} buried messages"
            f" (at most {MOST_READ:,} are read for a plan). The others are searched while it runs."
        )
        yield Consequence(text=text)
    yield Consequence(
        text="Kicks the jobs' buried messages: each job runs again once, in this queue only; attempts restart at 1."
    )
    yield from who_receives(plan.channel, sorted({it.node for it in reading.with_reason(wanted.reason)}))
    if wanted.rate:
        most = min(filter(None, (count.value, wanted.limit)), default=0)
        lasts = f": about {numbers.duration(max(1.0, most / wanted.rate))}" if most else ""
        yield Consequence(text=f"At most {wanted.rate:,.10g} a second over all nodes{lasts}.")
    else:
        yield Consequence(text="No limit: as fast as the nodes can.")
    text = "While it runs, the task's page has a button Stop, which leaves the other jobs buried. "
    text += "Restarting nsqadmin stops it, too."
    yield Consequence(text=text)
    yield Consequence(text="For 10 minutes after it ends, Undo buries again the jobs that no worker has received.")
