"""The message browser: a tab on the pages of topics and channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.http.responses import identity_of, number_argument
from nsqadmin.messages.endpoints import filter_of, tailed
from nsqadmin.messages.filters import BadFilter, Filter, parse_filter
from nsqadmin.messages.jobs import hint_for
from nsqadmin.messages.model import SearchResult
from nsqadmin.messages.searching import NEWEST, Search
from nsqadmin.messages.selection import Source, selected
from nsqadmin.messages.tail import CannotTail, nodes_to_tail
from nsqadmin.messages.walk import BadCursor
from nsqadmin.parts.bodies import FORMS, ShownMessage, marks_of, shown
from nsqadmin.parts.painter import word_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel, Snapshot, Topic
    from nsqadmin.messages.model import Gap, Message, NodeLog
    from nsqadmin.messages.service import Messages
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

NO_CLUSTER: Final = "this is a snapshot, which holds no messages"
_LIMITS: Final = ("50", "20", "100", "500")  # the first is the default
_LAST: Final = (("10 minutes ago", 600), ("an hour ago", 3600), ("a day ago", 86400))
_SECONDS: Final = 2.0  # seconds that a page searches before it shows its hits
_MOST_COLUMNS: Final = 6
_HIGHEST: Final = (1 << 53) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """The values of the form above the messages."""

    place: str = NEWEST
    wanted: str = ""  # the filter as typed
    node: str = ""
    limit: int = int(_LIMITS[0])
    form: str = "auto"
    columns: tuple[str, ...] = ()
    channel: str = ""  # the channel whose page the user came from: replays go there
    cursor: str = ""
    hits: int = 0  # found by earlier steps

    def arguments(self, **changed: str) -> dict[str, object]:
        """Return the arguments of a link that keeps all this but the cursor. Skips defaults."""
        kept: dict[str, object] = {
            "tab": "messages",
            "from": self.place if self.place != NEWEST else "",
            "filter": self.wanted,
            "node": self.node,
            "limit": self.limit if self.limit != int(_LIMITS[0]) else "",
            "as": self.form if self.form != "auto" else "",
            "columns": " ".join(self.columns),
            "channel": self.channel,
        }
        return {**kept, **changed}


def asked_of(request: Request, limits: tuple[str, ...] = _LIMITS) -> MessageQuery:
    arguments = request.query_params
    return MessageQuery(
        place=arguments.get("from", "").strip() or NEWEST,
        wanted=arguments.get("filter", "").strip(),
        node=arguments.get("node", ""),
        limit=int(word_of(request, "limit", limits)),
        form=word_of(request, "as", FORMS),
        columns=tuple(arguments.get("columns", "").replace(",", " ").split()[:_MOST_COLUMNS]),
        channel=arguments.get("channel", ""),
        cursor=arguments.get("cursor", ""),
        hits=number_argument(request, "hits", 0, least=0, most=_HIGHEST),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesShown:
    """The content of the message browser. Fields starting with `no_` say why something is impossible, or are empty."""

    topic: str
    asked: MessageQuery = MessageQuery()
    not_possible: str = ""  # why no messages can be shown; empty if they can
    messages: tuple[ShownMessage, ...] = ()
    found: SearchResult | None = None  # progress of a search; None: this is a peek
    gaps: tuple[Gap, ...] = ()
    silent: tuple[NodeLog, ...] = ()
    is_masked: bool = False
    no_bodies: str = ""
    wrong: str = ""  # why the search is invalid
    nodes: tuple[str, ...] = ()
    quick: tuple[tuple[str, str, str], ...] = ()  # suggested places: value, label, link
    go_on: str = ""  # link that continues; empty at the end
    download: str = ""
    raw_download: str = ""  # the same with bodies as they were published; empty: they are the same
    tail: str = ""
    no_tail: str = ""
    no_replay: str = ""

    @property
    def selection(self) -> str:
        """The messages on the page, as a form names them."""
        places = ((it.message, it.message.sequence) for it in self.messages)
        return str(
            selected((Source(it.node, it.log or ""), sequence) for it, sequence in places if sequence is not None)
        )

    @property
    def job_hint(self) -> str:
        """An example of a search for jobs, if there are some among these messages."""
        return hint_for(it.message.job for it in self.messages)


class MessagesTab:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    async def of_topic(self, request: Request, snapshot: Snapshot, topic: Topic) -> MessagesShown:
        identity = identity_of(request)
        messages, asked = self._services.messages, asked_of(request)
        known = MessagesShown(
            topic=topic.name,
            asked=asked,
            not_possible=no_history(topic) if messages is not None else NO_CLUSTER,
            no_tail=identity.why_not(Right.PAYLOAD, topic.name) or self._why_no_tail(snapshot, topic.name),
            tail=self._tail(topic.name, asked, kept=messages is not None and not no_history(topic)),
        )
        if messages is None or known.not_possible:
            return known
        try:
            wanted = parse_filter(asked.wanted)
            search = Search(
                topic=topic.name,
                wanted=wanted,
                identity=identity,
                place=asked.place,
                node=asked.node,
                cursor=asked.cursor,
                limit=asked.limit,
                seconds=_SECONDS,
            )
            found = await messages.search(search)
        except (BadFilter, BadCursor) as error:
            return replace(known, wrong=f"This search is not understood: {error}.", nodes=history_nodes(topic))
        return replace(
            known,
            messages=shown_as(found.messages, asked, wanted),
            found=found,
            gaps=found.gaps,
            silent=found.silent,
            is_masked=any(message.is_masked for message in found.messages),
            no_bodies=identity.why_not(Right.PAYLOAD, topic.name),
            nodes=history_nodes(topic),
            quick=self._quick(topic.name, asked, snapshot.taken_at),
            go_on=self._go_on(topic.name, asked, found),
            download=self._download(topic.name, asked),
            raw_download=self._download(topic.name, asked, raw="true") if _has_decoded(found.messages) else "",
            no_replay=no_replay_of(identity, topic.name),
        )

    async def of_channel(self, request: Request, topic: Topic, channel: Channel) -> MessagesShown:
        identity = identity_of(request)
        messages, asked = self._services.messages, asked_of(request, ("20", *_LIMITS))
        reason = no_history(topic) if messages is not None else NO_CLUSTER
        if channel.is_ephemeral and not reason:
            reason = "an ephemeral channel keeps no place in history"
        if messages is None or reason:
            return MessagesShown(topic=topic.name, not_possible=reason)
        page = await messages.peek(topic.name, channel.name, identity, node=asked.node, limit=asked.limit)
        return MessagesShown(
            topic=topic.name,
            asked=replace(asked, channel=channel.name),
            messages=shown_as(page.messages, asked, Filter()),
            gaps=page.gaps,
            silent=tuple(log for log in page.logs if log.reason),
            is_masked=any(message.is_masked for message in page.messages),
            nodes=history_nodes(topic),
        )

    async def tail(self, request: Request) -> Response:
        """Stream new messages like `/api/v2/tail`, each as a row of the page's table."""
        asked, messages = asked_of(request), self._services.messages
        if messages is None:
            raise HttpError(409, "CANNOT_TAIL", details={"reason": NO_CLUSTER})
        marks = marks_of(filter_of(asked.wanted))
        is_kept = request.query_params.get("kept") == "1"
        like = MessagesShown(
            topic=str(request.path_params["topic"]), asked=asked, found=SearchResult() if is_kept else None
        )

        def render(message: Message) -> dict[str, str]:
            one = shown(message, marks=marks, columns=asked.columns)
            return {"row": self._painter.fragment("parts/message_row.html", m=like, shown=one, picks=is_kept)}

        return await tailed(request, messages, self._services.view, render)

    # Links

    def _tail(self, topic: str, asked: MessageQuery, *, kept: bool) -> str:
        columns = " ".join(asked.columns)
        path = f"/tail/{quote(topic, safe='')}"
        return self._links.to(path, filter=asked.wanted, columns=columns, channel=asked.channel, kept=int(kept) or "")

    def _go_on(self, topic: str, asked: MessageQuery, found: SearchResult) -> str:
        if not found.goes_on:
            return ""
        hits = asked.hits + len(found.messages) if asked.wanted else 0
        return self._links.topic(topic, **asked.arguments(cursor=found.cursor, hits=str(hits or "")))

    def _why_no_tail(self, snapshot: Snapshot, topic: str) -> str:
        if self._services.messages is None:
            return NO_CLUSTER
        try:
            nodes_to_tail(snapshot, topic)
        except CannotTail as error:
            return str(error)
        return ""

    def _quick(self, topic: str, asked: MessageQuery, now: float) -> tuple[tuple[str, str, str], ...]:
        ago = tuple((numbers.moment(now - seconds), label) for label, seconds in _LAST)
        places = ((NEWEST, "Newest"), *ago, ("earliest", "Oldest"))
        return tuple(
            (value, label, self._links.topic(topic, **asked.arguments(**{"from": value}))) for value, label in places
        )

    def _download(self, topic: str, asked: MessageQuery, raw: str = "") -> str:
        """Return the link to a file of all hits of a search, or without a search of the messages on the page."""
        path = f"/api/v2/search/{quote(topic, safe='')}"
        shown = {} if asked.wanted else {"limit": asked.limit, "cursor": asked.cursor}
        arguments = {"from": asked.place, "node": asked.node, "filter": asked.wanted}
        return self._links.to(path, **arguments, **shown, format="ndjson", raw=raw)


