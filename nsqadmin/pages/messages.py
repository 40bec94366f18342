"""The message browser on the pages of topics and channels, publishing, and replaying a range of history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from common.http_api import HttpError
from nsqadmin.access.policy import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, identity_of
from nsqadmin.messages.endpoints import MOST_BODY, bodies_of
from nsqadmin.messages.filters import BadFilter, parse_filter
from nsqadmin.messages.tail import CannotTail, nodes_to_tail
from nsqadmin.pages import numbers
from nsqadmin.pages.bodies import FORMS, ShownMessage, shown
from nsqadmin.pages.details import history_nodes, no_history
from nsqadmin.pages.painter import Failure, word_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel, Snapshot, Topic
    from nsqadmin.messages.model import NodeLog, Page, ReplayPlan
    from nsqadmin.messages.service import Messages
    from nsqadmin.pages.painter import Painter
    from nsqadmin.services import Services

_LIMITS: Final = ("50", "20", "100", "500")  # the first is the default
_NO_CLUSTER: Final = "this is a snapshot, which holds no messages"
_LAST: Final = (("10 minutes ago", 600), ("an hour ago", 3600), ("a day ago", 86400))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesShown:
    """What the message browser shows. Fields that begin with `no_` say why something is impossible, or are empty."""

    topic: str
    has_places: bool  # the user can choose where to start reading; a channel is only peeked into
    not_possible: str = ""  # why no messages can be shown; empty if they can
    page: Page | None = None
    messages: tuple[ShownMessage, ...] = ()
    is_masked: bool = False
    wanted: str = ""  # the filter as typed
    wrong: str = ""  # why the filter is not understood
    place: str = "latest"
    node: str = ""
    nodes: tuple[str, ...] = ()
    limit: int = 50
    form: str = "auto"
    quick: tuple[tuple[str, str], ...] = ()  # places to offer, with their labels
    more: tuple[tuple[str, str], ...] = ()  # labels and links of the next pages, one for each node
    download: str = ""
    tail: str = ""
    no_tail: str = ""
    ranges: tuple[NodeLog, ...] = ()
    no_replay: str = ""

    @property
    def times(self) -> tuple[str, ...]:
        return tuple(value for value, _ in self.quick if value not in ("latest", "earliest"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the form above a topic's messages asks for."""

    place: str
    wanted: str  # the filter as typed
    node: str
    limit: int
    form: str

    @property
    def choice(self) -> dict[str, object]:
        """The arguments that a link to more messages keeps, without those that are the default."""
        return {
            "filter": self.wanted,
            "limit": self.limit if self.limit != int(_LIMITS[0]) else "",
            "as": self.form if self.form != "auto" else "",
        }


def _asked(request: Request) -> _Asked:
    arguments = request.query_params
    return _Asked(
        place=arguments.get("from", "").strip() or "latest",
        wanted=arguments.get("filter", "").strip(),
        node=arguments.get("node", ""),
        limit=int(word_of(request, "limit", _LIMITS)),
        form=word_of(request, "as", FORMS),
    )


