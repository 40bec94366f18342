"""How much memory nsqd uses, and how much processor time when nothing happens."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say

SIZE: Final = 200
ON_DISK: Final = 240  # bytes of one message in the log, rounded up
LONGEST_DEFER: Final = 3_600_000  # ms, NSQ's default limit
TOPIC: Final = "bench_memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="ROW,...", help=f"some of: {', '.join(CASES)}")
    parser.add_argument(
        "--messages", type=int, default=10_000_000, help="messages in the backlog (default: %(default)s)"
    )
    parser.add_argument("--deferred", type=int, default=1_000_000, help="deferred messages (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=5000, help="idle connections (default: %(default)s)")
    parser.add_argument("--topics", type=int, default=2000, help="topics with a channel each (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of doing nothing (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    wanted = settings.only.split(",") if settings.only else list(CASES)
    if unknown := set(wanted) - set(CASES):
        raise Failed(f"unknown rows: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    for name in wanted:
        rows += CASES[name](settings, work)
        say(f"{name}: " + ", ".join(f"{row.values[0]:.4g} {row.unit} {row.name}" for row in rows[-3:]))
    return rows


def _backlog(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.messages
    if shutil.disk_usage(work.folder).free < count * ON_DISK * 1.5:
        raise Failed(f"a backlog of {count:,} messages needs {count * ON_DISK >> 30} GiB and some to spare")
    with _nsqd(settings, work) as broker:
        broker.make_channel(TOPIC)
        work.load("pub", broker.tcp_port, TOPIC, 2, 200, SIZE, 300, f"count={count}", at_most=300)
        depth = broker.channel_depth(TOPIC, "ch")
        if depth != count:
            raise Failed(f"{depth} messages in the backlog, {count} were confirmed")
        return resident(broker, f"backlog of {count:,} messages", limit=200)


def _deferred(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.deferred
    with _nsqd(settings, work) as broker:
        broker.make_channel(TOPIC)
        work.load(
            *("pub", broker.tcp_port, TOPIC, 4, 1, SIZE, 300, 64, f"count={count}", f"defer={LONGEST_DEFER}"),
            at_most=300,
        )
        deferred = broker.deferred(TOPIC, "ch")
        if deferred != count:
            raise Failed(f"{deferred} messages are deferred, {count} were confirmed")
        return resident(broker, f"{count:,} deferred messages", limit=400)


def _connections(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.connections
    seconds = 120 + settings.idle
    with _nsqd(settings, work) as broker, work.loading("idle", broker.tcp_port, "-", count, seconds) as clients:
        assert clients.stdout is not None
        line = clients.stdout.readline()
        if not line.startswith(b"ready"):
            raise Failed(f"{count} connections were not made: {line.decode().strip()}")
        time.sleep(1)
        used = _processor_share(broker, settings.idle)
        return [
            *resident(broker, f"{count:,} idle connections", limit=250),
            Row(f"processor, {count:,} idle connections", "% of a core", (used,)),
        ]


def _topics(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.topics
    with _nsqd(settings, work) as broker:
        paths: list[str] = []
        for number in range(count):
            paths.append(f"/topic/create?topic={TOPIC}_{number}")
            paths.append(f"/channel/create?topic={TOPIC}_{number}&channel=ch")
        broker.post_all(paths)
        # Lets background work (files, topology) end first.
        time.sleep(3)
        used = _processor_share(broker, settings.idle)
        return [
            *resident(broker, f"{count:,} idle topics with a channel", limit=300),
            Row(f"processor, {count:,} idle topics", "% of a core", (used,), at_most(0.1)),
        ]


CASES: Final[dict[str, Callable[[argparse.Namespace, Work], list[Row]]]] = {
    "backlog": _backlog,
    "deferred": _deferred,
    "connections": _connections,
    "topics": _topics,
}


@contextmanager
def _nsqd(settings: argparse.Namespace, work: Work) -> Iterator[Broker]:
    with work.new_folder("memory") as folder, running_nsqd(folder, settings.build, settings.flag) as (broker, _):
        yield broker


def resident(broker: Broker, name: str, *, limit: float) -> list[Row]:
    """Return two rows: the resident memory now, which has a limit, and the peak."""
    now, peak = resident_megabytes(broker), resident_megabytes(broker, "VmHWM")
    return [Row(f"resident, {name}", "MB", (now,), at_most(limit)), Row(f"peak, {name}", "MB", (peak,))]


def resident_megabytes(broker: Broker, which: str = "VmRSS") -> float:
    for line in Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == which:
            return int(value.split()[0]) * 1024 / 1e6
    raise LookupError(which)


def _processor_share(broker: Broker, seconds: float) -> float:
    """Return the use of the processor over the next seconds, in percent of one core."""
    before, began = broker.processor_seconds(), time.monotonic()
    time.sleep(seconds)
    return 100 * (broker.processor_seconds() - before) / (time.monotonic() - began)


BENCHMARK: Final = Benchmark("memory", "How much memory, and processor when idle?", add_arguments, run, at_most=20)
