"""A backlog from disk, and a range of history: how fast the past comes back.

`history`: one reader reads the whole log with `/topic/read`, first with an empty page cache and then with a full one, and a
channel delivers the same backlog, compared with as much as fits into the tail cache, which never touches the disk.

`drain`: nsqd writes a backlog, ends, starts again, and delivers all of it, with the page cache full and empty.
"""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.files import evict
from bench.processes import resident_megabytes
from bench.report import Benchmark, Row, at_least, at_most
from bench.runner import Compared, Measured
from bench.settings import Settings
from bench.work import HOST, Failed, Load, Work
from bench.workloads import SIZE, fill
from scripts.command_line import option

TOPIC: Final = "bench_history"
KEEP: Final = "--retention-bytes=1TB"  # drained messages stay for the next run
CACHED_MESSAGES: Final = 1_000_000
END: Final = b"\r\n0\r\n\r\n"
MB: Final = 1_000_000
VERIFIED: Final = "verify=1"  # bodies have running numbers
LIMIT: Final = 600.0  # seconds


@dataclass(kw_only=True)
class BatchSettings(Settings):
    batch: int = option(200, "messages in one MPUB; 1: PUB")


@dataclass(kw_only=True)
class HistorySettings(BatchSettings):
    runs: int = option(3, "runs")
    gigabytes: float = option(1, "size of the backlog")
    size: int = option(SIZE, "bytes of a message")


@dataclass(kw_only=True)
class DrainSettings(BatchSettings):
    runs: int = option(3, "runs")
    millions: float = option(3, "messages of the backlog")


def _whole_batches(work: Work, count: float, size: int, batch: int) -> int:
    if shutil.disk_usage(work.folder).free < 2 * count * size:
        raise Failed(f"not enough room on disk for {count:,.0f} messages")
    return int(count) - int(count) % batch


# History


def run(settings: HistorySettings, work: Work) -> list[Row]:
    count = _whole_batches(work, settings.gigabytes * 1e9 / (settings.size + 4), settings.size, settings.batch)
    with work.new_folder("history") as folder:
        with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
            broker.post_all([f"/topic/create?topic={TOPIC}"])
            fill(work, broker, TOPIC, count, settings.size, settings.batch, VERIFIED)
            stop_cleanly(process)
        sides = {
            "cache": partial(_from_the_cache, work, settings, min(count, CACHED_MESSAGES)),
            "disk": partial(_from_disk, work, settings, folder, count),
        }
        compared = Compared(sides, settings.runs)
    name = "drained"
    drained = compared.row(name, f"{count:,} messages drained from disk", "disk", "cache", demand=at_least(0.7))
    return [
        compared.row("cold", "/topic/read, page cache cold", "disk", unit="MB/s", demand=at_least(300)),
        compared.row("warm", "/topic/read, page cache warm", "disk", unit="MB/s"),
        compared.row("plain", "the files read plainly, page cache cold", "disk", unit="MB/s"),
        drained.beside("from the tail cache", compared.values("cache", name)),
        compared.row("growth", "memory that nsqd took for all of it", "disk", unit="MB", demand=at_most(100)),
    ]


def _from_disk(work: Work, settings: HistorySettings, folder: Path, count: int, number: int) -> dict[str, Measured]:
    evict(folder)
    found = {"plain": Measured(_read_plainly(folder))}
    evict(folder)
    with running_nsqd(folder, settings.build, [*settings.flag, KEEP]) as (broker, process):
        before = resident_megabytes(broker.pid)
        found |= {"cold": Measured(_read(broker)), "warm": Measured(_read(broker))}
        evict(folder)
        broker.post_all([f"/channel/{verb}?topic={TOPIC}&channel=ch&from=earliest" for verb in ("create", "seek")])
        found["drained"] = Measured(_all_drained(work, broker, count))
        found["growth"] = Measured(resident_megabytes(broker.pid, "VmHWM") - before)
        stop_cleanly(process)
    return found


