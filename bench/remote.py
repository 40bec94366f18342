"""What `--ack=remote` costs with stores of two latencies, paired with `--ack=synced`, and what the copy costs other topics.

The store is `bench.slow_store`, which takes part of a core for itself: on two cores, the last rows of the quick store are
those of three busy processes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from bench.brokers import Broker, nsqd_factory, running_nsqd
from bench.memory import resident_megabytes
from bench.ports import take_port
from bench.report import Benchmark, Demand, Row, at_least, at_most
from bench.slow_store import COUNTS
from bench.work import HOST, Failed, Work, say, started
from nsqcommon.wire.commands import MAGIC, pub

SIZE: Final = 200
TOPIC: Final = "bench_remote"
OK: Final = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"  # a frame


@dataclass(frozen=True)
class Shape:
    connections: int
    batch: int
    window: int


@dataclass(frozen=True)
class Latency:
    """A store that takes this long, in milliseconds, and what is demanded with it."""

    latency: int
    interval: int
    one_by_one: float  # ms, median
    rates: Mapping[str, Demand]  # by name of a shape: of the rate, or of its ratio to `synced` if below 1
    tail: float  # times the median


SHAPES: Final = {
    "PUB, 50 connections": Shape(50, 1, 1),
    "PUB, 64 in flight on 4": Shape(4, 1, 64),
    "PUB, 1,000 in flight on 4": Shape(4, 1, 1000),
    "MPUB of 200, 16 in flight on 4": Shape(4, 200, 16),
}
STORES: Final = (
    Latency(5, 2, 7, dict(zip(SHAPES, map(at_least, (5_000, 25_000, 0.7, 0.7)), strict=True)), 3),
    Latency(50, 25, 55, dict(zip(SHAPES, map(at_least, (550, 2_800, 40_000, 100_000)), strict=True)), 2.5),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of doing nothing (default: %(default)s)")
    parser.add_argument("--away", type=float, default=120.0, help="seconds without the store (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="ROW,...", help=f"some of: {', '.join(CASES)}")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    wanted = settings.only.split(",") if settings.only else list(CASES)
    if unknown := set(wanted) - set(CASES):
        raise Failed(f"unknown rows: {', '.join(sorted(unknown))}")
    return [row for name in wanted for row in CASES[name](settings, work)]


@contextmanager
def _store(latency: float, slow: float = 0.0) -> Iterator[int]:
    port = take_port()
    command = [sys.executable, "-m", "bench.slow_store", str(port), str(latency), str(slow)]
    with started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield port


def _flags(port: int, interval: int) -> Sequence[str]:
    endpoint = f"endpoint=http://{HOST}:{port}"
    return (
        "--remote=s3://bench/nsq",
        "--remote-name=bench",
        f"--remote-interval={interval}ms",
        *(f"--remote-option={it}" for it in (endpoint, "access_key_id=bench", "secret_access_key=bench")),
    )


def _counts(port: int) -> dict[str, int]:
    connection = http.client.HTTPConnection(HOST, port)
    connection.request("GET", COUNTS)
    counts: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return counts


# Publishers that wait for the store


def _rates(settings: argparse.Namespace, work: Work) -> list[Row]:
    rows = []
    for store in STORES:
        with _store(store.latency) as port:
            for name, shape in SHAPES.items():
                rows.append(_rate_row(settings, work, store, port, name, shape))
    return rows


def _rate_row(settings: argparse.Namespace, work: Work, store: Latency, port: int, name: str, shape: Shape) -> Row:
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(settings.runs):
        for is_remote in (number % 2 == 0, number % 2 == 1):  # which comes first alternates
            flags = ("--ack=remote", f"--remote-name=bench-{time.monotonic_ns()}") if is_remote else ("--ack=synced",)
            if is_remote:
                flags = (*_flags(port, store.interval), *flags)
            with nsqd_factory(work, settings.build, [*settings.flag, *flags])() as broker:
                rates[is_remote].append(_rate(work, broker, shape, settings.seconds))
        say(f"{store.latency} ms, {name}: {rates[True][-1]:,.0f} msg/s, synced {rates[False][-1]:,.0f}")
    demand = store.rates[name]
    text = f"{store.latency} ms store: {name}"
    if demand.limit < 1:
        return Row(text, "msg/s", tuple(rates[True]), demand, "synced", tuple(rates[False]))
    return Row(text, "msg/s", tuple(rates[True]), demand, note=f"synced {median(rates[False]):,.0f}")


def _rate(work: Work, broker: Broker, shape: Shape, seconds: float) -> float:
    broker.make_channel(TOPIC)
    load = work.load(
        *("pub", broker.tcp_port, TOPIC, shape.connections, shape.batch, SIZE, seconds, shape.window), at_most=seconds
    )
    if load["errors"]:
        raise Failed(f"{load['errors']:.0f} publishes failed")
    return load["msgs_per_s"]


def _latencies(settings: argparse.Namespace, work: Work) -> list[Row]:
    """Publish one at a time: the median, and the tail if one create of a hundred is four times as slow."""
    rows = []
    for store in STORES:
        medians, tails = [], []
        for _ in range(settings.runs):
            for slow in (0.0, 0.01):
                with _store(store.latency, slow) as port:
                    flags = [*settings.flag, *_flags(port, store.interval), "--ack=remote"]
                    with nsqd_factory(work, settings.build, flags)() as broker:
                        times = _publish_one_by_one(broker, settings.seconds * 4)
                if slow:
                    tails.append(quantiles(times, n=100)[98] / median(times))
                else:
                    medians.append(median(times) * 1000)
            say(f"{store.latency} ms: one PUB {medians[-1]:.1f} ms, p99 {tails[-1]:.1f} times that")
        name = f"{store.latency} ms store: one PUB at a time"
        rows += [
            Row(f"{name}, p50", "ms", tuple(medians), at_most(store.one_by_one)),
            Row(f"{name}, p99 with 1 % at 4 x", "x p50", tuple(tails), at_most(store.tail)),
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


def _written(settings: argparse.Namespace, work: Work) -> list[Row]:
    """Publish to a topic with --ack=written, with a copy and without: as fast as it goes, and 20 MB/s."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    with _store(5) as port:
        for number in range(settings.runs):
            for has_copy in (number % 2 == 0, number % 2 == 1):
                more = (*_flags(port, 2), f"--remote-name=bench-{time.monotonic_ns()}") if has_copy else ()
                with nsqd_factory(work, settings.build, [*settings.flag, *more])() as broker:
                    rates[has_copy].append(_rate(work, broker, Shape(50, 1, 1), settings.seconds))
                    costs[has_copy].append(_cost_of_20_megabytes_a_second(work, broker, settings.seconds))
            say(f"written topics: {rates[True][-1]:,.0f} msg/s with a copy, {rates[False][-1]:,.0f} without")
    return [
        Row(
            "topics with --ack=written on a node with a copy",
            *("msg/s", tuple(rates[True]), at_least(0.95), "without", tuple(rates[False])),
        ),
        Row(
            "processor at 20 MB/s of MPUB",
            *("s/s", tuple(costs[True]), at_most(1.1), "without", tuple(costs[False])),
        ),
    ]


