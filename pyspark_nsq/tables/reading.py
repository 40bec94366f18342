"""Reads Delta tables in Spark without a jar, in any store: `spark.read.format("nsqtable")`.

The pyspark wheel supports neither Delta nor object stores. The driver takes the list of files of one version from the
log, and each task reads one file with pyarrow, through the same `Place` that wrote it. No filters are pushed down, so
for a local table Spark's own Parquet reader is the better choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_nsq.stores.places import Place

_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 10_000
# Features of Delta for which a list of files isn't enough.
UNREADABLE: Final = frozenset(("deletionVectors", "columnMapping"))


@dataclass
class TableFile(InputPartition):
    """One file of the table, and its partition values."""

    path: str  # within the table
    values: dict[str, Any]


class TableReader(DataSourceReader):
    def __init__(self, place: Place, version: int | None, schema: StructType) -> None:
        self._place = place
        self._version = version
        self._schema = schema

    def partitions(self) -> list[TableFile]:
        table = DeltaTable(**self._place.for_delta(), version=self._version)
        actions = pa.table(table.get_add_actions())
        values = actions["partition"].to_pylist() if "partition" in actions.column_names else [{}] * len(actions)
        paths = [unquote(path) for path in actions["path"].to_pylist()]
        return [TableFile(path, found) for path, found in zip(paths, values, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableFile)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        filesystem, root = self._place.filesystem()
        yield from rows_of(filesystem, f"{root}/{partition.path}", schema, partition.values)


def rows_of(
    filesystem: FileSystem, path: str, schema: pa.Schema, values: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, with its partition values, and null in columns that are newer than the file."""
    with filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
        there = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(_rows_of_a_batch(file), columns=there):
            columns = [_column(batch, field, values) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def schema_of(table: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


def _rows_of_a_batch(file: pq.ParquetFile) -> int:
    """Return how many rows fit into a batch of 8 MiB, because a body may have a megabyte."""
    found = file.metadata
    size = sum(int(found.row_group(number).total_byte_size) for number in range(found.num_row_groups))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * int(found.num_rows) // max(1, size)))


def _column(batch: pa.RecordBatch, field: pa.Field, values: Mapping[str, Any]) -> pa.Array:
    if field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    return pa.repeat(pa.scalar(values.get(field.name), field.type), batch.num_rows)
