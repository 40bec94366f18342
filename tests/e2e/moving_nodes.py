"""Nodes and nsqlookupds are killed in turn under keyed publishes of a producer that finds its nodes by nsqlookupd.

    python -m tests.e2e.moving_nodes --minutes 10
    python -m tests.e2e.moving_nodes --minutes 0.5 --rate 2000 --colour aio

Every `--every` seconds one of three nsqds is killed and started again `--down` seconds later. Towards the end all
nsqlookupds are killed, and the kills of nsqds go on. A fourth nsqd starts while they are dead. Then they come back,
empty at first, and a fifth nsqd starts.
It fails if a publish fails, or if the logs of the nsqds lack a message or have one twice.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import trio

import nsqclient
from bench.ports import take_port
from nsqclient import aio
from scripts.command_line import option, read_options
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.stored import stored_bodies

TASKS: Final = 100
_LOOK: Final = 0.05  # seconds between two looks at who publishes where
_WINDOW: Final = 10  # looks over which a share is measured
_ENOUGH: Final = 0.7  # of an equal share


@dataclass
class Load:
    """Publishes running numbers in batches, at a steady rate, until it is told to stop."""

    lookupds: Sequence[str]
    rate: int
    batch: int
    colour: str
    failures: list[BaseException] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)  # when
    firsts: list[int] = field(default_factory=list)  # the first number of each batch that was answered then
    looks: list[tuple[float, dict[str, int], int]] = field(default_factory=list)  # published at each; active
    published: bytearray = field(default_factory=bytearray)  # 1 for each number that was acknowledged
    _next: int = 0
    _stops: bool = False

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target={"trio": self._trio, "aio": self._aio}[self.colour], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stops = True
        self._thread.join(120)
        assert not self._thread.is_alive(), "publishing did not end"

    @property
    def count(self) -> int:
        return self.published.count(1)

    def _trio(self) -> None:
        trio.run(self._publish, nsqclient.open_producer, trio.sleep, _in_trio)

    def _aio(self) -> None:
        asyncio.run(self._publish(aio.open_producer, asyncio.sleep, _in_asyncio))

    async def _publish(self, open_producer: Any, sleep: Any, together: Any) -> None:
        config = nsqclient.Config(lookupd_poll_interval=5)
        async with open_producer(lookupd=self.lookupds, config=config, retry_timeout=240) as producer:
            began = time.monotonic()
            works: list[Any] = [lambda: self._look(producer, sleep)]
            works += [lambda: self._one(producer, sleep, began)] * TASKS
            await together(works)

    async def _one(self, producer: Any, sleep: Any, began: float) -> None:
        try:
            while not self._stops:
                first = self._next
                self._next += self.batch
                self.published += bytes(self.batch)
                due = began + first / self.rate
                await sleep(max(due - time.monotonic(), 0))
                started = time.monotonic()
                await producer.publish_many("t", [b"%d" % number for number in range(first, self._next_of(first))])
                now = time.monotonic()
                self.published[first : first + self.batch] = b"\1" * self.batch
                self.firsts.append(first)
                self.latencies.append(now - started)
                self.answered.append(now)
        except Exception as error:
            self.failures.append(error)

    def _next_of(self, first: int) -> int:
        return first + self.batch

    async def _look(self, producer: Any, sleep: Any) -> None:
        roster = producer._roster
        while not self._stops:
            now = time.monotonic()
            self.looks.append((now, {node.address: node.published for node in roster.nodes}, len(roster.active)))
            await sleep(_LOOK)

    def share_of(self, address: str, since: float) -> float | None:
        """Return how many seconds after `since` an nsqd had enough of its share, or None."""
        for at in range(_WINDOW, len(self.looks)):
            now, counts, active = self.looks[at]
            before = self.looks[at - _WINDOW][1]
            if now < since or not active:
                continue
            got = {it: max(counts[it] - before.get(it, 0), 0) for it in counts}
            if got.get(address, 0) >= _ENOUGH * sum(got.values()) / active > 0:
                return now - since
        return None


async def _in_trio(works: list[Callable[[], Any]]) -> None:
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)


async def _in_asyncio(works: list[Callable[[], Any]]) -> None:
    await asyncio.gather(*(work() for work in works))


@dataclass
class Cluster:
    """Nodes that keep their addresses, and what became of them."""

    folder: Path
    stack: ExitStack
    load: Load
    lookupds: list[Nsqlookupd]
    nodes: list[Nsqd] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # seconds until a node that has started had its share
    gaps: list[float] = field(default_factory=list)  # the longest time without any answer after each kill

    def add_node(self) -> Nsqd:
        node = Nsqd(
            self.folder / f"node-{len(self.nodes)}",
            *(f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}" for lookupd in self.lookupds),
            "broadcast-address=127.0.0.1",
            "retention-bytes=100GB",
            "idempotence-window=1h",
            f"tcp-address=127.0.0.1:{take_port(self.stack)}",
            f"http-address=127.0.0.1:{take_port(self.stack)}",
        )
        self.stack.enter_context(node)
        self.nodes.append(node)
        return node

    def kill(self, node: Nsqd, *, down: float, wait_for_share: float) -> None:
        """Kill a node, start it again, and wait until it has its share."""
        killed = time.monotonic()
        node.kill()
        time.sleep(down)
        node.start()
        self.wait_for_share(node, time.monotonic(), wait_for_share)
        self.gaps.append(_longest_gap(self.load.answered, killed, time.monotonic()))

    def wait_for_share(self, node: Nsqd, since: float, limit: float) -> None:
        address = f"127.0.0.1:{node.tcp[1]}"
        deadline = since + limit
        while (share := self.load.share_of(address, since)) is None:
            assert time.monotonic() < deadline, f"{address} has no share after {limit} s"
            assert not self.load.failures, self.load.failures[:3]
            time.sleep(0.1)
        self.shares.append(share)


def _longest_gap(answered: Sequence[float], since: float, until: float) -> float:
    times = [since, *(moment for moment in answered[-200_000:] if since <= moment <= until), until]
    return max(later - earlier for earlier, later in pairwise(times))


def run(
    folder: Path,
    *,
    seconds: float,
    every: float,
    down: float,
    rate: int,
    batch: int,
    colour: str,
    tell: Callable[[str], object],
    slowest: float = 1.0,
) -> str:
    """Return what happened. 99 of 100 publishes may take `slowest` seconds."""
    with ExitStack() as stack:
        lookupds = [Nsqlookupd() for _ in range(2)]
        for lookupd in lookupds:
            stack.enter_context(lookupd)
        addresses = [f"127.0.0.1:{lookupd.http_address[1]}" for lookupd in lookupds]
        load = Load(addresses, rate, batch, colour)
        cluster = Cluster(folder, stack, load, lookupds)
        for _ in range(3):
            cluster.add_node()
        eventually(lambda: all(len(it.get("/nodes")["producers"]) == 3 for it in lookupds))
        with load:
            eventually(lambda: load.count > 3 * batch)
            _disturb(cluster, seconds, every, down, tell)
        return _summary(cluster, slowest, tell)


def _disturb(cluster: Cluster, seconds: float, every: float, down: float, tell: Callable[[str], object]) -> None:
    _kill_in_turn(cluster, 0.6 * seconds, every, down, tell)
    tell("all nsqlookupds are dead from now on")
    for lookupd in cluster.lookupds:
        lookupd.kill()
    _kill_in_turn(cluster, 0.4 * seconds, every, down, tell)
    fourth = cluster.add_node()
    first, *others = cluster.lookupds
    first.start()
    began, looks = time.monotonic(), len(cluster.load.looks)
    for lookupd in others:
        lookupd.start()
    fifth = cluster.add_node()
    fifth_began = time.monotonic()
    cluster.wait_for_share(fourth, began, 60)
    tell(f"a fourth nsqd, from before the nsqlookupds came back: share {cluster.shares[-1]:.2f} s after that")
    cluster.wait_for_share(fifth, fifth_began, 60)
    tell(f"a fifth nsqd, after the nsqlookupds came back: share after {cluster.shares[-1]:.2f} s")
    assert min(active for _, _, active in cluster.load.looks[looks:]) >= 3, "an empty nsqlookupd has removed nodes"


def _kill_in_turn(cluster: Cluster, seconds: float, every: float, down: float, tell: Callable[[str], object]) -> None:
    """Kill nodes for so many seconds; at least one."""
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        cluster.kill(cluster.nodes[len(cluster.gaps) % 3], down=down, wait_for_share=every + 60)
        tell(
            f"{len(cluster.gaps)} kills, {cluster.load.count:,} messages, share after {cluster.shares[-1]:.2f} s, "
            f"longest gap {cluster.gaps[-1]:.2f} s"
        )
        if time.monotonic() >= until:
            return
        time.sleep(max(began + every - time.monotonic(), 0))


def _summary(cluster: Cluster, slowest: float, tell: Callable[[str], object]) -> str:
    load = cluster.load
    assert not load.failures, f"{len(load.failures)} publishes failed: {load.failures[:3]}"
    stored = bytearray(len(load.published))
    for node in cluster.nodes:
        for body in stored_bodies(node, "t"):
            stored[int(body)] += 1
    missing = [at for at, (said, there) in enumerate(zip(load.published, stored, strict=True)) if said and not there]
    lost = len(missing)
    doubled = sum(1 for there in stored if there > 1)
    latencies = sorted(load.latencies)
    p50, p99, p999 = (latencies[int(part * (len(latencies) - 1))] for part in (0.5, 0.99, 0.999))
    rate = load.count / (load.answered[-1] - load.answered[0])
    gaps = sorted(cluster.gaps)
    summary = (
        f"{load.count:,} messages acknowledged, {rate:,.0f} a second, 0 publishes failed, {lost} lost, {doubled} doubled; "
        f"{len(gaps)} kills; a publish took p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.0f} ms, "
        f"p99.9 {1000 * p999:.0f} ms, at most {latencies[-1]:.2f} s; longest time without any answer after a kill: "
        f"{gaps[len(gaps) // 2]:.3f} s in the middle, {gaps[-1]:.2f} s at most; "
        f"a node had its share at most {max(cluster.shares):.2f} s after its start"
    )
    tell(summary)
    for first in sorted({number - number % load.batch for number in missing}):
        at = load.firsts.index(first)
        since = load.answered[at] - load.answered[0]
        tell(f"lost: the batch from {first:,} on, answered after {since:.3f} s, which took {load.latencies[at]:.3f} s")
    assert not lost, summary
    assert not doubled, summary
    assert p99 < slowest, summary
    return summary


@dataclass(frozen=True, kw_only=True)
class MovingOptions:
    minutes: float = option(10, "how long")
    every: float = option(10, "seconds from one kill to the next")
    down: float = option(1, "seconds until the nsqd is started again")
    rate: int = option(20_000, "messages a second")
    batch: int = option(20, "messages of a publish, which has one key")
    colour: str = option("trio", "of the client", choices=("trio", "aio"))


def main() -> int:
    arguments = read_options(MovingOptions, name="python -m tests.e2e.moving_nodes", about=__doc__)

    def tell(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder:
        run(
            Path(folder),
            seconds=60 * arguments.minutes,
            every=arguments.every,
            down=arguments.down,
            rate=arguments.rate,
            batch=arguments.batch,
            colour=arguments.colour,
            tell=tell,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
