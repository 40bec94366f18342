"""A million messages deferred for days: how long until nsqd is ready again, with how much memory, and who waits?

Each is published alone, so each is a record, a change in the journal, and a position in memory of its own.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.memory import resident
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say

SIZE: Final = 200
DELAY: Final = 7 * 24 * 3_600_000  # ms
TOPIC: Final = "bench_deferred"
CHANNEL: Final = "ch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=1_000_000, help="deferred messages (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="starts of each kind (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.messages
    flags = [*settings.flag, "--max-defer-timeout=200h"]
    rows: list[Row] = []
    last: list[Row] = []
    ready: dict[str, list[float]] = {"clean stop": [], "kill -9": []}
    with work.new_folder("deferred") as folder:
        with running_nsqd(folder, settings.build, flags) as (broker, process):
            broker.make_channel(TOPIC, CHANNEL)
            with Waiting(broker) as waiting:
                load = work.load(
                    *("pub", broker.tcp_port, TOPIC, 4, 1, SIZE, 600, 64, f"count={count}", f"defer={DELAY}"),
                    at_most=600,
                )
            _check(broker, count)
            say(f"{load['msgs']:,.0f} messages were published")
            rows.append(Row("longest wait for /ping while they are published", "s", (waiting.longest,)))
            rows += resident(broker, f"{count:,} deferred messages, published", limit=400)
            stop_cleanly(process)
        for how in ("clean stop", "kill -9") * settings.runs:
            with running_nsqd(folder, settings.build, flags) as (broker, process):
                ready[how].append(broker.ready_after)
                _check(broker, count)
                say(f"after {how:>10}: {broker.ready_after:6.2f} s")
                last = resident(broker, f"{count:,} deferred messages, after a start", limit=400)
                if how == "clean stop":
                    process.kill()
                    process.wait()
                else:
                    stop_cleanly(process)
        rows += last
    rows += [Row(f"ready after {how}", "s", tuple(seconds), at_most(5)) for how, seconds in ready.items()]
    return rows


def _check(broker: Broker, count: int) -> None:
    deferred = broker.deferred(TOPIC, CHANNEL)
    if deferred != count:
        raise Failed(f"{deferred} messages are deferred, {count} were confirmed")


class Waiting:
    """Asks /ping all the time, and records the longest wait for an answer."""

    def __init__(self, broker: Broker) -> None:
        self.longest = 0.0
        self._broker = broker
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            self._broker.get("/ping")
            self.longest = max(self.longest, time.monotonic() - began)
            self._ends.wait(0.005)


BENCHMARK: Final = Benchmark(
    "deferred", "A million deferred messages: start, memory, and who waits?", add_arguments, run, at_most=15
)
