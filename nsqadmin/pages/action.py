"""The page with an action's consequences, and its confirmation. Our script shows the same page in a dialog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Action, BadAction, Kind, Plan, Step, holders, node_target, plan
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of
from nsqadmin.pages.create import CREATIONS, Values, create_form, with_chosen_nodes
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.receipt import receipt_page
from nsqadmin.parts.progress import with_progress
from nsqadmin.parts.rights import ACTION_WORDS
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.execution import Executor
    from nsqadmin.cluster.model import Channel, Snapshot, Topic
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_DELETIONS: Final = (Kind.DELETE_TOPIC, Kind.DELETE_CHANNEL)
_REASONS: Final[Mapping[str, str]] = {
    "INVALID_TOPIC": "This is not a valid name for a topic: use at most 64 letters, digits and . _ - and, if you like, #ephemeral at the end.",
    "INVALID_CHANNEL": "This is not a valid name for a channel: use at most 64 letters, digits and . _ - and, if you like, #ephemeral at the end.",
    "INVALID_NODE": "Choose the one node to remove the topic from.",
    "INVALID_PLACE": "Say where to move it: earliest, latest, a sequence or a time such as 2026-03-01T12:00:00Z.",
    "INVALID_READER": "Say which reader to forget.",
    "TOPIC_NOT_FOUND": "This topic does not exist any more.",
    "CHANNEL_NOT_FOUND": "This channel does not exist any more.",
    "MISSING_ARG_TOPIC": "Choose a topic first.",
    "NOT_FOUND": "There is no such action.",
}


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _ActionPages(services, painter)
    return [
        Route("GET", "/actions/{kind}", pages.confirm),
        Route("POST", "/actions/{kind}", pages.do),
    ]


class _ActionPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    async def confirm(self, request: Request) -> Response:
        values = {name: request.query_params.getlist(name) for name in request.query_params}
        try:
            return await self._ask(request, values)
        except HttpError as error:
            return await self._refusal(request, error)

    async def do(self, request: Request) -> Response:
        try:
            return await self._do(request, await lists_of(request))
        except HttpError as error:
            return await self._refusal(request, error)

    async def _do(self, request: Request, values: Values) -> Response:
        word = request.path_params["kind"]
        snapshot = await self._painter.picture(request)
        values = with_chosen_nodes(snapshot, values)
        topic = _topic_of(values)
        if not topic:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        action = _action(word, values, topic)
        executor = self._executor_for(request, action)
        if _first(values, "on") == "some" and not action.nodes:
            return create_form(self._painter, request, snapshot, word, "Choose at least one node.", action, status=400)
        try:
            planned = plan(snapshot, action)
        except BadAction as error:
            return await self._ask(request, values, problem=_reason(error), status=400)
        if planned.must_type and _first(values, "typed") != planned.must_type:
            problem = f"Nothing was done: type “{planned.must_type}” to confirm."
            return await self._ask(request, values, problem=problem, status=400)

        async def carry_out(told: Callable[[Step], None]) -> Response:
            receipt = await executor.execute(
                action, caller_of(request), holders(snapshot, action), told, before=snapshot
            )
            return receipt_page(self._services, self._painter, request, snapshot, receipt, planned)

        asked = [call.address for call in planned.calls]
        return await with_progress(request, asked, lambda told: carry_out(lambda it: told(it.address, it.is_done)))

    def _executor_for(self, request: Request, action: Action) -> Executor:
        """Return the executor if the user has the right to the action. Otherwise raise 403 and audit the refusal."""
        executor = self._services.executor
        if reason := identity_of(request).why_not(action.right, action.topic):
            if executor is not None:
                executor.note_refusal(action, caller_of(request), reason)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        if executor is None:
            raise HttpError(403, "FORBIDDEN", details={"reason": "there is no cluster to change"})
        return executor

    async def _refusal(self, request: Request, error: HttpError) -> Response:
        title = "Nothing was done" if request.method == "POST" else "Not possible"
        return await refusal_page(self._painter, request, error, title, _REASONS)

    # Confirmations

    async def _ask(self, request: Request, values: Values, *, problem: str = "", status: int = 200) -> Response:
        word = request.path_params["kind"]
        snapshot = await self._painter.picture(request)
        topic = _topic_of(values)
        if not topic or word not in (*Kind, "create"):
            return create_form(self._painter, request, snapshot, word, problem)
        action = _action(word, values, topic)
        if action.kind in CREATIONS and request.method == "GET" and word != "create" and "node" not in values:
            return create_form(self._painter, request, snapshot, word, problem, action)
        if action.kind is Kind.SEEK_CHANNEL and not action.place:
            action = _placed(action)
        try:
            planned = plan(snapshot, action)
        except BadAction as error:
            reason = _reason(error)
            if action.kind in CREATIONS:
                return create_form(self._painter, request, snapshot, word, reason, action, status=400)
            raise HttpError(
                404 if str(error).endswith("NOT_FOUND") else 400, str(error), details={"reason": reason}
            ) from error
        if word == "create" and not action.nodes:
            return create_form(self._painter, request, snapshot, word, problem, action, status=status)
        return self._confirmation(request, snapshot, planned, values, problem=problem, status=status)

    def _confirmation(
        self,
        request: Request,
        snapshot: Snapshot,
        planned: Plan,
        values: Values,
        *,
        problem: str,
        status: int,
    ) -> Response:
        action = planned.action
        nodes = [call.address for call in planned.calls if not call.is_lookupd]
        can_be_paused = action.kind in _DELETIONS and any(
            consequence.severity == "warning" for consequence in planned.consequences
        )
        pause = Kind.PAUSE_CHANNEL if action.kind is Kind.DELETE_CHANNEL else Kind.PAUSE_TOPIC
        return self._painter.page(
            request,
            "action.html",
            snapshot,
            status=status,
            plan=planned,
            kind=action.kind,
            problem=problem,
            refusal=identity_of(request).why_not(action.right, action.topic),
            fields=_fields(values, without_place=action.kind is Kind.SEEK_CHANNEL),
            asks_place=action.kind is Kind.SEEK_CHANNEL,
            place=_first(values, "from"),
            back=self._where_it_was(planned),
            verb=ACTION_WORDS[action.kind].removesuffix("…"),
            pause_first=self._links.action(pause, topic=action.topic, channel=action.channel)
            if can_be_paused and nodes
            else "",
            curl=curl(action, nodes) if nodes and action.place != _ANY_PLACE else "",
        )

    def _where_it_was(self, plan: Plan) -> str:
        action = plan.action
        if action.kind in CREATIONS or plan.is_of_directory:
            return self._links.to("/lookup")
        return self._links.about(action.topic, action.channel, "")


_ANY_PLACE: Final = "…"  # the place, until the user has chosen one


def _placed(action: Action) -> Action:
    return Action(kind=action.kind, topic=action.topic, channel=action.channel, nodes=action.nodes, place=_ANY_PLACE)


def _reason(error: BadAction) -> str:
    return _REASONS.get(str(error), str(error))


def _topic_of(values: Values) -> str:
    return next((name.strip() for name in values.get("topic", ()) if name.strip()), "")


def _action(word: str, values: Values, topic: str) -> Action:
    """Read the action from the form's values. Raise 404 for an unknown `word`."""
    channel = _first(values, "channel").strip()
    if word == "create":
        kind = Kind.CREATE_CHANNEL if channel else Kind.CREATE_TOPIC
    elif word in tuple(Kind):
        kind = Kind(word)
    else:
        raise HttpError(404, "NOT_FOUND")
    nodes = tuple(dict.fromkeys(node for node in values.get("node", ()) if node))
    return Action(
        kind=kind,
        topic=topic,
        channel=channel,
        nodes=nodes,
        place=_first(values, "from").strip(),
        reader=_first(values, "reader"),
        into=_first(values, "into"),
    )


