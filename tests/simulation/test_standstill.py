"""Processes that stand still for a while (SIGSTOP), and wall clocks that jump, under a ledger.

The long ones: `python -m tests.simulation standstill --minutes 30` and `python -m tests.simulation clock --minutes 30`.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from tests.simulation.behind import CHANNELS, TOPIC, Load, run_load
from tests.simulation.clocks import WallClock
from tests.simulation.disturbances import JUMPS, stop_for
from tests.soak.ledger import Ledger
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.tools import LIMIT, Tool, address

pytestmark = pytest.mark.slow

STANDSTILL = 5.0  # seconds; longer than clients wait for a sign of life
LATEST = 30.0  # seconds that a deferred message may be late on a busy machine; jumps are an hour or more


def say(text: str) -> None:
    print(text)


def test_nothing_is_lost_when_nsqd_stands_still(tmp_path: Path) -> None:
    ledger = Ledger()
    with Nsqd(tmp_path / "data") as node:
        disturb = partial(stop_for, node, ledger, STANDSTILL, say)
        trio.run(run_load, node, node.tcp, ledger, Random(1), partial(before_and_after, disturb, ledger))
    print(f"{dict(ledger.counts)}, latest {ledger.latest:.1f} s")


async def before_and_after(disturb: Callable[[], Awaitable[None]], ledger: Ledger) -> None:
    await published(ledger, 60)
    await disturb()
    await published(ledger, 60)


async def published(ledger: Ledger, count: int) -> None:
    """Wait until so many more messages have been published and delivered."""
    goals = {what: ledger.counts[what] + count for what in ("published", "delivered")}
    with trio.fail_after(LIMIT):
        while any(ledger.counts[what] < goal for what, goal in goals.items()):  # noqa: ASYNC110 -- counts go up
            await trio.sleep(0.01)


def test_what_clients_answered_on_connections_they_lost_is_no_fault(tmp_path: Path) -> None:
    """The clients, all in one thread, stand still until nsqd has dropped the connection of each consumer."""

    async def stand_still() -> None:
        time.sleep(STANDSTILL)  # noqa: ASYNC251 -- nobody else may run
        eventually(lambda: not any(node.channel(TOPIC, name)["clients"] for name in CHANNELS), timeout=LIMIT)

    ledger = Ledger()
    # Requeued messages may be due later than those in flight come back.
    load = Load(longest_delay=8.0, longest_requeue=20.0, drain=120.0)
    with Nsqd(tmp_path / "data") as node:
        trio.run(run_load, node, node.tcp, ledger, Random(1), partial(before_and_after, stand_still, ledger), load)
    assert ledger.counts["connections lost"] > 0
    print(f"{dict(ledger.counts)}, latest {ledger.latest:.1f} s")


def test_nothing_is_lost_when_a_client_stands_still(tmp_path: Path) -> None:
    """A forwarding tool stands still for so long that nsqd delivers its messages to another client."""
    wanted = [b"%d" % number for number in range(300)]
    with Nsqd(tmp_path / "source", "msg-timeout=2s") as source, Nsqd(tmp_path / "copy") as copy:
        source.post("/topic/create?topic=orders")
        source.post("/channel/create?topic=orders&channel=c")
        places = f"--nsqd-tcp-address={address(source.tcp)}", f"--destination-nsqd-tcp-address={address(copy.tcp)}"
        settings = "--consumer-opt=heartbeat_interval,1s", "--consumer-opt=max_attempts,0"
        with Tool("nsq_to_nsq", "--topic=orders", "--channel=c", *places, *settings) as tool:
            publish_many(source, wanted[:100])
            eventually(lambda: copy.topic("orders"), timeout=LIMIT)
            tool.signal(signal.SIGSTOP)
            publish_many(source, wanted[100:200])
            eventually(lambda: source.channel("orders")["in_flight_count"], timeout=LIMIT)
            eventually(lambda: not source.channel("orders")["clients"], timeout=LIMIT)  # nsqd has dropped it
            tool.signal(signal.SIGCONT)
            publish_many(source, wanted[200:])
            eventually(lambda: is_done(source), timeout=LIMIT)
        client = copy.connect()
        client.subscribe("orders", "check", ready=2500)
        found: set[bytes] = set()
        while found != set(wanted):
            message = client.message(LIMIT)
            client.finish(message)
            found.add(message.body)


def publish_many(node: Nsqd, bodies: list[bytes]) -> None:
    """Publish each by itself."""
    client = node.connect()
    for body in bodies:
        client.publish("orders", body)


def is_done(node: Nsqd) -> bool:
    found = node.channel("orders")
    return bool(found["depth"] == found["in_flight_count"] == found["deferred_count"] == 0)


def test_registrations_are_there_after_nsqlookupd_has_stood_still(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        options = "broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        with Nsqd(tmp_path / "data", *options) as node:
            node.post("/topic/create?topic=before")
            eventually(lambda: lookupd.producers("before"), timeout=LIMIT)
            ledger = Ledger()
            disturb = partial(stop_for, lookupd, ledger, STANDSTILL, say)
            trio.run(run_load, node, node.tcp, ledger, Random(1), partial(before_and_after, disturb, ledger))
            eventually(lambda: lookupd.producers("before") and lookupd.producers("orders"), timeout=LIMIT)


@pytest.mark.needs("libfaketime")
def test_a_wall_clock_that_jumps_makes_nothing_early_or_late(tmp_path: Path) -> None:
    ledger, clock, seed = Ledger(), WallClock(tmp_path), random.randrange(1 << 32)

    async def jump_each_way() -> None:
        for ahead in JUMPS:
            say(f"the wall clock is {ahead:+d} s ahead")
            clock.set(ahead)
            await published(ledger, 51)

    with Nsqd(tmp_path / "data", environ=clock.environ) as node:
        trio.run(run_load, node, node.tcp, ledger, Random(seed), jump_each_way, Load(longest_delay=4.0))
        assert "Traceback" not in node.log
    assert ledger.latest < LATEST
    print(f"seed {seed}: {dict(ledger.counts)}, latest {ledger.latest:.1f} s")
