"""A million deferred messages with keys: how long until 100 are listed, and any is taken back, by key and by id?"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from bench.brokers import Broker, running_nsqd
from bench.report import Benchmark, Row, at_most
from bench.settings import Settings
from bench.states import defer
from bench.work import HOST, Failed, Work, say
from scripts.command_line import option

SIZE: Final = 200
DELAY: Final = 24 * 3_600_000  # ms
TOPIC: Final = "bench_cancel"
CHANNEL: Final = "ch"


@dataclass(kw_only=True)
class CancelSettings(Settings):
    messages: int = option(1_000_000, "deferred messages")
    cancels: int = option(2_000, "of each kind")


def run(settings: CancelSettings, work: Work) -> list[Row]:
    flags = [*settings.flag, "--max-defer-timeout=200h"]
    numbers = random.Random(1).sample(range(settings.messages), 2 * settings.cancels)
    by_key, after = numbers[::2], numbers[1::2]
    later: list[str] = []
    rows = []
    with work.new_folder("cancel") as folder:
        with running_nsqd(folder, settings.build, flags) as (broker, process):
            broker.make_channel(TOPIC, CHANNEL)
            defer(broker, TOPIC, settings.messages, DELAY, b"x" * SIZE)
            say(f"{settings.messages:,} messages are deferred")
            rows += _rows("for comparison: GET /ping", _pings(broker, settings.cancels))
            rows += _rows("for comparison: one sync of this disk", _syncs(folder, settings.cancels))
            keys = (f"key=k-{number}" for number in by_key)
            rows += _rows("by key", *_measured(broker, keys), demand=1.0)
            rows += _lists(broker)
            ids = _ids(broker, 2 * settings.cancels)
            ids, later = ids[::2], ids[1::2]
            rows += _rows("by id", *_measured(broker, (f"id={found}" for found in ids)), demand=1.0)
            left = broker.deferred(TOPIC, CHANNEL)
            process.kill()
            process.wait()
        with running_nsqd(folder, settings.build, flags) as (broker, process):
            if broker.deferred(TOPIC, CHANNEL) != left:
                raise Failed(
                    f"{left} messages were deferred before the kill, {broker.deferred(TOPIC, CHANNEL)} are now"
                )
            first, *others = _cancel(broker, (f"key=k-{number}" for number in after), unless_done=True)
            rows.append(Row("by key, the first one after a kill -9", "ms", (first,)))
            rows += _rows("by key, after it", others)
            rows += _rows("by id, after it", *_measured(broker, (f"id={found}" for found in later), unless_done=True))
            process.kill()
            process.wait()
    return rows


def _lists(broker: Broker) -> list[Row]:
    """Return how long it takes to list 100 messages with their bodies: the first ones, and some in the middle."""
    path = f"/channel/deferred?topic={TOPIC}&channel={CHANNEL}"
    middle = json.loads(broker.get(f"{path}&limit=10000").splitlines()[-1])["after"]
    took: dict[str, list[float]] = {}
    for where, after in (("first", ""), ("middle", f"&after={middle}")):
        took[where] = []
        for _ in range(20):
            began = time.perf_counter()
            listed = broker.get(f"{path}&limit=100{after}").splitlines()
            took[where].append((time.perf_counter() - began) * 1000)
            if len(listed) != 100:
                raise Failed(f"{len(listed)} messages were listed, not 100")
    return [
        Row("the first 100 listed, median", "ms", (median(took["first"]),), at_most(50)),
        Row("100 behind the first 10,000 listed, median", "ms", (median(took["middle"]),)),
    ]


def _ids(broker: Broker, count: int) -> list[str]:
    """Return ids of deferred messages, from all over the topic."""
    found: list[str] = []
    step = 1_000
    after = ""
    while len(found) < count:
        listed = broker.get(f"/channel/deferred?topic={TOPIC}&channel={CHANNEL}&limit={step}{after}").splitlines()
        if not listed:
            break
        lines: list[Any] = [json.loads(line) for line in listed]
        found += [line["id"] for line in lines[::10]]
        after = f"&after={lines[-1]['after']}"
    return found[:count]


def _pings(broker: Broker, count: int) -> list[float]:
    """Return how long HTTP takes by itself, in milliseconds, over one connection."""
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=60)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        connection.request("GET", "/ping")
        connection.getresponse().read()
        took.append((time.perf_counter() - began) * 1000)
    connection.close()
    return took


def _syncs(folder: Path, count: int) -> list[float]:
    """Return how long the disk takes to sync some bytes, in milliseconds: a cancel is durable before its answer."""
    took = []
    with (folder / "bench-sync.tmp").open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 100 * count)
        for _ in range(count):
            file.write(b"x" * 100)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return took


def _measured(broker: Broker, names: Iterable[str], *, unless_done: bool = False) -> tuple[list[float], float]:
    """Return what `_cancel` does, and the processor time of nsqd for each cancel, in milliseconds."""
    before = broker.processor_seconds()
    took = _cancel(broker, names, unless_done=unless_done)
    return took, (broker.processor_seconds() - before) * 1000 / len(took)


def _cancel(broker: Broker, names: Iterable[str], *, unless_done: bool = False) -> list[float]:
    """Take messages back one after the other, over one connection. Return how long each took, in milliseconds."""
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=60)
    took = []
    for name in names:
        began = time.perf_counter()
        connection.request("POST", f"/message/cancel?topic={TOPIC}&{name}")
        response = connection.getresponse()
        answer = response.read()
        took.append((time.perf_counter() - began) * 1000)
        found = json.loads(answer)
        if response.status != 200 or (found["cancelled"] != 1 and not (unless_done and found["done"] == 1)):
            raise Failed(f"{name}: {response.status} {answer!r}")
    connection.close()
    return took


def _rows(how: str, took: list[float], processor: float | None = None, *, demand: float | None = None) -> list[Row]:
    percentiles = quantiles(took, n=100)
    limit = at_most(demand) if demand is not None else None
    rows = [
        Row(f"{how}, median", "ms", (percentiles[49],), limit),
        Row(f"{how}, p99", "ms", (percentiles[98],)),
    ]
    return rows if processor is None else [*rows, Row(f"{how}, processor time of nsqd", "ms", (processor,))]


BENCHMARK: Final = Benchmark(
    "cancel", "A million deferred messages: how long does it take to take one back?", CancelSettings, run, at_most=10
)
