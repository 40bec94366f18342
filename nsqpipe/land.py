"""`nsqpipe land`: lands topics in a table, each message exactly once.

For Delta and Iceberg there is one query of ranges: the sink reads them, and writes good rows and failed ones into two
tables (`pyspark_nsq.tables.landing`). If Spark has to see the rows, for rules or a SELECT, they pass through it between
marks.

For Parquet, Spark's own file sink writes. It can write only one table, so if rows may fail there are two queries, each
with its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import to_arrow_schema

from nsqpipe.selection import check_selects
from nsqpipe.shape import Shape
from pyspark_nsq.options import source_options
from pyspark_nsq.source import queries
from pyspark_nsq.source.schema import default_schema
from pyspark_nsq.tables import landing, marks
from pyspark_nsq.tables.standing import check_standing, claim
from pyspark_nsq.tables.table import Format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_nsq.tables.table import Table


# Options of the source, unless the user sets them, or sets an interval with --every. Each batch adds a file to every
# partition that it touches, so a batch waits for this many rows, or this long.
SOURCE_OPTIONS: Final[Mapping[str, str]] = {"minRowsPerTrigger": "100000", "maxTriggerDelay": "60s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Land:
    source: queries.From
    table: Table
    quarantine: Table
    shape: Shape = field(default_factory=Shape)
    every: str = ""  # interval between batches; empty: as fast as possible
    until_now: bool = False  # read to the present end, then stop
    is_remote: bool = False  # over Spark Connect: paths are on the server, where we can't check them
    prefix: str = ""  # of the names of its queries


def prepare_landing(job: Land) -> Land:
    """Return the job with its starting offsets. Raises PipeFailed if tables and checkpoint disagree.

    This does not need Spark.
    """
    if job.is_remote:
        return job
    check_selects(job.table, job.shape.select)
    source = check_standing(job.source, job.table)
    if job.table.format is Format.PARQUET and job.shape.can_fail:
        check_standing(job.source, job.quarantine)
    return replace(job, source=source)


def start_landing(spark: SparkSession, job: Land) -> Iterator[StreamingQuery]:
    """Start the queries of a job from `prepare_landing`, one after another."""
    if not job.every:
        job = replace(job, source=queries.with_defaults(job.source, SOURCE_OPTIONS))
    source = _reporting(job, job.table, "land")
    if job.table.format is not Format.PARQUET:
        yield _started(_by_ranges(spark, replace(job, source=source)), job.table, "land", job)
        return
    writers = [(job.table, job.table.stream_writer(job.shape.good(queries.stream(spark, source))), "land")]
    if job.shape.can_fail:
        bad = job.shape.bad(queries.stream(spark, _reporting(job, job.quarantine, "quarantine")))
        writers.append((job.quarantine, job.quarantine.stream_writer(bad), "quarantine"))
    for table, _, _ in writers if not job.is_remote else ():
        claim(table)
    for table, writer, name in writers:
        yield _started(writer, table, name, job)


def _reporting(job: Land, table: Table, name: str) -> queries.From:
    into = str(table.place) if job.is_remote else table.absolute()
    return queries.reporting(job.source, name, into, table.format)


def _started(writer: DataStreamWriter, table: Table, name: str, job: Land) -> StreamingQuery:
    writer = writer.queryName(f"{job.prefix}{name}").option("checkpointLocation", table.checkpoint)
    return queries.triggered(writer, every=job.every, until_now=job.until_now).start()


def _by_ranges(spark: SparkSession, job: Land) -> DataStreamWriter:
    options = job.source.as_options()
    source = job.source if job.is_remote else queries.with_defaults(job.source, tasks_for(spark))
    ranges = queries.stream(spark, replace(source, options={**source.options, "ranges": "true"}))
    shape = job.shape
    if shape.needs_sql:
        read = source_options(options)
        marked = f"{default_schema(gap_rows=read.gap_rows, headers=read.include_headers)}, {marks.SCHEMA}"
        rows = shape.judged(ranges.mapInArrow(marks.Marking(read), marked))
        schemas = landing.seen_by_sql(to_arrow_schema(rows.schema, timezone="UTC"), drops_body=shape.drops_body)
        writer = rows.writeStream.format("nsqtable").option("judge", shape.judge)
    else:
        decoder = shape.decoder if shape.can_fail else None
        schemas = landing.schemas(source_options(options), decoder, drops_body=shape.drops_body)
        writer = ranges.writeStream.format("nsqtable")
        writer = writer.options(**{f"{landing.SOURCE}{name}": text for name, text in options.items()})
        if decoder is not None:
            writer = writer.option("decoder", landing.packed(decoder))
    good, bad = schemas
    if shape.can_fail:
        theirs = {f"{landing.QUARANTINE}{name}": text for name, text in job.quarantine.sink_options(bad).items()}
        writer = writer.options(quarantine=job.quarantine.path, dropBody=str(shape.drops_body).lower(), **theirs)
    return writer.options(**job.table.sink_options(good)).outputMode("append")


def tasks_for(spark: SparkSession) -> dict[str, str]:
    """Return the option that gives a large batch two tasks per core, so that no core is idle for long at its end.

    Nothing on a cluster: it may not have all its executors when a stream starts, and adds more when tasks wait.
    """
    context = spark.sparkContext
    return {"tasksPerBatch": str(2 * context.defaultParallelism)} if (context.master or "").startswith("local") else {}
