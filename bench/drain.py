"""A backlog from disk: nsqd writes it, ends, starts again with empty caches, and delivers all of it."""

from __future__ import annotations

import argparse
import shutil
from typing import Final

from bench.brokers import running_nsqd, stop_cleanly
from bench.files import evict
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say

SIZE: Final = 200
TOPIC: Final = "bench_drain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs (default: %(default)s)")
    parser.add_argument("--millions", type=float, default=3, help="messages of the backlog (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=200, help="messages in one MPUB; 1: PUB (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = int(settings.millions * 1_000_000)
    count -= count % settings.batch
    if shutil.disk_usage(work.folder).free < count * 400:
        raise Failed(f"not enough room on disk for {count:,} messages")
    warm: list[float] = []
    cold: list[float] = []
    lost = duplicate = 0.0
    for _ in range(settings.runs):
        for is_cold, figures in ((False, warm), (True, cold)):
            rate, more_lost, more_duplicate = _drain(work, count, is_cold=is_cold, settings=settings)
            figures.append(rate)
            lost += more_lost
            duplicate += more_duplicate
            say(f"{'from disk' if is_cold else 'from the page cache':>20} {rate:12,.0f} msg/s")
    return [
        Row(f"{count:,} messages, page cache warm", "msg/s", tuple(warm)),
        Row(f"{count:,} messages, page cache cold", "msg/s", tuple(cold)),
        Row("lost, all runs", "messages", (lost,), at_most(0)),
        Row("came twice, all runs", "messages", (duplicate,), at_most(0)),
    ]


def _drain(work: Work, count: int, *, is_cold: bool, settings: argparse.Namespace) -> tuple[float, float, float]:
    with work.new_folder("drain") as folder:
        with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
            broker.make_channel(TOPIC)
            window = 1 if settings.batch > 1 else 64
            work.load(
                *("pub", broker.tcp_port, TOPIC, 2, settings.batch, SIZE, 300, window, f"count={count}", "verify=1"),
                at_most=300,
            )
            stop_cleanly(process)
        if is_cold:
            evict(folder)
        with running_nsqd(folder, settings.build, settings.flag) as (broker, _):
            # Status 4 means that not all of them came; the row shows that.
            load = work.load(
                *("sub", broker.tcp_port, TOPIC, "ch", 2, 2500, 300, f"count={count}", f"verify={count}", "quiet=10"),
                at_most=300,
                allow=(0, 4),
            )
            left = broker.channel_depth(TOPIC, "ch")
            if left and not load["lost"]:
                raise Failed(f"all {count} messages were finished, and {left} are said to be left")
        return load["finished_per_s"], load["lost"], load["duplicate"] + load["foreign"]


BENCHMARK: Final = Benchmark("drain", "How fast does a backlog come from disk?", add_arguments, run, at_most=20)
