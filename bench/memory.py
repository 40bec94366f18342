"""How much memory nsqd uses with very much of one thing, how long a start with it takes, and what idleness costs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.processes import processor_share, resident_megabytes
from bench.report import Benchmark, Row, at_most
from bench.runner import chosen
from bench.settings import Settings
from bench.states import REASONS, Waiting, bury
from bench.work import Failed, Work, say
from bench.workloads import SIZE, fill
from scripts.command_line import option

ON_DISK: Final = 240  # bytes of one message in the log, rounded up
DELAY: Final = 7 * 24 * 3_600_000  # ms
READY: Final = 5.0  # seconds
TOPIC: Final = "bench_memory"
CHANNEL: Final = "ch"

Fill = Callable[["MemorySettings", Work, Broker], None]


def run(settings: MemorySettings, work: Work) -> list[Row]:
    rows: list[Row] = []
    for name in chosen(settings.only, [*CASES]):
        rows += CASES[name](settings, work)
        say(f"{name}: " + ", ".join(f"{row.values[0]:.4g} {row.unit} {row.name}" for row in rows[-3:]))
    return rows


# Messages


@dataclass(frozen=True)
class State:
    """Messages of one channel that are all in the same state."""

    name: str  # of the setting that says how many
    text: str
    count: str  # in /stats
    fill: Fill
    limit: float  # MB
    survives: bool = False  # starts with them are measured

    def __call__(self, settings: MemorySettings, work: Work) -> list[Row]:
        count = getattr(settings, self.name)
        what = self.text.format(f"{count:,}")
        if shutil.disk_usage(work.folder).free < count * ON_DISK * 1.5:
            raise Failed(f"{what} need {count * ON_DISK >> 30} GiB and some to spare")
        flags = [*settings.flag, "--max-defer-timeout=200h"]
        with work.new_folder("memory") as folder:
            with running_nsqd(folder, settings.build, flags) as (broker, process):
                broker.make_channel(TOPIC, CHANNEL)
                with Waiting(broker) as waiting:
                    self.fill(settings, work, broker)
                self._check(broker, count)
                rows = [*resident(broker, what, limit=self.limit)]
                rows.append(Row(f"longest wait for /ping, {what} on their way there", "s", (waiting.longest,)))
                stop_cleanly(process)
            if self.survives and settings.starts:
                rows += self._starts(settings, folder, flags, what, count)
        return rows

    def _starts(self, settings: MemorySettings, folder: Path, flags: list[str], what: str, count: int) -> Iterator[Row]:
        """Start after a clean stop and after a kill in turn. The first start is after a stop."""
        ready: dict[str, list[float]] = {"a clean stop": [], "kill -9": []}
        last: list[Row] = []
        ends: tuple[Callable[[subprocess.Popen[bytes]], object], ...] = (_kill, stop_cleanly)
        for _ in range(settings.starts):
            for (how, seconds), end in zip(ready.items(), ends, strict=True):
                with running_nsqd(folder, settings.build, flags) as (broker, process):
                    seconds.append(broker.ready_after)
                    self._check(broker, count)
                    say(f"after {how:>12}: {broker.ready_after:6.2f} s")
                    last = resident(broker, f"{what}, after a start", limit=self.limit)
                    end(process)
        yield from last
        for how, seconds in ready.items():
            yield Row(f"{what}: ready after {how}", "s", tuple(seconds), at_most(READY))

    def _check(self, broker: Broker, count: int) -> None:
        there = broker.channel(TOPIC, CHANNEL)[self.count]
        if there != count:
            raise Failed(f"{there} messages are {self.name}, {count} is right")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _fill_backlog(settings: MemorySettings, work: Work, broker: Broker) -> None:
    fill(work, broker, TOPIC, settings.messages)


def _fill_deferred(settings: MemorySettings, work: Work, broker: Broker) -> None:
    """Publish each alone, so that each is a record, a change in the journal, and a position of its own."""
    fill(work, broker, TOPIC, settings.deferred, SIZE, 1, f"defer={DELAY}")


def _fill_buried(settings: MemorySettings, work: Work, broker: Broker) -> None:
    fill(work, broker, TOPIC, settings.buried)
    bury(broker, TOPIC, CHANNEL, settings.buried, settings.reasons)


# Connections and topics


def _connections(settings: MemorySettings, work: Work) -> list[Row]:
    count = settings.connections
    seconds = 120 + settings.idle
    with _nsqd(settings, work) as broker, work.loading("idle", broker.tcp_port, "-", count, seconds) as clients:
        assert clients.stdout is not None
        line = clients.stdout.readline()
        if not line.startswith(b"ready"):
            raise Failed(f"{count} connections were not made: {line.decode().strip()}")
        time.sleep(1)
        used = processor_share(broker.pid, settings.idle)
        return [
            *resident(broker, f"{count:,} idle connections", limit=250),
            Row(f"processor, {count:,} idle connections", "% of a core", (used,)),
        ]


def _topics(settings: MemorySettings, work: Work) -> list[Row]:
    count = settings.topics
    with _nsqd(settings, work) as broker:
        paths: list[str] = []
        for number in range(count):
            paths.append(f"/topic/create?topic={TOPIC}_{number}")
            paths.append(f"/channel/create?topic={TOPIC}_{number}&channel=ch")
        broker.post_all(paths)
        # Lets background work (files, topology) end first.
        time.sleep(3)
        used = processor_share(broker.pid, settings.idle)
        return [
            *resident(broker, f"{count:,} idle topics with a channel", limit=300),
            Row(f"processor, {count:,} idle topics", "% of a core", (used,), at_most(0.1)),
        ]


@contextmanager
def _nsqd(settings: MemorySettings, work: Work) -> Iterator[Broker]:
    with work.new_folder("memory") as folder, running_nsqd(folder, settings.build, settings.flag) as (broker, _):
        yield broker


CASES: Final[Mapping[str, Callable[[MemorySettings, Work], list[Row]]]] = {
    "backlog": State("messages", "backlog of {} messages", "depth", _fill_backlog, 200),
    "deferred": State("deferred", "{} deferred messages", "deferred_count", _fill_deferred, 400, survives=True),
    "buried": State("buried", "{} buried messages", "buried_count", _fill_buried, 400, survives=True),
    "connections": _connections,
    "topics": _topics,
}


def resident(broker: Broker, name: str, *, limit: float) -> list[Row]:
    """Return two rows: the resident memory now, which has a limit, and the peak."""
    now, peak = resident_megabytes(broker.pid), resident_megabytes(broker.pid, "VmHWM")
    return [Row(f"resident, {name}", "MB", (now,), at_most(limit)), Row(f"peak, {name}", "MB", (peak,))]


@dataclass(kw_only=True)
class MemorySettings(Settings):
    only: str = option("", f"some of: {', '.join(CASES)}", word="ROW,...")
    messages: int = option(10_000_000, "messages in the backlog")
    deferred: int = option(1_000_000, "deferred messages")
    buried: int = option(1_000_000, "buried messages")
    reasons: int = option(REASONS, "why they are buried")
    starts: int = option(2, "starts after a stop and a kill")
    connections: int = option(5000, "idle connections")
    topics: int = option(2000, "topics with a channel each")
    idle: float = option(10.0, "seconds of doing nothing")


BENCHMARK: Final = Benchmark(
    "memory", "How much memory, how long a start, and how much processor when idle?", MemorySettings, run, at_most=30
)
