"""What is lost by kill -9: publish, kill in the middle, start again, and look for what was acknowledged.

The kernel lives on and still has all that was written, so this cannot show what a power cut takes: everything that was
not flushed to the disk.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.loader import CLOSED, DONE, SHORT, Loader
from bench.servers import Server
from bench.work import Failed, parsed
from bench.workloads import SIZE

_LIMIT: Final = 60.0
_QUIET: Final = 10.0  # nothing has come for so long: that was all. A queue may need seconds to find its leader
_PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Killed:
    acknowledged: int
    missing: int


def measure(loader: Loader, server: Server, queue: str, rest: float, seconds: float, acked: Path) -> Killed:
    """Kill a server whose queue is `rest` seconds old, `seconds` after the publishers have begun.

    A kill within the first second of a quorum queue leaves it without a leader after the start (RabbitMQ 3.10, 4.0).
    That is not what is asked here, so every queue gets some rest.
    """
    loader.run("declare", server, queue, at_most=_LIMIT)
    time.sleep(rest)
    acknowledged = _publish_until_killed(loader, server, queue, seconds, acked)
    server.launch()
    server.wait_until_ready()
    # A server that lost the queue itself gets an empty one.
    loader.retried("declare", server, queue, at_most=_LIMIT, pause=_PAUSE)
    keys = {"seconds": _LIMIT, "quiet": _QUIET, "size": SIZE, "conns": 2, "window": 100, "expect": acked}
    load = loader.retried("sub", server, queue, at_most=_LIMIT, pause=_PAUSE, allow=(DONE, SHORT), **keys)
    if load.status == SHORT:  # what has not come yet is not lost
        raise Failed(f"messages still came after {_LIMIT:.0f} s")
    return Killed(acknowledged, int(load["missing"]))


def _publish_until_killed(loader: Loader, server: Server, queue: str, seconds: float, acked: Path) -> int:
    """Kill the server while publishers are at work. Return how many messages were acknowledged, noted in `acked`."""
    keys = {"seconds": _LIMIT, "size": SIZE, "conns": 4, "window": 16, "acked": acked}
    with loader.running("pub", server, queue, **keys) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == b"accepted":  # the first message is
                break
        time.sleep(seconds)
        server.kill()
        out, _ = process.communicate(timeout=_LIMIT)
    if process.returncode != CLOSED:
        raise Failed(f"{server.program}: the publisher ended with status {process.returncode} when it was killed")
    acknowledged = int(parsed(out, process.returncode)["msgs"])
    if not acknowledged:
        raise Failed(f"{server.program}: nothing was acknowledged before the kill")
    return acknowledged
