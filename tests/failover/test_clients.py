"""Clients that find the next owner by themselves, without a restart, and how long each of them pauses.

Some ask nsqlookupd. The others know one address, which each owner gets, as a virtual address or a service moves with it:
docs/how-to/lose-a-machine.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from bench.ports import HOST, take_port
from tests.e2e.go_peer import go_peer
from tests.failover.machines import Machines
from tests.failover.peers import TOPIC
from tests.failover.stores import SharedFolder
from tests.support.lengths import sized
from tests.support.process import PYTHONPATH, ROOT, Nsqlookupd, eventually

BEFORE: Final = 50  # messages of each producer that were answered when the owner is lost
AFTER: Final = 50  # and that have to be answered and to arrive then
RANGE: Final = 1_000_000  # numbers of each producer
LIMIT: Final = 120.0
LONGEST: Final = 30.0  # seconds that a client may pause; some hundreds of tests run at the same time

_LOOKING: Final = sized(
    short=("trio producer", "trio consumer", "pynsq consumer"),
    long=(
        *(f"{kind} producer" for kind in ("trio", "asyncio", "threads", "sockets")),
        *(f"{kind} consumer" for kind in ("trio", "asyncio", "threads", "pynsq", "go-nsq")),
    ),
)
_FIXED: Final = (
    *(f"{kind} producer" for kind in ("trio", "asyncio", "threads", "sockets", "pynsq", "go-nsq")),
    *(f"{kind} consumer" for kind in ("trio", "asyncio", "threads", "pynsq", "go-nsq")),
)
CLIENTS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({"lookupd": _LOOKING, "nsqd": _FIXED})


@dataclass(eq=False)
class Peer:
    """A client in a process of its own: the numbers that it writes, and when each of them came."""

    name: str
    times: list[float] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)

    @property
    def is_producer(self) -> bool:
        return self.name.endswith("producer")

    def start(self, where: str, address: str, first: int, running: ExitStack) -> None:
        if self.name.startswith("go-nsq"):
            command = [str(go_peer("pauses"))]
        else:
            command = [sys.executable, "-P", "-m", "tests.failover.peers"]
        process = subprocess.Popen(
            [*command, self.name, where, address, str(first)],
            env={**os.environ, "PYTHONPATH": PYTHONPATH + os.pathsep + str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        running.enter_context(process)
        running.callback(process.kill)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.numbers.add(int(line))
            self.times.append(time.monotonic())

    def since(self, moment: float) -> int:
        """Return how many numbers came after this moment."""
        return sum(it > moment for it in list(self.times))

    def pause_at(self, moment: float) -> float:
        """Return how long nothing came, around this moment."""
        return max(after - before for before, after in pairwise(self.times) if after >= moment)


@dataclass
class Crowd:
    """The clients, all at the same node."""

    peers: Sequence[Peer]
    lost_at: float = inf

    def have_begun(self) -> bool:
        return all(it.since(0) >= (BEFORE if it.is_producer else 1) for it in self.peers)

    def have_gone_on(self) -> bool:
        """Return whether each producer got answers since the loss, and all that was answered has come to each consumer."""
        producers = [it for it in self.peers if it.is_producer]
        if any(it.since(self.lost_at) < AFTER for it in producers):
            return False
        answered = {number for it in producers for number in tuple(it.numbers)}
        return all(it.since(self.lost_at) and answered <= it.numbers for it in self.peers if not it.is_producer)

    def pauses(self) -> dict[str, float]:
        return {it.name: round(it.pause_at(self.lost_at), 2) for it in self.peers}


@pytest.mark.slow
@pytest.mark.parametrize("where", sized(short=["lookupd"], long=["lookupd", "nsqd"]))
def test_clients_go_on_when_another_machine_has_taken_over(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = [Peer(name) for name in CLIENTS[where]]
    if any(it.name.startswith("go-nsq") for it in peers):
        go_peer("pauses")  # builds it, or skips the test
    crowd = Crowd(peers)
    with Nsqlookupd() as lookupd, ExitStack() as running:
        # On one machine a standby can't wait for an address that is in use. So the next owner of it is started at the loss.
        standby_after = "1s" if where == "lookupd" else ""
        machines = Machines(tmp_path, SharedFolder(tmp_path / "store"), standby_after=standby_after)
        address = f"{HOST}:{lookupd.http_address[1]}"
        machines.start_with(f"lookupd-tcp-address={HOST}:{lookupd.tcp[1]}")
        if where == "nsqd":
            address = f"{HOST}:{take_port(running)}"
            machines.start_with(f"tcp-address={address}")
        running.enter_context(machines)
        owner = machines.first_owner()
        for peer in peers:
            if not peer.is_producer:
                owner.post(f"/channel/create?topic={TOPIC}&channel={peer.name.partition(' ')[0]}")
        machines.stand_by()
        eventually(lambda: lookupd.producers(TOPIC) == {owner.tcp[1]})
        for number, peer in enumerate(peers, start=1):
            peer.start(where, address, number * RANGE, running)
        try:
            eventually(crowd.have_begun, LIMIT)
            crowd.lost_at = machines.lose(owner)
            if not machines.standby_after:
                machines.take_over()
            eventually(crowd.have_gone_on, LIMIT)
        except BaseException:
            sys.stdout.write(machines.log)
            sys.stdout.write(f"\n{ {it.name: (len(it.numbers), it.since(crowd.lost_at)) for it in peers} }\n")
            raise
    pauses = crowd.pauses()
    with capsys.disabled():
        sys.stdout.write(f"\nseconds without a message, by {where}: {pauses}\n")
    assert max(pauses.values()) < LONGEST
