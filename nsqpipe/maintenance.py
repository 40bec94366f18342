"""Maintenance of Delta tables: joins small files, removes repeated messages, and backfills from the logs."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deltalake import write_deltalake
from pyspark.sql import functions as F

from nsqpipe.selection import check_selects
from nsqpipe.transforms import KEY, without_repeats
from pyspark_nsq.source import queries
from pyspark_nsq.tables.files import PARTITIONS
from pyspark_nsq.tables.sink import Overtaken, turn_of
from pyspark_nsq.tables.standing import up_to_the_end
from pyspark_nsq.tables.tending import tend
from pyspark_nsq.tables.upkeep import Policy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nsqpipe.shape import Shape
    from pyspark_nsq.source.queries import From
    from pyspark_nsq.tables.table import Table


def compact(table: Table, *, target_bytes: int, keep: timedelta | None) -> dict[str, int]:
    """Join small files. With `keep`, remove files that no later version needs, and leftovers of crashes.

    This disturbs neither readers, nor streams that write to the table, nor the upkeep of such a stream.
    """
    table.delta()  # raises if the table does not exist
    policy = Policy(
        target_bytes=target_bytes, closed_after=0, vacuum_after=None if keep is None else keep.total_seconds()
    )
    done = tend(table, policy, now=time.time(), vacuum_now=True)
    return {"added": done.made, "removed": done.joined, "vacuumed": done.removed}


def dedupe(spark: SparkSession, table: Table) -> dict[str, int]:
    """Rewrite partitions with repeated messages, each in one commit and in the driver's memory."""
    rows = table.read(spark)
    repeated = rows.groupBy(*KEY, *PARTITIONS[1:]).count().where("count > 1")
    found = repeated.select(*PARTITIONS).distinct().collect()
    removed = sum(_dedupe_partition(spark, table, row.asDict()) for row in found)
    return {"partitions": len(found), "removed": removed}


def _dedupe_partition(spark: SparkSession, table: Table, values: dict[str, Any]) -> int:
    """Replace this version's content of the partition.

    Rows appended by a stream in the meantime stay, because they are in a later version.
    """
    version = table.delta()
    here = table.read_version(spark, version)
    for name, value in values.items():
        here = here.where(F.col(name) == value)
    before, kept = here.count(), without_repeats(here).toArrow()
    predicate = " and ".join(f"{name} = '{value}'" for name, value in values.items())
    write_deltalake(version, kept, mode="overwrite", predicate=predicate)
    return before - int(kept.num_rows)


def backfill(spark: SparkSession, source: From, shape: Shape, table: Table, quarantine: Table) -> dict[str, int]:
    """Append messages of a range of the logs that the table and its quarantine lack, by their keys.

    Messages that landing hasn't reached yet are left to it, because it would add them a second time.
    """
    check_selects(table, shape.select)
    # The order matters, because a landing may begin after any step: turns first, so that we notice its first commit;
    # then the ends; then the tables' rows, which go at least as far as these ends.
    turns = {it.path: _turn(it) for it in (table, quarantine)}
    within, left = up_to_the_end(source, table)
    found = {"added": 0, **({"quarantined": 0} if shape.can_fail else {}), "left_to_land": left}
    if within is not None:
        rows = queries.batch(spark, within)
        found["added"] = _append_missing(spark, shape.good(rows), table, turns[table.path])
        if shape.can_fail:
            if _turn(table) != turns[table.path] + bool(found["added"]):  # our own commit has ended one turn
                raise Overtaken(table.path)
            found["quarantined"] = _append_missing(spark, shape.bad(rows), quarantine, turns[quarantine.path])
    return found


def _turn(table: Table) -> int:
    return turn_of(table.delta()) if table.exists() else 0


def _append_missing(spark: SparkSession, rows: DataFrame, table: Table, turn: int) -> int:
    """Append missing rows. Raises Overtaken if another backfill, a reland or a new landing came first."""
    if table.exists():
        there = table.read_version(spark, table.delta()).select(*KEY)
        rows = rows.join(there, list(KEY), "left_anti").select(*rows.columns)
    # Cached, so that we write the same rows that we count, even if a stream adds more.
    missing = rows.cache()
    try:
        count = missing.count()
        if count:
            table.batch_writer(missing).option("turn", str(turn)).save()
        return count
    finally:
        missing.unpersist()
