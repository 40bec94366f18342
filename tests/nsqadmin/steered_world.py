"""A cluster of real processes on a clock that the test steers, and nsqadmin's view of it in this process.

    nsqds           real processes, which hang (SIGSTOP), die (SIGKILL) and come back; `tests/support/steered.py`
    Sampler, Book   nsqadmin's, in this process, on the same clock
    actors          publishers and consumers, which do their part once in each tick

Time passes only in `World.pass_time`: it jumps to the next deadline once nothing is under way any more, so an hour takes
seconds. Nothing is early or late on a busy machine, because the clock waits for each answer of a node that runs. There is
no nsqlookupd, because the clock wouldn't wait for its answers to the nodes.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, Protocol

import trio
import trio.testing

from bench.ports import HOST
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.cluster.model import Snapshot
from nsqadmin.diagnosis.incident import IncidentChange
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.options import Options
from nsqadmin.upstream.client import Streamed, Upstream
from nsqadmin.upstream.sampler import Sampler
from nsqcommon.durations import SECOND
from nsqcommon.wire import commands
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.message import Message
from tests.support.client import NOBODY, Client, Disconnected
from tests.support.process import SteadyNsqd
from tests.support.steered_clock import SteeredClock

WALL = 1_800_000_000.0  # when the world begins
_DAEMON = (sys.executable, "-P", "-m", "tests.support.steered")
_AT_ONCE = 0.001  # seconds; a deadline that is nearer comes by itself


class Actor(Protocol):
    """A publisher or consumer."""

    def act(self, now: float) -> None:
        """Do the part of this tick. `now` is the wall time."""
        ...


class Node:
    """One nsqd."""

    def __init__(self, folder: Path, clock: SteeredClock, path: Path, policy: str) -> None:
        folder.mkdir(parents=True)
        self.policy = folder / "policy.toml"
        self.policy.write_text(policy)
        self.daemon = SteadyNsqd(
            folder / "data",
            *(
                "broadcast-address=127.0.0.1",
                f"policy-file={self.policy}",
                "max-msg-timeout=4h",
                "sync-every=1000000",
                "sync-timeout=12h",
            ),
            environ={"STEERED_CLOCK": str(path)},
        )
        self.daemon.command = (*_DAEMON, "nsqd")
        self.is_hung = False
        self.is_old = False  # it answers like NSQ's nsqd, as far as consumers are concerned
        self._clock = clock

    @property
    def address(self) -> str:
        return f"{HOST}:{self.daemon.http_address[1]}"

    @property
    def answers(self) -> bool:
        return self.daemon.is_running and not self.is_hung

    def hang(self) -> None:
        self.daemon.send_signal(SIGSTOP)
        self.is_hung = True

    def go_on(self) -> None:
        self.daemon.send_signal(SIGCONT)
        self.is_hung = False

    def wake(self) -> None:
        """Let it go on if it hangs, so that it can be killed like any other."""
        if self.is_hung:
            self.go_on()

    def die(self) -> None:
        self.daemon.kill()

    def come_back(self) -> None:
        with self._clock.free():
            self.daemon.start()


class _CountingUpstream(Upstream):
    """Knows which requests are under way, so that no time passes while a node is about to answer."""

    def __init__(self, options: Options, is_awaited: Callable[[str], bool], is_old: Callable[[str], bool]) -> None:
        super().__init__(options)
        self._is_awaited = is_awaited
        self._is_old = is_old
        self._under_way: list[str] = []
        self._answered = trio.Event()

    @property
    def is_busy(self) -> bool:
        return any(map(self._is_awaited, self._under_way))

    async def wait_for_answer(self) -> None:
        await self._answered.wait()

    @contextmanager
    def _asking(self, address: str) -> Iterator[None]:
        self._under_way.append(address)
        try:
            yield
        finally:
            self._under_way.remove(address)
            self._answered.set()
            self._answered = trio.Event()

    async def get(self, address: str, target: str) -> bytes:
        with self._asking(address):
            return await super().get(address, target)

    async def get_document(self, address: str, target: str, *, is_lookupd: bool = False) -> Any:
        with self._asking(address):
            document = await super().get_document(address, target, is_lookupd=is_lookupd)
        is_old = self._is_old(address) and target.startswith("/stats")
        return replace(document, value=_of_go(document.value)) if is_old else document

    @asynccontextmanager
    async def stream(
        self, address: str, target: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Streamed]:
        with self._asking(address):
            async with super().stream(address, target, headers=headers) as streamed:
                yield streamed

    async def post(self, address: str, target: str, body: bytes = b"", *, is_lookupd: bool = False) -> bytes:
        with self._asking(address):
            return await super().post(address, target, body, is_lookupd=is_lookupd)


def _of_go(stats: Any) -> Any:
    """Return the answer to /stats without what only our nsqd says of its consumers."""
    for topic in stats["topics"]:
        for channel in topic["channels"]:
            for client in channel.get("clients") or ():
                for name in ("oldest_in_flight_ms", "touch_count", "last_touch_at"):
                    client.pop(name, None)
    return {name: value for name, value in stats.items() if name != "release"}


class _TrioClock(trio.abc.Clock):
    def __init__(self, clock: SteeredClock) -> None:
        self._clock = clock

    def start_clock(self) -> None:
        """It has begun already."""

    def current_time(self) -> float:
        return self._clock.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self._clock.monotonic()


class World:
    def __init__(self, folder: Path, stack: ExitStack, nodes: int, *, policy: str = "", tick: float) -> None:
        """In each tick, the actors do their part, and nsqadmin takes a sample."""
        self.tick = tick  # seconds
        path = folder / "clock"
        self.clock = SteeredClock(path, wall=WALL)
        self.nodes = [Node(folder / f"n{number}", self.clock, path, policy) for number in range(1, nodes + 1)]
        for node in self.nodes:
            stack.enter_context(node.daemon)
            stack.callback(node.wake)
        self.clock.jump(0)  # the nodes have started: from here on, nsqadmin's first questions wait for them as well
        self.actors: list[Actor] = []
        self.changes: list[IncidentChange] = []
        self.watchers: list[Callable[[Snapshot], None]] = []
        self.options = Options(
            nsqd_http_address=tuple(node.address for node in self.nodes),
            sample_interval=int(tick * SECOND),
        )
        activity = ActivityLog()
        self.upstream = _CountingUpstream(self.options, self._is_awaited, self._is_old)
        self.sampler = Sampler(lambda: self.options, self.upstream, activity, wall=self.clock.wall)
        self.book = Book(activity.newest)
        self.activity = activity
        self.sampler.on_snapshot(self._observe)

    @property
    def now(self) -> float:
        return self.clock.wall()

    @property
    def minute(self) -> float:
        """Minutes since the world began."""
        return (self.now - WALL) / 60

    @property
    def all_answer(self) -> bool:
        return all(node.answers for node in self.nodes)

    def node(self, address: str) -> Node | None:
        return next((node for node in self.nodes if node.address == address), None)

    def _is_awaited(self, address: str) -> bool:
        node = self.node(address)
        return node is None or node.answers

    def publisher(self, topic: str, per_tick: int) -> Publisher:
        return Publisher(self.nodes, topic, per_tick)

    def consumer(self, topic: str, channel: str, **options: Any) -> Consumer:
        return Consumer(self.nodes, topic, channel, **options)

    def _is_old(self, address: str) -> bool:
        node = self.node(address)
        return node is not None and node.is_old

    def _observe(self, snapshot: Snapshot) -> None:
        self.changes += self.book.observe(snapshot)
        for watcher in self.watchers:
            watcher(snapshot)

    def run(self, test: Callable[[], Any]) -> None:
        """Run the test on this world's clock, beside nsqadmin."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.sampler.run)
                await test()
                nursery.cancel_scope.cancel()
            await self.upstream.aclose()

        trio.run(main, clock=_TrioClock(self.clock))

    async def pass_time(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            await self._jump_through(min(left, self.tick))
            for actor in self.actors:
                actor.act(self.now)

    async def _jump_through(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while True:
            await self._settle()
            left = end - self.clock.monotonic()
            if left <= 0:
                return
            to_deadline = trio.lowlevel.current_statistics().seconds_to_next_deadline
            self.clock.jump(max(min(to_deadline, left), _AT_ONCE))
            await trio.lowlevel.checkpoint()

    async def _settle(self) -> None:
        """Wait until nothing happens by itself: no task can go on, and no node is about to answer."""
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if not self.upstream.is_busy:
                return
            await self.upstream.wait_for_answer()


class Publisher:
    """Publishes some messages to each node that answers, in each tick."""

    def __init__(self, nodes: Sequence[Node], topic: str, per_tick: int) -> None:
        self._nodes = nodes
        self._topic = topic
        self.per_tick = per_tick

    def act(self, now: float) -> None:
        for node in self._nodes:
            if self.per_tick and node.answers:
                body = b"\n".join(b"%d" % number for number in range(self.per_tick))
                node.daemon.post(f"/mpub?topic={self._topic}", body)


def finished(message: Message) -> bytes:
    return commands.fin(message.id)


def given_back(message: Message) -> bytes:
    """Fail two of three deliveries."""
    return commands.fin(message.id) if message.attempts % 3 == 0 else commands.req(message.id, 1000)


def buried(message: Message) -> bytes:
    return bury(message.id, "no such address")


class Consumer:
    """A consumer on each node, connected again when it comes back. `handle` decides on the messages that it holds."""

    def __init__(
        self,
        nodes: Sequence[Node],
        topic: str,
        channel: str,
        *,
        ready: int = 500,
        per_tick: int = 1_000_000,
        msg_timeout: float = 60.0,
        touches: bool = False,
        takes: float = 0.0,
    ) -> None:
        """It finishes `per_tick` messages in each tick at most, and each at the earliest `takes` seconds after it came."""
        self._nodes = nodes
        self._subscription = (topic, channel)
        self._ready = ready
        self._msg_timeout = msg_timeout
        self._touches = touches
        self._takes = takes
        self.per_tick = per_tick
        self.finished = 0
        self._has_left = False
        self._clients: dict[Node, Client] = {}
        self._held: dict[Node, list[tuple[float, Message]]] = {}
        self.answer: Callable[[Message], bytes] = finished

    def act(self, now: float) -> None:
        for node in () if self._has_left else self._nodes:
            if node.answers:
                try:
                    self._act_on(node, now)
                except (Disconnected, OSError):
                    self._leave(node)
            elif not node.daemon.is_running:
                self._leave(node)

    def leave(self) -> None:
        """Close all connections until `join`."""
        for node in list(self._clients):
            self._leave(node)
        self._has_left = True

    def join(self) -> None:
        self._has_left = False

    def _leave(self, node: Node) -> None:
        if (client := self._clients.pop(node, None)) is not None:
            client.close()
        self._held.pop(node, None)

    def _act_on(self, node: Node, now: float) -> None:
        if node not in self._clients:
            self._connect(node)
        client, held = self._clients[node], self._held[node]
        left = self.per_tick
        self._receive(client, held, now)
        while done := [message for at, message in held if now - at >= self._takes][:left]:
            for message in done:
                client.send(self.answer(message))
            self.finished += len(done)
            left -= len(done)
            names = {message.id for message in done}
            held[:] = [(at, message) for at, message in held if message.id not in names]
            self._receive(client, held, now)
        if self._touches and held:
            client.send(*(commands.touch(message.id) for _, message in held))

    def _receive(self, client: Client, held: list[tuple[float, Message]], now: float) -> None:
        """Take all messages that have come. Answers to messages that have timed out are errors, and of no interest."""
        for _ in range(2):  # the broker sends messages after the answer to the command that made room for them
            client.send(commands.fin(NOBODY))
            while NOBODY not in client.error():
                pass
        known = {message.id for _, message in held}
        while (message := client.kept_message()) is not None:
            if message.id not in known:
                held.append((now, message))

    def _connect(self, node: Node) -> None:
        client = node.daemon.connect()
        client.identify(
            client_id="c",
            feature_negotiation=True,
            extensions=["bury"],
            hostname=f"{self._subscription[1]}-1",
            user_agent="scenario/1.0",
            heartbeat_interval=60_000,
            output_buffer_size=-1,
            msg_timeout=int(self._msg_timeout * 1000),
        )
        client.subscribe(*self._subscription, ready=self._ready)
        self._clients[node], self._held[node] = client, []
