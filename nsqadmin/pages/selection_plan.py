"""Cancelling deferred messages, and moving when they are due: the plan to confirm, and the receipt."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access.policy import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of
from nsqadmin.messages.buried_actions import BadTaking
from nsqadmin.messages.changing import result_of
from nsqadmin.messages.deferred_actions import Chosen, RecallVerb, RecallWanted, in_words, parse_when
from nsqadmin.messages.deferred_service import RECALL_ACTIONS
from nsqadmin.messages.endpoints import MOST_BODY, filter_of, selection_of
from nsqadmin.pages.buried_plan import channel_in, first_of
from nsqadmin.pages.messages import NO_CLUSTER
from nsqadmin.pages.progress import with_progress
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.deferred_actions import Recalled, Recalling
    from nsqadmin.messages.deferred_service import DeferredMessages
    from nsqadmin.pages.painter import Painter
    from nsqadmin.pages.progress import Told
    from nsqadmin.services import Services

    Values = Mapping[str, Sequence[str]]

_ACTIONS: Final = {f"/actions/{what}": verb for verb, what in RECALL_ACTIONS.items()}


class RecallPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    def routes(self) -> list[Route]:
        return [Route("POST", path, self.recall) for path in _ACTIONS]

    async def recall(self, request: Request) -> Response:
        """Show what it would do; with `confirmed=yes`, do it. Many messages make a long form, so both are a POST."""
        try:
            values = await lists_of(request, limit=MOST_BODY)
            channel = await channel_in(self._painter, request, values)
            chosen = await self._chosen(request, channel, values)
            problem = ""
            try:
                recalling = await self._deferred().plan(channel, chosen.selection, _wanted(request, values))
                if first_of(values, "confirmed") == "yes":
                    must_type = _must_type(recalling, values)
                    if not must_type or first_of(values, "typed").replace(",", "") == must_type:
                        return await self._do(request, channel, recalling)
                    problem = f"Nothing was done: type the number of messages, {must_type}, to go on."
            except _NotSaid as error:
                problem = f"Nothing was done: {error}."
                recalling = await self._deferred().plan(channel, chosen.selection, error.wanted)
            return await self._plan_page(request, channel, recalling, chosen, values, problem)
        except BadTaking as error:
            refusal = HttpError(400, "INVALID_REQUEST", details={"reason": f"{error}."})
            return await self._painter.refusal(request, refusal, "Nothing was done")
        except HttpError as error:
            return await self._painter.refusal(request, error, "Nothing was done")

    async def _chosen(self, request: Request, channel: Channel, values: Values) -> Chosen:
        words = values.get("messages") or values.get("one") or ()
        if words or "all" not in values:
            words = words or values.get("pick", ())
            if not words:
                raise BadTaking("select messages first")
            return Chosen(selection=selection_of(" ".join(words)))
        wanted = filter_of(first_of(values, "filter"))
        chosen = await self._deferred().matching(channel, identity_of(request), wanted, first_of(values, "node"))
        if not chosen.selection.count:
            reason = " ".join((*chosen.remarks, "Nothing that matches is deferred."))
            raise HttpError(404, "NOTHING_FOUND", details={"reason": reason})
        return chosen

    async def _plan_page(
        self,
        request: Request,
        channel: Channel,
        recalling: Recalling,
        chosen: Chosen,
        values: Values,
        problem: str,
    ) -> Response:
        return self._painter.page(
            request,
            "selection_plan.html",
            await self._painter.picture(request),
            status=400 if problem else 200,
            plan=recalling,
            what=RECALL_ACTIONS[recalling.wanted.verb],
            verb=recalling.wanted.verb.value,
            problem=problem,
            remarks=chosen.remarks,
            refusal=identity_of(request).why_not(Right.OPERATE, channel.topic),
            is_all="all" in values,
            wanted=first_of(values, "filter"),
            must_type=_must_type(recalling, values),
            back=self._links.channel(channel.topic, channel.name, tab="deferred"),
        )

    async def _do(self, request: Request, channel: Channel, recalling: Recalling) -> Response:
        caller = caller_of(request)

        async def carry_out(told: Told) -> Response:
            results = await self._deferred().recall(recalling, caller, told)
            return await self._receipt(request, channel, recalling, results)

        if reason := identity_of(request).why_not(Right.OPERATE, channel.topic):  # the refusal is audited there
            await self._deferred().recall(recalling, caller)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        return await with_progress(request, [it.node for it in recalling.shares], carry_out)

    async def _receipt(
        self, request: Request, channel: Channel, recalling: Recalling, results: Sequence[Recalled]
    ) -> Response:
        return self._painter.page(
            request,
            "selection_receipt.html",
            await self._painter.picture(request),
            headline=recalling.title,
            result=result_of(results, recalling.left_out),
            rows=results,
            left_out=recalling.left_out,
            summary=_in_words(recalling, results),
            past=recalling.wanted.verb.past,
            done=self._links.channel(channel.topic, channel.name, tab="deferred"),
        )

    def _deferred(self) -> DeferredMessages:
        messages = self._services.messages
        if messages is None:
            raise HttpError(403, "FORBIDDEN", details={"reason": NO_CLUSTER})
        return messages.deferred


class _NotSaid(Exception):
    """The form does not say when the messages are to be due; the message is for the user."""

    def __init__(self, why: BadTaking, wanted: RecallWanted) -> None:
        super().__init__(str(why))
        self.wanted = wanted


def _wanted(request: Request, values: Values) -> RecallWanted:
    """Read what the user wants. Raise _NotSaid."""
    verb = _ACTIONS[request.url.path[request.url.path.rindex("/actions/") :]]
    when = first_of(values, "when")
    wanted = RecallWanted(verb=verb, when=when)
    if verb is RecallVerb.CANCEL or (not when and first_of(values, "confirmed") != "yes"):
        return wanted
    try:
        return RecallWanted(verb=verb, when=when, delay=parse_when(when, time()))
    except BadTaking as error:
        raise _NotSaid(error, wanted) from error


def _must_type(recalling: Recalling, values: Values) -> str:
    """Return the number that the user has to type as a confirmation; empty: none."""
    is_final = recalling.wanted.verb is RecallVerb.CANCEL
    return str(recalling.count) if is_final and "all" in values and recalling.count else ""


def _in_words(recalling: Recalling, results: Sequence[Recalled]) -> str:
    """Return what has become of it, as a sentence."""
    wanted, done = recalling.wanted, sum(it.done for it in results)
    words = numbers.several(done, "message").capitalize()
    words += " cancelled" if wanted.verb is RecallVerb.CANCEL else f" made due {in_words(wanted)}"
    if in_flight := sum(it.in_flight for it in results):
        words += f"; {in_flight:,} left as they are, as a consumer has them"
    if gone := sum(it.gone for it in results):
        words += f"; {gone:,} no longer waited"
    if silent := [it.node for it in results if it.may_follow]:
        words += f"; asked, no answer: {', '.join(silent)}"
    return f"{words}."
