"""Our client library, on trio and on asyncio, compared with others: one process, one connection, the same nsqd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.brokers import nsqd_factory
from bench.report import Benchmark, Row, at_least
from bench.runner import Compared, Measured, chosen
from bench.settings import Settings
from bench.work import Work
from bench.workloads import fill
from scripts.command_line import option

OURS: Final = ("nsqclient", "aio")
OTHERS: Final = ("pynsq", "gnsq", "ansq")
MODES: Final = {
    "one": "publish, one at a time",
    "many": "publish, 64 in flight",
    "mpub": "publish 200 at once, 4 in flight",
    "sub": "consume and finish",
}
_ENOUGH: Final = 300_000  # messages for each second of consuming: more than any client takes


@dataclass(kw_only=True)
class ClientSettings(Settings):
    runs: int = option(5, "runs of each row")
    seconds: float = option(2.0, "length of one run")
    only: str = option(",".join(MODES), f"some of: {', '.join(MODES)}", word="MODE,...")


def run(settings: ClientSettings, work: Work) -> list[Row]:
    modes = chosen(settings.only, [*MODES], "modes")
    clients = (*OURS, *OTHERS)
    compared = Compared(
        {client: partial(_measure, work, client, modes, settings) for client in clients},
        settings.runs,
        whose="the client's ",
    )
    return [
        compared.row(mode, MODES[mode] + (", on asyncio" if mine == "aio" else ""), mine, other, demand=at_least(1.0))
        for mode in modes
        for mine in OURS
        for other in OTHERS
    ]


def _measure(work: Work, client: str, modes: list[str], settings: ClientSettings, number: int) -> dict[str, Measured]:
    found = {}
    with nsqd_factory(work, settings.build, settings.flag)() as broker:
        for mode in modes:
            topic = f"bench_{mode}"
            if mode == "sub":
                broker.make_channel(topic)
                fill(work, broker, topic, int(_ENOUGH * (settings.seconds + 1)))
            module = f"bench.clients.{client}_load"
            load = work.python(module, broker.tcp_port, mode, topic, settings.seconds, at_most=settings.seconds)
            found[mode] = Measured(load["msgs_per_s"], load["cpu_us"])
    return found


BENCHMARK: Final = Benchmark(
    "client", "How quick is our Python client, beside the others?", ClientSettings, run, at_most=30
)
