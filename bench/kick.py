"""A million buried messages are kicked at a rate: is it that rate, and does live traffic of the same channel suffer?

Windows without and with a kick alternate. In each window one publisher and one consumer, which gets the kicked messages
as well, measure the time of live messages only. Each kick takes as many messages as its rate makes of the window.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from typing import Final

from bench import buried
from bench.brokers import Broker, running_nsqd
from bench.report import Benchmark, Row, at_most
from bench.work import SLACK, Failed, Load, Work, parsed, say

SIZE: Final = 200
TOPIC: Final = "bench_kick"
CHANNEL: Final = "ch"
QUANTILES: Final = {"p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9"}
_AT: Final = f"topic={TOPIC}&channel={CHANNEL}"
_PAUSE: Final = 0.3  # seconds after which the load generator sends
_LIMIT: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=1_000_000, help="buried messages (default: %(default)s)")
    parser.add_argument(
        "--rate", type=int, default=10_000, help="of the kicks, messages a second (default: %(default)s)"
    )
    parser.add_argument("--live", type=int, default=1000, help="live messages a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a window (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    in_window = int(settings.rate * settings.seconds)
    windows = settings.messages // in_window
    if windows < 1:
        raise Failed(f"a window kicks {in_window:,} messages, and only {settings.messages:,} are buried")
    quiet: list[Load] = []
    kicked: list[Load] = []
    rates: list[float] = []
    with work.new_folder("kick") as folder, running_nsqd(folder, settings.build, settings.flag) as (broker, _):
        broker.make_channel(TOPIC, CHANNEL)
        work.load("pub", broker.tcp_port, TOPIC, 2, 200, SIZE, 300, f"count={settings.messages}", at_most=300)
        buried.bury(broker, TOPIC, CHANNEL, settings.messages)
        for number in range(windows):
            for is_kicked in (False, True) if number % 2 == 0 else (True, False):
                load = _window(work, broker, settings, kick=in_window if is_kicked else 0)
                (kicked if is_kicked else quiet).append(load)
                if is_kicked:
                    rates.append(_rate_of_last_kick(broker, in_window))
                say(
                    f"{'with a kick' if is_kicked else 'without':>11} p50 {load['p50_us']:.0f} µs, p99 {load['p99_us']:.0f}"
                    f" µs, p99.9 {load['p999_us']:.0f} µs" + (f", {rates[-1]:,.0f} msg/s" if is_kicked else "")
                )
        left = broker.channel(TOPIC, CHANNEL).get("buried_count", 0)
        if left != settings.messages - windows * in_window:
            raise Failed(f"{left} messages are still buried")
    return [
        Row(f"rate of a kick at {settings.rate:,} msg/s", "msg/s", tuple(rates)),
        Row("off by", "%", tuple(100 * abs(rate / settings.rate - 1) for rate in rates), at_most(2)),
        *(
            Row(
                *(f"{name} of live messages, during a kick", "µs", tuple(load[key] for load in kicked)),
                *(at_most(1.1) if key == "p99_us" else None, "without", tuple(load[key] for load in quiet)),
            )
            for key, name in QUANTILES.items()
        ),
    ]


def _window(work: Work, broker: Broker, settings: argparse.Namespace, *, kick: int) -> Load:
    """Measure live messages, and kick this many others meanwhile."""
    seconds = settings.seconds
    with work.loading("lat", broker.tcp_port, TOPIC, CHANNEL, settings.live, SIZE, seconds) as process:
        time.sleep(_PAUSE)
        if kick:
            broker.post(f"/channel/kick?{_AT}&rate={settings.rate}&limit={kick}", b"")
        try:
            out, _ = process.communicate(timeout=seconds + SLACK)
        except subprocess.TimeoutExpired:
            raise Failed(f"loadgen lat did not end in {seconds + SLACK:.0f} seconds") from None
    load = parsed(out, process.returncode)
    if process.returncode or load["errors"]:
        raise Failed(f"loadgen lat: status {process.returncode}, {out.decode().strip()}")
    _settle(work, broker)
    return load


def _settle(work: Work, broker: Broker) -> None:
    """Wait until the kick has ended, and consume the few messages that are left over from it."""
    end = time.monotonic() + _LIMIT
    while (job := _last_job(broker)) is not None and job["ended_at"] is None:
        if time.monotonic() > end:
            raise Failed("the kick does not end")
        time.sleep(0.01)
    if depth := broker.channel_depth(TOPIC, CHANNEL):
        work.load("sub", broker.tcp_port, TOPIC, CHANNEL, 1, 2500, _LIMIT, f"count={depth}", at_most=_LIMIT)


def _rate_of_last_kick(broker: Broker, count: int) -> float:
    job = _last_job(broker)
    if job is None or job["done"] != count:
        raise Failed(f"{count} messages were to be kicked: {job}")
    return 1e9 * count / (job["ended_at"] - job["started_at"])


def _last_job(broker: Broker) -> dict[str, int] | None:
    jobs = json.loads(broker.get(f"/channel/jobs?{_AT}"))["jobs"]
    return jobs[0] if jobs else None


BENCHMARK: Final = Benchmark(
    "kick", "A million buried messages are kicked: at which rate, and who waits?", add_arguments, run, at_most=15
)
