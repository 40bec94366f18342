"""The endpoints for groups of messages: `groups/*` under `/api/v2`."""

from __future__ import annotations

from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any

from nsqadmin.access import Right
from nsqadmin.cluster.message_groups import is_cut, merged_groups
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, json_answer, object_of, require, word_in
from nsqadmin.messages.deferred_actions import parse_when
from nsqadmin.messages.endpoints import channel_named
from nsqadmin.messages.group_actions import GroupVerb, GroupWanted, parse_group, plan_group, undo_bury_plan
from nsqadmin.messages.lists import BadRequest
from nsqadmin.messages.masking import MASK
from nsqadmin.messages.selection_plan import result_of
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.message_groups import MessageGroup, NodeGroups
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.messages.group_actions import GroupPlan
    from nsqadmin.messages.service import Messages
    from nsqadmin.upstream.groups import GroupQuestions


def routes(messages: Messages, groups: GroupQuestions, view: View) -> list[Route]:
    endpoints = _GroupEndpoints(messages, groups, view)
    return [
        Route("GET", "/api/v2/groups/{topic}/{channel}", endpoints.read),
        Route("POST", "/api/v2/groups/plan", endpoints.plan),
        Route("POST", "/api/v2/groups", endpoints.act),
        Route("POST", "/api/v2/groups/undo", endpoints.undo),
    ]


class _GroupEndpoints:
    def __init__(self, messages: Messages, groups: GroupQuestions, view: View) -> None:
        self._messages = messages
        self._groups = groups
        self._view = view

    async def read(self, request: Request) -> Response:
        """Send each node's numbers, and the largest groups of all nodes. Argument: `name=`, a part of the name."""
        channel = channel_named(self._view, request, request.path_params)
        name = request.query_params.get("name", "")
        identity = require(request, Right.PAYLOAD if name else Right.VIEW, channel.topic)
        shows_names = identity.may(Right.PAYLOAD, channel.topic)
        told = await self._told(channel, name)
        answered = [it for it in told if it.has_rules and not it.untold]
        return json_answer(
            {
                "nodes": [_numbers(replace(it, untold=identity.quoted(it.untold))) for it in told],
                "groups": [_group(it, shows_names=shows_names) for it in merged_groups(answered)],
                "is_cut": is_cut(answered),
            }
        )

    async def plan(self, request: Request) -> Response:
        """Send the consequences of an action, after asking the nodes."""
        plan = await self._planned(request)
        return json_answer({**to_json(plan), "count": plan.count})

    async def act(self, request: Request) -> Response:
        """Do it. The status is 200 even if some or all nodes failed."""
        plan = await self._planned(request)
        rows = await self._messages.buried.act(plan, caller_of(request))
        document = {"result": result_of(rows, plan.left_out), "nodes": to_json(rows)}
        return json_answer({**document, "left_out": to_json(plan.left_out), "burials": list(plan.burials(rows))})

    async def undo(self, request: Request) -> Response:
        """Take back the burials in `{"topic":"t","channel":"c","burials":["REASON@NODE"]}`."""
        body = await object_of(request)
        channel = channel_named(self._view, request, body)
        burials = body.get("burials")
        if not isinstance(burials, list) or not all(isinstance(it, str) for it in burials):
            raise HttpError(400, "INVALID_BODY", details={"reason": "burials is a list of texts"})
        try:
            plan = undo_bury_plan(channel, burials)
        except BadRequest as error:
            raise HttpError(400, "INVALID_UNDO", details={"reason": str(error)}) from error
        rows = await self._messages.buried.act(plan, caller_of(request))
        return json_answer({"result": result_of(rows), "nodes": to_json(rows)})

    async def _planned(self, request: Request) -> GroupPlan:
        """Parse `{"verb":"due","topic":"t","channel":"c","group":"acme","when":"10m"}`."""
        body = await object_of(request)
        channel = channel_named(self._view, request, body)
        require(request, Right.PAYLOAD, channel.topic)  # or a plan would tell whether there is such a group
        word = word_in(body, "verb")
        if word not in tuple(GroupVerb):
            raise HttpError(400, "INVALID_ACTION", details={"reason": f"verb: one of {', '.join(GroupVerb)}"})
        verb, when = GroupVerb(word), word_in(body, "when")
        try:
            group = parse_group(word_in(body, "group"))
            delay = parse_when(when, time()) if verb is GroupVerb.DUE else None
        except BadRequest as error:
            raise HttpError(400, "INVALID_GROUP", details={"reason": str(error)}) from error
        wanted = GroupWanted(verb=verb, group=group, when=when, delay=delay)
        return plan_group(channel, await self._told(channel, group), wanted)

    async def _told(self, channel: Channel, name: str) -> tuple[NodeGroups, ...]:
        return await run_trio(self._groups.of_channel, self._view.snapshot, channel, name)


def _numbers(it: NodeGroups) -> dict[str, Any]:
    return {
        "node": it.node,
        "held": it.held,
        "groups": it.groups,
        "unsorted": it.unsorted,
        "ahead": it.ahead,
        "max_held": it.max_held,
        "has_rules": it.has_rules,
        "error": it.untold,
    }


def _group(it: MessageGroup, *, shows_names: bool) -> Any:
    return to_json(it if shows_names or not it.name else replace(it, name=MASK))
