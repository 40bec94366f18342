"""nsqd's HTTP API: all endpoints of NSQ's and our own, as handlers that call the broker.

Handlers run under an asyncio server. The broker awaits nothing, so they call it directly. A handler that changes
something does so within one turn (docs/decisions/0001), and awaits the disk through `run_trio` where NSQ's answer
promises it.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import trio

from common.daemon import version_line
from common.durations import parse_duration, seconds
from common.http_api import (
    EMPTY,
    JSON,
    V1,
    HttpApi,
    HttpError,
    Request,
    Response,
    Route,
    json,
    plain,
    text,
    truth,
)
from common.options import change, table_of
from common.prometheus import CONTENT_TYPE, exposition
from common.turn import Turn, in_turn
from common.version import NSQ_VERSION
from common.wire.names import is_ephemeral, is_valid_name
from nsqd.broker.snapshot import only_about
from nsqd.broker.store import NotSynced
from nsqd.http.access import (
    ADMIN_TOPIC,
    OPEN,
    OPERATE_NODE,
    OPERATE_TOPIC,
    PUBLISH,
    READ_NODE,
    READ_TOPIC,
    Endpoint,
)
from nsqd.http.debug import debug_routes
from nsqd.http.history import HistoryEndpoints, Reading, find_sequence, place_argument
from nsqd.http.places import AtTime, Edge, Found, Pinned, Place
from nsqd.http.position import next_places
from nsqd.http.quick import OK, ping_answer
from nsqd.http.readers import ReaderEndpoints, lags
from nsqd.readers import Readers
from nsqd.stats.json import stats_json
from nsqd.stats.memory import memory_now
from nsqd.stats.prometheus import nsqd_metrics
from nsqd.stats.text import stats_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized

    from common.http_api import Attend
    from common.wire.unfinished import UnfinishedBodies
    from nsqd.broker.batch import Receipt
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic
    from nsqd.http.guard import Guard
    from nsqd.http.publishing import Publishing
    from nsqd.options import Options
    from nsqd.readers import Reader

log = logging.getLogger(__name__)

_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
_is_integer: Final = re.compile(r"[+-]?[0-9]+", re.ASCII).fullmatch
_INT64: Final = range(-(2**63), 2**63)
_PLACES: Final = 20  # places listed by /channel/position unless the request says how many
_MOST_PLACES: Final = 1000
_DIGITS: Final = 10
_LONGEST_FORM: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What `/info` says beyond the options.

    The ports are those actually listened on: -1 for a unix socket, 0 for none.
    """

    hostname: str
    tcp_port: int
    http_port: int


class DurableTurn(Turn, Protocol):
    async def durable(self) -> None:
        """Wait until everything decided so far is on disk. Call this from trio."""


class Settings(Protocol):
    """The current options, and the place where new ones take effect."""

    @property
    def options(self) -> Options: ...

    def replace(self, options: Options, /) -> None: ...


class Bridge(Protocol):
    """Awaits a trio function from a handler: `common.web.run_trio`."""

    async def __call__(self, function: Callable[[], Awaitable[None]], /) -> None: ...


class StartDrain(Protocol):
    """Starts a drain. False: retiring was asked for, but a drain that does not retire the node is under way."""

    def __call__(self, *, stay: float | None, retire: bool) -> bool: ...


