"""Actions on a user's selection of buried or deferred messages, or on a group: the plan to confirm, and carrying it out.

A kind's class here reads its forms; nsqadmin/messages/*_actions.py has the actions.
"""

from __future__ import annotations

from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.access import Right
from nsqadmin.http.app import Handler, Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of, require
from nsqadmin.messages import buried_actions, deferred_actions, group_actions
from nsqadmin.messages.buried_actions import DEFAULT_RATE, Verb, Wanted, parse_picks, parse_rate, stop_plan, undo_plan
from nsqadmin.messages.deferred_actions import Chosen, RecallVerb, RecallWanted, parse_when
from nsqadmin.messages.endpoints import MOST_BODY, filter_of, selection_of
from nsqadmin.messages.filters import by_header
from nsqadmin.messages.group_actions import GroupVerb, GroupWanted, parse_group, plan_group, undo_bury_plan
from nsqadmin.messages.lists import BadRequest
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.selection_receipt import receipt
from nsqadmin.parts.messages import messages_of
from nsqadmin.parts.progress import with_progress
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.selection_plan import SelectionPlan
    from nsqadmin.messages.selections import Selections
    from nsqadmin.messages.service import Messages
    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.progress import Told
    from nsqadmin.services import Services

    Values = Mapping[str, Sequence[str]]

_HIGHEST: Final = 1 << 53


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _SelectionPlanPages(services, painter)
    buried = {f"/actions/{it.name}": _BuriedForm(verb) for verb, it in buried_actions.VERBS.items()}
    deferred = {f"/actions/{it.name}": _DeferredForm(verb) for verb, it in deferred_actions.VERBS.items()}
    groups = {f"/actions/{it.name}": _GroupForm(verb, services, painter) for verb, it in group_actions.VERBS.items()}
    handlers = [("GET", path, partial(pages.act, form)) for path, form in (buried | groups).items()]
    handlers += [("POST", path, partial(pages.act, form)) for path, form in (buried | deferred | groups).items()]
    handlers += [("POST", f"/actions/{buried_actions.STOP.name}", partial(pages.at_once, _stop))]
    handlers += [("POST", f"/actions/{buried_actions.UNDO.name}", partial(pages.at_once, _undo))]
    handlers += [("POST", f"/actions/{group_actions.UNDO.name}", partial(pages.at_once, _undo_bury))]
    return [Route(method, path, partial(pages._tried, handler)) for method, path, handler in handlers]


class _SelectionPlanPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    async def _tried(self, handler: Handler, request: Request) -> Response:
        """Return the answer, or why nothing was done."""
        try:
            return await handler(request)
        except BadRequest as error:
            refusal = HttpError(400, "INVALID_REQUEST", details={"reason": f"{error}."})
        except HttpError as error:
            refusal = error
        return await refusal_page(self._painter, request, refusal, "Nothing was done")

    async def act(self, form: _Form, request: Request) -> Response:
        """Show the consequences, or do it."""
        is_post = request.method == "POST"
        asked = request.query_params
        values = await lists_of(request, limit=MOST_BODY) if is_post else {it: asked.getlist(it) for it in asked}
        channel, messages = await self._channel(request, values), messages_of(self._services)
        plan, problem = await form.planned(request, messages, channel, values)
        # There can be so many deferred messages that the form for their plan is a POST, too.
        is_confirmed = is_post and (form.kind == "buried" or first_of(values, "confirmed") == "yes")
        if is_confirmed and not problem:
            if plan.is_confirmed_by(first_of(values, "typed")):
                return await self._done(request, form.selections(messages), plan, form.kind)
            problem = f"type {plan.to_type}, {plan.must_type}, to confirm"
        return await self._plan_page(request, form, plan, values, problem)

    async def at_once(
        self, planned: Callable[[Channel, Values], SelectionPlan[Any, Any]], request: Request
    ) -> Response:
        """Do an action that needs no confirmation."""
        values = await lists_of(request)
        plan = planned(await self._channel(request, values), values)
        return await self._done(request, messages_of(self._services).buried, plan, "buried")

    async def _plan_page(
        self, request: Request, form: _Form, plan: SelectionPlan[Any, Any], values: Values, problem: str
    ) -> Response:
        return self._painter.page(
            request,
            "selection_plan.html",
            await self._painter.picture(request),
            status=400 if problem else 200,
            kind=form.kind,
            plan=plan,
            what=plan.action.name,
            problem=f"Nothing was done: {problem}." if problem else "",
            refusal=plan.refusal(identity_of(request)),
            back=self._links.channel(plan.topic, plan.channel, tab=form.kind),
            **form.shown(plan, values),
        )

    async def _done(
        self, request: Request, selections: Selections[Any, Any], plan: SelectionPlan[Any, Any], kind: str
    ) -> Response:
        caller = caller_of(request)

        async def carry_out(told: Told) -> Response:
            return await receipt(self._painter, request, plan, await selections.act(plan, caller, told), kind)

        if plan.refusal(caller.identity):
            await selections.act(plan, caller)  # refused, and audited
        return await with_progress(request, [it.node for it in plan.shares], carry_out)

    async def _channel(self, request: Request, values: Values) -> Channel:
        """Return the channel that a form names. Raises 403, 404."""
        topic = first_of(values, "topic")
        require(request, Right.VIEW, topic)
        channel = (await self._painter.picture(request)).channel(topic, first_of(values, "channel"))
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND", details={"reason": "This channel does not exist any more."})
        return channel


