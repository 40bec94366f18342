"""`/api/*`: NSQ's endpoints, with its arguments, errors and warnings."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from time import time
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote_plus

from nsqadmin.access import Right
from nsqadmin.actions.plan import Action, Kind, Receipt
from nsqadmin.http.api_v1_documents import (
    channel_document,
    counter_document,
    node_document,
    nodes_document,
    topic_document,
)
from nsqadmin.http.app import Route
from nsqadmin.http.responses import body_of, caller_of, identity_of, json_answer, require
from nsqadmin.upstream.queries import Found, TotalFailure
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio
from nsqcommon.wire.names import is_valid_name

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.execution import Executor
    from nsqadmin.upstream.discovery import Announced
    from nsqadmin.upstream.queries import Queries

log = logging.getLogger(__name__)

T = TypeVar("T")

_OF_TOPICS: Final = {"pause": Kind.PAUSE_TOPIC, "unpause": Kind.UNPAUSE_TOPIC, "empty": Kind.EMPTY_TOPIC}
_OF_CHANNELS: Final = {"pause": Kind.PAUSE_CHANNEL, "unpause": Kind.UNPAUSE_CHANNEL, "empty": Kind.EMPTY_CHANNEL}


def routes(queries: Queries, executor: Executor) -> list[Route]:
    questions = _Questions(queries)
    changes = _Changes(queries, executor)
    topic, channel, node = "/api/topics/{topic}", "/api/topics/{topic}/{channel}", "/api/nodes/{node}"
    return [
        Route("GET", "/api/topics", questions.topics),
        Route("POST", "/api/topics", changes.create),
        Route("GET", topic, questions.topic),
        Route("POST", topic, changes.topic_action),
        Route("DELETE", topic, changes.delete_topic),
        Route("GET", channel, questions.channel),
        Route("POST", channel, changes.channel_action),
        Route("DELETE", channel, changes.delete_channel),
        Route("GET", "/api/nodes", questions.nodes),
        Route("GET", node, questions.node),
        Route("DELETE", node, changes.tombstone),
        Route("GET", "/api/counter", questions.counter),
    ]


class _Questions:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def topics(self, request: Request) -> Response:
        identity = identity_of(request)
        if request.query_params.get("inactive") == "true":
            inactive = await _found(request, self._queries.inactive_topics, "topics")
            seen = {topic: channels for topic, channels in inactive.value.items() if identity.sees(topic)}
            return json_answer({"topics": seen, "message": _warning(request, inactive.errors)})
        found = await _found(request, self._queries.topics, "topics")
        names = [topic for topic in found.value if identity.sees(topic)]
        return json_answer({"topics": names, "message": _warning(request, found.errors)})

    async def topic(self, request: Request) -> Response:
        topic = _path(request, "topic")
        require(request, Right.VIEW, topic)
        producers, stats = await self._stats(request, topic, f"&topic={_quoted(topic)}&include_clients=false")
        document = topic_document(topic, stats.value, now=time())
        return json_answer({**document, "message": _warning(request, producers.errors, stats.errors)})

    async def channel(self, request: Request) -> Response:
        topic, channel = _path(request, "topic"), _path(request, "channel")
        require(request, Right.VIEW, topic)
        query = f"&topic={_quoted(topic)}&channel={_quoted(channel)}"
        producers, stats = await self._stats(request, topic, query)
        document = channel_document(topic, channel, stats.value, now=time())
        if document is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return json_answer({**document, "message": _warning(request, producers.errors, stats.errors)})

    async def nodes(self, request: Request) -> Response:
        identity = identity_of(request)
        found = await _found(request, self._queries.nodes, "nodes")
        document = nodes_document(found.value, has_lookupds=self._queries.has_lookupds)
        for node in document:
            node["topics"] = [entry for entry in node["topics"] if identity.sees(entry["topic"])]
        return json_answer({"nodes": document, "message": _warning(request, found.errors)})

    async def node(self, request: Request) -> Response:
        identity = identity_of(request)
        nodes, node = await self._known_node(request)
        stats = await _found(request, lambda: self._queries.stats([node], ""), "nsqd stats")
        topics = [topic for _, topics in stats.value for topic in topics if identity.sees(topic["topic_name"])]
        document = node_document(node, topics, now=time())
        return json_answer({**document, "message": _warning(request, nodes.errors, stats.errors)})

    async def counter(self, request: Request) -> Response:
        identity = identity_of(request)
        nodes = await _found(request, self._queries.nodes, "counter producer list")
        if not nodes.value:  # without nodes there is nothing to count, which isn't an error
            return json_answer({"stats": {}, "message": _warning(request, nodes.errors)})
        producers = [node for node, _ in nodes.value]
        stats = await _found(request, lambda: self._queries.stats(producers, "&include_clients=false"), "nsqd stats")
        counts = counter_document(stats.value)
        seen = {key: count for key, count in counts.items() if identity.sees(count["topic_name"])}
        return json_answer({"stats": seen, "message": _warning(request, nodes.errors, stats.errors)})

    async def _stats(
        self, request: Request, topic: str, query: str
    ) -> tuple[Found[list[Announced]], Found[list[tuple[Announced, list[dict[str, Any]]]]]]:
        producers = await _found(request, lambda: self._queries.topic_producers(topic), "topic producers")
        return producers, await _found(request, lambda: self._queries.stats(producers.value, query), "topic metadata")

    async def _known_node(self, request: Request) -> tuple[Found[list[tuple[Announced, bool]]], Announced]:
        nodes = await _found(request, self._queries.nodes, "nodes")
        return nodes, _node_named(_path(request, "node"), nodes.value)


class _Changes:
    def __init__(self, queries: Queries, executor: Executor) -> None:
        self._queries = queries
        self._executor = executor

    async def create(self, request: Request) -> Response:
        require(request, Right.OPERATE)  # before reading the body, as in NSQ; the right to the topic is checked later
        body = await _first_json(request)
        topic, channel = _text(body, "topic"), _text(body, "channel")
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        if channel and not is_valid_name(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        kind = Kind.CREATE_CHANNEL if channel else Kind.CREATE_TOPIC
        return await self._execute(request, Action(kind=kind, topic=topic, channel=channel))

    async def topic_action(self, request: Request) -> Response:
        require(request, Right.OPERATE)
        kind = await _kind(request, _OF_TOPICS)
        return await self._execute(request, Action(kind=kind, topic=_path(request, "topic")))

    async def channel_action(self, request: Request) -> Response:
        require(request, Right.OPERATE)
        kind = await _kind(request, _OF_CHANNELS)
        topic, channel = _path(request, "topic"), _path(request, "channel")
        return await self._execute(request, Action(kind=kind, topic=topic, channel=channel))

    async def delete_topic(self, request: Request) -> Response:
        return await self._execute(request, Action(kind=Kind.DELETE_TOPIC, topic=_path(request, "topic")))

    async def delete_channel(self, request: Request) -> Response:
        topic, channel = _path(request, "topic"), _path(request, "channel")
        return await self._execute(request, Action(kind=Kind.DELETE_CHANNEL, topic=topic, channel=channel))

    async def tombstone(self, request: Request) -> Response:
        """Remove a topic from a known node only: otherwise users could make us send requests to any host."""
        require(request, Right.ADMIN)
        try:
            topic = _text(await _first_json(request), "topic")
        except HttpError:
            raise HttpError(400, "INVALID_BODY") from None
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        nodes = await _found(request, self._queries.nodes, "nodes")
        node = _node_named(_path(request, "node"), nodes.value)
        return await self._execute(request, Action(kind=Kind.REMOVE_FROM_NODE, topic=topic, nodes=(node.address,)))

    async def _execute(self, request: Request, action: Action) -> Response:
        caller = caller_of(request)
        if reason := caller.identity.why_not(action.right, action.topic):
            self._executor.note_refusal(action, caller, reason)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        return _answer(await self._executor.execute(action, caller))


def _answer(receipt: Receipt) -> Response:
    """Return 200 even if every node has failed: as in NSQ, programs have to check the message."""
    if receipt.failure:
        raise HttpError(502, f"UPSTREAM_ERROR: {receipt.failure}")
    errors = [*receipt.discovery_errors, *(step.error for step in receipt.steps if step.error)]
    return json_answer({"message": f"WARNING: {chr(10).join(errors)}" if errors else ""})


def _warning(request: Request, *stages: Iterable[str]) -> str:
    quoted = identity_of(request).quoted
    texts = ["\n".join(errors) for errors in (tuple(map(quoted, stage)) for stage in stages) if errors]
    return f"WARNING: {'; '.join(texts)}" if texts else ""


async def _found(request: Request, ask: Callable[[], Awaitable[Found[T]]], what: str) -> Found[T]:
    """Run a query and log its errors. Raise 502 if no node has answered."""
    try:
        found = await run_trio(ask)
    except TotalFailure as error:
        log.error("failed to get %s - %s", what, error)
        raise HttpError(502, f"UPSTREAM_ERROR: {identity_of(request).quoted(str(error))}") from error
    if found.errors:
        log.warning("failed to get %s - %s", what, "\n".join(found.errors))
    return found


# Arguments


def _path(request: Request, name: str) -> str:
    return str(request.path_params[name])


def _quoted(text: str) -> str:
    return quote_plus(text, errors="surrogateescape")


def _node_named(name: str, nodes: Iterable[tuple[Announced, bool]]) -> Announced:
    for node, _ in nodes:
        if node.address == name:
            return node
    raise HttpError(404, "NODE_NOT_FOUND")


async def _kind(request: Request, kinds: dict[str, Kind]) -> Kind:
    kind = kinds.get(_text(await _first_json(request), "action"))
    if kind is None:
        raise HttpError(400, "INVALID_ACTION")
    return kind


async def _first_json(request: Request) -> dict[str, Any]:
    """Read the first JSON value of the body. Like NSQ, ignore the content type and anything after that value."""
    text = (await body_of(request)).decode("utf-8", "replace").lstrip()
    if not text:
        raise HttpError(400, "EOF")
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, str(error)) from error
    if not isinstance(value, dict):
        raise HttpError(400, f"json: cannot unmarshal {type(value).__name__} into an object")
    return {str(name).lower(): member for name, member in value.items()}


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise HttpError(400, f"json: {name} must be a string")
    return value