def make_app(
    broker: Broker,
    turn: DurableTurn,
    settings: Settings,
    publishing: Publishing,
    node: NodeInfo,
    *,
    start_drain: StartDrain,
    run_trio: Bridge,
    reading: Reading,
    readers: Readers | None = None,
    linger: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
    attend: Attend | None = None,
    guard: Guard | None = None,
    unfinished: UnfinishedBodies | None = None,
) -> HttpApi[Endpoint]:
    """Return the ASGI application. `run_trio`, `linger` and `attend` are those of `common.web`, or a test's.

    Its table of routes is also the table of rights (nsqd/http/access.py); docs/how-to/rights.md shows it.
    """
    calls = _Calls(broker, turn, run_trio)
    readers = readers or Readers()
    figures = _LogFigures(reading.waiting, lambda: lags(readers, reading.history))
    endpoints = _Endpoints(calls, settings, publishing, node, start_drain, figures)
    topics = _TopicEndpoints(calls)
    channels = _ChannelEndpoints(calls, reading)
    history = HistoryEndpoints(broker, reading, readers, monotonic)
    followers = ReaderEndpoints(readers, lambda topic, log_id: history.find(topic, {"log": log_id}), time_ns)
    routes = [
        Endpoint("GET", "/ping", endpoints.ping, access=OPEN),
        Endpoint("GET", "/info", endpoints.info, access=READ_NODE),
        Endpoint("GET", "/stats", endpoints.stats, access=READ_TOPIC),
        Endpoint("POST", "/pub", endpoints.pub, access=PUBLISH, logged=False),
        Endpoint("POST", "/mpub", endpoints.mpub, access=PUBLISH, logged=False),
        Endpoint("GET", "/topic/log", history.log, access=READ_TOPIC),
        Endpoint("GET", "/topic/read", history.read, access=READ_TOPIC),
        # A reader may report how far it has read. It does so again and again, so this is not logged.
        Endpoint("POST", "/topic/reader", followers.report, access=READ_TOPIC, logged=False),
        Endpoint("POST", "/topic/reader/delete", followers.forget, access=OPERATE_TOPIC),
        Endpoint("POST", "/topic/create", topics.create, access=ADMIN_TOPIC),
        Endpoint("POST", "/topic/delete", topics.delete, access=ADMIN_TOPIC),
        Endpoint("POST", "/topic/empty", topics.empty, access=OPERATE_TOPIC),
        Endpoint("POST", "/topic/pause", topics.pause, access=OPERATE_TOPIC),
        Endpoint("POST", "/topic/unpause", topics.unpause, access=OPERATE_TOPIC),
        Endpoint("POST", "/channel/create", channels.create, access=ADMIN_TOPIC),
        Endpoint("POST", "/channel/delete", channels.delete, access=ADMIN_TOPIC),
        Endpoint("POST", "/channel/empty", channels.empty, access=OPERATE_TOPIC),
        Endpoint("POST", "/channel/seek", channels.seek, access=OPERATE_TOPIC),
        Endpoint("GET", "/channel/position", channels.position, access=READ_TOPIC),
        Endpoint("POST", "/channel/pause", channels.pause, access=OPERATE_TOPIC),
        Endpoint("POST", "/channel/unpause", channels.unpause, access=OPERATE_TOPIC),
        Endpoint("GET", "/config/{option}", endpoints.get_option, access=READ_NODE),
        Endpoint("PUT", "/config/{option}", endpoints.put_option, access=OPERATE_NODE),
        *debug_routes(run_trio),
        Endpoint("GET", "/metrics", endpoints.metrics, access=READ_NODE, logged=False),
        Endpoint("GET", "/healthz", endpoints.ping, access=OPEN, logged=False),
        Endpoint("GET", "/readyz", endpoints.ready, access=OPEN, logged=False),
        Endpoint("POST", "/drain", endpoints.drain, access=OPERATE_NODE),
    ]
    check = guard.check if guard is not None else None
    return HttpApi(routes, log=log, linger=linger, attend=attend, guard=check, unfinished=unfinished)


def refuse_plain(https_port: int) -> HttpApi[Route]:
    """Return the application that answers plain HTTP where TLS is required.

    NSQ writes this JSON by hand, with spaces, and clients parse it.
    """
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port
    return HttpApi((), log=log, always=Response(403, body, (JSON, V1)))


