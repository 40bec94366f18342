"""What is done to Delta tables at times: small files into large ones, repeats out, a range of the logs once more."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deltalake import write_deltalake
from pyspark.sql import functions as F

from nsqpipe import sources
from nsqpipe.selection import check_selects
from nsqpipe.standing import up_to_the_end
from nsqpipe.tending import tend
from nsqpipe.transforms import KEY, PARTITIONS, without_repeats
from nsqpipe.upkeep import Policy
from pyspark_nsqtable.sink import Overtaken, turn_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from nsqpipe.shape import Shape
    from nsqpipe.sources import From
    from nsqpipe.tables import Table


def compact(table: Table, *, target_bytes: int, keep: timedelta | None) -> dict[str, int]:
    """Joins small files; with `keep`, files are removed that no version of so long ago needs, or that a crash has left.

    Readers notice nothing, and neither do streams that write, nor an upkeep of theirs.
    """
    table.delta()  # raises when there is none
    policy = Policy(
        target_bytes=target_bytes, closed_after=0, vacuum_after=None if keep is None else keep.total_seconds()
    )
    done = tend(table, policy, now=time.time(), vacuum_now=True)
    return {"added": done.made, "removed": done.joined, "vacuumed": done.removed}


def dedupe(spark: SparkSession, table: Table) -> dict[str, int]:
    """Rewrites the partitions in which a message lies twice, each in one commit and in the driver's memory."""
    rows = table.read(spark)
    repeated = rows.groupBy(*KEY, *PARTITIONS[1:]).count().where("count > 1")
    found = repeated.select(*PARTITIONS).distinct().collect()
    removed = sum(_dedupe_partition(spark, table, row.asDict()) for row in found)
    return {"partitions": len(found), "removed": removed}


def _dedupe_partition(spark: SparkSession, table: Table, values: dict[str, Any]) -> int:
    """Replaces what this version has there. What a stream appends meanwhile is in a later version, and stays."""
    version = table.delta()
    here = table.read_version(spark, version)
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
    check_selects(table, shape.select)
    turns = {it.path: _turn(it) for it in (table, quarantine)}  # before the ends are: landing may begin after any step
    within, left = up_to_the_end(source, table)  # before the tables are read, which then are as far at least
    found = {"added": 0, **({"quarantined": 0} if shape.can_fail else {}), "left_to_land": left}
    if within is not None:
        rows = sources.batch(spark, within)
        found["added"] = _append_missing(spark, shape.good(rows), table, turns[table.path])
        if shape.can_fail:
            if _turn(table) != turns[table.path] + bool(found["added"]):  # our own rows have taken one
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
    missing = rows.cache()  # what is counted is what is written, though a stream goes on beside us
    try:
        count = missing.count()
        if count:
            table.batch_writer(missing).option("turn", str(turn)).save()
        return count
    finally:
        missing.unpersist()
