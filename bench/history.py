"""Reading history: a range of the log over HTTP, and a consumer with a large backlog.

One reader reads the whole log with `/topic/read`, first with an empty page cache and then with a full one. The drain is
the same backlog through a channel, compared with as much as fits into the tail cache, which never touches the disk.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import time
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.files import evict
from bench.report import Benchmark, Row, at_least, at_most
from bench.work import HOST, Failed, Work, say

TOPIC: Final = "bench_history"
KEEP: Final = "--retention-bytes=1TB"  # drained messages stay for the next run
CACHED_MESSAGES: Final = 1_000_000
END: Final = b"\r\n0\r\n\r\n"
MB: Final = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs (default: %(default)s)")
    parser.add_argument("--gigabytes", type=float, default=1, help="size of the backlog (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=200, help="messages in one MPUB; 1: PUB (default: %(default)s)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a message (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = int(settings.gigabytes * 1e9 / (settings.size + 4))
    count -= count % settings.batch
    if shutil.disk_usage(work.folder).free < 2 * settings.gigabytes * 1e9:
        raise Failed("not enough room on disk")
    cached: list[float] = []
    cold: list[float] = []
    plain: list[float] = []
    warm: list[float] = []
    drained: list[float] = []
    growth: list[float] = []
    with work.new_folder("history") as folder:
        _fill(work, settings, folder, count)
        for _ in range(settings.runs):
            cached.append(_from_the_cache(work, settings, min(count, CACHED_MESSAGES)))
            evict(folder)
            plain.append(_read_plainly(folder))
            evict(folder)
            with running_nsqd(folder, settings.build, [*settings.flag, KEEP]) as (broker, process):
                before = _resident(broker)
                cold.append(_read(broker))
                warm.append(_read(broker))
                evict(folder)
                broker.post_all(
                    [f"/channel/{verb}?topic={TOPIC}&channel=ch&from=earliest" for verb in ("create", "seek")]
                )
                drained.append(_drain(work, broker, count))
                growth.append((_peak(broker) - before) / MB)
                stop_cleanly(process)
            say(f"cold {cold[-1]:,.0f} MB/s, warm {warm[-1]:,.0f} MB/s, drained {drained[-1]:,.0f} msg/s")
    return [
        Row("/topic/read, page cache cold", "MB/s", tuple(cold), at_least(300)),
        Row("/topic/read, page cache warm", "MB/s", tuple(warm)),
        Row("the files read plainly, page cache cold", "MB/s", tuple(plain)),
        Row(
            f"{count:,} messages drained from disk",
            "msg/s",
            tuple(drained),
            at_least(0.7),
            "from the tail cache",
            tuple(cached),
        ),
        Row("memory that nsqd took for all of it", "MB", tuple(growth), at_most(100)),
    ]


def _fill(work: Work, settings: argparse.Namespace, folder: Path, count: int) -> None:
    with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
        broker.post_all([f"/topic/create?topic={TOPIC}"])
        _publish(work, settings, broker, count)
        stop_cleanly(process)


def _publish(work: Work, settings: argparse.Namespace, broker: Broker, count: int) -> None:
    window = 1 if settings.batch > 1 else 64
    work.load(
        *("pub", broker.tcp_port, TOPIC, 2, settings.batch, settings.size, 600, window, f"count={count}", "verify=1"),
        at_most=600,
    )


def _from_the_cache(work: Work, settings: argparse.Namespace, count: int) -> float:
    roomy = [*settings.flag, f"--mem-queue-size={2 * count}", f"--mem-queue-bytes={2 * count * (settings.size + 300)}"]
    with work.new_folder("cached") as folder, running_nsqd(folder, settings.build, roomy) as (broker, _):
        broker.make_channel(TOPIC)
        _publish(work, settings, broker, count)
        return _drain(work, broker, count)


def _drain(work: Work, broker: Broker, count: int) -> float:
    load = work.load(
        *("sub", broker.tcp_port, TOPIC, "ch", 2, 2500, 600, f"count={count}", f"verify={count}", "quiet=10"),
        at_most=600,
        allow=(0, 4),
    )
    if load["lost"]:
        raise Failed(f"{load['lost']:.0f} of {count} messages did not come")
    return load["finished_per_s"]


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


def _resident(broker: Broker) -> int:
    return _of_status(broker, "VmRSS")


def _peak(broker: Broker) -> int:
    return _of_status(broker, "VmHWM")


def _of_status(broker: Broker, name: str) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise Failed(f"/proc/{broker.pid}/status has no {name}")


BENCHMARK: Final = Benchmark("history", "How fast does the past come back?", add_arguments, run, at_most=30)
