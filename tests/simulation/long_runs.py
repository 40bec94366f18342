"""Long runs with bad networks, standstills and clocks: `python -m tests.simulation network | standstill | clock`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import trio

from tests.simulation.behind import Load, run_load
from tests.simulation.clocks import WallClock
from tests.simulation.disturbances import jump, stop_now_and_then
from tests.simulation.network import Link, storm
from tests.soak.ledger import Ledger
from tests.support.process import Nsqd

Say = Callable[[str], None]
Scenario = Callable[[Path, Ledger, int, float, Say], Awaitable[None]]


def run(scenario: Scenario, seconds: float, seed: int, say: Say) -> int:
    """Run it, and return the exit status."""
    ledger, began, failed = Ledger(), time.monotonic(), False
    with TemporaryDirectory() as folder:
        try:
            trio.run(scenario, Path(folder), ledger, seed, seconds, say)
        except* AssertionError as group:
            failed = True
            say(f"seed {seed}: {group.exceptions[0]}")
    counts = ", ".join(f"{what} {count:,}" for what, count in ledger.counts.items())
    wrong = ", ".join(f"{what} {count:,}" for what, count in ledger.wrong.items()) or (
        "FAILED" if failed else "nothing wrong"
    )
    say(f"seed {seed}, {time.monotonic() - began:.0f} s: {wrong}; latest {ledger.latest:.1f} s; {counts}")
    return int(failed)


async def bad_network(folder: Path, ledger: Ledger, seed: int, seconds: float, say: Say) -> None:
    chance = Random(seed)
    with Nsqd(folder / "data") as node:
        async with trio.open_nursery() as nursery:
            link = Link(node.tcp, chance)
            await nursery.start(link.serve)
            disturb = partial(storm, [link], ledger, chance, longest=10.0, say=say)
            await run_load(node, link.address, ledger, chance, partial(_for, seconds, disturb))
            nursery.cancel_scope.cancel()


async def standstills(folder: Path, ledger: Ledger, seed: int, seconds: float, say: Say) -> None:
    """Stop the node for 5 to 120 s, again and again."""
    chance = Random(seed)
    with Nsqd(folder / "data") as node:
        disturb = partial(stop_now_and_then, node, ledger, chance, shortest=5.0, longest=120.0, say=say)
        await run_load(node, node.tcp, ledger, chance, partial(_for, seconds, disturb), Load(drain=180.0))


async def jumping_clock(folder: Path, ledger: Ledger, seed: int, seconds: float, say: Say) -> None:
    clock, chance = WallClock(folder), Random(seed)

    async def disturb() -> None:
        while True:
            await jump(clock, chance.uniform(1, 30), say)

    with Nsqd(folder / "data", environ=clock.environ) as node:
        # On a busy machine an answer takes seconds. It must not come too late, as a timeout looks like a clock fault.
        load = Load(longest_delay=60.0, msg_timeout=60.0, drain=300.0)
        await run_load(node, node.tcp, ledger, chance, partial(_for, seconds, disturb), load)


async def _for(seconds: float, disturb: Callable[[], Awaitable[None]]) -> None:
    with trio.move_on_after(seconds):
        await disturb()


SCENARIOS: Final[dict[str, tuple[Scenario, str]]] = {
    "network": (bad_network, "a network that cuts, stalls, drips and resets, between clients and a real nsqd"),
    "standstill": (standstills, "a real nsqd that stands still for 5 to 120 s now and then"),
    "clock": (jumping_clock, "a real nsqd whose wall clock jumps by hours; needs libfaketime"),
}