def _stop(channel: Channel, values: Values) -> SelectionPlan[Any, Any]:
    return stop_plan(channel)


def _undo(channel: Channel, values: Values) -> SelectionPlan[Any, Any]:
    return undo_plan(channel, values.get("kick", ()))


def _undo_bury(channel: Channel, values: Values) -> SelectionPlan[Any, Any]:
    return undo_bury_plan(channel, values.get("burial", ()))


class _BuriedForm:
    """Messages by id, or all with a burial reason."""

    kind = "buried"

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def selections(self, messages: Messages) -> Selections[Any, Any]:
        return messages.buried

    async def planned(
        self, request: Request, messages: Messages, channel: Channel, values: Values
    ) -> tuple[SelectionPlan[Any, Any], str]:
        return await messages.buried.plan(channel, self._wanted(values), identity_of(request)), ""

    def _wanted(self, values: Values) -> Wanted:
        ids, force = parse_picks(values.get("pick", ())), first_of(values, "force") == "true"
        if ids:
            return Wanted(verb=self._verb, ids=ids, force=force)
        if first_of(values, "on") == "selected":
            raise BadRequest("select messages first")
        limit = first_of(values, "limit").strip()
        if limit and not (limit.isascii() and limit.isdecimal() and int(limit[:17]) < _HIGHEST):
            raise BadRequest(f"a limit is a number of messages, not {limit[:40]}")
        rate = first_of(values, "rate") if "rate" in values else f"{DEFAULT_RATE:g}" * (self._verb is Verb.KICK)
        reason = first_of(values, "reason")
        return Wanted(verb=self._verb, reason=reason, limit=int(limit or 0), rate=parse_rate(rate), force=force)

    def shown(self, plan: Any, values: Values) -> dict[str, Any]:
        rate = f"{plan.wanted.rate:g}" if plan.wanted.rate else ""
        return {"picks": [f"{id}@{node}" for node, id in plan.wanted.ids], "rate": rate}


class _DeferredForm:
    """Messages by sequence, or all matches of a search."""

    kind = "deferred"

    def __init__(self, verb: RecallVerb) -> None:
        self._verb = verb

    def selections(self, messages: Messages) -> Selections[Any, Any]:
        return messages.deferred

    async def planned(
        self, request: Request, messages: Messages, channel: Channel, values: Values
    ) -> tuple[SelectionPlan[Any, Any], str]:
        chosen = await self._chosen(request, messages, channel, values)
        when, delay, problem = _when(values) if self._verb is RecallVerb.DUE else ("", None, "")
        wanted = RecallWanted(verb=self._verb, when=when, delay=delay)
        return await messages.deferred.plan(channel, chosen, wanted), problem

    async def _chosen(self, request: Request, messages: Messages, channel: Channel, values: Values) -> Chosen:
        words = values.get("messages") or values.get("one") or ()
        if words or "all" not in values:
            words = words or values.get("pick", ())
            if not words:
                raise BadRequest("select messages first")
            return Chosen(selection=selection_of(" ".join(words)), by_filter="all" in values)
        if task := first_of(values, "task"):
            require(request, Right.PAYLOAD, channel.topic)  # only then the user may know which jobs these are
        wanted = by_header("job-name", task) if task else filter_of(first_of(values, "filter"))
        chosen = await messages.deferred.matching(channel, identity_of(request), wanted, first_of(values, "node"))
        if not chosen.selection.count:
            reason = " ".join((*chosen.remarks, "Nothing that matches is deferred."))
            raise HttpError(404, "NOTHING_FOUND", details={"reason": reason})
        return chosen

    def shown(self, plan: Any, values: Values) -> dict[str, Any]:
        return {"is_all": "all" in values, "wanted": first_of(values, "filter")}


class _GroupForm:
    """All that waits of a group."""

    kind = "groups"

    def __init__(self, verb: GroupVerb, services: Services, painter: Painter) -> None:
        self._verb = verb
        self._services = services
        self._painter = painter

    def selections(self, messages: Messages) -> Selections[Any, Any]:
        return messages.buried

    async def planned(
        self, request: Request, messages: Messages, channel: Channel, values: Values
    ) -> tuple[SelectionPlan[Any, Any], str]:
        require(request, Right.PAYLOAD, channel.topic)  # or a plan would tell whether there is such a group
        group = parse_group(first_of(values, "group"))
        when, delay, problem = _when(values) if self._verb is GroupVerb.DUE else ("", None, "")
        questions = self._services.groups
        assert questions is not None, "there are messages, so this is no snapshot file"
        told = await run_trio(questions.of_channel, await self._painter.picture(request), channel, group)
        return plan_group(channel, told, GroupWanted(verb=self._verb, group=group, when=when, delay=delay)), problem

    def shown(self, plan: Any, values: Values) -> dict[str, Any]:
        return {}


_Form = _BuriedForm | _DeferredForm | _GroupForm


def _when(values: Values) -> tuple[str, float | None, str]:
    """Return when messages should be due, as typed, in how many seconds that is, if chosen already, and what is wrong."""
    when = first_of(values, "when")
    if not when and first_of(values, "confirmed") != "yes":
        return "", None, ""
    try:
        return when, parse_when(when, time()), ""
    except BadRequest as error:
        return when, None, str(error)


def first_of(values: Values, name: str) -> str:
    return next(iter(values.get(name, ())), "")