def _fields(values: Values, *, without_place: bool) -> list[tuple[str, str]]:
    """Return the hidden fields of the confirmation."""
    names = ("topic", "channel", "node", "reader", "into", *(() if without_place else ("from",)))
    return [(name, value) for name in names for value in values.get(name, ()) if value]


def _first(values: Values, name: str) -> str:
    found = values.get(name, ())
    return found[0] if found else ""


# As commands


_TOPIC_ACTIONS: Final = (Kind.PAUSE_TOPIC, Kind.UNPAUSE_TOPIC, Kind.EMPTY_TOPIC, Kind.DELETE_TOPIC)
_CHANNEL_ACTIONS: Final = (Kind.PAUSE_CHANNEL, Kind.UNPAUSE_CHANNEL, Kind.EMPTY_CHANNEL, Kind.DELETE_CHANNEL)


def curls_of_topic(topic: Topic) -> tuple[tuple[str, str], ...]:
    return _curls([Action(kind=kind, topic=topic.name) for kind in _TOPIC_ACTIONS], topic)


def curls_of_channel(channel: Channel) -> tuple[tuple[str, str], ...]:
    name = channel.name
    return _curls([Action(kind=kind, topic=channel.topic, channel=name) for kind in _CHANNEL_ACTIONS], channel)


def _curls(actions: Iterable[Action], of: Topic | Channel) -> tuple[tuple[str, str], ...]:
    """Return the actions as commands, each with its word."""
    nodes = [row.node for row in of.nodes]
    return tuple((it.kind.split("_")[0].capitalize(), curl(it, nodes)) for it in actions if nodes)


def curl(action: Action, addresses: Iterable[str]) -> str:
    return "\n".join(f"curl -X POST {quote(f'http://{address}{node_target(action)}')}" for address in addresses)
