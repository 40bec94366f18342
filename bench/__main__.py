"""`python -m bench NAME`: one measurement of real processes on loopback, with a table and a result file."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from bench import (
    admin,
    attack,
    backlog,
    builds,
    cancel,
    client,
    everything,
    extras,
    fanout,
    groups,
    guard,
    history,
    http_consume,
    jobs,
    landing,
    latency,
    memory,
    noisy,
    peers,
    recovery,
    remote,
    spark,
    streams,
    throughput,
    turns,
    workers,
)
from bench.machine import load_average
from bench.report import Benchmark, Report
from bench.work import ROOT, Failed, Work
from scripts.command_line import Command, read_command

BENCHMARKS: Final[Mapping[str, Benchmark[Any]]] = {
    benchmark.name: benchmark
    for benchmark in (
        throughput.BENCHMARK,
        latency.BENCHMARK,
        fanout.BENCHMARK,
        memory.BENCHMARK,
        cancel.BENCHMARK,
        extras.BENCHMARK_OF_KEYS,
        history.BENCHMARK_OF_DRAIN,
        recovery.BENCHMARK,
        remote.BENCHMARK,
        extras.BENCHMARK_OF_HEADERS,
        history.BENCHMARK,
        http_consume.BENCHMARK,
        jobs.BENCHMARK,
        streams.BENCHMARK,
        spark.BENCHMARK,
        landing.BENCHMARK,
        backlog.BENCHMARK,
        client.BENCHMARK,
        peers.BENCHMARK,
        admin.BENCHMARK,
        attack.BENCHMARK,
        turns.BENCHMARK,
        groups.BENCHMARK,
        noisy.BENCHMARK,
        workers.BENCHMARK,
    )
}
COMMANDS: Final[Mapping[str, Command]] = {
    **{name: Command(it.settings, it.question) for name, it in BENCHMARKS.items()},
    "guard": Command(guard.GuardSettings, guard.QUESTION),
    "all": Command(everything.AllSettings, everything.QUESTION),
}
AT_MOST_OF_ALL: Final = 90.0  # minutes
BUSY: Final = 0.5  # load average above which the figures mean little


def main(argv: Sequence[str]) -> int:
    name, settings = read_command(COMMANDS, argv, name="python -m bench", about=__doc__)
    command = shlex.join(["python", "-m", "bench", *argv])
    # Processes and files must go, whatever ends the benchmark: both signals unwind through every `with`.
    signal.signal(signal.SIGTERM, _stop)
    if name == "guard":  # it counts, and so needs neither a load generator nor a quiet machine
        return guard.run(settings)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(int(limit_of(name, settings) * 60))
    if load_average() > BUSY:
        print(f"note: the machine is busy (load {load_average():.2f}); trust ratios only", file=sys.stderr)
    reports: list[Report] = []
    status = 0
    try:
        for benchmark, own in _chosen(name, settings):
            started = time.monotonic()
            try:
                if benchmark.instead(own):
                    continue
                own.build = builds.chosen(own.wanted_build, getattr(own, "installed", ROOT))
                with Work.open(own.folder, pin=own.pin) as work:
                    rows = benchmark.run(own, work)
            except Failed as failure:
                print(f"{benchmark.name} failed: {failure}", file=sys.stderr)
                status = 1
                continue
            reports.append(
                Report(
                    benchmark.name,
                    benchmark.question,
                    rows,
                    command,
                    time.monotonic() - started,
                    vars(own),
                    own.build.core,
                )
            )
            benchmark.publish(reports[-1], own)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        status = 130
    if name == "all" and reports:
        everything.write_summary(reports, command, settings.results)
    is_missed = any(row.is_met is False for report in reports for row in report.rows)
    return status or int(is_missed and settings.strict)


def limit_of(name: str, settings: Any) -> float:
    """Return the minutes after which this benchmark is given up. 0: never."""
    usual = BENCHMARKS[name].at_most if name in BENCHMARKS else AT_MOST_OF_ALL
    return usual if settings.at_most is None else float(settings.at_most)


def _chosen(name: str, settings: Any) -> Iterator[tuple[Benchmark[Any], Any]]:
    if name != "all":
        yield BENCHMARKS[name], settings
        return
    for each, benchmark in BENCHMARKS.items():
        if each not in settings.skip:
            print(f"\n== {each}", file=sys.stderr)
            yield benchmark, everything.settings_of(benchmark, settings)


def _stop(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGALRM:
        print("took longer than --at-most", file=sys.stderr)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