def _from_the_cache(work: Work, settings: HistorySettings, count: int, number: int) -> dict[str, Measured]:
    roomy = [*settings.flag, f"--mem-queue-size={2 * count}", f"--mem-queue-bytes={2 * count * (settings.size + 300)}"]
    with work.new_folder("cached") as folder, running_nsqd(folder, settings.build, roomy) as (broker, _):
        broker.make_channel(TOPIC)
        fill(work, broker, TOPIC, count, settings.size, settings.batch, VERIFIED)
        return {"drained": Measured(_all_drained(work, broker, count))}


def _all_drained(work: Work, broker: Broker, count: int) -> float:
    load = _drained(work, broker, count)
    if load["lost"]:
        raise Failed(f"{load['lost']:.0f} of {count} messages did not come")
    return load["finished_per_s"]


def _drained(work: Work, broker: Broker, count: int) -> Load:
    """Consume all, and compare with what was published. Status 4 means that not all came, which is `lost` as well."""
    return work.load(
        *("sub", broker.tcp_port, TOPIC, "ch", 2, 2500, LIMIT, f"count={count}", f"verify={count}", "quiet=10"),
        at_most=LIMIT,
        allow=(0, 4),
    )


def _read(broker: Broker) -> float:
    """Read the whole log, check that it is complete, and return megabytes a second."""
    assert broker.http_port is not None
    request = f"GET /topic/read?topic={TOPIC} HTTP/1.1\r\nHost: {HOST}\r\nAccept: application/msgpack\r\n\r\n"
    size, following = 0, int(broker.log(TOPIC)["first"])
    began = time.monotonic()
    while following < (end := int(broker.log(TOPIC)["next"])):
        with socket.create_connection((HOST, broker.http_port)) as sock:
            sock.sendall(request.replace(TOPIC, f"{TOPIC}&from={following}").encode())
            buffer = bytearray(1 << 20)
            last = b""
            while not last.endswith(END):
                got = sock.recv_into(buffer)
                if not got:
                    raise Failed("the answer is not whole")
                size += got
                last = (last + bytes(buffer[max(0, got - 64) : got]))[-64:]
        following = int.from_bytes(last[: -len(END)][-8:], "big")
        if following > end:
            raise Failed(f"the answer ends at {following}")
    return size / MB / (time.monotonic() - began)


def _read_plainly(folder: Path) -> float:
    size = 0
    began = time.monotonic()
    for path in sorted(folder.rglob("*.log")):
        with path.open("rb", buffering=0) as file:
            while data := file.read(1 << 20):
                size += len(data)
    return size / MB / (time.monotonic() - began)


# Drain


def run_drain(settings: DrainSettings, work: Work) -> list[Row]:
    count = _whole_batches(work, settings.millions * 1e6, SIZE, settings.batch)
    caches = {"warm": False, "cold": True}
    sides = {cache: partial(_drain, work, count, settings, is_cold=is_cold) for cache, is_cold in caches.items()}
    compared = Compared(sides, settings.runs)
    rows = [compared.row("rate", f"{count:,} messages, page cache {cache}", cache) for cache in caches]
    for name, text in {"lost": "lost, all runs", "twice": "came twice, all runs"}.items():
        total = sum(sum(compared.values(cache, name)) for cache in caches)
        rows.append(Row(text, "messages", (total,), at_most(0)))
    return rows


def _drain(work: Work, count: int, settings: DrainSettings, number: int, *, is_cold: bool) -> dict[str, Measured]:
    with work.new_folder("drain") as folder:
        with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
            broker.make_channel(TOPIC)
            fill(work, broker, TOPIC, count, SIZE, settings.batch, VERIFIED)
            stop_cleanly(process)
        if is_cold:
            evict(folder)
        with running_nsqd(folder, settings.build, settings.flag) as (broker, _):
            load = _drained(work, broker, count)
            left = broker.channel_depth(TOPIC, "ch")
            if left and not load["lost"]:
                raise Failed(f"all {count} messages were finished, and {left} are said to be left")
    twice = load["duplicate"] + load["foreign"]
    return {"rate": Measured(load["finished_per_s"]), "lost": Measured(load["lost"]), "twice": Measured(twice)}


BENCHMARK: Final = Benchmark("history", "How fast does the past come back?", HistorySettings, run, at_most=30)
BENCHMARK_OF_DRAIN: Final = Benchmark(
    "drain", "How fast does a backlog come from disk?", DrainSettings, run_drain, at_most=20
)
