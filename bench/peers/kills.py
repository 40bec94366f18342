"""What is lost by kill -9: publish, kill in the middle, start again, and look for what was acknowledged.

The kernel lives on and still has all that was written, so this cannot show what a power cut takes: everything that was
not flushed to the disk.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.loader import CLOSED, DONE, Loader
from bench.peers.loads import SIZE
from bench.peers.servers import Server
from bench.work import Failed, parsed

_LIMIT: Final = 60.0
_QUIET: Final = 2.0  # nothing has come for so long: that was all
_POLL: Final = 0.05


@dataclass(frozen=True, slots=True)
class Killed:
    acknowledged: int
    missing: int
    duplicate: int


def measure(loader: Loader, server: Server, queue: str, seconds: float, acked: Path) -> Killed:
    retried(loader, server, queue)
    publishing = loader.running(*("pub", server, queue), seconds=_LIMIT, size=SIZE, conns=4, window=16, acked=acked)
    with publishing as process:
        time.sleep(seconds)
        server.kill()
        out, _ = process.communicate(timeout=_LIMIT)
    if process.returncode != CLOSED:
        raise Failed(f"{server.program}: the publisher ended with status {process.returncode} when it was killed")
    acknowledged = int(parsed(out, process.returncode)["msgs"])
    if not acknowledged:
        raise Failed(f"{server.program}: nothing was acknowledged before the kill")
    server.launch()
    server.wait_until_ready()
    retried(loader, server, queue)
    load = loader.run(
        *("sub", server, queue),
        at_most=_LIMIT,
        allow=(DONE,),
        seconds=_LIMIT,
        quiet=_QUIET,
        size=SIZE,
        conns=2,
        window=100,
        expect=acked,
    )
    return Killed(acknowledged, int(load["missing"]), int(load["duplicate"]))


def retried(loader: Loader, server: Server, queue: str) -> None:
    """Declare the queue. A server that has just started may need a while for this."""
    end = time.monotonic() + _LIMIT
    while True:
        try:
            loader.run("declare", server, queue, at_most=_LIMIT)
            return
        except Failed:
            if time.monotonic() > end:
                raise
            time.sleep(_POLL)
