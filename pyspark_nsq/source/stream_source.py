"""`spark.readStream.format("nsq")`: follows lanes, batch by batch.

In a process beside the driver, one reader lives as long as the query and determines its offsets. Spark also makes
short-lived readers, to plan and to read. So a reader starts no thread and queries no node until Spark asks it for
offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import (
    Head,
    Lane,
    LaneBounds,
    NotThere,
    Offsets,
    Range,
    Span,
    advance,
    plan,
    resolve,
    skipped,
    split_into_tasks,
)
from pyspark_nsq.missing import waited_for
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.source.announcing import Announcer
from pyspark_nsq.source.batch_source import Task
from pyspark_nsq.source.profiles import Profiles
from pyspark_nsq.source.ranges import as_rows, empty_openings
from pyspark_nsq.source.reading import PATIENCE, read_ranges
from pyspark_nsq.source.sharing import Limit, Minimum, Shares
from pyspark_nsq.source.watch import Watch
from pyspark_nsq.worker import freeze_imports

ROWS_PER_TASK: Final = 100_000  # fewer than in a batch query: a small micro-batch should keep several cores busy
_MOST_ROWS_PER_TASK: Final = 500_000
_NO_LIMIT: Final = (1 << 63) - 1
_GLANCE: Final = 0.1  # seconds between looks for a missing lane
_LAST_WORDS: Final = 0.5  # maximum seconds that a stream spends on its last report to nsqd when it ends on its own


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._cluster = Cluster(options, Http(options.access))
        self._profiles = Profiles(self._cluster)
        self._last_batch_at = float("-inf")
        self._watch: Watch | None = None
        self._announcer: Announcer | None = None
        self._all_answered = False  # every node answered at the start
        self._initial: Offsets | None = None
        self._gap = 0  # number of messages left out by the last planned batch
        self._here = Offsets({})  # end of the last batch that Spark has stored
        self._targets: dict[Lane, int] | None = None  # with Trigger.AvailableNow: each lane's end at the start
        self._absent: dict[Lane, str] | None = None  # lanes that no node had at the start, and that count as gone

    # Offsets: in the driver

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:  # Spark asks twice, and `latest` must not move in between
            options, heads = self._options, self._heads()
            if self._all_answered:
                self._cluster.check_found(heads.values())
            begins = resolve(
                options.start,
                heads,
                self._cluster.sequence_at,
                option="startingOffsets",
                lossless=options.lossless,
            )
            complete = options.start.complete(heads) if isinstance(options.start, LaneBounds) else {}
            self._initial = Offsets(begins | complete, initial=True, closed=complete)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        here = self._here = Offsets.from_json(start)
        heads = self._heads()
        is_limited = not isinstance(limit, ReadAllAvailable)  # Trigger.Once asks for that
        end = advance(
            here,
            heads,
            choose_rows=lambda waiting: self._share(heads, waiting, is_limited=is_limited),
            vanished=self._vanished(here, heads),
            targets=self._targets,
            lossless=self._options.lossless,
        )
        self._gap = skipped(here, end, heads)
        self._announce(here, is_last=end is here and self._targets is not None)
        if end is here:
            return start
        self._last_batch_at = time.monotonic()
        return end.to_json()

    def _announce(self, here: Offsets, *, is_last: bool) -> None:
        """Report the start of the next batch as committed: Spark asks for a batch when the previous one is committed.

        Spark also calls a source's `commit`, but only during the next batch: too late for a stream that ends.
        """
        options = self._options
        if options.reader is None:
            return
        if self._announcer is None:
            self._announcer = Announcer(options.reader, Http(options.access), self._addresses)
        self._announcer.committed(here.lanes)
        if is_last:
            self._announcer.settle(_LAST_WORDS)

    def _addresses(self) -> dict[Lane, str]:
        return {lane: head.address for lane, head in self._heads().items()}

    def _share(self, heads: Mapping[Lane, Head], waiting: Mapping[Lane, Span], *, is_limited: bool) -> Shares | None:
        limit = Limit(self._options.max_rows, self._options.max_bytes) if is_limited else Limit()
        goes_on = is_limited and self._targets is None
        if goes_on:
            assert self._watch is not None
            down = self._watch.down()
            waiting = {lane: span for lane, span in waiting.items() if lane not in down}
            # A node that has drained may go soon, so we take the rest of its lanes at once.
            is_ending = any(heads[lane].closed for lane in waiting)
            if not is_ending and not self._is_worth_while(heads, waiting, limit):
                return None
        return self._profiles.share(heads, waiting, limit, goes_on=goes_on)

    def _is_worth_while(self, heads: Mapping[Lane, Head], waiting: Mapping[Lane, Span], limit: Limit) -> bool:
        minimum = Minimum(self._options.min_rows, self._options.max_delay)
        rows = sum(span.end - span.begin for span in waiting.values())
        if minimum.is_reached(rows, since_last=time.monotonic() - self._last_batch_at):
            return True
        # A few large messages may fill a batch. If it waited for more of them, the query would never catch up.
        return self._profiles.part(heads, waiting, limit) >= 1

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit by which `latestOffset` recognizes Trigger.Once, for which Spark passes ReadAllAvailable.

        Spark supports only one kind of limit, so `latestOffset` itself applies the limits of the options.
        """
        return ReadMaxRows(self._options.max_rows or _NO_LIMIT)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the offset that Spark shows as the latest.

        Spark doesn't read it back, so it also has the missing nodes and the number of missing messages, for listeners.
        """
        latest = Offsets({lane: head.next for lane, head in self._heads().items()}).to_json()
        assert self._watch is not None
        missing = self._watch.missing(self._here)
        return latest | ({"missing": missing} if missing else {}) | ({"gap": self._gap} if self._gap else {})

    def prepareForTriggerAvailableNow(self) -> None:
        if self._watch is not None:
            self._watch.refresh()
        self._targets = {lane: head.next for lane, head in self._heads().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        before, after = Offsets.from_json(start), Offsets.from_json(end)
        ranges = self._plan(before, after)
        marks = self._profiles.marks(ranges, self._heads(), options.bytes_per_task)
        if options.as_ranges:
            ranges += empty_openings(before, after)
        rows = options.rows_per_task or _rows_per_task(ranges, options.tasks_per_batch)
        tasks = split_into_tasks(ranges, rows, bytes_per_task=options.bytes_per_task, marks=marks)
        opening = frozenset(after.begins.items())
        return [Task(part, opening) for part in tasks]

    def _plan(self, start: Offsets, end: Offsets) -> list[Range]:
        """Plan the ranges of a batch, waiting for lanes that no node has.

        Such a lane may have vanished since the batch was first planned, if this is a second run; or it may be moving to
        another address right now. After a minute it counts as lost or, if `lossless`, raises NotThere.
        """
        lossless = self._options.lossless
        given_up: set[Lane] = set()
        deadline = time.monotonic() + PATIENCE
        while True:
            heads = self._heads()
            vanished = self._vanished(end, heads)
            addresses = {lane: head.address for lane, head in heads.items()}
            lost = () if lossless else vanished.keys() | given_up
            try:
                return plan(start, end, addresses, lost=lost)
            except NotThere as missing:
                is_late = time.monotonic() > deadline
                if lossless and (is_late or missing.lane in vanished):
                    raise
                if is_late:
                    given_up.add(missing.lane)
                else:
                    time.sleep(_GLANCE)

    def _heads(self) -> dict[Lane, Head]:
        if self._watch is None:
            watch = Watch(self._cluster, self._options.discovery_seconds)
            self._all_answered = watch.start(tolerant=not self._options.lossless)
            if self._options.lossless:
                self._cluster.check_found(watch.heads().values(), watch.missing(Offsets({})))
            self._watch = watch
        return self._watch.heads()

    def _vanished(self, here: Offsets, heads: dict[Lane, Head]) -> dict[Lane, str]:
        """Return the lanes that are gone, and the evidence.

        These are lanes that the watch has seen vanish, and lanes that no node had when the query started, unless their
        node may only be down. If a lane is missing later, its node may be down, so it only counts if the watch says so.
        """
        assert self._watch is not None
        if self._absent is None:
            is_certain = self._options.lossless or (self._all_answered and self._options.where.nsqd)
            away = waited_for(self._cluster.departed)
            missing = [lane for lane in here.lanes if lane not in heads and lane.node not in away] if is_certain else ()
            self._absent = dict.fromkeys(missing, "none of the nsqd that answer has it")
        for lane in self._absent.keys() & heads.keys():
            del self._absent[lane]
        return self._absent | self._watch.vanished()

    def stop(self) -> None:
        """Stop all threads. Spark 4.3 does not call this, but kills the process."""
        if self._watch is not None:
            self._watch.close()
        if self._announcer is not None:
            self._announcer.close()

    # Rows: in the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        if self._options.as_ranges:
            freeze_imports()
            return iter([as_rows(partition.ranges, partition.opening)])
        return read_ranges(partition.ranges, self._options, self._schema)


def _rows_per_task(ranges: Sequence[Range], tasks: int | None) -> int:
    """Return how many rows a task of this batch gets, without the option `rowsPerTask`.

    A task costs as much as reading 20,000 rows. So a batch with enough tasks for all cores gets larger ones, not more.
    """
    if tasks is None:
        return ROWS_PER_TASK
    rows = sum(it.rows for it in ranges)
    return min(max(ROWS_PER_TASK, ceil(rows / tasks)), _MOST_ROWS_PER_TASK)
