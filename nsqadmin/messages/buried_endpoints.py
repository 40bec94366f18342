"""The endpoints for buried messages: `buried/*` under `/api/v2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nsqadmin.access.policy import Right
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, json_answer, number_argument, object_of, require, word_in
from nsqadmin.messages.buried import Burial, Look
from nsqadmin.messages.buried_actions import DEFAULT_RATE, BadTaking, Taking, Verb, Wanted, parse_picks, parse_rate
from nsqadmin.messages.buried_reading import MOST
from nsqadmin.messages.changing import result_of
from nsqadmin.messages.endpoints import channel_named
from nsqadmin.messages.lists import parse_places
from nsqadmin.messages.model import message_json
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.view import View
    from nsqadmin.messages.buried_service import Buried

_HIGHEST: Final = 1 << 53


def routes(buried: Buried, view: View) -> list[Route]:
    endpoints = _Endpoints(buried, view)
    return [
        Route("GET", "/api/v2/buried/{topic}/{channel}", endpoints.read),
        Route("POST", "/api/v2/buried/plan", endpoints.plan),
        Route("POST", "/api/v2/buried", endpoints.take),
        Route("POST", "/api/v2/buried/stop", endpoints.stop),
    ]


class _Endpoints:
    def __init__(self, buried: Buried, view: View) -> None:
        self._buried = buried
        self._view = view

    async def read(self, request: Request) -> Response:
        """Send what is buried on each node, and a page of messages. Arguments: `reason=`, `node=`, `limit=`, `after=`."""
        channel = channel_named(self._view, request, request.path_params)
        arguments = request.query_params
        try:
            after = parse_places(arguments.get("after", ""))
        except ValueError as error:
            raise HttpError(400, "INVALID_ARG_AFTER", details={"reason": str(error)}) from error
        look = Look(
            after=after,
            limit=number_argument(request, "limit", 100, least=1, most=MOST),
            reason=arguments.get("reason", ""),
            node=arguments.get("node", ""),
        )
        identity = require(request, Right.VIEW, channel.topic)
        summary = await self._buried.summary(channel, identity)
        try:
            page = await self._buried.page(channel, identity, look)
        except BadTaking as error:
            raise HttpError(400, "INVALID_ARG_REASON", details={"reason": str(error)}) from error
        return json_answer(
            {
                "nodes": to_json(summary.nodes),
                "messages": [_burial_json(it) for it in page.burials],
                "after": page.after,
                "missing": [{"node": node, "reason": why} for node, why in page.missing],
            }
        )

    async def plan(self, request: Request) -> Response:
        """Send what a kick or discard would do, after asking the nodes."""
        taking = await self._plan(request, await object_of(request))
        return json_answer({**to_json(taking), "count": taking.count})

    async def take(self, request: Request) -> Response:
        """Kick or discard. The status is 200 even if some or all nodes failed.

        A discard that does not name its messages has to say their number, `count`, as people have to type it.
        """
        body = await object_of(request)
        taking = await self._plan(request, body)
        if taking.must_type and str(body.get("count")) != taking.must_type:
            reason = f"nothing was done: count has to be {taking.must_type}, the number of messages to discard"
            raise HttpError(400, "INVALID_COUNT", details={"reason": reason})
        rows = await self._buried.take(taking, caller_of(request))
        result = result_of(rows, taking.left_out)
        return json_answer({"result": result, "nodes": to_json(rows), "left_out": to_json(taking.left_out)})

    async def stop(self, request: Request) -> Response:
        """End every kick and discard that is under way in `{"topic":"t","channel":"c"}`."""
        channel = channel_named(self._view, request, await object_of(request))
        rows = await self._buried.stop(channel, caller_of(request))
        return json_answer({"result": result_of(rows), "nodes": to_json(rows)})

    async def _plan(self, request: Request, body: Mapping[str, Any]) -> Taking:
        channel = channel_named(self._view, request, body)
        try:
            return await self._buried.plan(channel, _wanted(body), identity_of(request))
        except BadTaking as error:
            raise HttpError(400, "INVALID_MESSAGES", details={"reason": str(error)}) from error


def _wanted(body: Mapping[str, Any]) -> Wanted:
    """Read `{"verb":"kick","messages":"ID@NODE ..."}`, or instead of messages `reason`, `limit`, `rate`. Raise BadTaking."""
    force = body.get("force", False)
    if not isinstance(force, bool):
        raise BadTaking("force is true or false")
    word, ids = word_in(body, "verb"), parse_picks(word_in(body, "messages").split())
    if word not in tuple(Verb):
        raise HttpError(400, "INVALID_ACTION", details={"reason": f"verb: one of {', '.join(Verb)}"})
    verb = Verb(word)
    if ids or "messages" in body:
        if not ids or body.keys() & {"reason", "limit", "rate"}:
            raise BadTaking("messages names at least one, and then there is no reason, limit or rate")
        return Wanted(verb=verb, ids=ids, force=force)
    limit, rate = body.get("limit", 0), body.get("rate", DEFAULT_RATE if verb is Verb.KICK else 0)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < _HIGHEST:
        raise HttpError(400, "INVALID_LIMIT", details={"reason": "limit is a number of messages; 0: all"})
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise HttpError(400, "INVALID_RATE", details={"reason": "rate is a number of messages a second; 0: no bound"})
    rate = parse_rate(str(rate) if rate else "")
    return Wanted(verb=verb, reason=word_in(body, "reason"), limit=limit, rate=rate, force=force)


def _burial_json(burial: Burial) -> dict[str, Any]:
    fields = ("node", "id", "sequence", "attempts", "buried_at", "reason", "client", "unread")
    message = message_json(burial.message, most=None) if burial.message is not None else None
    return {**{name: getattr(burial, name) for name in fields}, "message": message}