class _Calls:
    """The handlers' way into the broker."""

    def __init__(self, broker: Broker, turn: DurableTurn, run_trio: Bridge) -> None:
        self.broker = broker
        self._turn = turn
        self._run_trio = run_trio

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Enter a turn for synchronous calls. Its end writes, delivers and sends what they have decided."""
        with in_turn(self._turn):
            yield

    @contextmanager
    def journaled_turn(self) -> Iterator[None]:
        """Enter a turn whose changes are in the journal when it ends. Raises a 500 if the disk refuses them."""
        broker = self.broker
        changes_before = broker.urgent_changes
        with self.turn():
            yield
            promise = broker.promise() if broker.urgent_changes != changes_before else None
        if promise is not None and promise.error is not None:
            raise _not_on_disk(promise.error)

    async def durable(self) -> None:
        """Wait until everything decided so far is on disk. Raises a 500 if the disk refuses it."""
        try:
            await self._run_trio(self._turn.durable)
        except NotSynced as error:
            raise _not_on_disk(error) from error

    async def settled(self, receipt: Receipt) -> None:
        if not receipt.settled:
            event = trio.Event()
            receipt.when_settled(event.set)
            await self._run_trio(event.wait)


def _not_on_disk(cause: object) -> HttpError:
    """Return a 500, as NSQ has no better answer. The change is in effect, and is written once the disk works again."""
    log.error("a change is not on disk error=%s", cause)
    return HttpError(500, "INTERNAL_ERROR")


class _LogFigures(NamedTuple):
    """The figures of `/metrics` about requests and readers of logs over HTTP."""

    waiting: Sized
    lags: Callable[[], Iterable[tuple[str, Reader, int]]]  # topic, reader, and how many messages it is behind


class _Endpoints:
    """The endpoints about the whole node, and those for publishing."""

    def __init__(
        self,
        calls: _Calls,
        settings: Settings,
        publishing: Publishing,
        node: NodeInfo,
        start_drain: StartDrain,
        logs: _LogFigures,
    ) -> None:
        self._logs = logs
        self._calls = calls
        self._broker = calls.broker
        self._settings = settings
        self._publishing = publishing
        self._node = node
        self._start_drain = start_drain

    async def ping(self, request: Request) -> Response:
        return ping_answer(self._broker.store.health)

    async def ready(self, request: Request) -> Response:
        """Answer whether this node should be sent messages."""
        if (refusal := self._broker.refusal) is not None:
            return plain(refusal, status=503)
        return ping_answer(self._broker.store.health)

    async def drain(self, request: Request) -> Response:
        arguments = request.query()
        stay = _stay(arguments["stay"]) if "stay" in arguments else None
        if not self._start_drain(stay=stay, retire=arguments.get("retire") == "true"):
            raise HttpError(409, "DRAINING")
        return EMPTY

    async def metrics(self, request: Request) -> Response:
        with self._calls.turn():
            body = exposition(
                nsqd_metrics(self._broker, memory_now(), self._logs.lags(), waiting=len(self._logs.waiting))
            )
        return Response(body=body, headers=((b"content-type", CONTENT_TYPE),))

    async def info(self, request: Request) -> Response:
        options = self._settings.options
        return json(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": self._node.hostname,
                "http_port": self._node.http_port,
                "tcp_port": self._node.tcp_port,
                "start_time": self._broker.start_time,
                "max_heartbeat_interval": options.max_heartbeat_interval,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
            }
        )

    async def stats(self, request: Request) -> Response:
        query = request.query()
        topic = query.get("topic", "")
        snapshot = self._broker.snapshot(topic, query.get("channel", ""), clients=truth(query, "include_clients"))
        if request.is_limited:
            snapshot = only_about(topic, snapshot)
        memory = memory_now() if truth(query, "include_mem") and not request.is_limited else None
        if query.get("format") == "json":
            return json(stats_json(snapshot, memory, version=NSQ_VERSION))
        return text(stats_text(snapshot, memory, version=version_line("nsqd"), timestamp=time_ns()))

    async def pub(self, request: Request) -> Response:
        publishing = self._publishing
        refusal = publishing.pub_length(request.content_length or 0)
        if refusal is not None:
            return refusal.response
        body = await request.read(publishing.limits.max_message)
        with self._calls.turn():
            answer = publishing.pub(request.query_string, len(body).to_bytes(4, "big") + body)
        return await self._published(answer)

    async def mpub(self, request: Request) -> Response:
        publishing = self._publishing
        refusal = publishing.mpub_length(request.content_length or 0)
        if refusal is None:
            with self._calls.turn():
                refusal = publishing.mpub_query(request.query_string)
        if refusal is not None:
            return refusal.response
        body = publishing.mpub_body(request.query_string)
        async for piece in request.pieces(publishing.limits.max_body):
            body.receive(piece)
            request.hold_body(body.held)
        with self._calls.turn():
            answer = publishing.mpub(request.query_string, body)
        return await self._published(answer)

    async def _published(self, answer: Receipt | HttpError) -> Response:
        if isinstance(answer, HttpError):
            return answer.response
        await self._calls.settled(answer)
        # NSQ says EXITING whatever the reason is.
        return OK if answer.error is None else HttpError(503, "EXITING").response

    async def get_option(self, request: Request) -> Response:
        return _show_option(self._settings.options, request.words["option"])

    async def put_option(self, request: Request) -> Response:
        limit = min(self._publishing.limits.max_message, _LONGEST_FORM)
        body = await request.read(limit)
        if not 0 < len(body) <= limit:
            raise HttpError(413, "INVALID_VALUE")
        key = request.words["option"]
        try:
            value = body.decode()
            options = change(self._settings.options, key, value)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        self._settings.replace(options)
        # To NSQ, a list set to null is no list at all, and it prints null.
        return json(None) if value.strip() == "null" else _show_option(options, key)


class _TopicEndpoints:
    """The endpoints about a topic. Where NSQ does not check the name, an invalid name is simply not found."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._broker = calls.broker

    async def create(self, request: Request) -> Response:
        name = _topic_name(request)
        _check(name, "INVALID_TOPIC")
        with self._calls.journaled_turn():
            self._broker.topic(name)
        return EMPTY

    async def delete(self, request: Request) -> Response:
        name = _topic_name(request)
        with self._calls.journaled_turn():
            found = self._broker.delete_topic(name)
        if not found:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        await self._calls.durable()
        return EMPTY

    async def empty(self, request: Request) -> Response:
        name = _topic_name(request)
        _check(name, "INVALID_TOPIC")
        return await self._do(name, lambda topic: topic.empty())

    async def pause(self, request: Request) -> Response:
        return await self._do(_topic_name(request), lambda topic: topic.pause())

    async def unpause(self, request: Request) -> Response:
        return await self._do(_topic_name(request), lambda topic: topic.unpause())

    async def _do(self, name: str, action: Callable[[Topic], None]) -> Response:
        with self._calls.journaled_turn():
            action(_find_topic(self._broker, name))
        await self._calls.durable()
        return EMPTY


