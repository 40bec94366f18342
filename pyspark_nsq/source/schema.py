"""The columns of the source. A user's own schema may have any of them, in any order, each with its own type."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_nsq.errors import BadOption
from pyspark_nsq.source.rows import ALL_COLUMNS, GAP_COLUMN, HEADERS_COLUMN

_TYPES = {
    "topic": "string",
    "node": "string",
    "sequence": "bigint",
    "id": "string",
    "timestamp": "timestamp",
    "body": "binary",
    HEADERS_COLUMN: "map<string, binary>",
    GAP_COLUMN: "struct<end: bigint, reason: string>",
}


def default_schema(*, gap_rows: bool, headers: bool) -> str:
    """Return all columns, as DDL; those for gaps and headers only with the options `gapRows` and `includeHeaders`."""
    left_out = {GAP_COLUMN: not gap_rows, HEADERS_COLUMN: not headers}
    return ", ".join(f"{name} {kind}" for name, kind in _TYPES.items() if not left_out.get(name))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the rows that Spark expects. Raises BadOption for unknown columns and other types.

    Only these columns are built, so columns that a user's own schema leaves out cost nothing.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        if field.name not in ALL_COLUMNS:
            raise BadOption(f"the source has no column {field.name}; it has: {', '.join(ALL_COLUMNS)}")
        if field.type != ALL_COLUMNS[field.name]:
            raise BadOption(f"column {field.name} is {_TYPES[field.name]}, and cannot be read as {field.type}")
    if not len(wanted):
        raise BadOption(f"a schema needs at least one column of: {', '.join(ALL_COLUMNS)}")
    return wanted
