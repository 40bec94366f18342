"""`spark.readStream.format("nsq")`: follows lanes, batch by batch.

One object in one process of the driver lives as long as the query, and asks for offsets; others of its kind are made for a
moment, to plan and to read. So nothing begins before the first question about offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_nsq.batch_source import Task
from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import DataLoss
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane, Offsets, advance, cut, gone, plan, resolve
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.reading import read_ranges
from pyspark_nsq.watch import Watch


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._cluster = Cluster(options, Http(options.access))
        self._watch: Watch | None = None
        self._all_answered = False
        self._initial: Offsets | None = None
        self._targets: dict[Lane, int] | None = None
        self._is_resumed = False

    # Offsets: in the driver

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:  # Spark asks twice, and `latest` must not move in between
            options = self._options
            begins = resolve(
                options.start,
                self._heads(),
                self._cluster.sequence_at,
                option="startingOffsets",
                lossless=options.lossless,
            )
            self._initial = Offsets(begins, initial=True)
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        here = Offsets.from_json(start)
        heads = self._heads()
        end = advance(
            here,
            heads,
            rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            vanished=self._missing(here, heads),
            targets=self._targets,
            lossless=self._options.lossless,
        )
        return start if end is here else end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows
        return ReadMaxRows(most) if most is not None else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        return Offsets({lane: head.next for lane, head in self._heads().items()}).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        if self._watch is not None:
            self._watch.refresh()
        self._targets = {lane: head.next for lane, head in self._heads().items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        addresses = {lane: head.address for lane, head in self._heads().items()}
        ranges = plan(Offsets.from_json(start), Offsets.from_json(end), addresses)
        return [Task(part) for part in cut(ranges, self._options.rows_per_task)]

    def _heads(self) -> dict[Lane, Head]:
        if self._watch is None:
            watch = Watch(self._cluster, self._options.discovery_seconds)
            self._all_answered = watch.start(tolerant=not self._options.lossless)
            self._watch = watch
        return self._watch.heads()

    def _missing(self, here: Offsets, heads: dict[Lane, Head]) -> dict[Lane, str]:
        """What has vanished. What was not there from the start on has, too, unless it may only be down."""
        assert self._watch is not None
        vanished = self._watch.vanished()
        if self._is_resumed:
            return vanished
        self._is_resumed = True
        for lane, place in here.lanes.items():
            if lane in heads or lane in vanished:
                continue
            why = "none of the nsqd that answer has it"
            if self._options.lossless:
                raise DataLoss(gone(lane, place, why))
            if self._all_answered and self._options.where.nsqd:
                vanished[lane] = why
        return vanished

    # Rows: in the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_ranges(partition.ranges, self._options, self._schema)
