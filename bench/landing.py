"""The cost of a row on its way from a topic into a Delta table: processor time of driver, JVM and workers.

Ways take turns, each in a session of its own, on the same topic: in one pass as `nsqpipe land` does it, by rows through
Spark as `format("nsq")` and `format("nsqtable")` do it for everybody else, and Spark's own copy of the same rows from
Parquet to Parquet. `--against` is an older checkout with its own `.venv`, whose `nsqpipe land` is measured beside.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from bench.brokers import Broker, running_nsqd
from bench.report import Benchmark, Row, at_least, at_most
from bench.settings import Settings
from bench.spark.stage import KEEP, wait_until_readable
from bench.work import HERE, HOST, ROOT, Failed, Work, say, started
from scripts.command_line import option

RAW: Final = 1.2  # microseconds of processor time
COPY: Final = 0.8  # share of the rows a second of Spark's own copy
JSON: Final = 1.8  # times the rows a second of two queries
WAYS: Final = ("raw", "rows", "copy", "json")
BEFORE: Final = ("raw", "json")  # ways that an older checkout has, too
NAMES: Final = {
    "raw": "raw, in one pass",
    "rows": "raw, by rows through Spark",
    "copy": "Parquet to Parquet",
    "json": "JSON with quarantine",
}
WARM: Final = 200_000
_LIMIT: Final = 1200  # seconds for one session
_TOGETHER: Final = 2000
_pack: Final = Struct(">I").pack


def _ways_in(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    if strange := set(asked) - set(WAYS):
        raise ValueError(f"there is no way {', '.join(strange)}; there are: {', '.join(WAYS)}")
    return asked


@dataclass(kw_only=True)
class LandingSettings(Settings):
    count: int = option(2_000_000, "messages to land")
    runs: int = option(3, "runs of each way")
    bad: float = option(0.01, "share of the bodies that are not JSON")
    only: tuple[str, ...] = option(WAYS, f"some of: {', '.join(WAYS)}", word="WAY,...", parse=_ways_in)
    against: Path | None = option(None, "an older checkout to compare with", word="FOLDER")


def run(settings: LandingSettings, work: Work) -> list[Row]:
    flags = [*settings.flag, KEEP]
    found: dict[str, list[dict[str, float]]] = {}
    with work.new_folder("data") as data, running_nsqd(data, settings.build, flags) as (broker, _):
        fill(broker, "warm", WARM, settings.bad)
        fill(broker, "full", settings.count, settings.bad)
        for _ in range(settings.runs):
            for name, way, tree in _ways(settings):
                found.setdefault(name, []).append(_measured(work, broker, way, tree))
                say(f"{name}: {_told(found[name][-1], settings.count)}")
    return _rows(found, settings.count)


def _ways(settings: LandingSettings) -> Iterator[tuple[str, str, Path]]:
    for way in settings.only:
        yield way, way, ROOT
        if settings.against is not None and way in BEFORE:
            yield f"{way} before", way, settings.against.resolve()


def fill(broker: Broker, topic: str, count: int, bad: float) -> None:
    """Publish JSON bodies of some two hundred bytes."""
    draw = random.Random(7)
    made = [_body(draw, number, bad) for number in range(min(count, 20_000))]
    for at in range(0, count, _TOGETHER):
        part = made[at % len(made) :][:_TOGETHER]
        packed = b"".join(_pack(len(body)) + body for body in part)
        broker.post(f"/mpub?topic={topic}&binary=true", _pack(len(part)) + packed)
    wait_until_readable(broker, topic, count)


def _body(draw: random.Random, number: int, bad: float) -> bytes:
    if draw.random() < bad:
        return b"no JSON at all " + draw.randbytes(90).hex().encode()
    fields = {"user": f"u{draw.randrange(10_000)}", "amount": round(draw.random() * 1000, 2), "number": number}
    return json.dumps({**fields, "text": draw.randbytes(65).hex()}).encode()


def _measured(work: Work, broker: Broker, way: str, tree: Path) -> dict[str, float]:
    python = tree / ".venv" / "bin" / "python"
    with work.new_folder("tables") as folder:
        command = [
            str(python),
            str(HERE / "landing_job.py"),
            way,
            f"{HOST}:{broker.http_port}",
            "warm",
            "full",
            str(folder),
        ]
        command = ["/usr/bin/env", f"PYTHONPATH={tree}", f"PYSPARK_PYTHON={python}", *command]
        before = broker.processor_seconds()
        with started(command, stdout=subprocess.PIPE, new_session=True, cwd=tree) as process:
            try:
                out, _ = process.communicate(timeout=_LIMIT)
            except subprocess.TimeoutExpired:
                raise Failed(f"{way} did not end in {_LIMIT} s") from None
        if process.returncode:
            raise Failed(f"{way} of {tree}: status {process.returncode}")
        return {**json.loads(out.splitlines()[-1]), "nsqd": broker.processor_seconds() - before}


def _cost(result: dict[str, float], count: int) -> float:
    return (result["jvm"] + result["python"]) / count * 1e6


def _told(result: dict[str, float], count: int) -> str:
    return (
        f"{_cost(result, count):.2f} µs a row, JVM {result['jvm'] / count * 1e6:.2f}, Python "
        f"{result['python'] / count * 1e6:.2f}; {count / result['seconds']:,.0f} rows/s, {result['rows']:,.0f} in the table"
    )


def _rows(found: dict[str, list[dict[str, float]]], count: int) -> list[Row]:
    costs = {name: tuple(_cost(result, count) for result in results) for name, results in found.items()}
    rates = {name: tuple(count / result["seconds"] for result in results) for name, results in found.items()}
    whole = (
        ("raw", "µs", costs, at_most(RAW), ""),
        ("raw", "rows/s", rates, at_least(COPY), "copy"),
        ("rows", "µs", costs, None, "raw"),
        ("json", "µs", costs, None, ""),
        ("raw", "µs", costs, None, "raw before"),
        ("json", "rows/s", rates, at_least(JSON), "json before"),
        ("json", "µs", costs, None, "json before"),
    )
    return [
        Row(NAMES[way], unit, values[way], demand, NAMES.get(other, other), values.get(other, ()))
        for way, unit, values, demand, other in whole
        if way in found and (not other or other in found)
    ]


BENCHMARK: Final = Benchmark(
    "landing", "What does a row cost on its way into a table?", LandingSettings, run, at_most=60
)
