"""A cluster that is simulated in this process, and nsqadmin's sampler, upkeep and book on top of it.

It has the parts of `steered_world.py`, without a process: nodes answer /stats like nsqd, and hang, die, come back, or are
of a version that reports neither ages nor touches. Time jumps, so that hours take seconds, and many of them can be drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

import msgpack
import trio
import trio.testing

from nsqadmin.actions.audit import ActivityLog
from nsqadmin.cluster.model import Snapshot
from nsqadmin.diagnosis.incident import IncidentChange
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.options import Options
from nsqadmin.upstream.client import Document, Streamed, Upstream, UpstreamError
from nsqadmin.upstream.sampler import Sampler
from nsqcommon.durations import SECOND
from nsqcommon.wire.message import Message
from tests.nsqadmin.steered_world import WALL, Actor, finished

_TIMEOUT: Final = 5.0  # seconds that nsqadmin waits for an answer
_NANO: Final = 1_000_000_000


@dataclass(slots=True, eq=False)
class _Message:
    id: int
    published: float
    attempts: int = 0


@dataclass(slots=True, eq=False)
class _Held:
    message: _Message
    since: float
    deadline: float


@dataclass(slots=True, eq=False)
class _Client:
    name: str
    port: int
    ready: int
    msg_timeout: float
    connected: float
    held: dict[int, _Held] = field(default_factory=dict)
    messages: int = 0
    finished: int = 0
    requeued: int = 0
    touches: int = 0
    touched: float = 0.0

    def stats(self, now: float) -> dict[str, Any]:
        described = {
            "client_id": "c",
            "hostname": self.name,
            "remote_address": f"10.0.0.1:{self.port}",
            "user_agent": "scenario/1.0",
            "ready_count": self.ready,
            "in_flight_count": len(self.held),
            "message_count": self.messages,
            "finish_count": self.finished,
            "requeue_count": self.requeued,
            "connect_ts": int(self.connected),
        }
        if self.held:
            described["oldest_in_flight_ms"] = int(1000 * (now - min(it.since for it in self.held.values())))
        if self.touches:
            described |= {"touch_count": self.touches, "last_touch_at": int(self.touched * _NANO)}
        return described


class _Channel:
    def __init__(self, topic: str, name: str, limits: dict[str, float]) -> None:
        self.name = name
        self.limits = limits
        self.waiting: deque[_Message] = deque()
        self.deferred: list[tuple[float, _Message]] = []
        self.clients: list[_Client] = []
        self.buried = 0
        self.forget_counts()

    def forget_counts(self) -> None:
        """Count from 0, as after a restart."""
        self.messages, self.requeued, self.timed_out = len(self.waiting) + len(self.deferred), 0, 0
        self.causes: dict[str, int] = {}

    def pass_time(self, now: float) -> None:
        for client in self.clients:
            for it in [it for it in client.held.values() if it.deadline <= now]:
                del client.held[it.message.id]
                self.timed_out += 1
                self.waiting.append(it.message)
        due = [it for at, it in self.deferred if at <= now]
        self.deferred = [(at, it) for at, it in self.deferred if at > now]
        self.waiting.extend(due)
        ttl, most = self.limits.get("ttl"), self.limits.get("max_messages")
        while ttl and self.waiting and now - self.waiting[0].published > ttl:
            self._drop("ttl, dropped")
        while most and len(self.waiting) > most:
            self._drop("overflow, dropped")
        for client in self.clients:
            while self.waiting and len(client.held) < client.ready:
                message = self.waiting.popleft()
                message.attempts += 1
                client.messages += 1
                client.held[message.id] = _Held(message, now, now + client.msg_timeout)

    def _drop(self, cause: str) -> None:
        self.waiting.popleft()
        self.causes[cause] = self.causes.get(cause, 0) + 1

    def leave(self, client: _Client) -> None:
        self.clients.remove(client)
        self.waiting.extendleft(it.message for it in client.held.values())

    def stats(self, now: float, *, has_clients: bool) -> dict[str, Any]:
        described = {
            "channel_name": self.name,
            "depth": len(self.waiting),
            "backend_depth": 0,
            "in_flight_count": sum(len(it.held) for it in self.clients),
            "deferred_count": len(self.deferred),
            "message_count": self.messages,
            "requeue_count": self.requeued,
            "timeout_count": self.timed_out,
            "client_count": len(self.clients),
            "clients": [it.stats(now) for it in self.clients] if has_clients else None,
            "paused": False,
            "buried_count": self.buried,
        }
        if self.causes:
            described["policy_counts"] = dict(self.causes)
        if self.waiting:
            described["oldest_timestamp"] = int(self.waiting[0].published * _NANO)
        return described


class Node:
    """One nsqd."""

    def __init__(
        self, name: str, policies: dict[tuple[str, str], dict[str, float]], clock: Callable[[], float]
    ) -> None:
        self.address = f"{name}:4151"
        self.is_hung = False
        self.is_running = True
        self.is_old = False
        self.policy = self  # for `write_text`
        self._digest = "a" * 20
        self._policies = policies
        self._clock = clock
        self._started = clock()
        self._channels: dict[str, dict[str, _Channel]] = {}
        self._published: dict[str, int] = {}
        self._ids = count(1)

    def write_text(self, policy: str) -> None:
        """Use another policy file. Only that it is another one matters."""
        self._digest = f"{hash(policy) & 0xFFFFFFFF:020x}"

    @property
    def answers(self) -> bool:
        return self.is_running and not self.is_hung

    def hang(self) -> None:
        self.is_hung = True

    def go_on(self) -> None:
        self.is_hung = False

    def die(self) -> None:
        self.is_running = self.is_hung = False
        for channels in self._channels.values():
            for channel in channels.values():
                for client in list(channel.clients):
                    channel.leave(client)

    def come_back(self) -> None:
        self.is_running, self._started = True, self._clock()
        for topic, channels in self._channels.items():
            self._published[topic] = 0
            for channel in channels.values():
                channel.forget_counts()

    def publish(self, topic: str, number: int) -> None:
        self._published[topic] = self._published.get(topic, 0) + number
        for channel in self._channels.setdefault(topic, {}).values():
            channel.messages += number
            channel.waiting.extend(_Message(next(self._ids), self._clock()) for _ in range(number))

    def channel(self, topic: str, name: str) -> _Channel:
        channels = self._channels.setdefault(topic, {})
        self._published.setdefault(topic, 0)
        if name not in channels:
            channels[name] = _Channel(topic, name, self._policies.get((topic, name), {}))
        return channels[name]

    def stats(self, target: str) -> dict[str, Any]:
        now = self._clock()
        for channels in self._channels.values():
            for channel in channels.values():
                channel.pass_time(now)
        has_clients = "include_clients=false" not in target
        only = target.partition("&topic=")[2].partition("&")[0]
        told: dict[str, Any] = {
            "version": "1.3.0",
            "release": "0.2.0",
            "health": "OK",
            "start_time": int(self._started),
            "policy_digest": self._digest,
            "topics": [
                {
                    "topic_name": topic,
                    "depth": 0,
                    "message_count": self._published[topic],
                    "channels": [it.stats(now, has_clients=has_clients) for it in channels.values()],
                }
                for topic, channels in self._channels.items()
                if only in ("", topic)
            ],
        }
        if self.is_old:
            del told["release"]
            for topic in told["topics"]:
                for channel in topic["channels"]:
                    for client in channel["clients"] or ():
                        for name in ("oldest_in_flight_ms", "touch_count", "last_touch_at"):
                            client.pop(name, None)
        return told


class _SimulatedUpstream(Upstream):
    """Asks the nodes of this process."""

    def __init__(self, options: Options, node: Callable[[str], Node | None]) -> None:
        super().__init__(options)
        self._node = node

    async def _reached(self, address: str) -> Node:
        node = self._node(address)
        await trio.lowlevel.checkpoint()
        if node is not None and node.is_hung:
            await trio.sleep(_TIMEOUT)
            raise UpstreamError(f"{address} timed out", timed_out=True)
        if node is None or not node.is_running:
            raise UpstreamError(f"{address} connection refused")
        return node

    async def get(self, address: str, target: str) -> bytes:
        await self._reached(address)
        raise UpstreamError("404 page not found", status=404)

    async def get_document(self, address: str, target: str, *, is_lookupd: bool = False) -> Document:
        node = await self._reached(address)
        host, _, port = address.partition(":")
        if target.startswith("/stats"):
            value: Any = node.stats(target)
        elif target.startswith("/info"):
            value = {"hostname": host, "broadcast_address": host, "http_port": int(port), "tcp_port": 4150}
        else:
            raise UpstreamError("404 page not found", status=404)
        return Document(value, 1000, 1000, None, "")

    @asynccontextmanager
    async def stream(self, address: str, target: str, **_: object) -> AsyncIterator[Streamed]:
        await self._reached(address)
        raise UpstreamError("404 page not found", status=404)
        yield

    async def post(self, address: str, target: str, body: bytes = b"", *, is_lookupd: bool = False) -> bytes:
        await self._reached(address)
        raise UpstreamError("404 page not found", status=404)


class World:
    def __init__(self, nodes: int, *, policies: dict[tuple[str, str], dict[str, float]], tick: float) -> None:
        """In each tick, the actors do their part, and nsqadmin takes a sample."""
        self.tick = tick  # seconds
        self._clock = trio.testing.MockClock(autojump_threshold=0)
        self.nodes = [Node(f"n{number}", policies, lambda: self.now) for number in range(1, nodes + 1)]
        self.actors: list[Actor] = []
        self.changes: list[IncidentChange] = []
        self.watchers: list[Callable[[Snapshot], None]] = []
        self.activity = ActivityLog()
        self.options = Options(
            nsqd_http_address=tuple(node.address for node in self.nodes), sample_interval=int(tick * SECOND)
        )
        self.book = Book(self.activity.newest)
        self.sampler: Sampler
        self._ports = count(5000)
        self._running = trio.CancelScope()
        self._kept: tuple[Any, ...] | None = None
        self._start: Callable[[], Any]

    @property
    def now(self) -> float:
        return WALL + self._clock.current_time()

    @property
    def all_answer(self) -> bool:
        return all(node.answers for node in self.nodes)

    def node(self, address: str) -> Node | None:
        return next((node for node in self.nodes if node.address == address), None)

    def publisher(self, topic: str, per_tick: int) -> Publisher:
        return Publisher(self.nodes, topic, per_tick)

    def consumer(self, topic: str, channel: str, **options: Any) -> Consumer:
        return Consumer(self.nodes, topic, channel, self._ports, **options)

    def run(self, test: Callable[[], Any]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                upstream = _SimulatedUpstream(self.options, self.node)
                self._start = partial(nursery.start, self._sample, upstream)
                await self._start()
                await test()
                nursery.cancel_scope.cancel()
            await upstream.aclose()

        trio.run(main, clock=self._clock)

    async def _sample(
        self, upstream: Upstream, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.sampler = Sampler(lambda: self.options, upstream, self.activity, wall=lambda: self.now)
        if self._kept is not None:
            charts, nodes, upkeep, book = self._kept
            self.sampler.store.load(charts)
            self.sampler.kept_nodes.load(nodes)
            self.sampler.upkeep.load(upkeep)
            self.book = Book(self.activity.newest)
            self.book.load(book)
        self.sampler.on_snapshot(self._observe)
        with trio.CancelScope() as self._running:
            await self.sampler.run(task_status=task_status)

    async def restart(self) -> None:
        """Start nsqadmin again, with its history file."""

        def over(value: object) -> object:
            return msgpack.unpackb(msgpack.packb(value, default=lambda it: it()))

        kept = self.sampler.store, self.sampler.kept_nodes, self.sampler.upkeep, self.book
        self._kept = tuple(over(it.dump()) for it in kept)
        self._running.cancel()
        await self._start()

    def _observe(self, snapshot: Snapshot) -> None:
        self.changes += self.book.observe(snapshot)
        for watcher in self.watchers:
            watcher(snapshot)

    async def pass_time(self, seconds: float) -> None:
        end = self._clock.current_time() + seconds
        while (left := end - self._clock.current_time()) > 0:
            await trio.sleep(min(left, self.tick))
            for actor in self.actors:
                actor.act(self.now)


class Publisher:
    """Publishes some messages to each node that answers, in each tick."""

    def __init__(self, nodes: Sequence[Node], topic: str, per_tick: int) -> None:
        self._nodes = nodes
        self._topic = topic
        self.per_tick = per_tick

    def act(self, now: float) -> None:
        for node in self._nodes:
            if self.per_tick and node.answers:
                node.publish(self._topic, self.per_tick)


class Consumer:
    """A consumer on each node, as in `steered_world.py`."""

    def __init__(
        self,
        nodes: Sequence[Node],
        topic: str,
        channel: str,
        ports: count[int],
        *,
        ready: int = 500,
        per_tick: int = 1_000_000,
        msg_timeout: float = 60.0,
        touches: bool = False,
        takes: float = 0.0,
    ) -> None:
        self._nodes = nodes
        self._subscription = (topic, channel)
        self._ports = ports
        self._ready = ready
        self._msg_timeout = msg_timeout
        self._touches = touches
        self._takes = takes
        self.per_tick = per_tick
        self.finished = 0
        self._has_left = False
        self._clients: dict[Node, _Client] = {}
        self.answer: Callable[[Message], bytes] = finished

    def leave(self) -> None:
        for node, client in self._clients.items():
            if node.is_running and client in node.channel(*self._subscription).clients:
                node.channel(*self._subscription).leave(client)
        self._clients.clear()
        self._has_left = True

    def join(self) -> None:
        self._has_left = False

    def act(self, now: float) -> None:
        for node in () if self._has_left else self._nodes:
            if node.answers:
                self._act_on(node, now)

    def _act_on(self, node: Node, now: float) -> None:
        channel = node.channel(*self._subscription)
        client = self._clients.get(node)
        if client is None or client not in channel.clients:
            client = _Client(f"{self._subscription[1]}-1", next(self._ports), self._ready, self._msg_timeout, now)
            self._clients[node] = client
            channel.clients.append(client)
        left = self.per_tick
        channel.pass_time(now)
        while done := [it for it in client.held.values() if now - it.since >= self._takes][:left]:
            for it in done:
                self._answer(channel, client, it, now)
            left -= len(done)
            channel.pass_time(now)
        if self._touches and client.held:
            client.touches, client.touched = client.touches + len(client.held), now
            for it in client.held.values():
                it.deadline = now + self._msg_timeout

    def _answer(self, channel: _Channel, client: _Client, it: _Held, now: float) -> None:
        del client.held[it.message.id]
        said = self.answer(Message(0, it.message.attempts, b"%016x" % it.message.id, b""))
        if said.startswith(b"FIN"):
            client.finished += 1
            self.finished += 1
        elif said.startswith(b"REQ"):
            client.requeued += 1
            channel.requeued += 1
            channel.deferred.append((now + 1.0, it.message))
        else:
            channel.buried += 1
