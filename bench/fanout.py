"""The cost of ten channels instead of one: they share the log, so bytes on disk should not grow with channels."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.brokers import running_nsqd
from bench.files import bytes_in
from bench.report import Benchmark, Row, at_most
from bench.runner import Compared, Measured
from bench.settings import Settings
from bench.work import Failed, Work
from bench.workloads import SIZE
from scripts.command_line import option

BATCH: Final = 200
TOPIC: Final = "bench_fanout"
ONE: Final = "one channel"


@dataclass(kw_only=True)
class FanoutSettings(Settings):
    runs: int = option(3, "runs of each row")
    messages: int = option(500_000, "published in each run")
    channels: int = option(10, "channels instead of one")


def run(settings: FanoutSettings, work: Work) -> list[Row]:
    many = f"{settings.channels} channels"
    sides = {name: partial(_measure, work, count, settings) for name, count in ((ONE, 1), (many, settings.channels))}
    compared = Compared(sides, settings.runs)
    return [
        compared.row(name, text, many, ONE, unit=unit, demand=demand)
        for name, text, unit, demand in (
            ("published", f"on disk when published, {many}", "bytes", at_most(1.2)),
            ("written", f"written in all, published and consumed, {many}", "bytes", at_most(1.2)),
            ("publish", f"MPUB, {many}", "msg/s", None),
            ("deliver", f"delivered in all, {settings.channels} consumers", "msg/s", None),
        )
    ]


def _measure(work: Work, channels: int, settings: FanoutSettings, number: int) -> dict[str, Measured]:
    count = settings.messages
    names = ["ch"] if channels == 1 else [f"ch_{it}" for it in range(channels)]
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
            "published": Measured(published),
            "written": Measured(_bytes_written(process.pid)),
            "publish": Measured(sent["msgs_per_s"]),
            "deliver": Measured(got["finished_per_s"]),
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


BENCHMARK: Final = Benchmark("fanout", "What do ten channels cost instead of one?", FanoutSettings, run, at_most=20)
