"""Consuming over HTTP: one connection takes, another finishes. How many messages a second, and for how much processor time?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.brokers import nsqd_factory
from bench.report import Benchmark, Row, at_least
from bench.runner import Compared, Measured
from bench.settings import Settings
from bench.work import Failed, Work
from bench.workloads import CHANNEL, fill
from scripts.command_line import option

TOPIC: Final = "bench_http"
AT_ONCE: Final = {10: None, 100: None, 500: at_least(50_000), 1000: None}  # messages in an answer, and what is demanded
_LIMIT: Final = 300.0  # seconds


@dataclass(kw_only=True)
class HttpConsumeSettings(Settings):
    runs: int = option(5, "runs of each row")
    messages: int = option(200_000, "consumed in one run")
    size: int = option(200, "bytes of a body")


def run(settings: HttpConsumeSettings, work: Work) -> list[Row]:
    compared = Compared({f"max={most}": partial(_consumed, settings, work, most) for most in AT_ONCE}, settings.runs)
    return [
        compared.row("taken", f"POST /sub with max={most}, and POST /fin", f"max={most}", demand=demand)
        for most, demand in AT_ONCE.items()
    ]


def _consumed(settings: HttpConsumeSettings, work: Work, most: int, number: int) -> dict[str, Measured]:
    count = settings.messages if most >= 100 else settings.messages // 10
    with nsqd_factory(work, settings.build, settings.flag)() as broker:
        broker.make_channel(TOPIC, CHANNEL)
        fill(work, broker, TOPIC, count, settings.size)
        before = broker.processor_seconds()
        load = work.python("bench.clients.http_load", broker.http_port, TOPIC, CHANNEL, most, count, at_most=_LIMIT)
        used = broker.processor_seconds() - before
        if left := broker.channel(TOPIC, CHANNEL)["in_flight_count"]:
            raise Failed(f"{left} messages are still in flight")
    return {"taken": Measured(load["msgs_per_s"], used * 1e6 / max(1.0, load["msgs"]))}


BENCHMARK: Final = Benchmark(
    "http_consume",
    "How fast is consuming over HTTP, 10 to 1,000 messages at a time?",
    HttpConsumeSettings,
    run,
    at_most=15,
)