class _ChannelEndpoints:
    def __init__(self, calls: _Calls, reading: Reading) -> None:
        self._calls = calls
        self._broker = calls.broker
        self._reading = reading

    async def create(self, request: Request) -> Response:
        topic_name, name = _channel_name(request)
        place = place_argument(request)
        if place is None:
            with self._calls.journaled_turn():
                _find_topic(self._broker, topic_name).channel(name)
            return EMPTY
        _check_lasting(topic_name, name)
        _find_topic(self._broker, topic_name)
        pinned = await self._pinned(topic_name, place)
        with self._calls.journaled_turn():
            topic = _find_topic(self._broker, topic_name)
            if name not in topic.channels:
                cursor = _cursor(topic, pinned)
                topic.channel(name).seek(cursor)
        return EMPTY

    async def seek(self, request: Request) -> Response:
        topic_name, name = _channel_name(request)
        place = place_argument(request)
        if place is None:
            raise HttpError(400, "MISSING_ARG_FROM")
        _check_lasting(topic_name, name)
        _find_channel(self._broker, topic_name, name)
        pinned = await self._pinned(topic_name, place)
        with self._calls.journaled_turn():
            channel = _find_channel(self._broker, topic_name, name)
            cursor = _cursor(_find_topic(self._broker, topic_name), pinned)
            channel.seek(cursor)
        await self._calls.durable()
        return json({"cursor": cursor})

    async def position(self, request: Request) -> Response:
        topic_name, name = _channel_name(request)
        _check_lasting(topic_name, name)
        limit = request.query().get("limit", str(_PLACES))
        if not (limit.isascii() and limit.isdigit() and len(limit) < _DIGITS and int(limit) <= _MOST_PLACES):
            raise HttpError(400, "INVALID_ARG_LIMIT")
        channel = _find_channel(self._broker, topic_name, name)
        places = next_places(channel, int(limit))
        return json({"cursor": channel.cursor, "end": channel.topic.handed_over, "waiting": places})

    async def _pinned(self, topic: str, place: Place) -> Pinned:
        """Find the sequence for a time before the turn begins: it needs the disk, and nothing in a turn may wait."""
        return Found(await find_sequence(self._reading, topic, place)) if isinstance(place, AtTime) else place

    async def delete(self, request: Request) -> Response:
        topic_name, name = _channel_name(request)
        with self._calls.journaled_turn():
            found = _find_topic(self._broker, topic_name).delete_channel(name)
        if not found:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        await self._calls.durable()
        return EMPTY

    async def empty(self, request: Request) -> Response:
        return await self._do(request, lambda channel: channel.empty())

    async def pause(self, request: Request) -> Response:
        return await self._do(request, lambda channel: channel.pause())

    async def unpause(self, request: Request) -> Response:
        return await self._do(request, lambda channel: channel.unpause())

    async def _do(self, request: Request, action: Callable[[Channel], None]) -> Response:
        topic_name, name = _channel_name(request)
        with self._calls.journaled_turn():
            action(_find_channel(self._broker, topic_name, name))
        await self._calls.durable()
        return EMPTY