def _cost_of_20_megabytes_a_second(work: Work, broker: Broker, seconds: float) -> float:
    before = broker.processor_seconds()
    work.load("pub", broker.tcp_port, TOPIC, 4, 20, 1000, seconds, 1, "rate=20000", at_most=seconds)
    return (broker.processor_seconds() - before) / seconds


def _idle(settings: argparse.Namespace, work: Work) -> list[Row]:
    with _store(5) as port, nsqd_factory(work, settings.build, [*settings.flag, *_flags(port, 2)])() as broker:
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


def _away(settings: argparse.Namespace, work: Work) -> list[Row]:
    """Let the store go away under load, and see by how much memory grows."""
    with ExitStack() as running, work.new_folder("away") as folder:
        port = running.enter_context(_store(5))
        with running_nsqd(folder, settings.build, [*settings.flag, *_flags(port, 2)]) as (broker, _):
            _cost_of_20_megabytes_a_second(work, broker, settings.seconds)
            before = resident_megabytes(broker)
            running.close()
            _cost_of_20_megabytes_a_second(work, broker, settings.away)
            most = resident_megabytes(broker, "VmHWM")
    return [
        Row(f"memory grown while the store is away for {settings.away:.0f} s", "MB", (most - before,), at_most(150))
    ]


CASES: Final = {"rates": _rates, "latencies": _latencies, "written": _written, "idle": _idle, "away": _away}

BENCHMARK: Final = Benchmark(
    "remote", "What does it cost to wait for a store, or to have a copy?", add_arguments, run, at_most=20
)
