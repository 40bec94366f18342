"""`python -m bench NAME`: one measurement of real processes on loopback, with a table and a result file."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

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
    guard,
    history,
    http_consume,
    jobs,
    landing,
    latency,
    memory,
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

BENCHMARKS: Final[Mapping[str, Benchmark]] = {
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
        workers.BENCHMARK,
    )
}
RESULTS: Final = Path(__file__).parent / "results"
BUSY: Final = 0.5  # load average above which the figures mean little


def main(argv: Sequence[str]) -> int:
    settings = _parser().parse_args(argv)
    command = shlex.join(["python", "-m", "bench", *argv])
    # Processes and files must go, whatever ends the benchmark: both signals unwind through every `with`.
    signal.signal(signal.SIGTERM, _stop)
    if settings.name == "guard":  # it counts, and so needs neither a load generator nor a quiet machine
        return guard.run(settings)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(int(settings.at_most * 60))
    if load_average() > BUSY:
        print(f"note: the machine is busy (load {load_average():.2f}); trust ratios only", file=sys.stderr)
    reports: list[Report] = []
    status = 0
    try:
        for benchmark, own in _chosen(settings):
            started = time.monotonic()
            try:
                if benchmark.instead(own):
                    continue
                own.build = builds.chosen(own.build, getattr(own, "installed", ROOT))
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
    if settings.name == "all" and reports:
        everything.write_summary(reports, command, settings.results)
    is_missed = any(row.is_met is False for report in reports for row in report.rows)
    return status or int(is_missed and settings.strict)


def _chosen(settings: argparse.Namespace) -> Iterator[tuple[Benchmark, argparse.Namespace]]:
    if settings.name != "all":
        yield BENCHMARKS[settings.name], settings
        return
    for name, benchmark in BENCHMARKS.items():
        if name not in settings.skip:
            print(f"\n== {name}", file=sys.stderr)
            yield benchmark, everything.settings_of(_parser(), benchmark, settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for benchmark in BENCHMARKS.values():
        command = commands.add_parser(benchmark.name, help=benchmark.question, description=benchmark.question)
        _add_common(command, at_most=benchmark.at_most)
        benchmark.add_arguments(command)
    command = commands.add_parser("guard", help=guard.QUESTION, description=guard.QUESTION)
    guard.add_arguments(command)
    command = commands.add_parser("all", help=everything.QUESTION, description=everything.QUESTION)
    _add_common(command, at_most=90)
    everything.add_arguments(command)
    return parser


def _add_common(parser: argparse.ArgumentParser, *, at_most: float) -> None:
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder (default: the system's)")
    parser.add_argument(
        "--pin", action="store_true", help="give the load generator one core, and everything else the others"
    )
    parser.add_argument(
        "--build",
        choices=builds.CHOICES,
        default=builds.AUTO,
        help="nsqd's core: pure Python, or compiled (default: compiled if scripts/compile has been run on this code)",
    )
    parser.add_argument("--at-most", type=float, default=at_most, metavar="MINUTES", help="give up after this long")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a demand is missed")
    parser.add_argument(
        "--flag", action="append", default=[], metavar="--NAME=VALUE", help="passed on to each nsqd that is started"
    )


def _stop(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGALRM:
        print("took longer than --at-most", file=sys.stderr)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
