"""nsqlookupd after a restart: how long until all nsqd are registered again, and how slow are its answers meanwhile?"""

from __future__ import annotations

import argparse
import http.client
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Final

from bench.ports import take_port
from bench.report import Benchmark, Row, at_most
from bench.work import HOST, Failed, Work, say, started

PAUSE: Final = 0.002  # seconds between questions: a consumer asks once a minute, so this is a crowd
START_LIMIT: Final = 30.0
# (How the nsqd share topics, how many commands they send ahead.) NSQ's nsqd sends one at a time.
CASES: Final = {"shared": ("shared", 1), "own": ("own", 1), "ahead": ("shared", 1000)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=500, help="registering nsqd (default: %(default)s)")
    parser.add_argument("--topics", type=int, default=200, help="topics of each (default: %(default)s)")
    parser.add_argument("--restarts", type=int, default=3, help="restarts (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="ROW,...", help=f"some of: {', '.join(CASES)}")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    wanted = settings.only.split(",") if settings.only else list(CASES)
    if unknown := set(wanted) - set(CASES):
        raise Failed(f"unknown rows: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    for name in wanted:
        rows += _case(name, settings, work)
        say(f"{name}: " + ", ".join(f"{max(row.values):.4g} {row.unit} {row.name}" for row in rows[-5:]))
    return rows


def _case(name: str, settings: argparse.Namespace, work: Work) -> list[Row]:
    sharing, window = CASES[name]
    tcp, http_port = take_port(), take_port()
    peers = [sys.executable, "-m", "bench.lookup_peers"]
    peers += [str(it) for it in (tcp, settings.connections, settings.topics, sharing, window)]
    topics = [f"topic{'-7' if sharing == 'own' else ''}-{number}" for number in range(settings.topics)]
    seconds: list[float] = []
    p99: list[float] = []
    worst: list[float] = []
    resident: list[float] = []
    with work.new_folder("lookup") as folder, started(peers, stdout=subprocess.PIPE) as fleet:
        for round in range(settings.restarts + 1):
            with _nsqlookupd(tcp, http_port, folder / "log", settings.flag) as pid:
                took, latencies = _ask_until_registered(fleet, http_port, topics)
                if (count := _producers(http_port)) != settings.connections * settings.topics:
                    raise Failed(f"{count} producers after all have registered")
                if round:  # the first round is a start, not a restart
                    seconds.append(took)
                    p99.append(quantiles(latencies, n=100)[98] * 1000)
                    worst.append(max(latencies) * 1000)
                    resident.append(_peak_resident(pid))
    return [
        Row(f"{name}: until all have registered", "s", tuple(seconds), at_most(30)),
        Row(f"{name}: /lookup meanwhile, p99", "ms", tuple(p99), at_most(20)),
        Row(f"{name}: /lookup meanwhile, longest", "ms", tuple(worst)),
        Row(f"{name}: peak resident", "MB", tuple(resident), at_most(300)),
    ]


@contextmanager
def _nsqlookupd(tcp: int, http_port: int, log: Path, flags: list[str]) -> Iterator[int]:
    command = [sys.executable, "-m", "nsqlookupd", f"--tcp-address={HOST}:{tcp}", f"--http-address={HOST}:{http_port}"]
    # With the default log, which has a line for each registration: that is a good part of the work.
    with log.open("wb") as out, started([*command, *flags], stdout=out, stderr=out) as process:
        yield process.pid


def _ask_until_registered(fleet: subprocess.Popen[bytes], port: int, topics: list[str]) -> tuple[float, list[float]]:
    """Return the seconds that the fleet reports, and how long each request took."""
    assert fleet.stdout is not None
    connection = _connected(port)
    latencies: list[float] = []
    while not select.select([fleet.stdout], [], [], PAUSE)[0]:
        if fleet.poll() is not None:
            raise Failed(f"the registering connections ended with status {fleet.returncode}")
        began = time.perf_counter()
        connection.request("GET", f"/lookup?topic={topics[len(latencies) % len(topics)]}")
        connection.getresponse().read()
        latencies.append(time.perf_counter() - began)
    connection.close()
    return float(fleet.stdout.readline()), latencies


def _connected(port: int) -> http.client.HTTPConnection:
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(HOST, port, timeout=START_LIMIT)
        try:
            connection.connect()
            return connection
        except OSError:
            time.sleep(0.01)
    raise Failed(f"nsqlookupd was not ready after {START_LIMIT:.0f} seconds")


def _producers(port: int) -> int:
    connection = _connected(port)
    connection.request("GET", "/metrics")
    found = re.search(rb"^nsqlookupd_producers (\d+)$", connection.getresponse().read(), re.MULTILINE)
    connection.close()
    return int(found[1]) if found else -1


def _peak_resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


BENCHMARK: Final = Benchmark(
    "lookup", "How soon is a restarted nsqlookupd complete, and who notices?", add_arguments, run, at_most=10
)
