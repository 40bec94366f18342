"""Builds streams from a job's settings: their sources and targets, and the parts around them.

Each function looks at the present tables and nodes. Spark is only needed to start the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqpipe import jobs
from nsqpipe.aggregate import Aggregate, start_aggregating
from nsqpipe.decoders import decoder_of
from nsqpipe.job_places import place_for
from nsqpipe.job_tables import table_for, tables_of
from nsqpipe.land import Land, prepare_landing, start_landing
from nsqpipe.ledger import Ledger
from nsqpipe.quality import load_rules
from nsqpipe.shape import Shape
from pyspark_nsq.kinds import Format, Late
from pyspark_nsq.tables.upkeep import Policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_nsq.tables.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The streams of one job, ready to start."""

    prefix: str  # prefix of the names of its queries; empty if there is only one job
    start: Callable[[SparkSession], Iterable[StreamingQuery]]
    ledger: Ledger
    # Options of the source; empty: we don't query nodes.
    source: Mapping[str, str] = field(default_factory=dict)
    table: Table | None = None  # target of rows
    tables: Sequence[Table] = ()  # tables that upkeep tends
    policy: Policy | None = None  # of the upkeep; None: no upkeep
    late: Late = Late.COUNT
    # Tables, by query, whose logs have the number of failed rows.
    landed: Mapping[str, Table] = field(default_factory=dict)

    def observe(self, query: str, report: dict[str, object]) -> None:
        if query.startswith(self.prefix):
            self.ledger.observe(query, report)


def streams_of(job: jobs.Land | jobs.Aggregate, name: str = "") -> Streams:
    """Return the streams of a job. Its queries' names begin with its name, if any. Raises PipeFailed."""
    return landing(job, name) if isinstance(job, jobs.Land) else aggregating(job, name)


def landing(job: jobs.Land, name: str = "") -> Streams:
    table, quarantine = tables_of(job)
    prefix = _prefix(name)
    prepared = prepare_landing(
        Land(
            source=job.source,
            table=table,
            quarantine=quarantine,
            shape=shape_of(job),
            every=job.every,
            until_now=job.until_now,
            is_remote=bool(job.remote),
            prefix=prefix,
        )
    )
    ledger = Ledger(name or "land", f"table {table.path}")
    ledger.watch("landed", table)
    if job.can_fail:
        ledger.watch("quarantined", quarantine)
    return Streams(
        prefix=prefix,
        start=lambda spark: start_landing(spark, prepared),
        ledger=ledger,
        source={} if job.remote else job.source.as_options(),
        table=table,
        tables=[table, quarantine] if job.can_fail else [table],
        policy=_policy(job),
        landed={f"{prefix}land": table} if job.can_fail and job.format is Format.DELTA and not job.remote else {},
    )


def aggregating(job: jobs.Aggregate, name: str = "") -> Streams:
    table = table_for(job, job.table, job.format) if job.table else None
    prefix = _prefix(name)
    aggregate = Aggregate(
        source=job.source,
        window_seconds=job.window,
        watermark_seconds=job.watermark,
        checkpoint=job.checkpoint,
        results=place_for(job, job.results) if job.results else None,
        keep=job.keep,
        table=table,
        every=job.every,
        until_now=job.until_now,
        prefix=prefix,
    )
    places = {"results": job.results, "table": job.table}
    ledger = Ledger(name or "aggregate", ", ".join(f"{what} {path}" for what, path in places.items() if path))
    if table is not None:
        ledger.watch("windows", table)
    return Streams(
        prefix=prefix,
        start=lambda spark: start_aggregating(spark, aggregate),
        ledger=ledger,
        source={} if job.remote else job.source.as_options(),
        table=table,
        tables=[table] if table is not None and table.format is Format.DELTA else [],
        policy=Policy(),
        late=job.late,
    )


def shape_of(job: jobs.Decoding) -> Shape:
    return Shape(
        decoder=decoder_of(job),
        rules=tuple(load_rules(job.rules)) if job.rules else (),
        select=job.select,
        drops_body=job.drop_body,
    )


def _prefix(name: str) -> str:
    return f"{name}." if name else ""


def _policy(job: jobs.Land) -> Policy | None:
    if job.no_upkeep or job.format is Format.PARQUET:
        return None
    vacuum_after = None if job.vacuum_hours < 0 else job.vacuum_hours * 3600.0
    return Policy(target_bytes=job.target_mb << 20, closed_after=job.closed_after, vacuum_after=vacuum_after)
