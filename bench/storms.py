"""The cost of a storm of new topics for other clients, and what follows it: processor time, and a stop."""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.report import Benchmark, Row, at_most
from bench.storm_maker import LIMIT
from bench.work import HOST, Failed, Work, say, started
from nsqcommon.wire.commands import MAGIC, fin, nop, pub, rdy, sub
from nsqcommon.wire.frames import FrameReader, FrameType
from nsqcommon.wire.message import decode_message

TOPIC: Final = "bench_storm_probe"
PAUSE: Final = 0.001  # seconds between two messages of the probe
IDLE: Final = 0.05  # share of a core that counts as idle
IDLE_LIMIT: Final = 120.0  # seconds to wait for that


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", type=int, default=32_000, help="topics of the storm (default: %(default)s)")
    parser.add_argument("--window", type=int, default=64, help="unanswered publishes at a time (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="runs (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    if shutil.disk_usage(work.folder).free < settings.topics * 20_000:
        raise Failed(f"not enough room on disk for {settings.topics:,} topics")
    storms = [_storm(work, settings) for _ in range(settings.runs)]

    def column(name: str) -> tuple[float, ...]:
        return tuple(storm[name] for storm in storms)

    count = settings.topics
    return [
        Row(f"{count:,} topics by PUB", "s", column("storm")),
        Row("p50 of others meanwhile", "ms", column("p50")),
        Row("p99 of others meanwhile", "ms", column("p99"), at_most(50)),
        Row("longest of others meanwhile", "ms", column("longest")),
        Row("until the processor is idle after it", "s", column("settling")),
        Row("processor's work after it", "s", column("work_after"), note="all threads, until it is idle"),
        Row("idle, all topics there", "cores", column("idle"), at_most(IDLE)),
        Row("stop", "s", column("stop"), at_most(10)),
    ]


def _storm(work: Work, settings: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    with (
        work.new_folder("storm") as folder,
        running_nsqd(folder, settings.build, settings.flag) as (broker, process),
        _probe(broker) as probe,
    ):
        command = [sys.executable, "-m", "bench.storm_maker", str(broker.tcp_port)]
        with started([*command, str(settings.topics), str(settings.window)], stdout=subprocess.PIPE) as storm:
            times = sorted(probe.measure_beside(storm))
            assert storm.stdout is not None
            if storm.returncode:
                raise Failed(f"the storm ended with status {storm.returncode}")
            figures["storm"] = float(storm.stdout.read())
        figures["p50"], figures["p99"], figures["longest"] = (
            1000 * times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.99, 1)
        )
        figures["settling"], figures["work_after"], figures["idle"] = _settle(broker)
        figures["stop"] = stop_cleanly(process)
    say("  ".join(f"{name} {figure:.3f}" for name, figure in figures.items()))
    return figures


def _settle(broker: Broker) -> tuple[float, float, float]:
    """Return the seconds until nsqd is idle, its processor seconds until then, and its share of a core when idle."""
    began, before = time.monotonic(), broker.processor_seconds()
    while time.monotonic() < began + IDLE_LIMIT:
        settled, used = time.monotonic(), broker.processor_seconds()
        time.sleep(1)  # measures an idle process
        idle = (broker.processor_seconds() - used) / (time.monotonic() - settled)
        if idle < IDLE:
            return settled - began, used - before, idle
    return time.monotonic() - began, broker.processor_seconds() - before, idle


class Probe:
    """Publishes and consumes one message at a time, as a client that has nothing to do with the storm."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = FrameReader(1 << 20)

    def subscribe(self) -> None:
        self._connection.sendall(MAGIC + sub(TOPIC, "ch") + rdy(1))
        self._next_frame(FrameType.RESPONSE)

    def measure_beside(self, storm: subprocess.Popen[bytes]) -> list[float]:
        """Return how many seconds each message took, one after the other, until the storm has ended."""
        times = [self._pass_one()]
        while storm.poll() is None:
            time.sleep(PAUSE)
            times.append(self._pass_one())
        return times

    def _pass_one(self) -> float:
        began = time.monotonic()
        self._connection.sendall(pub(TOPIC, b"x"))
        message = decode_message(self._next_frame(FrameType.MESSAGE))
        took = time.monotonic() - began
        self._connection.sendall(fin(message.id))
        return took

    def _next_frame(self, kind: FrameType) -> bytes:
        """Return the next frame of this kind, skipping others, such as the answers to publishes."""
        while True:
            while (frame := self._frames.next_frame()) is None:
                data = self._connection.recv(1 << 16)
                if not data:
                    raise Failed("the probe's connection was closed")
                self._frames.receive(data)
            if frame.type is FrameType.ERROR:
                raise Failed(f"the probe was refused: {frame.data!r}")
            if frame.data == b"_heartbeat_":
                self._connection.sendall(nop())
            if frame.type is kind:
                return frame.data


@contextmanager
def _probe(broker: Broker) -> Iterator[Probe]:
    with socket.create_connection((HOST, broker.tcp_port), timeout=LIMIT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        probe = Probe(connection)
        probe.subscribe()
        yield probe


BENCHMARK: Final = Benchmark(
    "storms", "What does a storm of new topics do to others, and what does it leave?", add_arguments, run, at_most=20
)
