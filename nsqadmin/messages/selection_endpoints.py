"""The endpoints for lists of messages: `buried/*`, `deferred/*` and `inflight/*` under `/api/v2`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from nsqadmin.access import Right
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.responses import MOST_BODY as MOST_SHORT_BODY
from nsqadmin.http.responses import caller_of, identity_of, json_answer, number_argument, object_of, require, word_in
from nsqadmin.messages.buried import Burial, NodeSummary
from nsqadmin.messages.buried_actions import DEFAULT_RATE, Verb, Wanted, parse_picks, parse_rate, stop_plan
from nsqadmin.messages.deferred import Deferral, NodeDeferred
from nsqadmin.messages.deferred_actions import Chosen, RecallVerb, RecallWanted, parse_when
from nsqadmin.messages.endpoints import MOST_BODY, channel_named, filter_of, selection_of
from nsqadmin.messages.in_flight import MessageInFlight, NodeInFlight
from nsqadmin.messages.jobs import job_json
from nsqadmin.messages.lists import BadRequest, ListedMessage, ListPage, Look, NodeCount, parse_places
from nsqadmin.messages.model import message_json
from nsqadmin.messages.selection_plan import result_of
from nsqadmin.messages.selection_reading import MOST
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.messages.selection_plan import SelectionPlan
    from nsqadmin.messages.selections import BuriedSelections, DeferredSelections, Selections
    from nsqadmin.messages.service import Messages

_HIGHEST: Final = 1 << 53
_MOST_SECONDS: Final = 20

N = TypeVar("N", bound=NodeCount)
M = TypeVar("M", bound=ListedMessage)


def routes(messages: Messages, view: View) -> list[Route]:
    buried, deferred = _Buried(messages.buried, view), _Deferred(messages.deferred, view)
    in_flight = _InFlight(messages.in_flight, view)
    return [
        Route("GET", "/api/v2/buried/{topic}/{channel}", buried.read),
        Route("POST", "/api/v2/buried/plan", buried.plan),
        Route("POST", "/api/v2/buried", buried.act),
        Route("POST", "/api/v2/buried/stop", buried.stop),
        Route("GET", "/api/v2/deferred/{topic}/{channel}", deferred.read),
        Route("POST", "/api/v2/deferred/plan", deferred.plan),
        Route("POST", "/api/v2/deferred", deferred.act),
        Route("GET", "/api/v2/inflight/{topic}/{channel}", in_flight.read),
    ]


class _Lists(ABC, Generic[N, M]):
    """Reads the messages of one kind. The subclasses parse their requests and format their messages."""

    fields: tuple[str, ...]  # of a message in answers

    def __init__(self, selections: Selections[N, M], view: View) -> None:
        self._all = selections
        self._view = view

    async def read(self, request: Request) -> Response:
        """Send each node's number of messages, and a page of them. Arguments: `node=`, `limit=`, `after=`, and more."""
        channel = channel_named(self._view, request, request.path_params)
        arguments = request.query_params
        try:
            after = parse_places(arguments.get("after", ""))
        except ValueError as error:
            raise HttpError(400, "INVALID_ARG_AFTER", details={"reason": str(error)}) from error
        limit = number_argument(request, "limit", 100, least=1, most=MOST)
        look = self.look(request, Look(after=after, limit=limit, node=arguments.get("node", "")))
        try:
            summary, page = await self._all.read(channel, require(request, Right.VIEW, channel.topic), look)
        except BadRequest as error:
            raise HttpError(400, "INVALID_ARG_REASON", details={"reason": str(error)}) from error
        return json_answer(
            {
                "nodes": to_json(summary.nodes),
                "messages": [self._json(it) for it in page.lines],
                "after": page.after,
                **self.progress(page),
                "missing": [{"node": node, "reason": why} for node, why in page.missing],
            }
        )

    def _json(self, one: M) -> dict[str, Any]:
        message = message_json(one.message, most=None) if one.message is not None else None
        return {**{name: getattr(one, name) for name in self.fields}, "message": message}

    # Differences between the kinds

    @abstractmethod
    def look(self, request: Request, look: Look) -> Look: ...

    def progress(self, page: ListPage[M]) -> dict[str, Any]:
        return {}


class _InFlight(_Lists[NodeInFlight, MessageInFlight]):
    fields = (
        "node",
        "log",
        "id",
        "attempts",
        "since",
        "age",
        "deadline",
        "last_touch",
        "published",
        "size",
        "key",
        "group",
        "is_withheld",
        "unread",
    )

    def look(self, request: Request, look: Look) -> Look:
        return replace(look, client=request.query_params.get("client", ""))

    def _json(self, one: MessageInFlight) -> dict[str, Any]:
        document = {name: getattr(one, name) for name in self.fields}
        document |= {"sequence": one.known_sequence, "consumer": to_json(one.consumer), "headers": dict(one.headers)}
        return document | {"job": job_json(one.job) if one.job is not None else None}


