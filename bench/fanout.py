"""The cost of ten channels instead of one: they share the log, so bytes on disk should not grow with channels."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from bench.brokers import running_nsqd
from bench.files import bytes_in
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say

SIZE: Final = 200
BATCH: Final = 200
TOPIC: Final = "bench_fanout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each row (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=500_000, help="published in each run (default: %(default)s)")
    parser.add_argument("--channels", type=int, default=10, help="channels instead of one (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    many = settings.channels
    measured: dict[int, list[dict[str, float]]] = {1: [], many: []}
    for number in range(settings.runs):
        for channels in (1, many) if number % 2 == 0 else (many, 1):
            figures = _measure(work, channels, settings)
            measured[channels].append(figures)
            say(f"{channels:3} channels: " + ", ".join(f"{name} {value:,.0f}" for name, value in figures.items()))

    def row(name: str, unit: str, key: str, *, limit: float | None = None) -> Row:
        one, more = (tuple(figures[key] for figures in measured[channels]) for channels in (1, many))
        return Row(name, unit, more, None if limit is None else at_most(limit), "one channel", one)

    return [
        row(f"on disk when published, {many} channels", "bytes", "published", limit=1.2),
        row(f"written in all, published and consumed, {many} channels", "bytes", "written", limit=1.2),
        row(f"MPUB, {many} channels", "msg/s", "publish"),
        row(f"delivered in all, {many} consumers", "msg/s", "deliver"),
    ]


def _measure(work: Work, channels: int, settings: argparse.Namespace) -> dict[str, float]:
    count = settings.messages
    names = ["ch"] if channels == 1 else [f"ch_{number}" for number in range(channels)]
    with work.new_folder("fanout") as folder, running_nsqd(folder, settings.build, settings.flag) as (broker, process):
        for name in names:
            broker.make_channel(TOPIC, name)
        sent = work.load("pub", broker.tcp_port, TOPIC, 2, BATCH, SIZE, 60, f"count={count}", "verify=1", at_most=60)
        published = bytes_in(folder)
        got = work.load(
            *("sub", broker.tcp_port, TOPIC, "ch", channels, 2500, 120),
            *(f"channels={channels}", f"count={count * channels}", f"verify={count}"),
            at_most=120,
        )
        if got["lost"] or got["duplicate"]:
            raise Failed(f"{got['lost']:.0f} messages lost, {got['duplicate']:.0f} came twice")
        time.sleep(1)  # until the last progress is in the journal
        return {
            "published": published,
            "written": _bytes_written(process.pid),
            "publish": sent["msgs_per_s"],
            "deliver": got["finished_per_s"],
        }


def _bytes_written(pid: int) -> int:
    """Return the bytes that the process passed to write(), for log and journal alike, but not to sockets.

    The bytes on disk at the end would say nothing: when everything is consumed the log is removed.
    """
    for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == "wchar":
            return int(value)
    raise Failed("the kernel does not say how much a process has written")


BENCHMARK: Final = Benchmark("fanout", "What do ten channels cost instead of one?", add_arguments, run, at_most=20)
