"""`spark.read.format("nsq")`: reads ranges of lanes that are fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane, Offsets, Range, plan, resolve, split_into_tasks
from pyspark_nsq.options import SourceOptions
from pyspark_nsq.source.profiles import Profiles
from pyspark_nsq.source.reading import read_ranges

ROWS_PER_TASK: Final = 500_000  # a task costs as much as reading 20,000 rows, before it reads the first one


@dataclass
class Task(InputPartition):
    """The ranges for one Spark task."""

    ranges: tuple[Range, ...]
    opening: frozenset[tuple[Lane, int]] = frozenset()  # lanes first read by this batch, and from where


class NsqBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = Cluster(options, Http(options.access))
        heads = cluster.heads()
        find = cluster.sequence_at
        begins = resolve(options.start, heads, find, option="startingOffsets", lossless=options.lossless)
        ends = resolve(options.end, heads, find, option="endingOffsets", lossless=options.lossless)
        ends = {lane: max(end, begins[lane]) for lane, end in ends.items()}
        addresses = {lane: head.address for lane, head in heads.items()}
        ranges = plan(Offsets(begins), Offsets(ends), addresses)
        size = options.bytes_per_task
        marks = Profiles(cluster).marks(ranges, heads, size)
        tasks = split_into_tasks(ranges, options.rows_per_task or ROWS_PER_TASK, bytes_per_task=size, marks=marks)
        return [Task(ranges) for ranges in tasks] or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return read_ranges(partition.ranges, self._options, self._schema)