def _stay(text: str) -> float:
    try:
        stay = parse_duration(text)
    except ValueError:
        stay = -1
    if stay < 0:
        raise HttpError(400, "INVALID_ARG_STAY")
    return seconds(stay)


def _topic_name(request: Request) -> str:
    name = request.query().get("topic")
    if name is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return name


def _channel_name(request: Request) -> tuple[str, str]:
    topic = _topic_name(request)
    _check(topic, "INVALID_ARG_TOPIC")
    channel = request.query().get("channel")
    if channel is None:
        raise HttpError(400, "MISSING_ARG_CHANNEL")
    _check(channel, "INVALID_ARG_CHANNEL")
    return topic, channel


def _check(name: str, code: str) -> None:
    if not is_valid_name(name):
        raise HttpError(400, code)


def _find_topic(broker: Broker, name: str) -> Topic:
    topic = broker.find(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def _find_channel(broker: Broker, topic: str, name: str) -> Channel:
    channel = _find_topic(broker, topic).channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def _check_lasting(topic: str, channel: str) -> None:
    if is_ephemeral(topic):
        raise HttpError(
            400, "EPHEMERAL_TOPIC", details={"reason": "an ephemeral topic is not on disk and has no history"}
        )
    if is_ephemeral(channel):
        raise HttpError(400, "EPHEMERAL_CHANNEL", details={"reason": "an ephemeral channel keeps no place in history"})


def _cursor(topic: Topic, place: Pinned) -> int:
    """Return the cursor for a place, between the first message left and the end of the log."""
    first, last = topic.log.first, topic.last_place
    if isinstance(place, Edge):
        return first if place is Edge.EARLIEST else last
    if isinstance(place, Found):
        return min(max(place.sequence, first), last)
    if place < first:
        raise HttpError(410, "GONE", details={"first": first, "last": last})
    if place > last:
        raise HttpError(400, "BEYOND_END", details={"first": first, "last": last})
    return place


def _show_option(options: Options, key: str) -> Response:
    """Show the value of an option: text raw, everything else as JSON."""
    for row in table_of(type(options)):
        if row.key == key and not row.is_deprecated:
            value: Any = getattr(options, row.name)
            shown = row.kind.render(value)
            return text(shown) if isinstance(value, str) else Response(body=shown.encode(), headers=(JSON, V1))
    raise HttpError(400, "INVALID_OPTION")
