"""The endpoints for messages: `messages/*`, `logs/*`, `tail/*`, `publish` and `replay` under `/api/v2`."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from nsqadmin.access import Right
from nsqadmin.cluster.recording import to_json
from nsqadmin.http.app import Route
from nsqadmin.http.event_stream import EventStream
from nsqadmin.http.responses import body_of, caller_of, json_answer, number_argument, require, word_in
from nsqadmin.messages.download import lines
from nsqadmin.messages.events import MOST_SHOWN, SearchEvents, TailEvents
from nsqadmin.messages.filters import BadFilter, Filter, parse_filter
from nsqadmin.messages.model import Message, Page, SearchResult, message_json, page_json
from nsqadmin.messages.publishing import MOST as MOST_PUBLISHED
from nsqadmin.messages.reading import GONE, MOST
from nsqadmin.messages.searching import NEWEST, Search
from nsqadmin.messages.selection import BadSelection, Selection, parse_selection
from nsqadmin.messages.tail import LONGEST, CannotTail, Tail, nodes_to_tail, sample_rate
from nsqadmin.messages.walk import BadCursor, parse_cursor
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.messages.service import Messages

MOST_BODY: Final = 16 << 20  # bytes of a request to publish
_MOST_DEFERRED: Final = 3600 * 24 * 365 * 1000  # milliseconds; nsqd has its own limit
_HIGHEST: Final = (1 << 63) - 1
_MOST_BYTES: Final = 64 << 20  # of the bodies of a selection
_MOST_PIECES: Final = 500  # ranges to read at once: each is a request to a node


def routes(messages: Messages, view: View) -> list[Route]:
    endpoints = _Endpoints(messages, view)
    return [
        Route("GET", "/api/v2/messages/{topic}", endpoints.read),
        Route("POST", "/api/v2/messages/{topic}", endpoints.selected),
        Route("GET", "/api/v2/messages/{topic}/{channel}", endpoints.peek),
        Route("GET", "/api/v2/search/{topic}", endpoints.search),
        Route("GET", "/api/v2/logs/{topic}", endpoints.logs),
        Route("GET", "/api/v2/body/{topic}", endpoints.body),
        Route("GET", "/api/v2/tail/{topic}", endpoints.tail),
        Route("POST", "/api/v2/publish", endpoints.publish),
        Route("POST", "/api/v2/redeliver", endpoints.redeliver),
        Route("POST", "/api/v2/replay/plan", endpoints.plan_replay),
        Route("POST", "/api/v2/replay", endpoints.replay),
    ]


class _Endpoints:
    def __init__(self, messages: Messages, view: View) -> None:
        self._messages = messages
        self._view = view

    async def logs(self, request: Request) -> Response:
        topic = self._topic(request)
        logs = await self._messages.logs(topic, self._node(request))
        return json_answer({"logs": to_json(logs)})

    async def read(self, request: Request) -> Response:
        """Send a page of history. Arguments: `from=`, `limit=`, `node=`, `filter=`, `format=ndjson`, `raw=true`."""
        topic = self._topic(request)
        page = await self._messages.read(
            topic,
            require(request, Right.VIEW, topic),
            node=self._node(request),
            place=request.query_params.get("from", "latest"),
            limit=number_argument(request, "limit", 100, least=1, most=MOST),
            wanted=filter_of(request.query_params.get("filter", "")),
        )
        return _page_answer(request, page, f"{topic}.ndjson")

    async def selected(self, request: Request) -> Response:
        """Send the messages `{"messages":"12@n1:4151 30-40@n1:4151"}` as lines of JSON, without those that are gone."""
        topic = self._topic(request)
        identity = require(request, Right.VIEW, topic)
        selection = selection_of(word_in(await self._object(request), "messages"))
        pieces = [(source, *run) for source, runs in selection.runs.items() for run in runs]
        if selection.count > MOST or len(pieces) > _MOST_PIECES:
            reason = f"at most {MOST:,} messages, in {_MOST_PIECES:,} ranges"
            raise HttpError(400, "INVALID_MESSAGES", details={"reason": reason})
        found: list[Message] = []
        size = 0
        for (node, log), first, end in pieces:
            if self._view.snapshot.node(node) is None:
                raise HttpError(404, "NODE_NOT_FOUND")
            at: int | None = first
            while at is not None and at < end:  # a page ends early if its bodies are large
                page = await self._messages.read(topic, identity, node=node, place=str(at), limit=end - at)
                more = [it for it in page.messages if _is_one_of(it, log, first, end)]
                found += more
                size += sum(it.held for it in more)
                if size > _MOST_BYTES:
                    reason = f"together more than {_MOST_BYTES >> 20} MiB: choose fewer messages, or download all"
                    raise HttpError(413, "TOO_LARGE", details={"reason": reason})
                at = _next_place(page, at, identity)
        return _lines_answer(found, f"{topic}.ndjson", raw=_is_raw(request))

    async def search(self, request: Request) -> Response:
        """Stream events: `message` for each hit, `progress`, and last `end`, which is also a progress report.

        With `format=ndjson`, send all hits as a file, or `limit=` of them. With `raw=true`, bodies are not decoded.
        """
        topic = self._topic(request)
        arguments = request.query_params
        cursor = arguments.get("cursor", "")
        try:
            parse_cursor(cursor)
        except BadCursor as error:
            raise HttpError(400, "INVALID_ARG_CURSOR", details={"reason": str(error)}) from error
        search = Search(
            topic=topic,
            wanted=filter_of(arguments.get("filter", "")),
            identity=require(request, Right.VIEW, topic),
            place=arguments.get("from", NEWEST),
            node=self._node(request),
            cursor=cursor,
        )
        if arguments.get("format") == "ndjson":
            most = number_argument(request, "limit", 0, least=1, most=_HIGHEST) or None
            headers = _file_headers(f"{topic}.ndjson") | {"content-type": "application/x-ndjson"}
            step, raw, over = self._messages.search, _is_raw(request), asyncio.Event()
            return EventStream(
                lambda: lines(step, search, most=most, began=time(), raw=raw, is_over=over.is_set),
                close=over.set,
                headers=headers,
            )
        search = replace(
            search,
            limit=number_argument(request, "limit", 100, least=1, most=MOST),
            seconds=number_argument(request, "seconds", 30, least=1, most=60),
        )
        events = SearchEvents(raw=_is_raw(request))

        async def run() -> SearchResult:
            return await self._messages.search(search, events.report)

        return EventStream(lambda: events.events(run), close=events.close)

    async def peek(self, request: Request) -> Response:
        topic, channel = self._topic(request), str(request.path_params["channel"])
        if self._view.snapshot.channel(topic, channel) is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        page = await self._messages.peek(
            topic,
            channel,
            require(request, Right.VIEW, topic),
            node=self._node(request),
            limit=number_argument(request, "limit", 20, least=1, most=MOST),
        )
        return _page_answer(request, page, f"{topic}.{channel}.ndjson")

    async def body(self, request: Request) -> Response:
        """Send the body of one message as it was published, as a file. Arguments: `node=`, `sequence=`, `log=`."""
        topic = self._topic(request)
        identity = require(request, Right.PAYLOAD, topic)
        sequence = number_argument(request, "sequence", 0, least=0, most=_HIGHEST)
        node, log = self._node(request), request.query_params.get("log", "")
        if not node:
            raise HttpError(400, "INVALID_NODE")
        page = await self._messages.read(topic, identity, node=node, place=str(sequence), limit=1)
        found = next((it for it in page.messages if it.sequence == sequence and it.log in (log or it.log, None)), None)
        if found is None or found.body is None:
            reason = next((it.reason for it in page.logs if it.reason), "it is not in the history there")
            raise HttpError(404, "MESSAGE_NOT_FOUND", details={"reason": reason})
        headers = _file_headers(f"{topic}-{sequence}.bin")
        return Response(found.body, headers=headers, media_type="application/octet-stream")

    async def tail(self, request: Request) -> Response:
        """Stream events: `message`, `skipped` (how many so far), `trouble` (a node and the reason), `end`."""
        render = partial(message_json, most=MOST_SHOWN, raw=_is_raw(request))
        return await tailed(request, self._messages, self._view, render)

    async def publish(self, request: Request) -> Response:
        """Publish `{"topic":"t","body":"text"}`; also `bodies` or `body_base64`, with `node`, `defer_ms`, `count`."""
        require(request, Right.PUBLISH)
        body = await self._object(request)
        topic = word_in(body, "topic")
        require(request, Right.PUBLISH, topic)
        published = await self._messages.publish(
            topic,
            bodies_of(body),
            caller_of(request),
            node=word_in(body, "node"),
            defer_ms=_number(body, "defer_ms", 0, most=_MOST_DEFERRED),
        )
        return json_answer(to_json(published))

    async def plan_replay(self, request: Request) -> Response:
        """Send the consequences of replaying `{"topic":"t","node":"n1:4151","first":0,"end":100,"target":"t2"}`."""
        require(request, Right.PUBLISH)
        body = await self._object(request)
        return json_answer(to_json(await self._plan(request, body)))

    async def replay(self, request: Request) -> Response:
        require(request, Right.PUBLISH)
        plan = await self._plan(request, await self._object(request))
        return json_answer(to_json(await self._messages.replay(plan, caller_of(request))))

    async def redeliver(self, request: Request) -> Response:
        """Deliver `{"topic":"t","channel":"c","messages":"12@n1:4151 30-40@n1:4151"}` to this channel once more."""
        require(request, Right.OPERATE)
        body = await self._object(request)
        topic = word_in(body, "topic")
        require(request, Right.OPERATE, topic)
        selection = selection_of(word_in(body, "messages"))
        results = await self._messages.redeliver(topic, word_in(body, "channel"), selection, caller_of(request))
        return json_answer({"nodes": to_json(results)})

    async def _plan(self, request: Request, body: Mapping[str, Any]) -> Any:
        topic, target = word_in(body, "topic"), word_in(body, "target")
        identity = require(request, Right.PAYLOAD, topic)
        if self._view.snapshot.topic(topic) is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        node = word_in(body, "node")
        if not node:
            raise HttpError(400, "INVALID_NODE")
        first, end = _number(body, "first", 0, most=_HIGHEST), _number(body, "end", _HIGHEST, most=_HIGHEST)
        return await self._messages.plan_replay(topic, node, first, end, target, identity, log=word_in(body, "log"))

    def _topic(self, request: Request) -> str:
        return _seen_topic(request, self._view)

    def _node(self, request: Request) -> str:
        node = request.query_params.get("node", "")
        if node and self._view.snapshot.node(node) is None:
            raise HttpError(404, "NODE_NOT_FOUND")
        return node

    async def _object(self, request: Request) -> Mapping[str, Any]:
        try:
            value = json.loads(await body_of(request, limit=MOST_BODY))
        except (ValueError, RecursionError) as error:
            raise HttpError(400, "INVALID_BODY", details={"reason": str(error)}) from None
        if not isinstance(value, dict):
            raise HttpError(400, "INVALID_BODY", details={"reason": "expected a JSON object"})
        return value


async def tailed(request: Request, messages: Messages, view: View, render: Callable[[Message], Any]) -> Response:
    """Return the stream of a tail, with `render` for the data of each message."""
    topic = _seen_topic(request, view)
    identity = require(request, Right.PAYLOAD, topic)
    wanted = filter_of(request.query_params.get("filter", ""))
    seconds = number_argument(request, "seconds", int(LONGEST), least=1, most=int(LONGEST))
    snapshot = await view.refreshed(topic)
    try:
        nodes = nodes_to_tail(snapshot, topic)
    except CannotTail as error:
        raise HttpError(409, "CANNOT_TAIL", details={"reason": str(error)}) from error
    messages.note_tail(topic, caller_of(request))
    shown = TailEvents(render)
    found = snapshot.topic(topic)

    async def show(message: Message) -> None:
        looking = messages.reader.look(identity, topic, wanted)
        for seen in [*await looking.add(None, message), *await looking.rest()]:
            if seen.message is not None and seen.is_wanted:
                shown.show(seen.message)

    tail = Tail(
        topic,
        show=show,
        skip=shown.skip,
        trouble=shown.trouble,
        sample_rate=sample_rate(found.rates.incoming if found is not None else None),
    )

    async def run() -> None:
        await run_trio(lambda: tail.run(nodes, seconds=seconds))

    return EventStream(lambda: shown.events(run), close=shown.close)


def _seen_topic(request: Request, view: View) -> str:
    topic = str(request.path_params["topic"])
    require(request, Right.VIEW, topic)
    if view.snapshot.topic(topic) is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def _page_answer(request: Request, page: Page, name: str) -> Response:
    raw = _is_raw(request)
    if request.query_params.get("format") != "ndjson":
        return json_answer(page_json(page, most=MOST_SHOWN, raw=raw))
    return _lines_answer(page.messages, name, raw=raw)


def _is_one_of(message: Message, log: str, first: int, end: int) -> bool:
    """Return True if the message is in the range, and not in another log that has replaced the one that was meant."""
    return message.sequence is not None and first <= message.sequence < end and (log or message.log) == message.log


def _next_place(page: Page, at: int, identity: Identity) -> int | None:
    """Return where a node's messages go on after this page, which began at `at`; None: they don't.

    Raises a 503 if the node couldn't be read.
    """
    for read in page.logs:
        if read.reason and read.reason not in GONE:
            reason = identity.quoted(f"{read.node}: {read.reason}")
            raise HttpError(503, "NODE_NOT_READ", details={"reason": reason})
        place = read.first if read.reason else read.continue_at  # retention may have removed the first ones
        return place if place is not None and place > at else None
    return None


def _lines_answer(messages: Iterable[Message], name: str, *, raw: bool) -> Response:
    lines = (json.dumps(message_json(row, most=None, raw=raw), ensure_ascii=False) for row in messages)
    text = "".join(f"{line}\n" for line in lines)
    return Response(text.encode("utf-8", "replace"), headers=_file_headers(name), media_type="application/x-ndjson")


def _is_raw(request: Request) -> bool:
    """Return True if bodies are wanted as they were published."""
    return request.query_params.get("raw") == "true"


def _file_headers(name: str) -> dict[str, str]:
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return {"content-disposition": f'attachment; filename="{safe}"'}


def filter_of(text: str) -> Filter:
    try:
        return parse_filter(text)
    except BadFilter as error:
        raise HttpError(400, "INVALID_ARG_FILTER", details={"reason": str(error)}) from error


def channel_named(view: View, request: Request, named: Mapping[str, Any]) -> Channel:
    """Return the channel that a request names. Raises 403, 404."""
    topic, name = word_in(named, "topic"), word_in(named, "channel")
    require(request, Right.VIEW, topic)
    channel = view.snapshot.channel(topic, name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def selection_of(text: str) -> Selection:
    try:
        return parse_selection(text)
    except BadSelection as error:
        raise HttpError(400, "INVALID_MESSAGES", details={"reason": str(error)}) from error


def bodies_of(body: Mapping[str, Any]) -> list[bytes]:
    """Return the bodies to publish, repeated `count` times."""
    if "bodies" in body:
        texts = body["bodies"]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise HttpError(400, "INVALID_BODY", details={"reason": "bodies is a list of strings"})
        bodies = [text.encode("utf-8", "surrogatepass") for text in texts]
    elif "body_base64" in body:
        try:
            bodies = [b64decode(word_in(body, "body_base64"), validate=True)]
        except NotBase64 as error:
            raise HttpError(400, "INVALID_BODY", details={"reason": f"body_base64: {error}"}) from error
    else:
        bodies = [word_in(body, "body").encode("utf-8", "surrogatepass")]
    count = _number(body, "count", 1, most=MOST_PUBLISHED)
    if not bodies or not count or not all(bodies):
        raise HttpError(400, "INVALID_BODY", details={"reason": "a message may not be empty"})
    if len(bodies) * count > MOST_PUBLISHED:
        raise HttpError(400, "INVALID_BODY", details={"reason": f"at most {MOST_PUBLISHED:,} messages at once"})
    return bodies * count


def _number(body: Mapping[str, Any], name: str, default: int, *, most: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise HttpError(400, f"INVALID_{name.upper()}", details={"reason": f"{name} is a number from 0 to {most}"})
    return value