def no_replay_of(identity: Identity, topic: str) -> str:
    """Return why nothing can be replayed, neither to one channel nor to all; empty if something can."""
    to_all = identity.why_not(Right.PAYLOAD, topic) or identity.why_not(Right.PUBLISH, topic)
    return to_all and identity.why_not(Right.OPERATE, topic)


def shown_as(messages: Iterable[Message], asked: MessageQuery, wanted: Filter) -> tuple[ShownMessage, ...]:
    marks = marks_of(wanted)
    return tuple(shown(message, asked.form, marks=marks, columns=asked.columns) for message in messages)


def _has_decoded(messages: Iterable[Message]) -> bool:
    """Return True if the user sees decoded bodies, and may also see what they were."""
    return any(it.decoded is not None and it.body is not None for it in messages)


def history_nodes(topic: Topic) -> tuple[str, ...]:
    return tuple(row.node for row in topic.nodes if row.has_log)


def no_history(topic: Topic) -> str:
    """Return why the topic's messages can't be read again; "" if they can."""
    if topic.is_ephemeral:
        return "an ephemeral topic is in memory only and keeps no history"
    if topic.is_inactive:
        return "no node has this topic"
    return "" if history_nodes(topic) else "its nodes keep no history: only a Python nsqd does, not Go's"


def messages_of(services: Services) -> Messages:
    """Return the service for reading and publishing messages. Raise 403 if nsqadmin shows a snapshot file."""
    if services.messages is None:
        raise HttpError(403, "FORBIDDEN", details={"reason": NO_CLUSTER})
    return services.messages
