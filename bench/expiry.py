"""Millions of messages expire at once: how long until the channel has passed them, and who waits meanwhile?"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.deferred import Waiting
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say

SIZE: Final = 100
TOPIC: Final = "bench_expiry"
CHANNEL: Final = "ch"
LIMIT: Final = 120.0  # seconds
_POLL: Final = 0.01
_LONG: Final = '[[policy]]\nttl = "10h"\n'
_SHORT: Final = '[[policy]]\nttl = "1s"\n'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--millions", type=float, default=10, help="messages that expire (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="runs (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = int(settings.millions * 1_000_000) // 200 * 200
    took: dict[bool, list[float]] = {False: [], True: []}
    waits: list[float] = []
    for _ in range(settings.runs):
        for is_restarted, figures in took.items():
            seconds, longest = _expire(work, count, settings, is_restarted=is_restarted)
            figures.append(seconds)
            waits.append(longest)
            say(
                f"{'after a start' if is_restarted else 'in one life':>15} {seconds:8.2f} s, /ping at most {longest:.3f} s"
            )
    return [
        Row(f"{count:,} expired messages are passed over", "s", tuple(took[False]), at_most(2)),
        Row(f"{count:,} expired messages are passed over, after a start", "s", tuple(took[True]), at_most(2)),
        Row("longest wait for /ping meanwhile", "s", tuple(waits)),
    ]


def _expire(work: Work, count: int, settings: argparse.Namespace, *, is_restarted: bool) -> tuple[float, float]:
    with work.new_folder("expiry") as folder:
        policy = folder.with_suffix(".toml")
        policy.write_text(_LONG)
        flags = [*settings.flag, f"--policy-file={policy}"]
        try:
            with running_nsqd(folder, settings.build, flags) as (broker, process):
                broker.make_channel(TOPIC, CHANNEL)
                work.load("pub", broker.tcp_port, TOPIC, 2, 200, SIZE, 600, f"count={count}", at_most=600)
                if not is_restarted:
                    return _measure(broker, policy, count)
                stop_cleanly(process)
            with running_nsqd(folder, settings.build, flags) as (broker, _):
                return _measure(broker, policy, count)
        finally:
            policy.unlink()


def _measure(broker: Broker, policy: Path, count: int) -> tuple[float, float]:
    if (depth := broker.channel_depth(TOPIC, CHANNEL)) != count:
        raise Failed(f"{depth} messages wait, {count} were published")
    time.sleep(1.5)  # until all are too old
    new = policy.with_suffix(".new")
    new.write_text(_SHORT)
    new.replace(policy)
    digest = hashlib.sha256(_SHORT.encode()).hexdigest()
    began = time.monotonic()
    end = began + LIMIT
    while json.loads(broker.get("/config/policy"))["digest"] != digest:
        _wait(end, "the policy file was not read again")
        began = time.monotonic()  # no later than when the new policy was in force
    with Waiting(broker) as waiting:
        while broker.channel_depth(TOPIC, CHANNEL):
            _wait(end, "the messages do not expire")
    return time.monotonic() - began, waiting.longest


def _wait(end: float, complaint: str) -> None:
    if time.monotonic() > end:
        raise Failed(complaint)
    time.sleep(_POLL)


BENCHMARK: Final = Benchmark(
    "expiry", "Ten million expired messages: how soon are they passed?", add_arguments, run, at_most=20
)
