"""What `--ack=remote` costs with stores of two latencies, paired with `--ack=synced`, and what the copy costs other topics.

The store is `bench.slow_store`, which takes part of a core for itself: on two cores, the last rows of the quick store are
those of three busy processes.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Final

from bench.brokers import Broker, nsqd_factory, running_nsqd
from bench.ports import take_port
from bench.processes import resident_megabytes
from bench.report import Benchmark, Demand, Row, at_least, at_most
from bench.runner import Compared, Measured, chosen
from bench.settings import Settings
from bench.slow_store import COUNTS
from bench.work import HOST, Failed, Work, started
from bench.workloads import SIZE, WORKLOADS, measure
from nsqcommon.wire.commands import MAGIC, pub
from scripts.command_line import option

TOPIC: Final = "bench_remote"
OK: Final = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"  # a frame
LOADS: Final = ("pub50", "deep", "deep1000", "deepmpub")


@dataclass(frozen=True)
class Latency:
    """A store that takes this long, in milliseconds, and what is demanded with it."""

    latency: int
    interval: int
    one_by_one: float  # ms, median
    rates: Mapping[str, Demand]  # by load: of the rate, or of its ratio to `synced` if below 1
    tail: float  # times the median


STORES: Final = (
    Latency(5, 2, 7, dict(zip(LOADS, map(at_least, (5_000, 25_000, 0.7, 0.7)), strict=True)), 3),
    Latency(50, 25, 55, dict(zip(LOADS, map(at_least, (550, 2_800, 40_000, 100_000)), strict=True)), 2.5),
)
QUICK: Final = STORES[0]  # for what does not wait for it


def run(settings: RemoteSettings, work: Work) -> list[Row]:
    return [row for name in chosen(settings.only, [*CASES]) for row in CASES[name](settings, work)]


@contextmanager
def _store(latency: float, slow: float = 0.0) -> Iterator[int]:
    port = take_port()
    command = [sys.executable, "-m", "bench.slow_store", str(port), str(latency), str(slow)]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield port


def _flags(port: int, store: Latency) -> Sequence[str]:
    endpoint = f"endpoint=http://{HOST}:{port}"
    return (
        "--remote=s3://bench/nsq",
        f"--remote-name=bench-{time.monotonic_ns()}",
        f"--remote-interval={store.interval}ms",
        *(f"--remote-option={it}" for it in (endpoint, "access_key_id=bench", "secret_access_key=bench")),
    )


def _counts(port: int) -> dict[str, int]:
    connection = http.client.HTTPConnection(HOST, port)
    connection.request("GET", COUNTS)
    counts: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return counts


# Publishers that wait for the store


def _rates(settings: RemoteSettings, work: Work) -> list[Row]:
    return [row for store in STORES for row in _rates_of(settings, work, store)]


def _rates_of(settings: RemoteSettings, work: Work, store: Latency) -> Iterator[Row]:
    with _store(store.latency) as port:

        def side(ack: str, load: str, number: int) -> dict[str, Measured]:
            flags = [*settings.flag, f"--ack={ack}", *(_flags(port, store) if ack == "remote" else ())]
            with nsqd_factory(work, settings.build, flags)() as broker:
                return measure(work, broker, [load], TOPIC, settings.seconds)

        for load, demand in store.rates.items():
            compared = Compared({ack: partial(side, ack, load) for ack in ("remote", "synced")}, settings.runs)
            other = "synced" if demand.limit < 1 else ""
            note = "" if other else f"synced {median(compared.values('synced', load)):,.0f}"
            text = f"{store.latency} ms store: {WORKLOADS[load].text}"
            yield compared.row(load, text, "remote", other, demand=demand, note=note)


def _latencies(settings: RemoteSettings, work: Work) -> list[Row]:
    """Publish one at a time: the median, and the tail if one create of a hundred is four times as slow."""

    def side(store: Latency, slow: float, number: int) -> dict[str, Measured]:
        with _store(store.latency, slow) as port:
            flags = [*settings.flag, *_flags(port, store), "--ack=remote"]
            with nsqd_factory(work, settings.build, flags)() as broker:
                times = _publish_one_by_one(broker, settings.seconds * 4)
        middle = median(times)
        return {"p50": Measured(middle * 1000), "tail": Measured(quantiles(times, n=100)[98] / middle)}

    rows = []
    for store in STORES:
        compared = Compared({"even": partial(side, store, 0.0), "1 % slow": partial(side, store, 0.01)}, settings.runs)
        name = f"{store.latency} ms store: one PUB at a time"
        rows += [
            compared.row("p50", f"{name}, p50", "even", unit="ms", demand=at_most(store.one_by_one)),
            compared.row("tail", f"{name}, p99 with 1 % at 4 x", "1 % slow", unit="x p50", demand=at_most(store.tail)),
        ]
    return rows


def _publish_one_by_one(broker: Broker, seconds: float) -> list[float]:
    broker.make_channel(TOPIC)
    times = []
    with socket.create_connection((HOST, broker.tcp_port), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(MAGIC)
        command = pub(TOPIC, bytes(SIZE))
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            sock.sendall(command)
            if (answer := sock.recv(len(OK))) != OK:
                raise Failed(f"nsqd answered {answer!r}")
            times.append(time.monotonic() - began)
    return times


# Topics that don't wait for it


def _written(settings: RemoteSettings, work: Work) -> list[Row]:
    """Publish to a topic with --ack=written, with a copy and without: as fast as it goes, and 20 MB/s."""
    with _store(QUICK.latency) as port:

        def side(number: int, *, has_copy: bool) -> dict[str, Measured]:
            flags = [*settings.flag, *(_flags(port, QUICK) if has_copy else ())]
            with nsqd_factory(work, settings.build, flags)() as broker:
                found = measure(work, broker, ["pub50"], TOPIC, settings.seconds)
                used = _cost_of_20_megabytes_a_second(work, broker, settings.seconds)
                return {**found, "processor": Measured(used)}

        compared = Compared(
            {"a copy": partial(side, has_copy=True), "without": partial(side, has_copy=False)}, settings.runs
        )
    text = "topics with --ack=written on a node with a copy"
    return [
        compared.row("pub50", text, "a copy", "without", demand=at_least(0.95)),
        compared.row("processor", "processor at 20 MB/s of MPUB", "a copy", "without", unit="s/s", demand=at_most(1.1)),
    ]


def _cost_of_20_megabytes_a_second(work: Work, broker: Broker, seconds: float) -> float:
    before = broker.processor_seconds()
    work.load("pub", broker.tcp_port, TOPIC, 4, 20, 1000, seconds, 1, "rate=20000", at_most=seconds)
    return (broker.processor_seconds() - before) / seconds


def _idle(settings: RemoteSettings, work: Work) -> list[Row]:
    with (
        _store(QUICK.latency) as port,
        nsqd_factory(work, settings.build, [*settings.flag, *_flags(port, QUICK)])() as broker,
    ):
        time.sleep(2.0)  # the start's own slots
        before, used = _counts(port), broker.processor_seconds()
        time.sleep(settings.idle)
        after, used = _counts(port), broker.processor_seconds() - used
    requests = (sum(after.values()) - sum(before.values())) * 3600 / settings.idle
    puts = after.get("PUT", 0) - before.get("PUT", 0)
    return [
        Row("an idle node's requests", "an hour", (requests,), at_most(370)),
        Row("of these, PUT", "", (puts,), at_most(0)),
        Row("an idle node's processor", "ms/s", (used * 1000 / settings.idle,)),
    ]


def _away(settings: RemoteSettings, work: Work) -> list[Row]:
    """Let the store go away under load, and see by how much memory grows."""
    with ExitStack() as running, work.new_folder("away") as folder:
        port = running.enter_context(_store(QUICK.latency))
        with running_nsqd(folder, settings.build, [*settings.flag, *_flags(port, QUICK)]) as (broker, _):
            _cost_of_20_megabytes_a_second(work, broker, settings.seconds)
            before = resident_megabytes(broker.pid)
            running.close()
            _cost_of_20_megabytes_a_second(work, broker, settings.away)
            most = resident_megabytes(broker.pid, "VmHWM")
    return [
        Row(f"memory grown while the store is away for {settings.away:.0f} s", "MB", (most - before,), at_most(150))
    ]


CASES: Final[Mapping[str, Callable[[RemoteSettings, Work], list[Row]]]] = {
    "rates": _rates,
    "latencies": _latencies,
    "written": _written,
    "idle": _idle,
    "away": _away,
}


@dataclass(kw_only=True)
class RemoteSettings(Settings):
    runs: int = option(3, "runs of each row")
    seconds: float = option(3.0, "length of one run")
    idle: float = option(60.0, "seconds of doing nothing")
    away: float = option(120.0, "seconds without the store")
    only: str = option("", f"some of: {', '.join(CASES)}", word="ROW,...")


BENCHMARK: Final = Benchmark(
    "remote", "What does it cost to wait for a store, or to have a copy?", RemoteSettings, run, at_most=20
)
