"""What is done to tables at times: small files into large ones, repeats out, a range landed once more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deltalake import write_deltalake

from nsqpipe import sources
from nsqpipe.failures import PipeFailed
from nsqpipe.tables import Format, Table
from nsqpipe.transforms import KEY, PARTITIONS, with_partitions, without_repeats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqpipe.sources import From


def compact(table: Table, *, target_bytes: int, keep: timedelta | None) -> dict[str, Any]:
    """Joins small files; with `keep`, files that no version of so long ago needs are removed. Readers notice nothing."""
    _delta_only(table, "compact")
    delta = table.delta()
    metrics = dict(delta.optimize.compact(target_size=target_bytes))
    removed: list[str] = []
    if keep is not None:
        hours = int(keep.total_seconds() // 3600)
        removed = delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
    return {"added": metrics["numFilesAdded"], "removed": metrics["numFilesRemoved"], "vacuumed": len(removed)}


def dedupe(spark: SparkSession, table: Table) -> dict[str, int]:
    """Rewrites the partitions in which a message lies twice, all in one commit."""
    _delta_only(table, "dedupe")
    rows = table.read(spark)
    repeated = rows.groupBy(*KEY).count().where("count > 1")
    found = rows.join(repeated.select(*KEY), list(KEY)).select(*PARTITIONS).distinct().collect()
    removed = 0
    for row in found:
        removed += _dedupe_partition(spark, table, row.asDict())
    return {"partitions": len(found), "removed": removed}


def _dedupe_partition(spark: SparkSession, table: Table, values: dict[str, Any]) -> int:
    here = table.read(spark)
    for name, value in values.items():
        here = here.where(here[name] == value)
    single = without_repeats(here)
    before, kept = here.count(), single.toArrow()
    predicate = " and ".join(
        f"{name} = '{value}'" if name != "hour" else f"hour = {value}" for name, value in values.items()
    )
    write_deltalake(table.path, kept, mode="overwrite", predicate=predicate)
    return before - kept.num_rows


def backfill(spark: SparkSession, source: From, table: Table) -> int:
    """Appends what the table does not have of a range of the logs. What it has is known by node and sequence."""
    _delta_only(table, "backfill")
    rows = with_partitions(sources.batch(spark, source))
    missing = rows.join(table.read(spark).select(*KEY), list(KEY), "left_anti").select(*rows.columns).cache()
    try:
        count = missing.count()
        if count:
            writer = missing.write.format("nsqtable").option("path", table.path)
            writer.option("partitioning", ",".join(PARTITIONS)).mode("append").save()
        return count
    finally:
        missing.unpersist()


def _delta_only(table: Table, job: str) -> None:
    if table.format is not Format.DELTA:
        raise PipeFailed(f"{job} needs a Delta table, and {table.path} is none")
