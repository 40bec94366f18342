"""Ports for servers that have to be told one, or that come back at the same one after a restart.

A server that can listen on port 0 and say what it got needs none of this. Every other port of the tests and of the
benchmarks is from here, and no two of them can be the same, whoever runs beside whom:

- It lies outside the range from which the kernel gives ports to connections and to those who ask for any port.
- It is held by a socket that is bound to it and never listens. Binding is what decides: another process that wants the
  port for itself cannot have it. A server sets SO_REUSEADDR, so it may listen there, as often as it starts. Until it
  does, connections are refused.
"""

from __future__ import annotations

import atexit
import random
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
LOWEST: Final = 10_000  # below are the usual ports of many servers, ours among them
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE: Final = (32_768, 60_999)
_MAY_BE_HELD: Final = sys.platform == "linux"  # elsewhere nobody may listen beside a socket that is bound

_for_ever: Final = ExitStack()  # until the process ends
atexit.register(_for_ever.close)


def take_port(until: ExitStack = _for_ever) -> int:
    """Return a port that is this process's alone until the stack is closed, and that nobody listens on yet."""
    ports = usable_ports()
    while True:
        port = random.choice(ports)
        if hold([port], until):
            return port


def hold(ports: Iterable[int], until: ExitStack = _for_ever) -> bool:
    """Keep all of these ports from others until the stack is closed. If one of them is taken, keep none."""
    with ExitStack() as held:
        for port in ports:
            guard = held.enter_context(socket.socket())
            try:
                guard.bind((HOST, port))  # without SO_REUSEADDR, so that another such socket is in its way
            except OSError:
                return False
            guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if _MAY_BE_HELD:
            until.enter_context(held.pop_all())
    return True


def usable_ports() -> range:
    """Return the ports that the kernel gives to nobody by itself: those below its own, or those above."""
    first, last = map(int, _RANGE.read_text().split()) if _RANGE.exists() else _USUAL_RANGE
    below, above = range(LOWEST, first), range(last + 1, 1 << 16)
    return max(below, above, key=len)