class _Endpoints(_Lists[N, M]):
    """The endpoints of a kind on which users can act."""

    most_body: int  # bytes of a request

    async def plan(self, request: Request) -> Response:
        """Send the consequences of an action, after asking the nodes."""
        plan = await self._planned(request, await object_of(request, limit=self.most_body))
        return json_answer({**to_json(plan), "count": plan.count})

    async def act(self, request: Request) -> Response:
        """Do it. The status is 200 even if some or all nodes failed.

        A final action that doesn't name its messages has to include their number, `count`, as people have to type it.
        """
        body = await object_of(request, limit=self.most_body)
        plan = await self._planned(request, body)
        if plan.must_type and str(body.get("count")) != plan.must_type:
            reason = (
                f"nothing was done: count has to be {plan.must_type}, the number of messages to {word_in(body, 'verb')}"
            )
            raise HttpError(400, "INVALID_COUNT", details={"reason": reason})
        return await self._done(request, plan)

    async def _done(self, request: Request, plan: SelectionPlan[Any, Any]) -> Response:
        rows = await self._all.act(plan, caller_of(request))
        left_out = to_json(plan.left_out)
        document = {"result": result_of(rows, plan.left_out), "nodes": to_json(rows), "left_out": left_out}
        return json_answer(document | self.remarks(plan))

    async def _planned(self, request: Request, body: Mapping[str, Any]) -> SelectionPlan[Any, Any]:
        channel = channel_named(self._view, request, body)
        try:
            return await self.planned(channel, body, identity_of(request))
        except BadRequest as error:
            raise HttpError(400, "INVALID_MESSAGES", details={"reason": str(error)}) from error

    # Differences between the kinds

    def remarks(self, plan: Any) -> dict[str, Any]:
        return {}

    @abstractmethod
    async def planned(
        self, channel: Channel, body: Mapping[str, Any], identity: Identity
    ) -> SelectionPlan[Any, Any]: ...


def _verb_in(body: Mapping[str, Any], verbs: type[StrEnum]) -> str:
    word = word_in(body, "verb")
    if word not in tuple(verbs):
        raise HttpError(400, "INVALID_ACTION", details={"reason": f"verb: one of {', '.join(verbs)}"})
    return word


class _Buried(_Endpoints[NodeSummary, Burial]):
    fields = ("node", "id", "sequence", "attempts", "buried_at", "reason", "client", "unread")
    most_body = MOST_SHORT_BODY

    def __init__(self, selections: BuriedSelections, view: View) -> None:
        super().__init__(selections, view)
        self._selections = selections

    def look(self, request: Request, look: Look) -> Look:
        return replace(look, reason=request.query_params.get("reason", ""))

    async def planned(self, channel: Channel, body: Mapping[str, Any], identity: Identity) -> SelectionPlan[Any, Any]:
        return await self._selections.plan(channel, _wanted(body), identity)

    async def stop(self, request: Request) -> Response:
        """End every running kick and discard in `{"topic":"t","channel":"c"}`."""
        plan = stop_plan(channel_named(self._view, request, await object_of(request)))
        rows = await self._selections.act(plan, caller_of(request))
        return json_answer({"result": result_of(rows), "nodes": to_json(rows)})


def _wanted(body: Mapping[str, Any]) -> Wanted:
    """Parse `{"verb":"kick","messages":"ID@NODE ..."}`, or with `reason`, `limit`, `rate`. Raise BadRequest."""
    force = body.get("force", False)
    if not isinstance(force, bool):
        raise BadRequest("force is true or false")
    ids = parse_picks(word_in(body, "messages").split())
    verb = Verb(_verb_in(body, Verb))
    if ids or "messages" in body:
        if not ids or body.keys() & {"reason", "limit", "rate"}:
            raise BadRequest("messages names at least one, and then there is no reason, limit or rate")
        return Wanted(verb=verb, ids=ids, force=force)
    limit, rate = body.get("limit", 0), body.get("rate", DEFAULT_RATE if verb is Verb.KICK else 0)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < _HIGHEST:
        raise HttpError(400, "INVALID_LIMIT", details={"reason": "limit is a number of messages; 0: all"})
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise HttpError(400, "INVALID_RATE", details={"reason": "rate is a number of messages a second; 0: no bound"})
    rate = parse_rate(str(rate) if rate else "")
    return Wanted(verb=verb, reason=word_in(body, "reason"), limit=limit, rate=rate, force=force)


class _Deferred(_Endpoints[NodeDeferred, Deferral]):
    fields = ("node", "log", "sequence", "id", "key", "due", "attempts", "pick", "unread")
    most_body = MOST_BODY

    def __init__(self, selections: DeferredSelections, view: View) -> None:
        super().__init__(selections, view)
        self._selections = selections

    def look(self, request: Request, look: Look) -> Look:
        wanted = filter_of(request.query_params.get("filter", ""))
        return replace(look, wanted=wanted, seconds=number_argument(request, "seconds", 2, least=1, most=_MOST_SECONDS))

    def progress(self, page: ListPage[Deferral]) -> dict[str, Any]:
        return {"looked": page.looked, "reached": page.reached}

    def remarks(self, plan: Any) -> dict[str, Any]:
        return {"remarks": plan.remarks}

    async def planned(self, channel: Channel, body: Mapping[str, Any], identity: Identity) -> SelectionPlan[Any, Any]:
        """Parse `{"verb":"due","when":"10m","messages":"SEQUENCE@NODE@LOG ..."}`, or with `filter` and `node`."""
        verb = RecallVerb(_verb_in(body, RecallVerb))
        if ("messages" in body) == ("filter" in body):
            raise BadRequest("either messages, or a filter")
        when = word_in(body, "when")
        wanted = RecallWanted(verb=verb, when=when, delay=parse_when(when, time()) if verb is RecallVerb.DUE else None)
        if "messages" in body:
            chosen = Chosen(selection=selection_of(word_in(body, "messages")))
        else:
            searched = filter_of(word_in(body, "filter"))
            chosen = await self._selections.matching(channel, identity, searched, word_in(body, "node"))
        return await self._selections.plan(channel, chosen, wanted)
