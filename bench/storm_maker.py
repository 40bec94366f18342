"""A producer of new topics: `python -m bench.storm_maker PORT COUNT WINDOW`.

Publishes one message to each of COUNT topics that are not there yet, at most WINDOW of them unanswered, and prints the seconds that
it took. It ends by itself after LIMIT seconds.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Final

from nsqcommon.wire.commands import MAGIC, identify, pub
from nsqcommon.wire.frames import OK_FRAME

HOST: Final = "127.0.0.1"
LIMIT: Final = 300.0


def make_topics(port: int, count: int, window: int) -> float:
    """Return the seconds until the last answer. Raise SystemExit when a publish is refused."""
    began = time.monotonic()
    with socket.create_connection((HOST, port), timeout=LIMIT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(MAGIC + identify(b'{"heartbeat_interval":-1}'))  # without heartbeats only answers come
        sent = 0
        answered = -1  # the first answer is for IDENTIFY
        received = b""
        while answered < count:
            until = min(count, max(0, answered) + window)
            if until > sent:
                connection.sendall(b"".join(pub(f"storm-{number}", b"x" * 100) for number in range(sent, until)))
                sent = until
            received += connection.recv(1 << 16)
            whole = len(received) // len(OK_FRAME)
            if received[: whole * len(OK_FRAME)] != OK_FRAME * whole:
                raise SystemExit(f"refused: {received[:200]!r}")
            received = received[whole * len(OK_FRAME) :]
            answered += whole
            if time.monotonic() - began > LIMIT:
                raise SystemExit(f"{answered} of {count} topics in {LIMIT:g} seconds")
    return time.monotonic() - began


if __name__ == "__main__":
    print(f"{make_topics(*map(int, sys.argv[1:])):.3f}", flush=True)
