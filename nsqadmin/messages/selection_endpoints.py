"""The endpoints for deferred messages: `deferred/*` under `/api/v2`."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.access.policy import Right
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, json_answer, number_argument, object_of, require, word_in
from nsqadmin.messages.buried_actions import BadTaking
from nsqadmin.messages.changing import result_of
from nsqadmin.messages.deferred import Deferral, DeferredLook
from nsqadmin.messages.deferred_actions import Chosen, RecallVerb, RecallWanted, parse_when
from nsqadmin.messages.endpoints import MOST_BODY, channel_named, filter_of, selection_of
from nsqadmin.messages.lists import parse_places
from nsqadmin.messages.model import message_json
from nsqadmin.messages.selection_reading import MOST
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.view import View
    from nsqadmin.messages.deferred_actions import Recalling
    from nsqadmin.messages.deferred_service import DeferredMessages

_MOST_SECONDS: Final = 20


def routes(deferred: DeferredMessages, view: View) -> list[Route]:
    endpoints = _Endpoints(deferred, view)
    return [
        Route("GET", "/api/v2/deferred/{topic}/{channel}", endpoints.read),
        Route("POST", "/api/v2/deferred/plan", endpoints.plan),
        Route("POST", "/api/v2/deferred", endpoints.recall),
    ]


class _Endpoints:
    def __init__(self, deferred: DeferredMessages, view: View) -> None:
        self._deferred = deferred
        self._view = view

    async def read(self, request: Request) -> Response:
        """Send how many messages each node has deferred, and one step of a look at them."""
        channel = channel_named(self._view, request, request.path_params)
        arguments = request.query_params
        try:
            after = parse_places(arguments.get("after", ""))
        except ValueError as error:
            raise HttpError(400, "INVALID_ARG_AFTER", details={"reason": str(error)}) from error
        look = DeferredLook(
            wanted=filter_of(arguments.get("filter", "")),
            limit=number_argument(request, "limit", 100, least=1, most=MOST),
            after=after,
            node=arguments.get("node", ""),
            seconds=number_argument(request, "seconds", 2, least=1, most=_MOST_SECONDS),
        )
        summary = await self._deferred.summary(channel)
        page = await self._deferred.page(channel, summary, require(request, Right.VIEW, channel.topic), look)
        return json_answer(
            {
                "nodes": to_json(summary.nodes),
                "messages": [_deferral_json(it) for it in page.deferrals],
                "after": page.after,
                "looked": page.looked,
                "reached": page.reached,
                "missing": [{"node": node, "reason": why} for node, why in page.missing],
            }
        )

    async def plan(self, request: Request) -> Response:
        """Send what a cancel or move would do, after asking the nodes."""
        recalling, chosen = await self._plan(request, await object_of(request, limit=MOST_BODY))
        return json_answer({**to_json(recalling), "count": recalling.count, "remarks": chosen.remarks})

    async def recall(self, request: Request) -> Response:
        """Cancel or move. The status is 200 even if some or all nodes failed.

        A cancel that does not name its messages has to say their number, `count`, as people have to type it.
        """
        body = await object_of(request, limit=MOST_BODY)
        recalling, chosen = await self._plan(request, body)
        by_name = "messages" in body
        if (
            recalling.wanted.verb is RecallVerb.CANCEL
            and not by_name
            and str(body.get("count")) != str(recalling.count)
        ):
            reason = f"nothing was done: count has to be {recalling.count}, the number of messages to cancel"
            raise HttpError(400, "INVALID_COUNT", details={"reason": reason})
        rows = await self._deferred.recall(recalling, caller_of(request))
        return json_answer(
            {
                "result": result_of(rows, recalling.left_out),
                "nodes": to_json(rows),
                "left_out": to_json(recalling.left_out),
                "remarks": chosen.remarks,
            }
        )

    async def _plan(self, request: Request, body: Mapping[str, Any]) -> tuple[Recalling, Chosen]:
        channel = channel_named(self._view, request, body)
        word = word_in(body, "verb")
        if word not in tuple(RecallVerb):
            raise HttpError(400, "INVALID_ACTION", details={"reason": f"verb: one of {', '.join(RecallVerb)}"})
        verb = RecallVerb(word)
        if ("messages" in body) == ("filter" in body):
            raise HttpError(400, "INVALID_MESSAGES", details={"reason": "either messages, or a filter"})
        try:
            when = word_in(body, "when")
            delay = parse_when(when, time()) if verb is RecallVerb.DUE else None
            if "messages" in body:
                chosen = Chosen(selection=selection_of(word_in(body, "messages")))
            else:
                wanted = filter_of(word_in(body, "filter"))
                chosen = await self._deferred.matching(channel, identity_of(request), wanted, word_in(body, "node"))
            asked = RecallWanted(verb=verb, when=when, delay=delay)
            return await self._deferred.plan(channel, chosen.selection, asked), chosen
        except BadTaking as error:
            raise HttpError(400, "INVALID_MESSAGES", details={"reason": str(error)}) from error


def _deferral_json(deferral: Deferral) -> dict[str, Any]:
    fields = ("node", "log", "sequence", "id", "key", "due", "attempts", "pick", "unread")
    message = message_json(deferral.message, most=None) if deferral.message is not None else None
    return {**{name: getattr(deferral, name) for name in fields}, "message": message}
