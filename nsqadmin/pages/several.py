"""One action on several topics and channels: the plan for all of them, and its confirmation."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Action, BadAction, Receipt, Step, holders
from nsqadmin.actions.several import Part, SeveralPlan, Verb, parse_picks, plan_several
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of
from nsqadmin.messages.endpoints import MOST_BODY
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.several_receipt import several_receipt
from nsqadmin.parts.progress import with_progress
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.execution import Executor
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.progress import Told
    from nsqadmin.services import Services

    Values = Mapping[str, Sequence[str]]

_AT_ONCE: Final = 8  # topics and channels that are acted on at the same time; each waits for its nodes
_OF_LIST: Final = ("filter", "sort", "page")  # which topics the list shows, so that the user returns to the same ones


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _SeveralPages(services, painter)
    return [Route("GET", "/actions/several", pages.ask), Route("POST", "/actions/several", pages.act)]


class _SeveralPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def ask(self, request: Request) -> Response:
        """Show the plan of `do=` for each `pick=`."""
        return await self._tried(request, {name: request.query_params.getlist(name) for name in request.query_params})

    async def act(self, request: Request) -> Response:
        """Show the plan; with `confirmed=yes`, carry it out. Hundreds of names are too long for the address of a GET."""
        return await self._tried(request, await lists_of(request, limit=MOST_BODY))

    async def _tried(self, request: Request, values: Values) -> Response:
        try:
            return await self._answer(request, values)
        except BadAction as error:
            refusal = HttpError(400, "INVALID_REQUEST", details={"reason": f"{str(error).capitalize()}."})
        except HttpError as error:
            refusal = error
        return await refusal_page(self._painter, request, refusal, "Nothing was done")

    async def _answer(self, request: Request, values: Values) -> Response:
        verb = _verb_of(values)
        picks = parse_picks(values.get("pick", ()))
        if not picks:
            raise BadAction("select topics or channels first")
        snapshot = await self._painter.picture(request)
        planned = plan_several(snapshot, verb, picks, lambda action: self._refusal(request, action))
        if request.method != "POST" or _first(values, "confirmed") != "yes":
            return self._plan_page(request, snapshot, planned, values)
        self._note_refusals(request, snapshot, planned)
        if not planned.plans:
            return self._plan_page(request, snapshot, planned, values, "there is nothing to do")
        if _first(values, "typed") != planned.must_type:
            return self._plan_page(request, snapshot, planned, values, f"type “{planned.must_type}” to confirm")
        return await self._done(request, snapshot, planned, self._back(values))

    def _plan_page(
        self, request: Request, snapshot: Snapshot, planned: SeveralPlan, values: Values, problem: str = ""
    ) -> Response:
        return self._painter.page(
            request,
            "several.html",
            snapshot,
            status=400 if problem else 200,
            plan=planned,
            picks=values.get("pick", ()),
            problem=f"Nothing was done: {problem}." if problem else "",
            refusal="" if planned.plans else "it is possible for none of them",
            back=self._back(values),
            kept=[(name, _first(values, name)) for name in ("of", "topic", *_OF_LIST) if _first(values, name)],
        )

    async def _done(self, request: Request, snapshot: Snapshot, planned: SeveralPlan, back: str) -> Response:
        executor, caller = self._executor(), caller_of(request)
        room = asyncio.Semaphore(_AT_ONCE)

        async def carry_out(told: Told) -> Response:
            step = _by_node(planned, told)

            async def one(part: Part) -> Receipt | None:
                if part.plan is None:
                    return None
                action = part.action
                async with room:
                    return await executor.execute(action, caller, holders(snapshot, action), step, before=snapshot)

            receipts = await asyncio.gather(*map(one, planned.parts))
            return several_receipt(self._services, self._painter, request, snapshot, planned, receipts, back)

        return await with_progress(request, [call.address for call in planned.calls], carry_out)

    def _refusal(self, request: Request, action: Action) -> str:
        if self._services.executor is None:
            return "there is no cluster to change"
        return identity_of(request).why_not(action.right, action.topic)

    def _note_refusals(self, request: Request, snapshot: Snapshot, planned: SeveralPlan) -> None:
        """Record what the user tried without the right. What they may not see, they cannot have picked from a page."""
        executor = self._services.executor
        for part in planned.parts if executor is not None else ():
            reason = self._refusal(request, part.action)
            if executor is not None and reason and snapshot.topic(part.action.topic) is not None:
                executor.note_refusal(part.action, caller_of(request), reason)

    def _executor(self) -> Executor:
        assert self._services.executor is not None, "a plan without a cluster has no parts to carry out"
        return self._services.executor

    def _back(self, values: Values) -> str:
        """Return the list where the user came from."""
        links = self._painter.links
        match _first(values, "of"):
            case "lookup":
                return links.to("/lookup")
            case "channels":
                return links.topic(_first(values, "topic"), tab="channels")
        return links.to("/topics", **{name: _first(values, name) for name in _OF_LIST})


def _by_node(planned: SeveralPlan, told: Told) -> Callable[[Step], None]:
    """Report a node when it has answered all of its requests: as done only if each of them succeeded."""
    left = Counter(call.address for call in planned.calls)
    failed: set[str] = set()

    def step(it: Step) -> None:
        left[it.address] -= 1
        if not it.is_done:
            failed.add(it.address)
        if left[it.address] <= 0:
            told(it.address, it.address not in failed)

    return step


def _verb_of(values: Values) -> Verb:
    try:
        return Verb(_first(values, "do"))
    except ValueError:
        raise BadAction(f"do: one of {', '.join(Verb)}") from None


def _first(values: Values, name: str) -> str:
    return next(iter(values.get(name, ())), "")
