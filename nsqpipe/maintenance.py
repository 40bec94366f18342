"""What is done to Delta tables at times: small files into large ones, repeats out, a range of the logs once more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deltalake import write_deltalake
from pyspark.sql import functions as F

from nsqpipe import sources
from nsqpipe.standing import up_to_the_end
from nsqpipe.tables import Table, read_version
from nsqpipe.transforms import KEY, PARTITIONS, without_repeats

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from nsqpipe.shape import Shape
    from nsqpipe.sources import From


def compact(table: Table, *, target_bytes: int, keep: timedelta | None) -> dict[str, int]:
    """Joins small files; with `keep`, files that no version of so long ago needs are removed. Readers notice nothing."""
    delta = table.delta()
    metrics = delta.optimize.compact(target_size=target_bytes)
    removed: list[str] = []
    if keep is not None:
        hours = int(keep.total_seconds() // 3600)
        removed = delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
    return {
        "added": int(metrics["numFilesAdded"]),
        "removed": int(metrics["numFilesRemoved"]),
        "vacuumed": len(removed),
    }


def dedupe(spark: SparkSession, table: Table) -> dict[str, int]:
    """Rewrites the partitions in which a message lies twice, each in one commit and in the driver's memory."""
    rows = table.read(spark)
    repeated = rows.groupBy(*KEY, *PARTITIONS[1:]).count().where("count > 1")
    found = repeated.select(*PARTITIONS).distinct().collect()
    removed = sum(_dedupe_partition(spark, table.delta(), row.asDict()) for row in found)
    return {"partitions": len(found), "removed": removed}


def _dedupe_partition(spark: SparkSession, version: DeltaTable, values: dict[str, Any]) -> int:
    """Replaces what this version has there. What a stream appends meanwhile is in a later version, and stays."""
    here = read_version(spark, version)
    for name, value in values.items():
        here = here.where(F.col(name) == value)
    before, kept = here.count(), without_repeats(here).toArrow()
    predicate = " and ".join(f"{name} = '{value}'" for name, value in values.items())
    write_deltalake(version, kept, mode="overwrite", predicate=predicate)
    return before - int(kept.num_rows)


def backfill(spark: SparkSession, source: From, shape: Shape, table: Table, quarantine: Table) -> dict[str, int]:
    """Appends what the table and its quarantine do not have of a range of the logs; what they have is known by its key.

    What a stream that lands has not come to yet is left to it. Without that, landing would add it a second time.
    """
    within, left = up_to_the_end(source, table)  # before the tables are read, which then are as far at least
    found = {"added": 0, **({"quarantined": 0} if shape.can_fail else {}), "left_to_land": left}
    if within is not None:
        rows = sources.batch(spark, within)
        found["added"] = _append_missing(spark, shape.good(rows), table)
        if shape.can_fail:
            found["quarantined"] = _append_missing(spark, shape.bad(rows), quarantine)
    return found


def _append_missing(spark: SparkSession, rows: DataFrame, table: Table) -> int:
    if table.exists():
        rows = rows.join(table.read(spark).select(*KEY), list(KEY), "left_anti").select(*rows.columns)
    missing = rows.cache()  # what is counted is what is written, though a stream goes on beside us
    try:
        count = missing.count()
        if count:
            table.batch_writer(missing).save()
        return count
    finally:
        missing.unpersist()
