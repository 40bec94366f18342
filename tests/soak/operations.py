"""What operators and unlucky consumers do during a soak, each as a task that repeats one round until it is cancelled."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import trio

from nsqclient import Message as ClientMessage
from nsqclient import NSQError, open_consumer, open_producer
from nsqcommon.http_client import HttpFailed
from nsqcommon.wire.commands import rdy, sub
from nsqcommon.wire.message import Message
from tests.soak.cluster import RETENTION, Cluster, ask
from tests.soak.ledger import Ledger
from tests.soak.load import Load, post
from tests.support.client import Client, Disconnected
from tests.support.process import Daemon, Nsqd
from tests.support.tools import run_tool

_SETTLES: Final = 30.0  # seconds in which clients answer what they had when a channel was paused, or nsqd takes it back
_ARRIVES: Final = 30.0  # seconds in which a first message comes to a new channel, on a busy machine
_SYNCED: Final = 20.0  # seconds in which history gets what was acknowledged: --sync-timeout, and more for a busy disk
_LOOK: Final = 0.5
_SHORT_TIMEOUT: Final = 8.0  # seconds after which messages of a dead consumer are delivered again
_PASSING: Final = 100  # names that come and go, in turn
_PAGES: Final = ("/ping", "/", "/nodes", "/topics/orders", "/api/topics", "/api/nodes", "/api/v2/health")


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Seconds between two rounds of each operation."""

    passing: float = 5.0
    ephemeral: float = 10.0
    empty: float = 20.0
    pause: float = 60.0
    paused: float = 15.0
    history: float = 30.0
    replay: float = 120.0
    death: float = 15.0  # between deaths of a consumer
    look: float = 10.0  # between requests for statistics and pages
    kill: float = 240.0

    def quicker(self, times: float) -> Rhythm:
        return Rhythm(**{name: getattr(self, name) / times for name in self.__slots__})


