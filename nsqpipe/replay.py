"""`nsqpipe replay`: publishes a range of a table to a topic, in slices, so that you can throttle, watch and resume it.

A slice is a range of sequences of a topic at a node. The progress file names a slice before it is sent; afterwards, it
has the progress of this topic and node. An interrupted slice is sent again, from the same rows; with `exactly_once`,
nsqd recognizes the parts that it already has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.stores.storage import read_text, replace_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_nsq.stores.places import Place

_SLICE: Final = 200_000  # rows of a slice, if there is no rate
_SLICE_SECONDS: Final = 2.0  # duration of a slice, if there is a rate


@dataclass(frozen=True, slots=True)
class Slice:
    node: str
    topic: str
    first: int
    end: int
    rows: int

    @property
    def origin(self) -> str:
        return f"{self.node}/{self.topic}"

    def __str__(self) -> str:
        return f"{self.origin}/{self.first}-{self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    sink: Mapping[str, str]  # options of format("nsq")
    rate: float  # messages a second; 0: as fast as possible
    exactly_once: bool
    name: str  # the same in each run that continues this replay


@dataclass(slots=True)
class Reached:
    """The progress of a replay; saved in a file, if there is one."""

    place: Place | None
    name: str
    what: str  # the replayed range; the file is not for another range
    reached: dict[str, int] = field(default_factory=dict)  # for each origin: everything before this sequence was sent
    sending: Slice | None = None  # started but not finished

    @classmethod
    def load(cls, place: Place | None, name: str, what: str) -> Reached:
        text = None if place is None else read_text(place)
        if text is None:
            return cls(place, name, what)
        found: dict[str, Any] = json.loads(text)
        if (found.get("name"), found.get("what")) != (name, what):
            raise PipeFailed(f"{place} belongs to another replay: {found.get('name')}, {found.get('what')}")
        return cls(place, name, what, dict(found["reached"]), Slice(**found["sending"]) if found["sending"] else None)

    def begin(self, part: Slice) -> None:
        self.sending = part
        self._save()

    def finish(self, part: Slice) -> None:
        self.sending = None
        self.reached[part.origin] = part.end
        self._save()

    def _save(self) -> None:
        if self.place is None:
            return
        sending = asdict(self.sending) if self.sending else None
        written = {"name": self.name, "what": self.what, "reached": self.reached, "sending": sending}
        replace_text(self.place, json.dumps(written))


def chosen(rows: DataFrame, *, topic: str, since: str, until: str, where: str) -> DataFrame:
    """Return the rows to replay, which meet all conditions.

    Rows without a body stand for gaps, and are skipped.
    """
    if "body" not in rows.columns:
        raise PipeFailed("the table has no column body: it was landed with --drop-body, and cannot be replayed")
    if topic:
        rows = rows.where(F.col("topic") == topic)
    if since:
        rows = rows.where(F.col("timestamp") >= F.to_timestamp(F.lit(since)))
    if until:
        rows = rows.where(F.col("timestamp") < F.to_timestamp(F.lit(until)))
    rows = rows.where(F.col("body").isNotNull())
    return rows.where(where) if where else rows


def plan(rows: DataFrame, rate: float, reached: Reached) -> list[Slice]:
    """Return the remaining slices, in the order of the logs, each about as large as the rate allows."""
    size = max(1, int(rate * _SLICE_SECONDS)) if rate else _SLICE
    counted = _left(rows, reached).groupBy("node", "topic", F.floor(F.col("sequence") / size).alias("part"))
    found = counted.agg(F.count("*").alias("rows"), F.min("sequence").alias("first"), F.max("sequence").alias("last"))
    slices = [
        Slice(row["node"], row["topic"], row["first"], row["last"] + 1, row["rows"])
        for row in found.orderBy("topic", "node", "part").collect()
    ]
    joined = _joined(slices, size)
    return [reached.sending, *joined] if reached.sending else joined


def _joined(slices: Iterable[Slice], size: int) -> list[Slice]:
    """Join small adjacent slices, because each slice costs a Spark job."""
    found: list[Slice] = []
    for part in slices:
        last = found[-1] if found else None
        if last is not None and last.origin == part.origin and last.rows + part.rows <= size:
            found[-1] = replace(last, end=part.end, rows=last.rows + part.rows)
        else:
            found.append(part)
    return found


def _left(rows: DataFrame, reached: Reached) -> DataFrame:
    """Return the rows outside of slices that were sent or started."""
    ends = dict(reached.reached)
    if reached.sending:
        ends[reached.sending.origin] = reached.sending.end
    for origin, end in ends.items():
        node, _, topic = origin.partition("/")
        rows = rows.where(~((F.col("node") == node) & (F.col("topic") == topic) & (F.col("sequence") < end)))
    return rows


def run(rows: DataFrame, slices: list[Slice], job: Replay, reached: Reached, show: Callable[[str], None]) -> int:
    """Send the slices, and return the number of messages sent."""
    total = sum(part.rows for part in slices)
    sent = 0
    began = time.monotonic()
    for part in slices:
        reached.begin(part)
        _send(rows, part, job)
        reached.finish(part)
        sent += part.rows
        show(f"{sent:,} of {total:,} messages sent")
        if job.rate:
            time.sleep(max(0.0, sent / job.rate - (time.monotonic() - began)))
    return sent


def _send(rows: DataFrame, part: Slice, job: Replay) -> None:
    inside = (F.col("sequence") >= part.first) & (F.col("sequence") < part.end)
    here = rows.where((F.col("node") == part.node) & (F.col("topic") == part.topic) & inside)
    options = dict(job.sink)
    if job.exactly_once:
        options |= {"exactlyOnce": "true", "writeId": f"{job.name}/{part}"}
    # One task, so that the topic gets the messages in the log's order, and a second attempt makes the same parts.
    ordered = here.coalesce(1).sortWithinPartitions("sequence", "id").select("body")
    ordered.write.format("nsq").options(**options).mode("append").save()
