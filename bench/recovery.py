"""How long nsqd takes until it is ready again, after a clean stop and after a kill under load, and what it has then.

Ready means that TCP accepts and `/ping` answers OK. nsqd is killed while publishers are at work, so recovery finds torn
ends. Every confirmed message has to be there afterwards, and none that was not sent.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.files import bytes_in, evict
from bench.report import Benchmark, Row, at_most
from bench.settings import Settings
from bench.work import Failed, Work, parsed, say
from scripts.command_line import option

SIZE: Final = 200
BATCH: Final = 200
TOPIC: Final = "bench_batches"
SINGLE: Final = "bench_singles"
CHANNEL: Final = "ch"
FINISHED: Final = 50_000  # consumed in one of the topics before the first stop


@dataclass(kw_only=True)
class RecoverySettings(Settings):
    runs: int = option(2, "starts of each kind")
    gigabytes: float = option(5.0, "size of the log")
    topics: int = option(20, "topics")
    singles: int = option(3, "topics written by single PUBs")
    single_records: int = option(400_000, "messages in each of these, about a file each")


def run(settings: RecoverySettings, work: Work) -> list[Row]:
    if shutil.disk_usage(work.folder).free < settings.gigabytes * 1.5e9:
        raise Failed(f"{settings.gigabytes:g} GB of log need {settings.gigabytes * 1.5:g} GB of free disk")
    with work.new_folder("recovery") as folder:
        return _run(settings, work, folder)


def _run(settings: RecoverySettings, work: Work, folder: Path) -> list[Row]:
    ready: dict[tuple[str, str], list[float]] = {}
    stops: list[float] = []
    lacking = surplus = 0
    with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
        least = _write(settings, work, broker)
        stops.append(stop_cleanly(process))
    most = least
    size = bytes_in(folder)
    say(f"{size / 1e9:.2f} GB in {settings.topics} topics, {least:,} messages")

    def start(how: str, cache: str, *, then_kill: bool) -> None:
        nonlocal least, most, lacking, surplus
        if cache == "cold":
            evict(folder)
        with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
            ready.setdefault((how, cache), []).append(broker.ready_after)
            depth = _depth(broker)
            lacking, surplus = lacking + max(0, least - depth), surplus + max(0, depth - most)
            say(f"after {how:>10}, {cache}: {broker.ready_after:6.2f} s, {depth:,} messages ({least:,} to {most:,})")
            least = most = depth
            if then_kill:
                confirmed, sent = _publish_until_killed(settings, work, broker, process)
                least, most = least + confirmed, most + sent
            else:
                stops.append(stop_cleanly(process))

    for _ in range(settings.runs):
        start("clean stop", "warm", then_kill=False)
        start("clean stop", "cold", then_kill=True)
        start("kill -9", "warm", then_kill=True)
        start("kill -9", "cold", then_kill=False)
    size_name = f"{size / 1e9:.1f} GB in {settings.topics} topics"
    return [
        Row(f"{size_name}: ready after clean stop, cache warm", "s", tuple(ready["clean stop", "warm"]), at_most(5)),
        Row(f"{size_name}: ready after clean stop, cache cold", "s", tuple(ready["clean stop", "cold"]), at_most(5)),
        Row(f"{size_name}: ready after kill -9, cache warm", "s", tuple(ready["kill -9", "warm"]), at_most(15)),
        Row(f"{size_name}: ready after kill -9, cache cold", "s", tuple(ready["kill -9", "cold"]), at_most(15)),
        Row("clean stop takes", "s", tuple(stops)),
        Row("confirmed and missing, all starts", "messages", (lacking,), at_most(0)),
        Row("there and never sent, all starts", "messages", (surplus,), at_most(0)),
    ]


def _write(settings: RecoverySettings, work: Work, broker: Broker) -> int:
    """Fill the log, and return how many messages wait in channels then."""
    batched = settings.topics - settings.singles
    for topic in _topic_names(TOPIC, batched) + _topic_names(SINGLE, settings.singles):
        broker.make_channel(topic, CHANNEL)
    total = 0
    if settings.singles:
        # One connection with one PUB at a time for each topic: no two messages share a record.
        count = settings.single_records * settings.singles
        load = work.load(
            *("pub", broker.tcp_port, SINGLE, settings.singles, 1, SIZE, 300),
            *(f"count={count}", f"topics={settings.singles}"),
            at_most=300,
        )
        total += int(load["msgs"])
    count = int(settings.gigabytes * 1e9 / (SIZE + 4)) - total
    load = work.load(
        *("pub", broker.tcp_port, TOPIC, 2, BATCH, SIZE, 600, f"count={count}", f"topics={batched}"), at_most=600
    )
    total += int(load["msgs"])
    topic = _topic_names(TOPIC, batched)[0]
    consumed = work.load("sub", broker.tcp_port, topic, CHANNEL, 1, 1000, 30, f"count={FINISHED}", at_most=30)
    # Messages in flight at the end of that run come back; only finished ones are gone.
    time.sleep(0.5)
    depth = _depth(broker)
    if total - int(consumed["finished"]) != depth:
        raise Failed(f"{total} were published, {consumed['finished']:.0f} finished, {depth} are left")
    return depth


def _publish_until_killed(
    settings: RecoverySettings, work: Work, broker: Broker, process: subprocess.Popen[bytes]
) -> tuple[int, int]:
    """Kill nsqd while publishers are at work, and return how many messages were confirmed and how many were sent."""
    batched = settings.topics - settings.singles
    with ExitStack() as stack:
        loads = [
            stack.enter_context(work.loading("pub", broker.tcp_port, TOPIC, 2, BATCH, SIZE, 30, f"topics={batched}"))
        ]
        if settings.singles:
            loads.append(
                stack.enter_context(
                    work.loading("pub", broker.tcp_port, SINGLE, 2, 1, SIZE, 30, f"topics={settings.singles}")
                )
            )
        time.sleep(1.0)
        process.kill()
        outs = [(load.communicate(timeout=40)[0], load.returncode) for load in loads]
    reports = [parsed(out, status) for out, status in outs]
    return sum(int(report["msgs"]) for report in reports), sum(int(report["sent"]) for report in reports)


def _depth(broker: Broker) -> int:
    """Return how many messages wait in all channels, including those on their way from a topic to its channel."""
    return sum(
        channel["depth"] + channel["in_flight_count"] for topic in broker.stats() for channel in topic["channels"]
    )


def _topic_names(prefix: str, count: int) -> list[str]:
    """Return the names that the load generator gives to topics."""
    return [prefix] if count == 1 else [f"{prefix}_{number}" for number in range(count)]


BENCHMARK: Final = Benchmark(
    "recovery", "How long until it is ready again, and is all there?", RecoverySettings, run, at_most=30
)
