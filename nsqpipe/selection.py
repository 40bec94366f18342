"""`--select`: SQL for a table's columns, so that you can mask, omit or derive fields.

The columns for a message's origin always stay, because landing exactly once depends on them. The selected columns are
fields of a struct until the sink writes them, because one may have the name of a column that the quarantine needs
unchanged: `sha2(body, 256) as body`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_nsq.bodies.decoding import ERROR, VALUE
from pyspark_nsq.failures import PipeFailed, WrongUsage
from pyspark_nsq.kinds import Format
from pyspark_nsq.tables.marks import MARK, SELECTED
from pyspark_nsq.tables.shares import SELECTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_nsq.tables.table import Table

_BODY: Final = "body"
_REPLACED: Final = (_BODY, VALUE)  # replaced by the selected columns


def check_selects(table: Table, select: str) -> None:
    """Raise PipeFailed if the table was filled with --select and this job has none, which would add omitted fields."""
    if not select and _is_selected(table):
        raise PipeFailed(
            f"the table at {table.path} was filled with --select: give the same --select, or name another table"
        )


def _is_selected(table: Table) -> bool:
    """Return True if the table says that it was filled with --select. A Parquet table can't say so."""
    match table.format:
        case Format.DELTA:
            return table.exists() and table.delta().transaction_version(SELECTS) is not None
        case Format.ICEBERG:
            from pyspark_nsq.tables import iceberg_tables

            there = iceberg_tables.standing(table)
            return there is not None and there.is_selected
        case Format.PARQUET:
            return False


def with_selected(rows: DataFrame, select: str) -> DataFrame:
    """Add the selected columns of good rows, as a struct. Only rows that fail keep their bodies."""
    failed = F.col(ERROR).isNotNull() if ERROR in rows.columns else F.lit(False)
    is_mark = F.col(MARK).isNotNull() if MARK in rows.columns else F.lit(False)
    found = rows.withColumn(SELECTED, F.when(~failed & ~is_mark, F.expr(f"struct({select})")))
    kind = found.schema[SELECTED].dataType
    assert isinstance(kind, StructType)
    for problem in _problems(kind.names, [it for it in rows.columns if it not in _REPLACED], select):
        raise WrongUsage(f"--select {select!r}: {problem}")
    return found.withColumn(_BODY, F.when(failed, F.col(_BODY))).drop(VALUE)


def unfolded(rows: DataFrame) -> DataFrame:
    """Return the table's columns if Spark itself writes it."""
    kept = [it for it in rows.columns if it not in (_BODY, SELECTED)]
    return rows.select(*kept, f"{SELECTED}.*")


def _problems(names: Sequence[str], kept: Sequence[str], select: str) -> Iterator[str]:
    for place, name in enumerate(names, 1):
        if name in kept:
            yield f"the column {name} is kept as it is: select others, such as body, value or value.*"
        if name in names[: place - 1]:
            yield f"there are two columns {name}"
        if name == f"col{place}" and not re.search(rf"\b{name}\b", select):
            yield f"column {place} has no name: end it with `as NAME`"
