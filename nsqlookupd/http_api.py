"""nsqlookupd's HTTP API: NSQ's endpoints, long polls, and endpoints for monitoring."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import (
    EMPTY,
    JSON,
    V1,
    ClientGone,
    HttpApi,
    HttpError,
    Request,
    Response,
    Route,
    handler_slices,
    json,
    plain,
)
from nsqcommon.prometheus import CONTENT_TYPE, counter, exposition, gauge
from nsqcommon.turn import Turn, in_turn
from nsqcommon.version import NSQ_VERSION, suite_version
from nsqcommon.waiting import wait_argument
from nsqcommon.wire.names import is_valid_name
from nsqlookupd.answers import channels_json, debug_json, lookup_json, nodes_json, topics_json

if TYPE_CHECKING:
    from nsqcommon.prometheus import Metric
    from nsqcommon.same_site import SameSite
    from nsqcommon.waiting import Waiting
    from nsqlookupd.registry import Registry

log = logging.getLogger(__name__)

_EVERYTHING: Final = "*"  # NSQ's wildcard; a deletion with it would empty the directory
_TOGETHER: Final = 0.05  # seconds; after a restart many nodes register at once, and each answer lists all of them
_is_index: Final = re.compile(r"[0-9]{1,19}", re.ASCII).fullmatch
_NO_TOPIC: Final = HttpError(404, "TOPIC_NOT_FOUND").response


def make_app(
    registry: Registry,
    turn: Turn,
    waiting: Waiting,
    waiting_for_nodes: Waiting,
    *,
    max_wait: float,
    connections: Callable[[], int],
    is_ready: Callable[[], bool],
    linger: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
    same_site: SameSite | None = None,
    certificate_metrics: Callable[[], Sequence[Metric]] = lambda: (),
) -> HttpApi[Route]:
    """Return the ASGI application.

    `connections` returns the number of open TCP connections. `max_wait` is the upper limit of `wait=`, in seconds.
    `linger` reads the rest of a refused request, for a limited time; None: we discard nothing. See `nsqcommon.web.linger`.
    """
    questions = _Questions(registry, turn, waiting, waiting_for_nodes, max_wait)
    changes = _Changes(registry, turn)
    monitoring = _Monitoring(
        registry,
        turn,
        lambda: len(waiting) + len(waiting_for_nodes),
        connections,
        is_ready,
        certificate_metrics,
    )
    routes = [
        Route("GET", "/ping", monitoring.ping),
        Route("GET", "/info", monitoring.info),
        Route("GET", "/debug", questions.debug),
        Route("GET", "/lookup", questions.lookup),
        Route("GET", "/topics", questions.topics),
        Route("GET", "/channels", questions.channels),
        Route("GET", "/nodes", questions.nodes),
        Route("POST", "/topic/create", changes.create_topic),
        Route("POST", "/topic/delete", changes.delete_topic),
        Route("POST", "/topic/tombstone", changes.tombstone),
        Route("POST", "/channel/create", changes.create_channel),
        Route("POST", "/channel/delete", changes.delete_channel),
        Route("GET", "/metrics", monitoring.metrics, logged=False),
        Route("GET", "/healthz", monitoring.ping, logged=False),
        Route("GET", "/readyz", monitoring.ready, logged=False),
    ]
    return HttpApi(routes, log=log, linger=linger, guard=same_site.refusal if same_site is not None else None)


class _Questions:
    def __init__(
        self, registry: Registry, turn: Turn, waiting: Waiting, waiting_for_nodes: Waiting, max_wait: float
    ) -> None:
        self._registry = registry
        self._turn = turn
        self._waiting = waiting
        self._waiting_for_nodes = waiting_for_nodes  # separate, because a client may ask for any text as a topic
        self._max_wait = max_wait

    async def lookup(self, request: Request) -> Response:
        arguments = request.query()
        topic = _argument(arguments, "topic")
        if "wait" in arguments:
            await self._wait(request, arguments, self._waiting, topic, lambda: self._registry.index_of(topic))
        self._begin_and_finish()
        answer = self._registry.lookup(topic)
        index = self._registry.index_of(topic)
        response = _NO_TOPIC if answer is None else await _json(lookup_json(answer))
        return _with_index(response, index)

    async def _wait(
        self, request: Request, arguments: dict[str, str], waiting: Waiting, name: str, index: Callable[[], int]
    ) -> bool:
        """Wait until the index differs from the client's, or for the timeout. Return True if it had to wait.

        A client without an `index` counts as knowing no producers, so it waits until there are some.
        """
        known = _index(arguments, self._registry.no_index)
        left = min(wait_argument(arguments), self._max_wait)
        self._begin_and_finish()
        if index() != known or left <= 0:
            return False
        await waiting.wait_for_change(name, seconds=left, gone=request.wait_until_gone)
        if request.is_gone:
            raise ClientGone
        return True

    async def topics(self, request: Request) -> Response:
        return await _json(topics_json(self._registry))

    async def channels(self, request: Request) -> Response:
        topic = _argument(request.query(), "topic")
        return await _json(channels_json(self._registry.channels(topic)))

    async def nodes(self, request: Request) -> Response:
        # Our parser refuses a malformed query, but NSQ's /nodes accepts any.
        words = request.query_string.split(b"&")
        if any(word.startswith(b"wait=") for word in words):
            await self._wait_for_nodes(request, request.query())
        self._begin_and_finish()
        index = self._registry.nodes_index
        return _with_index(await _json(nodes_json(self._registry, with_missing=b"missing=true" in words)), index)

    async def _wait_for_nodes(self, request: Request, arguments: dict[str, str]) -> None:
        waiting = self._waiting_for_nodes
        has_waited = await self._wait(request, arguments, waiting, "", lambda: self._registry.nodes_index)
        if has_waited and not waiting.is_released:
            await asyncio.sleep(_TOGETHER)

    async def debug(self, request: Request) -> Response:
        return await _json(debug_json(self._registry))

    def _begin_and_finish(self) -> None:
        """Take an empty turn, so that expired entries are gone from the answer."""
        with in_turn(self._turn):
            pass


class _Changes:
    def __init__(self, registry: Registry, turn: Turn) -> None:
        self._registry = registry
        self._turn = turn

    async def create_topic(self, request: Request) -> Response:
        topic = _name(request.query(), "topic")
        log.info("DB: adding topic(%s)", topic)
        with in_turn(self._turn):
            self._registry.create_topic(topic)
        return EMPTY

    async def delete_topic(self, request: Request) -> Response:
        topic = _one_name(request.query())
        log.info("DB: removing topic(%s)", topic)
        with in_turn(self._turn):
            self._registry.delete_topic(topic)
        return EMPTY

    async def tombstone(self, request: Request) -> Response:
        arguments = request.query()
        topic = _one_name(arguments)
        node = _argument(arguments, "node")
        log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        with in_turn(self._turn):
            self._registry.tombstone(topic, node)
        return EMPTY

    async def create_channel(self, request: Request) -> Response:
        arguments = request.query()
        topic, channel = _name(arguments, "topic"), _name(arguments, "channel")
        log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        log.info("DB: adding topic(%s)", topic)
        with in_turn(self._turn):
            self._registry.create_channel(topic, channel)
        return EMPTY

    async def delete_channel(self, request: Request) -> Response:
        arguments = request.query()
        topic, channel = _name(arguments, "topic"), _name(arguments, "channel")
        with in_turn(self._turn):
            is_there = self._registry.delete_channel(topic, channel)
        if not is_there:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return EMPTY


class _Monitoring:
    def __init__(
        self,
        registry: Registry,
        turn: Turn,
        waiting: Callable[[], int],
        connections: Callable[[], int],
        is_ready: Callable[[], bool],
        certificate_metrics: Callable[[], Sequence[Metric]],
    ) -> None:
        self._registry = registry
        self._turn = turn
        self._waiting = waiting
        self._connections = connections
        self._is_ready = is_ready
        self._certificate_metrics = certificate_metrics

    async def ping(self, request: Request) -> Response:
        return plain("OK")

    async def ready(self, request: Request) -> Response:
        return plain("OK") if self._is_ready() else plain("stopping", status=503)

    async def info(self, request: Request) -> Response:
        return json({"version": NSQ_VERSION})

    async def metrics(self, request: Request) -> Response:
        with in_turn(self._turn):
            pass
        return Response(body=exposition(self._all_metrics()), headers=((b"content-type", CONTENT_TYPE),))

    def _all_metrics(self) -> list[Metric]:
        now = self._registry.snapshot()
        build = {"version": NSQ_VERSION, "release": suite_version()}
        return [
            gauge("nsqlookupd_build_info", "Always 1; the labels name the version.", 1, build),
            gauge("nsqlookupd_connections", "Open TCP connections.", self._connections()),
            gauge("nsqlookupd_peers", "Connections that have identified themselves.", now.peers),
            gauge("nsqlookupd_active_peers", "Peers heard from within the inactivity timeout.", now.active_peers),
            gauge(
                "nsqlookupd_unreachable_peers",
                "Peers whose broadcast address cannot be reached from here.",
                now.unreachable_peers,
            ),
            gauge("nsqlookupd_topics", "Registered topics.", now.topics),
            gauge("nsqlookupd_channels", "Registered channels.", now.channels),
            gauge("nsqlookupd_producers", "Producers, summed over all topics.", now.producers),
            gauge("nsqlookupd_tombstones", "Producers hidden by a tombstone.", now.tombstones),
            gauge("nsqlookupd_waiting_lookups", "Requests waiting for a change.", self._waiting()),
            counter("nsqlookupd_changes_total", "Changes of the producers of any topic.", now.changes),
            *self._certificate_metrics(),
        ]


# Arguments


async def _json(pieces: Iterable[bytes]) -> Response:
    return Response(body=await handler_slices().joined(pieces), headers=(JSON, V1))


def _with_index(response: Response, index: int) -> Response:
    return replace(response, headers=(*response.headers, (b"x-nsq-index", b"%d" % index)))


def _argument(arguments: dict[str, str], name: str) -> str:
    value = arguments.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def _name(arguments: dict[str, str], name: str) -> str:
    """Return the name of a topic or a channel; NSQ has one rule for both."""
    value = _argument(arguments, name)
    if not is_valid_name(value):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def _one_name(arguments: dict[str, str]) -> str:
    """Return the topic. As in NSQ the name may be invalid. The wildcard, which NSQ would accept here, is refused."""
    topic = _argument(arguments, "topic")
    if topic == _EVERYTHING:
        raise HttpError(400, "INVALID_ARG_TOPIC")
    return topic


def _index(arguments: dict[str, str], default: int) -> int:
    text = arguments.get("index")
    if text is None:
        return default
    if _is_index(text) is None:
        raise HttpError(400, "INVALID_ARG_INDEX")
    return int(text)
