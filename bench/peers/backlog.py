"""A large backlog: how fast it is filled in batches, the memory that it takes, and how long a start with it lasts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from bench.peers.loader import DONE, SHORT, Loader
from bench.peers.loads import Measured
from bench.servers import Server
from bench.work import Failed
from bench.workloads import SIZE

_START_LIMIT: Final = 120.0
_PAUSE: Final = 0.005
_TAKEN: Final = 2  # the first message, and the one that may be on its way to the consumer behind it


@dataclass(frozen=True, slots=True)
class Held:
    count: int  # messages that it holds: fewer than wanted, if they did not come within the time
    per_second: float
    megabytes: float
    start: float  # seconds from the start of the process until the first message has come
    kept: int  # messages that it holds after the start

    def figures(self, wanted: int, fill_limit: float) -> tuple[Measured, dict[str, str]]:
        """Return the figures, and why some are missing: who holds fewer messages needs less memory and time for them."""
        figures = {"backlog fill": self.per_second}
        if self.count < wanted:
            why = f"only {self.count:,} messages in {fill_limit:.0f} s"
            return figures, {"backlog memory": why, "backlog start": why}
        figures["backlog memory"] = self.megabytes
        gone = self.count - self.kept
        if gone > _TAKEN:
            return figures, {"backlog start": f"{gone:,} of {self.count:,} were gone after the start"}
        return {**figures, "backlog start": self.start}, {}


def measure(loader: Loader, server: Server, queue: str, count: int, rest: float, fill_limit: float) -> Held:
    loader.run("declare", server, queue, at_most=60)
    filled = loader.run(
        *("pub", server, queue),
        at_most=fill_limit,
        allow=(DONE, SHORT),
        seconds=fill_limit,
        count=count,
        size=SIZE,
        conns=4,
        batch=500,
        window=8,
    )
    time.sleep(rest)
    held = server.depth(loader, queue)
    if held < int(filled["msgs"]):
        raise Failed(f"{server.program} holds {held:,} messages; it acknowledged {filled['msgs']:,.0f}")
    taken = server.megabytes
    server.stop_cleanly()
    start = _seconds_to_first(loader, server, queue)
    return Held(held, filled["msgs_per_s"], taken, start, server.depth(loader, queue))


def _seconds_to_first(loader: Loader, server: Server, queue: str) -> float:
    began = time.monotonic()
    server.launch()
    server.wait_until_ready()
    loader.retried(
        *("sub", server, queue), at_most=_START_LIMIT, pause=_PAUSE, seconds=_START_LIMIT, count=1, size=SIZE
    )
    return time.monotonic() - began
