"""Clients that find the next owner by nsqlookupd, without a restart, and how long each of them pauses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import inf
from pathlib import Path

import pytest
import trio

import nsqclient
from tests.failover.machines import Machines
from tests.failover.stores import SharedFolder
from tests.support.process import PYTHONPATH, Nsqd, Nsqlookupd, eventually

ROOT = Path(__file__).resolve().parents[2]

TOPIC = "orders"
BEFORE = 50  # messages that were answered when the owner is lost
AFTER = 50  # and that have to be answered and to arrive then
TICK = 0.01  # seconds between two publishes
LIMIT = 60.0
LONGEST = 30.0  # seconds that a client may pause; some hundreds of tests run at the same time


@dataclass
class Arrivals:
    """When which message was answered, or has arrived."""

    times: list[float] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)

    def note(self, number: int, moment: float | None = None) -> None:
        self.times.append(time.monotonic() if moment is None else moment)
        self.numbers.add(number)

    def pause_at(self, moment: float) -> float:
        """Return how long nothing came, around this moment."""
        return max(after - before for before, after in pairwise(sorted(self.times)) if after >= moment)


@dataclass
class Cluster:
    """An owner, its standby, and clients that know only nsqlookupd."""

    machines: Machines
    owner: Nsqd
    lookupd: str
    answered: Arrivals = field(default_factory=Arrivals)
    nsqclients: Arrivals = field(default_factory=Arrivals)
    pynsqs: Arrivals = field(default_factory=Arrivals)
    lost_at: float = inf

    @property
    def has_gone_on(self) -> bool:
        """Whether enough was answered since the loss, and all of it has arrived."""
        everywhere = self.nsqclients.numbers & self.pynsqs.numbers
        return sum(it > self.lost_at for it in self.answered.times) >= AFTER and self.answered.numbers <= everywhere

    async def run(self) -> None:
        """Lose the owner under load, and return when the clients have gone on."""
        producers = nsqclient.open_producer(lookupd=self.lookupd, retry_timeout=LIMIT)
        consumers = nsqclient.open_consumer(TOPIC, "nsqclient", lookupd=self.lookupd)
        with trio.fail_after(2 * LIMIT):
            async with producers as producer, consumers as consumer, trio.open_nursery() as nursery:
                nursery.start_soon(self._consume, consumer)
                nursery.start_soon(self._publish, producer)
                await self._until(lambda: len(self.answered.times) >= BEFORE and bool(self.pynsqs.times))
                self.lost_at = await trio.to_thread.run_sync(self.machines.lose, self.owner)
                await self._until(lambda: self.has_gone_on)
                nursery.cancel_scope.cancel()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():  # noqa: ASYNC110  # other processes give no event to wait for
            await trio.sleep(TICK)

    async def _publish(self, producer: nsqclient.Producer) -> None:
        for number in count(1):
            if sum(it > self.lost_at for it in self.answered.times) >= AFTER:
                return
            while not await self._is_published(producer, number):  # noqa: ASYNC110  # as programs do while a node restarts
                await trio.sleep(TICK)
            self.answered.note(number)
            await trio.sleep(TICK)

    async def _is_published(self, producer: nsqclient.Producer, number: int) -> bool:
        """Publish. Return False if it is certain that it wasn't, because no owner is there at the moment."""
        try:
            await producer.publish(TOPIC, b"%d" % number)
        except (nsqclient.ConnectError, nsqclient.PublishUnsent):
            return False
        return True

    async def _consume(self, consumer: nsqclient.Consumer) -> None:
        async for message in consumer:
            self.nsqclients.note(int(message.body))
            message.finish()

    def read_pynsq(self, lines: Iterable[str]) -> None:
        for line in lines:
            moment, number = line.split()
            self.pynsqs.note(int(number), float(moment))


@pytest.mark.slow
def test_clients_find_a_standby_that_has_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Nsqlookupd() as lookupd, ExitStack() as running:
        options = (f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}",)
        machines = Machines(tmp_path, SharedFolder(tmp_path / "store"), options, standby_after="1s")
        running.enter_context(machines)
        cluster = Cluster(machines, machines.first_owner(), f"127.0.0.1:{lookupd.http_address[1]}")
        for channel in ("nsqclient", "pynsq"):
            cluster.owner.post(f"/channel/create?topic={TOPIC}&channel={channel}")
        machines.stand_by()
        eventually(lambda: lookupd.producers(TOPIC) == {cluster.owner.tcp[1]})
        process = running.enter_context(_pynsq(cluster))
        running.callback(process.kill)
        try:
            trio.run(cluster.run)
        except BaseException:
            sys.stdout.write(machines.log)
            raise
    figures = {"producer": cluster.answered, "consumer": cluster.nsqclients, "pynsq": cluster.pynsqs}
    pauses = {name: round(it.pause_at(cluster.lost_at), 2) for name, it in figures.items()}
    with capsys.disabled():
        sys.stdout.write(f"\nseconds without a message: {pauses}\n")
    assert max(pauses.values()) < LONGEST


def _pynsq(cluster: Cluster) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.failover.pynsq_consumer", TOPIC, cluster.lookupd],
        env={**os.environ, "PYTHONPATH": PYTHONPATH + os.pathsep + str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    threading.Thread(target=cluster.read_pynsq, args=(process.stdout,), daemon=True).start()
    return process
