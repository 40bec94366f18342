"""`nsqpipe replay`: a range of a table back into a topic, in slices, so that it can be slow, watched and resumed.

A slice is a range of sequences of one log. What was sent is written down after each slice; a slice that was interrupted is
sent again, and with `exactly_once` nsqd knows the part of it that it has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from nsqpipe.failures import PipeFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SLICE: Final = 200_000  # rows, without a rate
_SLICE_SECONDS: Final = 2.0  # at a rate: so long a slice should take


@dataclass(frozen=True, slots=True)
class Slice:
    node: str
    topic: str
    first: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    sink: Mapping[str, str]  # options of format("nsq")
    rate: float  # messages a second; 0: as fast as it goes
    progress_file: Path | None
    exactly_once: bool
    name: str  # the same in each run that goes on


def chosen(rows: DataFrame, *, topic: str, since: str, until: str, where: str) -> DataFrame:
    """The range: of a topic, from a time, before a time, and whatever SQL says."""
    if topic:
        rows = rows.where(F.col("topic") == topic)
    if since:
        rows = rows.where(F.col("timestamp") >= F.to_timestamp(F.lit(since)))
    if until:
        rows = rows.where(F.col("timestamp") < F.to_timestamp(F.lit(until)))
    return rows.where(where) if where else rows


def plan(rows: DataFrame, rate: float) -> list[Slice]:
    """In the order in which the logs were written; each slice about as large as the rate allows."""
    size = max(1, int(rate * _SLICE_SECONDS)) if rate else _SLICE
    if "body" not in rows.columns:
        raise PipeFailed("the table has no column body: only raw bodies can be replayed")
    counted = rows.groupBy("node", "topic", F.floor(F.col("sequence") / size).alias("part")).agg(
        F.count("*").alias("rows"), F.min("sequence").alias("first"), F.max("sequence").alias("last")
    )
    found = counted.orderBy("topic", "node", "part").collect()
    return [Slice(row["node"], row["topic"], row["first"], row["last"] + 1, row["rows"]) for row in found]


def run(rows: DataFrame, slices: list[Slice], job: Replay, told: Callable[[int, int], None]) -> int:
    """How many messages were sent in this run. `told` hears of progress: so many of so many."""
    done = _done(job)
    total = sum(part.rows for part in slices)
    sent = 0
    reached = sum(part.rows for part in slices if _key(part) in done)
    began = time.monotonic()
    for part in _left(slices, done):
        _send(rows, part, job)
        sent += part.rows
        reached += part.rows
        done.append(_key(part))
        _save(job, done)
        told(reached, total)
        if job.rate:
            time.sleep(max(0.0, sent / job.rate - (time.monotonic() - began)))
    return sent


def _send(rows: DataFrame, part: Slice, job: Replay) -> None:
    inside = (F.col("sequence") >= part.first) & (F.col("sequence") < part.end)
    here = rows.where((F.col("node") == part.node) & (F.col("topic") == part.topic) & inside)
    options = dict(job.sink)
    if job.exactly_once:
        options |= {"exactlyOnce": "true", "writeId": f"{job.name}/{_key(part)}"}
    ordered = here.coalesce(1).sortWithinPartitions("sequence").select("body")
    ordered.write.format("nsq").options(**options).mode("append").save()


def _left(slices: list[Slice], done: list[str]) -> Iterator[Slice]:
    known = set(done)
    return (part for part in slices if _key(part) not in known)


def _key(part: Slice) -> str:
    return f"{part.node}/{part.topic}/{part.first}-{part.end}"


def _done(job: Replay) -> list[str]:
    if job.progress_file is None or not job.progress_file.exists():
        return []
    found: dict[str, Any] = json.loads(job.progress_file.read_text())
    if found.get("name") != job.name:
        raise PipeFailed(f"{job.progress_file} is of another replay ({found.get('name')})")
    return list(found["done"])


def _save(job: Replay, done: list[str]) -> None:
    if job.progress_file is None:
        return
    temporary = job.progress_file.with_suffix(".new")
    temporary.write_text(json.dumps({"name": job.name, "done": done}))
    temporary.replace(job.progress_file)


def summary(slices: list[Slice]) -> list[dict[str, Any]]:
    return [asdict(part) for part in slices]
