"""Kicking and discarding buried messages: the plan to confirm, the receipt, and the button that stops the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access.policy import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of, require
from nsqadmin.messages.buried_actions import (
    DEFAULT_RATE,
    BadTaking,
    Verb,
    Wanted,
    parse_kicks,
    parse_picks,
    parse_rate,
)
from nsqadmin.messages.changing import result_of
from nsqadmin.pages.messages import NO_CLUSTER
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.buried_actions import Taken, Taking
    from nsqadmin.messages.buried_service import Buried
    from nsqadmin.pages.painter import Painter
    from nsqadmin.services import Services

    Values = Mapping[str, Sequence[str]]

_ACTIONS: Final = {f"/actions/{verb}_buried": verb for verb in Verb}
_AGAIN: Final = "buried again"
_HIGHEST: Final = 1 << 53


class TakingPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    def routes(self) -> list[Route]:
        return [
            *(Route("GET", path, self.confirm) for path in _ACTIONS),
            *(Route("POST", path, self.take) for path in _ACTIONS),
            Route("POST", "/actions/stop_buried", self.stop),
            Route("POST", "/actions/undo_kick", self.undo),
        ]

    async def confirm(self, request: Request) -> Response:
        values = {name: request.query_params.getlist(name) for name in request.query_params}
        try:
            return await self._plan_page(request, values)
        except HttpError as error:
            return await self._painter.refusal(request, error, "Nothing was done")

    async def take(self, request: Request) -> Response:
        try:
            values = await lists_of(request)
            channel, taking = await self._plan(request, values)
            if taking.must_type and first_of(values, "typed").replace(",", "") != taking.must_type:
                problem = f"Nothing was done: type the number of messages, {taking.must_type}, to go on."
                return await self._plan_page(request, values, problem=problem)
            results = await self._buried().take(taking, caller_of(request))
        except HttpError as error:
            return await self._painter.refusal(request, error, "Nothing was done")
        verb = taking.wanted.verb
        return await self._receipt(request, channel, taking.title, results, verb.past, taking)

    async def stop(self, request: Request) -> Response:
        try:
            channel = await channel_in(self._painter, request, await lists_of(request))
            results = await self._buried().stop(channel, caller_of(request))
        except HttpError as error:
            return await self._painter.refusal(request, error, "Nothing was done")
        return await self._receipt(request, channel, f"Stop the rest in {channel.topic}/{channel.name}", results, "")

    async def undo(self, request: Request) -> Response:
        try:
            values = await lists_of(request)
            channel = await channel_in(self._painter, request, values)
            results = await self._buried().undo(channel, _kicks(channel, values), caller_of(request))
        except HttpError as error:
            return await self._painter.refusal(request, error, "Nothing was done")
        return await self._receipt(
            request, channel, f"Take back the kick of {channel.topic}/{channel.name}", results, _AGAIN
        )

    async def _plan(self, request: Request, values: Values) -> tuple[Channel, Taking]:
        channel = await channel_in(self._painter, request, values)
        try:
            return channel, await self._buried().plan(channel, _wanted(request, values), identity_of(request))
        except BadTaking as error:
            raise HttpError(400, "INVALID_REQUEST", details={"reason": f"{error}."}) from error

    async def _plan_page(self, request: Request, values: Values, *, problem: str = "") -> Response:
        channel, taking = await self._plan(request, values)
        verb = taking.wanted.verb
        return self._painter.page(
            request,
            "buried_plan.html",
            await self._painter.picture(request),
            status=400 if problem else 200,
            plan=taking,
            verb=verb.value,
            problem=problem,
            refusal=identity_of(request).why_not(verb.right, channel.topic),
            picks=[f"{id}@{node}" for node, id in taking.wanted.ids],
            rate=f"{taking.wanted.rate:g}" if taking.wanted.rate else "",
            back=self._links.channel(channel.topic, channel.name, tab="buried"),
        )

    async def _receipt(
        self,
        request: Request,
        channel: Channel,
        headline: str,
        results: Sequence[Taken],
        past: str,
        taking: Taking | None = None,
    ) -> Response:
        left_out = taking.left_out if taking is not None else ()
        return self._painter.page(
            request,
            "buried_taken.html",
            await self._painter.picture(request),
            headline=headline,
            result=result_of(results, left_out),
            rows=results,
            left_out=left_out,
            summary=_in_words(results, past),
            past=past,
            channel=channel,
            goes_on=past and any(it.job is not None for it in results),
            kicks=[f"{it.kick}@{it.node}" for it in results if it.kick and it.done],
            done=self._links.channel(channel.topic, channel.name, tab="buried"),
        )

    def _buried(self) -> Buried:
        messages = self._services.messages
        if messages is None:
            raise HttpError(403, "FORBIDDEN", details={"reason": NO_CLUSTER})
        return messages.buried


def _in_words(results: Sequence[Taken], past: str) -> str:
    """Return what has become of it, as a sentence."""
    if past == _AGAIN:
        words = _taken_back(results)
    elif past:
        words = f"{numbers.several(sum(it.done for it in results), 'message')} {past}"
        if left := sum(it.asked - it.done for it in results if it.job is not None):
            words += f" so far, {left:,} to go"
    else:
        stopped = [it for it in results if it.job is not None]
        words = "; ".join(_stopped(it) for it in stopped) or "Nothing was under way"
    if silent := [it.node for it in results if it.may_follow]:
        words += f"; asked, no answer: {', '.join(silent)}"
    return f"{words}."


def _taken_back(results: Sequence[Taken]) -> str:
    at_work = [it for it in results if it.job is not None]
    words = f"{numbers.several(sum(it.done for it in results), 'message')} {_AGAIN}"
    if at_work:
        return f"{words} so far; still at work on {', '.join(it.node for it in at_work)}"
    delivered = sum(it.asked - it.done for it in results)
    return f"{words}; {delivered:,} had been delivered, or were dropped, and stay as they are" if delivered else words


def _kicks(channel: Channel, values: Values) -> tuple[tuple[str, int], ...]:
    try:
        kicks = parse_kicks(values.get("kick", ()))
        if unknown := {node for node, _ in kicks} - {row.node for row in channel.nodes}:
            raise BadTaking(f"no node of this channel is known as {min(unknown)[:100]}")
    except BadTaking as error:
        raise HttpError(400, "INVALID_REQUEST", details={"reason": f"{error}."}) from error
    return kicks


def _stopped(taken: Taken) -> str:
    assert taken.job is not None
    past = Verb(taken.job.verb).past if taken.job.verb in tuple(Verb) else taken.job.verb
    of = f" of {taken.asked:,}" if taken.asked else ""
    return f"{taken.done:,}{of} had been {past} on {taken.node}, the rest stays buried"


def _wanted(request: Request, values: Values) -> Wanted:
    """Read what the user wants. Raise BadTaking."""
    verb = _ACTIONS[request.url.path[request.url.path.rindex("/actions/") :]]
    ids, force = parse_picks(values.get("pick", ())), first_of(values, "force") == "true"
    if ids:
        return Wanted(verb=verb, ids=ids, force=force)
    if first_of(values, "on") == "selected":
        raise BadTaking("select messages first")
    limit = first_of(values, "limit").strip()
    if limit and not (limit.isascii() and limit.isdecimal() and int(limit[:17]) < _HIGHEST):
        raise BadTaking(f"a limit is a number of messages, not {limit[:40]}")
    rate = first_of(values, "rate") if "rate" in values else f"{DEFAULT_RATE:g}" * (verb is Verb.KICK)
    reason = first_of(values, "reason")
    return Wanted(verb=verb, reason=reason, limit=int(limit or 0), rate=parse_rate(rate), force=force)


async def channel_in(painter: Painter, request: Request, values: Values) -> Channel:
    """Return the channel that a form names. Raises 403, 404."""
    topic = first_of(values, "topic")
    require(request, Right.VIEW, topic)
    channel = (await painter.picture(request)).channel(topic, first_of(values, "channel"))
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND", details={"reason": "This channel does not exist any more."})
    return channel


def first_of(values: Values, name: str) -> str:
    return next(iter(values.get(name, ())), "")
