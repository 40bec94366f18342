"""What messages carry besides a body: headers on every message, and a key for each publish. Each beside the same without.

Five headers of 200 bytes in all are compared with the same bytes as a part of the body. Keys also take memory, and time
at a start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.brokers import nsqd_factory, running_nsqd
from bench.processes import resident_megabytes
from bench.report import Benchmark, Demand, Row, at_least, at_most
from bench.runner import Compared, Measured
from bench.settings import Settings
from bench.work import Work
from bench.workloads import SIZE, WORKLOADS, measure
from scripts.command_line import option

HEADERS: Final = (("mpub", "sub"), ("mpub10x4",), ("pub50",))
KEYS: Final = (("pub50",), ("pub2",), ("deep",), ("mpub10x4",))
WITH_HEADERS: Final = SIZE + 202  # bytes
OF_HEADERS: Final = {"mpub": at_least(0.8), "sub": at_least(0.8)}
OF_KEYS: Final = {"pub50": at_least(0.9)}
TOPIC: Final = "bench_extras"
_KEYS: Final = "keys=bench1:"


@dataclass(kw_only=True)
class ExtrasSettings(Settings):
    runs: int = option(5, "runs of each row")
    seconds: float = option(2.0, "length of one run")


@dataclass(kw_only=True)
class KeysSettings(ExtrasSettings):
    messages: int = option(1_000_000, "keys to remember")


def run_headers(settings: ExtrasSettings, work: Work) -> list[Row]:
    return _rows(work, settings, HEADERS, ("headers", "as body"), "headers=1", OF_HEADERS, WITH_HEADERS)


def run_keys(settings: KeysSettings, work: Work) -> list[Row]:
    rows = _rows(work, settings, KEYS, ("keys", "without keys"), _KEYS, OF_KEYS, SIZE)
    return rows + _memory_of_keys(settings, work)


def _rows(
    work: Work,
    settings: ExtrasSettings,
    groups: Sequence[Sequence[str]],
    sides: tuple[str, str],
    key: str,
    demands: Mapping[str, Demand],
    size: int,
) -> list[Row]:
    """Compare loads that tell the load generator this key with the same loads without it."""
    fresh = nsqd_factory(work, settings.build, settings.flag)

    def side(more: Sequence[str], group: Sequence[str], number: int) -> dict[str, Measured]:
        with fresh() as broker:
            return measure(work, broker, group, TOPIC, settings.seconds, *more, size=size)

    mine, other = sides
    rows = []
    for group in groups:
        compared = Compared({mine: partial(side, (key,), group), other: partial(side, (), group)}, settings.runs)
        rows += [compared.row(it, WORKLOADS[it].text, mine, other, demand=demands.get(it)) for it in group]
    return rows


def _memory_of_keys(settings: KeysSettings, work: Work) -> list[Row]:
    """Publish as many with keys as without, and compare what nsqd's memory has grown by; then start with the keys."""
    count = settings.messages
    grown, rows = [], []
    flags = [*settings.flag, "--idempotence-window=1h", f"--idempotence-keys={count}"]
    for more, words in (((), "without"), ((_KEYS,), "with")):
        with work.new_folder("keys") as folder:
            with running_nsqd(folder, settings.build, flags) as (broker, process):
                broker.make_channel(TOPIC)
                before = resident_megabytes(broker.pid)
                work.load(*("pub", broker.tcp_port, TOPIC, 50, 1, SIZE, 600, 1, f"count={count}", *more), at_most=600)
                grown.append(resident_megabytes(broker.pid) - before)
                process.kill()
                process.wait()
            with running_nsqd(folder, settings.build, flags) as (broker, _):
                rows.append(Row(f"ready after kill -9, {words} keys", "s", (broker.ready_after,)))
    return [Row(f"memory of {count:,} keys", "MB", (grown[1] - grown[0],), at_most(100)), *rows]


BENCHMARK_OF_HEADERS: Final = Benchmark(
    "headers",
    "Headers on every message: what do they cost beside the same bytes as body?",
    ExtrasSettings,
    run_headers,
    at_most=10,
)
BENCHMARK_OF_KEYS: Final = Benchmark(
    "keys", "What does a key for each publish cost?", KeysSettings, run_keys, at_most=15
)