class Operations:
    def __init__(self, load: Load, rhythm: Rhythm) -> None:
        self.load = load
        self.cluster: Cluster = load.cluster
        self.ledger: Ledger = load.ledger
        self.chance = load.chance
        self.rhythm = rhythm
        self._passed = 0
        self._replayed_to = 0
        self._history: dict[int, int] = {}  # sequence -> number, at the last read

    async def run(self) -> None:
        rhythm = self.rhythm
        await self._create_what_is_emptied()
        async with trio.open_nursery() as nursery:
            rounds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
                (rhythm.passing, self.pass_by),
                (rhythm.ephemeral, self.consume_for_a_moment),
                (rhythm.empty, self.empty),
                (rhythm.pause, self.pause),
                (rhythm.history, self.read_history),
                (rhythm.replay, self.replay),
                (rhythm.death, self.die_as_a_consumer),
                (rhythm.look, self.look),
                (rhythm.kill, self.kill),
            ]
            for seconds, work in rounds:
                nursery.start_soon(self._repeat, seconds, work)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat the work. A round that has begun is finished even if the soak ends: nothing stays paused or killed."""
        while True:
            await trio.sleep(self.chance.uniform(0.5, 1.5) * seconds)
            with trio.CancelScope(shield=True):
                try:
                    await work()
                except* (HttpFailed, NSQError, OSError, Disconnected, AssertionError) as group:
                    for error in group.exceptions:
                        self.ledger.failed("operation", f"{work.__name__}: {type(error).__name__} {error}")
                else:
                    self.ledger.counts[work.__name__] += 1

    # Topics and channels that come and go

    async def pass_by(self) -> None:
        """Create a topic, publish, consume half of it, and delete the channel and the topic."""
        node, topic = self.cluster.steady, f"passing-{self._passed % _PASSING}"
        self._passed += 1
        await ask(node, f"/topic/create?topic={topic}", method="POST")
        await ask(node, f"/channel/create?topic={topic}&channel=c", method="POST")
        self.ledger.add_channel(topic, "c")
        numbers = self.ledger.sending(topic, 20, trio.current_time())
        await post(node, topic, self.load.bodies(numbers))
        self.ledger.acknowledged(topic, numbers)
        for message in await self._take(node, topic, "c", 10):
            self.ledger.delivered(topic, "c", message.body, message.attempts, trio.current_time())
        self.ledger.remove_topic(topic)
        await ask(node, f"/channel/delete?topic={topic}&channel=c", method="POST")
        await ask(node, f"/topic/delete?topic={topic}", method="POST")
        if await stats(node, topic):
            self.ledger.failed("shape", f"topic {topic} is there after its deletion")

    async def _take(self, node: Nsqd, topic: str, channel: str, count: int) -> list[Message]:
        """Take messages and never answer them."""
        return await trio.to_thread.run_sync(_take, node, topic, channel, count)

    async def consume_for_a_moment(self) -> None:
        """Use an ephemeral channel of a lasting topic, and an ephemeral topic."""
        steady = self.cluster.nodes[:1]
        config = self.cluster.config(max_in_flight=10)
        for topic in ("orders", "passing#ephemeral"):
            received = trio.Event()

            async def handle(message: ClientMessage, received: trio.Event = received) -> None:
                received.set()

            async with (
                open_consumer(topic, "moment#ephemeral", nsqd=steady, config=config, startup="require") as consumer,
                open_producer(steady, config=config) as producer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(consumer.run, handle)
                if topic == "orders":  # the load may be over by now
                    await self.load.publish_numbers(topic, producer)
                else:
                    await producer.publish(topic, b"moment")
                with trio.move_on_after(_ARRIVES) as waiting:
                    await received.wait()
                consumer.stop()
            if waiting.cancelled_caught:
                self.ledger.failed("shape", f"nothing came on the ephemeral channel of {topic}")

    async def _create_what_is_emptied(self) -> None:
        await ask(self.cluster.steady, "/topic/create?topic=emptied", method="POST")
        await ask(self.cluster.steady, "/channel/create?topic=emptied&channel=c", method="POST")

    async def empty(self) -> None:
        """Count what waits, empty the topic or channel, and count again. It has no consumers."""
        node = self.cluster.steady
        for count, emptied in ((20, "/channel/empty?topic=emptied&channel=c"), (30, "/topic/empty?topic=emptied")):
            await post(node, "emptied", [b"x"] * count)
            await self._check_depth(node, count)
            await ask(node, emptied, method="POST")
            if "/topic/" in emptied:  # messages that its channels have got stay, as in NSQ
                await ask(node, "/channel/empty?topic=emptied&channel=c", method="POST")
            await self._check_depth(node, 0)

    async def _check_depth(self, node: Nsqd, expected: int) -> None:
        (topic,) = await stats(node, "emptied")
        depth = topic["depth"] + topic["channels"][0]["depth"]
        if depth != expected:
            self.ledger.failed("shape", f"depth of emptied is {depth}, not {expected}")

    async def pause(self) -> None:
        """Pause a channel on both nodes, and check that nothing comes until the pause ends."""
        async with self.cluster.undisturbed:
            await self._change("pause")
            await self._wait_until_answered("held")
            self.ledger.pausing("held", "c", trio.current_time())
            await trio.sleep(self.rhythm.paused)
            self.ledger.pausing("held", "c", inf)
            await self._change("unpause")

    async def _change(self, verb: str) -> None:
        for node in (self.cluster.steady, self.cluster.victim):
            await ask(node, f"/channel/{verb}?topic=held&channel=c", method="POST")

    async def _wait_until_answered(self, topic: str) -> None:
        """Wait until the consumers of a paused channel have answered all that they have."""
        with trio.move_on_after(_SETTLES) as waiting:
            for node in (self.cluster.steady, self.cluster.victim):
                while (await stats(node, topic))[0]["channels"][0]["in_flight_count"]:  # noqa: ASYNC110 -- another process
                    await trio.sleep(_LOOK)
        if waiting.cancelled_caught:
            self.ledger.failed("while paused", f"{topic} has messages in flight {_SETTLES:.0f} s after the pause")

    # History

    async def read_history(self) -> None:
        """Check that history has what was acknowledged, and that a sequence always is the same message."""
        now = trio.current_time()
        self._forget_what_retention_may_remove(now)
        wanted = {number for _, number in self.load.archived}
        found = await self._read("earliest", "latest")
        while (missing := wanted - set(found.values())) and trio.current_time() < now + _SYNCED:
            await trio.sleep(_LOOK)
            found = await self._read("earliest", "latest")
        if missing:
            self.ledger.failed("history", f"{len(missing)} acknowledged messages are not in it: {sorted(missing)[:5]}")
        if changed := [it for it in self._history.keys() & found.keys() if self._history[it] != found[it]]:
            self.ledger.failed("history", f"{len(changed)} sequences are other messages now: {sorted(changed)[:5]}")
        self._history = found

    def _forget_what_retention_may_remove(self, now: float) -> None:
        self.load.archived = [it for it in self.load.archived if it[0] > now - RETENTION * 0.9]

    async def _read(self, first: str | int, end: str | int) -> dict[int, int]:
        """Return the numbers by sequence in [first, end) of the archive."""
        bounds = json.loads((await ask(self.cluster.steady, "/topic/log?topic=archive")).body)
        end = bounds["next"] if end == "latest" else end
        found: dict[int, int] = {}
        position: str | int = first
        while position != end:
            lines = (await ask(self.cluster.steady, f"/topic/read?topic=archive&from={position}&to={end}")).body
            for line in map(json.loads, lines.splitlines()):
                if "gap" in line:
                    self.ledger.failed("history", f"there is a gap in the archive: {line}")
                elif "sequence" in line:
                    found[line["sequence"]] = int(line["body"].split(None, 1)[0])
                else:
                    position = line["next"]
        return found

    async def replay(self) -> None:
        """Copy what has come since the last replay into another topic, with nsq_replay."""
        bounds = json.loads((await ask(self.cluster.steady, "/topic/log?topic=archive")).body)
        first, end = max(bounds["first"], self._replayed_to), bounds["next"]
        copied = await self._read(first, end)
        self._replayed_to = end
        self.ledger.copying("replayed", list(copied.values()), trio.current_time())
        host, port = self.cluster.steady.http_address
        done = await trio.to_thread.run_sync(
            lambda: run_tool(
                "nsq_replay",
                "--topic=archive",
                f"--from={first}",
                f"--to={end}",
                "--destination-topic=replayed",
                f"--nsqd-http-address={host}:{port}",
                f"--destination-nsqd-tcp-address={self.cluster.nodes[0]}",
                "--json",
            )
        )
        if done.returncode == 0 and json.loads(done.stdout)["published"] == len(copied):
            self.ledger.acknowledged("replayed", list(copied.values()))
        else:
            self.ledger.failed("replay", f"exit status {done.returncode}: {done.stdout!r} {done.stderr[-500:]!r}")

    # Accidents

    async def die_as_a_consumer(self) -> None:
        """Take messages, hold them, perhaps beyond their timeout, and break the connection."""
        held = self.chance.choice((0.0, 1.5 * _SHORT_TIMEOUT))
        client = await trio.to_thread.run_sync(_subscribed, self.cluster.steady)

        def arrived(message: Message) -> None:
            now = trio.current_time()
            self.ledger.delivered("orders", "billing", message.body, message.attempts, now, self.cluster.nodes[0])

        try:
            # The ledger learns of each message at once, because another consumer gets it after the timeout.
            await trio.to_thread.run_sync(_take_some, client, 10, lambda it: trio.from_thread.run_sync(arrived, it))
            await trio.sleep(held)
        finally:
            client.close()

    async def kill(self) -> None:
        """Kill the node with kill -9, wait a while, and start it again."""
        victim = self.cluster.victim
        async with self.cluster.undisturbed:
            interruption = self.ledger.interrupted(trio.current_time(), node=self.cluster.nodes[1])
            await ask(victim, "/ping")  # a busy nsqd may not have read yet what was sent a second ago
            await trio.to_thread.run_sync(victim.kill)
            await trio.sleep(self.chance.uniform(0, 3))
            await trio.to_thread.run_sync(victim.start)
            await be_quiet(victim)
            interruption.until = trio.current_time()

    # Looking

    async def look(self) -> None:
        """Check that statistics, metrics and pages can always be read."""
        for path in _PAGES:
            await ask(self.cluster.admin, path)
        for path in ("/stats?format=json", "/stats", "/metrics", "/info", "/ping"):
            await ask(self.cluster.steady, path)
        await ask(self.cluster.lookupd, "/nodes")
        producers = json.loads((await ask(self.cluster.lookupd, "/lookup?topic=orders")).body)["producers"]
        if self.cluster.steady.tcp[1] not in {it["tcp_port"] for it in producers}:
            self.ledger.failed("lookup", "nsqlookupd does not know the steady nsqd")


async def stats(node: Nsqd, topic: str) -> list[Any]:
    answer = await ask(node, f"/stats?format=json&topic={topic}")
    found: list[Any] = json.loads(answer.body)["topics"]
    return found


async def be_quiet(daemon: Daemon) -> None:
    """Log warnings only, as a log of a day would be long."""
    await ask(daemon, "/config/log_level", method="PUT", body=b"warn")


def end(daemon: Daemon) -> str:
    """Stop the cluster, and return what was wrong with that."""
    status = daemon.stop(signal.SIGTERM)
    if status:
        return f"{daemon.program} ended with status {status}"
    return f"{daemon.program} has logged a traceback:\n{daemon.log[-2000:]}" if "Traceback" in daemon.log else ""


def _subscribed(node: Nsqd) -> Client:
    client = Client(node.tcp)
    client.identify(msg_timeout=int(1000 * _SHORT_TIMEOUT))
    client.subscribe("orders", "billing", ready=10)
    return client


def _take_some(client: Client, count: int, arrived: Callable[[Message], None]) -> None:
    """Take `count` messages, or fewer if none comes for a second."""
    try:
        for _ in range(count):
            arrived(client.message(1.0))
    except TimeoutError:
        pass


def _take(node: Nsqd, topic: str, channel: str, count: int) -> list[Message]:
    with Client(node.tcp) as client:
        assert client.ask(sub(topic, channel)) == b"OK"
        client.send(rdy(count))
        return client.messages(count)