class MessagePages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/actions/publish", self.publish),
            Route("GET", "/actions/replay", self.confirm_replay),
            Route("POST", "/actions/replay", self.replay),
        ]

    # Reading

    async def of_topic(self, request: Request, snapshot: Snapshot, topic: Topic) -> MessagesShown:
        identity = identity_of(request)
        no_tail = identity.why_not(Right.PAYLOAD, topic.name) or self._why_no_tail(snapshot, topic.name)
        tail = self._links.to(f"/api/v2/tail/{quote(topic.name, safe='')}")
        messages = self._services.messages
        reason = no_history(topic) if messages is not None else _NO_CLUSTER
        if messages is None or reason:
            return MessagesShown(topic=topic.name, has_places=True, not_possible=reason, no_tail=no_tail, tail=tail)
        asked = _asked(request)
        wrong, page = "", None
        try:
            page = await messages.read(
                topic.name,
                identity,
                node=asked.node,
                place=asked.place,
                limit=asked.limit,
                wanted=parse_filter(asked.wanted),
            )
        except BadFilter as error:
            wrong = f"This search is not understood: {error}."
        return MessagesShown(
            topic=topic.name,
            has_places=True,
            page=page,
            messages=_all_shown(page, asked.form),
            is_masked=_is_masked(page),
            wanted=asked.wanted,
            wrong=wrong,
            place=asked.place,
            node=asked.node,
            nodes=history_nodes(topic),
            limit=asked.limit,
            form=asked.form,
            quick=_quick(snapshot.taken_at),
            more=self._more(topic.name, page, asked.choice),
            download=self._download(topic.name, asked),
            tail=tail,
            no_tail=no_tail,
            ranges=tuple(log for log in page.logs if log.next > log.first) if page is not None else (),
            no_replay=identity.why_not(Right.PAYLOAD, topic.name) or identity.why_not(Right.PUBLISH),
        )

    async def of_channel(self, request: Request, topic: Topic, channel: Channel) -> MessagesShown:
        identity = identity_of(request)
        messages = self._services.messages
        reason = no_history(topic) if messages is not None else _NO_CLUSTER
        if channel.is_ephemeral and not reason:
            reason = "an ephemeral channel keeps no place in history"
        if messages is None or reason:
            return MessagesShown(topic=topic.name, has_places=False, not_possible=reason)
        node, limit = request.query_params.get("node", ""), int(word_of(request, "limit", ("20", *_LIMITS)))
        form = word_of(request, "as", FORMS)
        page = await messages.peek(topic.name, channel.name, identity, node=node, limit=limit)
        return MessagesShown(
            topic=topic.name,
            has_places=False,
            page=page,
            messages=_all_shown(page, form),
            is_masked=_is_masked(page),
            node=node,
            nodes=history_nodes(topic),
            limit=limit,
            form=form,
            no_replay=identity.why_not(Right.PAYLOAD, topic.name) or identity.why_not(Right.PUBLISH),
        )

    def _why_no_tail(self, snapshot: Snapshot, topic: str) -> str:
        if self._services.messages is None:
            return _NO_CLUSTER
        try:
            nodes_to_tail(snapshot, topic)
        except CannotTail as error:
            return str(error)
        return ""

    def _download(self, topic: str, asked: _Asked) -> str:
        return self._links.to(
            f"/api/v2/messages/{quote(topic, safe='')}",
            **{
                "from": asked.place,
                "limit": asked.limit,
                "node": asked.node,
                "filter": asked.wanted,
                "format": "ndjson",
            },
        )

    def _more(self, topic: str, page: Page | None, choice: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
        """Return labels and links for reading on, for each node whose log has more messages."""
        if page is None:
            return ()
        going_on = [log for log in page.logs if log.continue_at is not None]
        return tuple(
            (
                f"Read on at {log.node} from {numbers.exact(log.continue_at)}",
                self._links.topic(
                    topic, **{"tab": "messages", "from": str(log.continue_at), "node": log.node, **choice}
                ),
            )
            for log in going_on
        )

    # Publishing

    async def publish(self, request: Request) -> Response:
        try:
            return await self._publish(request, await form_of(request, limit=MOST_BODY))
        except HttpError as error:
            return await self._refusal(request, error)

    async def _publish(self, request: Request, form: Mapping[str, str]) -> Response:
        messages, topic = self._messages(), form.get("topic", "")
        # Browsers send the line ends of a text area as CR LF, whatever was typed.
        text = form.get("body", "").replace("\r\n", "\n")
        body: dict[str, object] = {"count": _number(form, "count", 1)}
        if form.get("lines") == "yes":
            body["bodies"] = [line for line in text.split("\n") if line]
        else:
            body["body"] = text
        bodies = bodies_of(body)
        published = await messages.publish(
            topic, bodies, caller_of(request), node=form.get("node", ""), defer_ms=_number(form, "defer", 0)
        )
        return self._painter.page(
            request,
            "published.html",
            await self._painter.picture(request),
            headline=f"Publish to {topic}",
            result=_result(published.count, published.error),
            detail=f"{numbers.several(published.count, 'message')} to {published.node}.",
            failure=published.error,
            done=self._links.topic(topic, tab="messages"),
            again="",
        )

    async def confirm_replay(self, request: Request) -> Response:
        try:
            plan = await self._plan(request, dict(request.query_params))
        except HttpError as error:
            return await self._refusal(request, error)
        return await self._replay_page(request, plan)

    async def replay(self, request: Request) -> Response:
        try:
            form = await form_of(request)
            plan = await self._plan(request, form)
            if plan.must_type and form.get("typed") != plan.must_type:
                problem = f"Nothing was published: type “{plan.must_type}” to go on."
                return await self._replay_page(request, plan, problem=problem, status=400)
            receipt = await self._messages().replay(plan, caller_of(request))
        except HttpError as error:
            return await self._refusal(request, error)
        detail = f"{numbers.several(receipt.published, 'message')} to {plan.target}"
        if receipt.skipped:
            detail += f"; {numbers.several(receipt.skipped, 'message')} could no longer be read"
        again = ""
        if receipt.continue_at is not None:
            again = self._links.action(
                "replay", topic=plan.topic, node=plan.node, first=receipt.continue_at, end=plan.end, target=plan.target
            )
        return self._painter.page(
            request,
            "published.html",
            await self._painter.picture(request),
            headline=plan.title,
            result=_result(receipt.published, receipt.error),
            detail=f"{detail}.",
            failure=receipt.error,
            done=self._links.topic(plan.target, tab="messages"),
            again=again,
        )

    async def _plan(self, request: Request, values: Mapping[str, str]) -> ReplayPlan:
        topic = values.get("topic", "")
        first, end = _number(values, "first", 0), _number(values, "end", 0)
        return await self._messages().plan_replay(
            topic, values.get("node", ""), first, end, values.get("target", "") or topic, identity_of(request)
        )

    async def _replay_page(
        self, request: Request, plan: ReplayPlan, *, problem: str = "", status: int = 200
    ) -> Response:
        snapshot = await self._painter.picture(request)
        return self._painter.page(request, "replay.html", snapshot, status=status, plan=plan, problem=problem)

    def _messages(self) -> Messages:
        messages = self._services.messages
        if messages is None:
            raise HttpError(403, "FORBIDDEN", details={"reason": _NO_CLUSTER})
        return messages

    async def _refusal(self, request: Request, error: HttpError) -> Response:
        failure = Failure(
            title="Nothing was published",
            text=str((error.details or {}).get("reason", error.code)),
            raw=f"{error.status} {error.code}",
            links=(("Overview", self._links.to("/")),),
        )
        return self._painter.failure(request, await self._painter.picture(request), failure, status=error.status)


def _all_shown(page: Page | None, form: str) -> tuple[ShownMessage, ...]:
    return tuple(shown(message, form) for message in page.messages) if page is not None else ()


def _is_masked(page: Page | None) -> bool:
    return page is not None and any(message.is_masked for message in page.messages)


def _quick(now: float) -> tuple[tuple[str, str], ...]:
    ago = tuple((numbers.moment(now - seconds), label) for label, seconds in _LAST)
    return (("latest", "Newest"), *ago, ("earliest", "Oldest"))


def _result(count: int, error: str) -> str:
    return "ok" if not error else "partly" if count else "failed"


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise HttpError(
            400, f"INVALID_{name.upper()}", details={"reason": f"{name}: expected a number, got {text[:40]}"}
        )
    return int(text)
