"""The page with an action's consequences, and its confirmation. Our script shows the same page in a dialog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Action, BadAction, Danger, Kind, Plan, Step, holders, node_target, plan
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
_MOST_AT_ONCE: Final = 200  # topics to delete with one confirmation
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
        actions = [_action(word, values, topic) for topic in _topics_of(word, values)]
        if not actions:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        executor = self._executor_for(request, actions)
        if _first(values, "on") == "some" and not actions[0].nodes:
            return create_form(
                self._painter, request, snapshot, word, "Choose at least one node.", actions[0], status=400
            )
        try:
            plans = [plan(snapshot, action) for action in actions]
        except BadAction as error:
            return await self._ask(request, values, problem=_reason(error), status=400)
        must_type = _must_type(plans)
        if must_type and _first(values, "typed") != must_type:
            problem = f"Nothing was done: type “{must_type}” to confirm."
            return await self._ask(request, values, problem=problem, status=400)

        async def carry_out(told: Callable[[Step], None]) -> Response:
            receipts = [
                await executor.execute(
                    each.action, caller_of(request), holders(snapshot, each.action), told, before=snapshot
                )
                for each in plans
            ]
            return receipt_page(self._services, self._painter, request, snapshot, receipts, plans)

        asked = [call.address for each in plans for call in each.calls]
        return await with_progress(request, asked, lambda told: carry_out(lambda it: told(it.address, it.is_done)))

    def _executor_for(self, request: Request, actions: Sequence[Action]) -> Executor:
        """Return the executor if the user has the right to all actions. Otherwise raise 403 and audit the refusal."""
        executor = self._services.executor
        for action in actions:
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
        topics = _topics_of(word, values)
        if not topics or word not in (*Kind, "create", "delete_topics"):
            return create_form(self._painter, request, snapshot, word, problem)
        actions = [_action(word, values, topic) for topic in topics]
        if actions[0].kind in CREATIONS and request.method == "GET" and word != "create" and "node" not in values:
            return create_form(self._painter, request, snapshot, word, problem, actions[0])
        asks_place = actions[0].kind is Kind.SEEK_CHANNEL
        if asks_place and not actions[0].place:
            actions = [_placed(actions[0])]
        try:
            plans = [plan(snapshot, action) for action in actions]
        except BadAction as error:
            reason = _reason(error)
            if actions[0].kind in CREATIONS:
                return create_form(self._painter, request, snapshot, word, reason, actions[0], status=400)
            raise HttpError(
                404 if str(error).endswith("NOT_FOUND") else 400, str(error), details={"reason": reason}
            ) from error
        if word == "create" and not actions[0].nodes:
            return create_form(self._painter, request, snapshot, word, problem, actions[0], status=status)
        return self._confirmation(request, snapshot, plans, values, problem=problem, status=status)

    def _confirmation(
        self,
        request: Request,
        snapshot: Snapshot,
        plans: Sequence[Plan],
        values: Values,
        *,
        problem: str,
        status: int,
    ) -> Response:
        first = plans[0]
        action = first.action
        identity = identity_of(request)
        shown = first if len(plans) == 1 else _joined(plans)
        reasons = (identity.why_not(each.action.right, each.action.topic) for each in plans)
        refusal = next((reason for reason in reasons if reason), "")
        nodes = [call.address for call in first.calls if not call.is_lookupd]
        can_be_paused = action.kind in _DELETIONS and any(
            consequence.severity == "warning" for consequence in first.consequences
        )
        pause = Kind.PAUSE_CHANNEL if action.kind is Kind.DELETE_CHANNEL else Kind.PAUSE_TOPIC
        return self._painter.page(
            request,
            "action.html",
            snapshot,
            status=status,
            plan=shown,
            kind=request.path_params["kind"] if len(plans) > 1 else action.kind,
            problem=problem,
            refusal=refusal,
            fields=_fields(values, without_place=action.kind is Kind.SEEK_CHANNEL),
            asks_place=action.kind is Kind.SEEK_CHANNEL,
            place=_first(values, "from"),
            back=self._where_it_was(first, len(plans) > 1),
            verb=ACTION_WORDS[action.kind].removesuffix("…"),
            pause_first=self._links.action(pause, topic=action.topic, channel=action.channel)
            if can_be_paused and nodes
            else "",
            curl=curl(action, nodes) if len(plans) == 1 and nodes and action.place != _ANY_PLACE else "",
        )

    def _where_it_was(self, plan: Plan, is_many: bool) -> str:
        action = plan.action
        if is_many or action.kind in CREATIONS or plan.is_of_directory:
            return self._links.to("/lookup")
        return self._links.about(action.topic, action.channel, "")


_ANY_PLACE: Final = "…"  # the place, until the user has chosen one


def _placed(action: Action) -> Action:
    return Action(kind=action.kind, topic=action.topic, channel=action.channel, nodes=action.nodes, place=_ANY_PLACE)


def _reason(error: BadAction) -> str:
    return _REASONS.get(str(error), str(error))


def _topics_of(word: str, values: Values) -> list[str]:
    topics = [name.strip() for name in values.get("topic", ()) if name.strip()]
    return topics[:_MOST_AT_ONCE] if word == "delete_topics" else topics[:1]


def _action(word: str, values: Values, topic: str) -> Action:
    """Read the action from the form's values. Raise 404 for an unknown `word`."""
    channel = _first(values, "channel").strip()
    if word == "create":
        kind = Kind.CREATE_CHANNEL if channel else Kind.CREATE_TOPIC
    elif word == "delete_topics":
        kind, channel = Kind.DELETE_TOPIC, ""
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


def _must_type(plans: Sequence[Plan]) -> str:
    needing = [each for each in plans if each.must_type]
    if not needing:
        return ""
    return needing[0].must_type if len(plans) == 1 else "delete"


def _joined(plans: Sequence[Plan]) -> Plan:
    """Join several deletions into one plan to confirm."""
    consequences = [each for single in plans for each in single.consequences if each.severity != "info"]
    return Plan(
        action=plans[0].action,
        title=f"Delete {len(plans)} topics: {', '.join(single.action.topic for single in plans)}",
        danger=Danger.DESTROYS,
        consequences=tuple(dict.fromkeys(consequences)),
        calls=tuple(call for single in plans for call in single.calls),
        unreachable=tuple(dict.fromkeys(address for single in plans for address in single.unreachable)),
        must_type=_must_type(plans),
    )


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
