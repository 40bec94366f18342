"""nsqlookupd's HTTP API: NSQ's endpoints, lookups that wait for a change, and endpoints for monitoring."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from common.http_api import EMPTY, JSON, V1, ClientGone, HttpApi, HttpError, Request, Response, Route, json, plain
from common.prometheus import CONTENT_TYPE, counter, exposition, gauge
from common.turn import Turn, in_turn
from common.version import NSQ_VERSION, suite_version
from common.waiting import wait_argument
from common.wire.names import is_valid_name
from nsqlookupd.answers import channels_json, debug_json, lookup_json, nodes_json, topics_json
from nsqlookupd.slices import in_slices

if TYPE_CHECKING:
    from common.prometheus import Metric
    from common.same_site import SameSite
    from common.waiting import Waiting
    from nsqlookupd.registry import Registry

log = logging.getLogger(__name__)

_EVERYTHING: Final = "*"  # NSQ's wildcard; in a deletion it would empty the directory
_is_index: Final = re.compile(r"[0-9]{1,19}", re.ASCII).fullmatch
_NO_TOPIC: Final = HttpError(404, "TOPIC_NOT_FOUND").response


def make_app(
    registry: Registry,
    turn: Turn,
    waiting: Waiting,
    *,
    max_wait: float,
    connections: Callable[[], int],
    is_ready: Callable[[], bool],
    linger: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
    same_site: SameSite | None = None,
) -> HttpApi[Route]:
    """Return the ASGI application.

    `connections` returns how many TCP connections are open. `max_wait` is the upper bound of `wait=`, in seconds.
    `linger` bounds how long the rest of a refused request is read; None: not at all. See `common.web.linger`.
    """
    questions = _Questions(registry, turn, waiting, max_wait)
    changes = _Changes(registry, turn)
    monitoring = _Monitoring(registry, turn, waiting, connections, is_ready)
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
    def __init__(self, registry: Registry, turn: Turn, waiting: Waiting, max_wait: float) -> None:
        self._registry = registry
        self._turn = turn
        self._waiting = waiting
        self._max_wait = max_wait

    async def lookup(self, request: Request) -> Response:
        arguments = request.query()
        topic = _argument(arguments, "topic")
        if "wait" in arguments:
            await self._wait(request, topic, arguments)
        self._begin_and_finish()
        answer = self._registry.lookup(topic)
        index = (b"x-nsq-index", b"%d" % self._registry.index_of(topic))
        response = _NO_TOPIC if answer is None else _json(await in_slices(lookup_json(answer)))
        return replace(response, headers=(*response.headers, index))

    async def _wait(self, request: Request, topic: str, arguments: dict[str, str]) -> None:
        """Wait until the index of the topic's producers differs from the client's, or the time is over.

        A client that sends no `index` is taken to know no producers, so it waits until the topic is registered.
        """
        known = _index(arguments, self._registry.no_index)
        left = min(wait_argument(arguments), self._max_wait)
        self._begin_and_finish()
        if self._registry.index_of(topic) == known and left > 0:
            await self._waiting.wait_for_change(topic, seconds=left, gone=request.wait_until_gone)
            if request.is_gone:
                raise ClientGone

    async def topics(self, request: Request) -> Response:
        return _json(await in_slices(topics_json(self._registry)))

    async def channels(self, request: Request) -> Response:
        topic = _argument(request.query(), "topic")
        return _json(await in_slices(channels_json(self._registry.channels(topic))))

    async def nodes(self, request: Request) -> Response:
        self._begin_and_finish()
        # Parsing refuses a malformed query, and NSQ's /nodes accepts any.
        with_missing = b"missing=true" in request.query_string.split(b"&")
        return _json(await in_slices(nodes_json(self._registry, with_missing=with_missing)))

    async def debug(self, request: Request) -> Response:
        return _json(await in_slices(debug_json(self._registry)))

    def _begin_and_finish(self) -> None:
        """Take an otherwise empty turn, so that whatever has expired by now is gone from the answer."""
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
        waiting: Waiting,
        connections: Callable[[], int],
        is_ready: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._turn = turn
        self._waiting = waiting
        self._connections = connections
        self._is_ready = is_ready

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
            gauge("nsqlookupd_topics", "Registered topics.", now.topics),
            gauge("nsqlookupd_channels", "Registered channels.", now.channels),
            gauge("nsqlookupd_producers", "Producers, summed over all topics.", now.producers),
            gauge("nsqlookupd_tombstones", "Producers that a tombstone hides now.", now.tombstones),
            gauge("nsqlookupd_waiting_lookups", "Requests waiting for a change.", len(self._waiting)),
            counter("nsqlookupd_changes_total", "Changes of the producers of any topic.", now.changes),
        ]


# Arguments


def _json(body: bytes) -> Response:
    return Response(body=body, headers=(JSON, V1))


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
    """Return the topic, whose name need not be valid, as in NSQ. Refuse the wildcard, which NSQ would accept here."""
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
