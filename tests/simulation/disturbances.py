"""Disturbances of a node under the ledger of behind.py, repeated until cancelled: it is stopped, its clock jumps."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random
from typing import Final

import trio

from tests.simulation.clocks import HOUR, WallClock
from tests.soak.ledger import Ledger
from tests.support.process import Daemon

JUMPS: Final = (HOUR, 0, -HOUR, 0, -24 * HOUR, 0)
_SETTLES: Final = 5.0  # seconds in which the backlog is handled, and clients have noticed


async def stop_now_and_then(
    daemon: Daemon, ledger: Ledger, chance: Random, *, shortest: float, longest: float, say: Callable[[str], None]
) -> None:
    """Stop the node now and then with SIGSTOP, and continue it with SIGCONT; also at the end."""
    while True:
        length = chance.uniform(shortest, longest)
        await stop_for(daemon, ledger, length, say)
        await trio.sleep(chance.uniform(1, length))


async def stop_for(daemon: Daemon, ledger: Ledger, seconds: float, say: Callable[[str], None]) -> None:
    """Stop the process for this long.

    Clients of a daemon that stands still for long drop their connections, so their last answers may be lost.
    """
    say(f"{daemon.program} stands still for {seconds:.1f} s")
    began = trio.current_time()
    ledger.interrupted(began, began + seconds + _SETTLES)
    daemon.send_signal(signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        daemon.send_signal(signal.SIGCONT)


async def jump(clock: WallClock, pause: float, say: Callable[[str], None]) -> None:
    """Make each jump once. The ledger excuses nothing because of it."""
    for ahead in JUMPS:
        say(f"the wall clock is {ahead:+d} s ahead")
        clock.set(ahead)
        await trio.sleep(pause)
