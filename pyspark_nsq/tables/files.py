"""Writes rows into Parquet files, one for each combination of partition values, in Delta's layout of folders."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from pyspark_nsq.tables.statistics import Leaf, leaves, statistics, to_json

PARTITIONS: Final = ("topic", "date", "hour")  # of a landing table
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_MOST_OPEN: Final = 64  # files that a task has open; the rows of a quiet topic may each be of another hour
_WITHOUT_FOLDERS: Final = ("s3", "gcs", "abfs")  # stores where a folder would be a useless object
_CLIMBING: Final = (pa.types.is_integer, pa.types.is_timestamp)  # types whose values mostly grow from row to row
_DIFFERENT: Final = ("id",)  # text columns with distinct values

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file, as the table's log describes it."""

    path: str  # within the table
    size: int
    partition: tuple[tuple[str, str | None], ...]
    stats: str
    modified: int  # when it was finished, in milliseconds since 1970


class PartitionedWriter:
    """Writes batches into the files of one task. The files become part of the table when its log names them."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        columns: tuple[str, ...],
        prefix: str,
        *,
        keeps_columns: bool = False,
    ) -> None:
        """With `keeps_columns`, the files themselves have the partition columns, too."""
        self._filesystem = filesystem
        self._root = root
        self._columns = columns
        self._prefix = prefix
        self._keeps_columns = keeps_columns
        self._open: dict[Values, _OpenFile] = {}  # least recently written first
        self._finished: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for values, rows in _split(batch, self._columns):
            rows = rows if self._keeps_columns else rows.drop_columns(list(self._columns))
            file = self._open.pop(values, None) or self._new_file(values, rows.schema)
            self._open[values] = file
            file.write(rows)

    def finish(self) -> list[DataFile]:
        while self._open:
            self._finish_oldest()
        return self._finished

    def discard(self) -> None:
        for file in self._open.values():
            file.discard()
        for done in self._finished:
            self._filesystem.delete_file(f"{self._root}/{done.path}")

    def _finish_oldest(self) -> None:
        oldest = next(iter(self._open))
        self._finished.append(self._open[oldest].finish())
        del self._open[oldest]

    def _new_file(self, values: Values, schema: pa.Schema) -> _OpenFile:
        if len(self._open) >= _MOST_OPEN:
            self._finish_oldest()
        partition = tuple(zip(self._columns, values, strict=True))
        folders = "".join(
            f"{name}={quote(HIVE_NULL if value is None else value, safe='')}/" for name, value in partition
        )
        path = f"{folders}{self._prefix}-{uuid4().hex}.zstd.parquet"
        if self._filesystem.type_name not in _WITHOUT_FOLDERS:
            self._filesystem.create_dir(f"{self._root}/{folders}".rstrip("/"), recursive=True)
        return _OpenFile(self._filesystem, f"{self._root}/{path}", path, partition, schema)


class _OpenFile:
    def __init__(
        self,
        filesystem: FileSystem,
        full_path: str,
        path: str,
        partition: tuple[tuple[str, str | None], ...],
        schema: pa.Schema,
    ) -> None:
        self._filesystem = filesystem
        self._full_path = full_path
        self._path = path
        self._partition = partition
        self._leaves = leaves(schema)
        self._may_have_nan = [leaf for leaf in self._leaves if pa.types.is_floating(leaf.kind)]
        self._has_nan: set[Leaf] = set()
        self._sink = filesystem.open_output_stream(full_path)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", **_encoded(self._leaves))

    def write(self, rows: pa.RecordBatch) -> None:
        self._has_nan.update(leaf for leaf in self._may_have_nan if leaf not in self._has_nan and leaf.has_nan(rows))
        self._writer.write_batch(rows)

    def finish(self) -> DataFile:
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        stats = to_json(statistics(self._writer.writer.metadata, self._leaves, has_nan=self._has_nan))
        return DataFile(self._path, size, self._partition, stats, time.time_ns() // 1_000_000)

    def discard(self) -> None:
        self._writer.close()  # otherwise it would close itself, and write, when it is garbage collected
        self._sink.close()
        self._filesystem.delete_file(self._full_path)


def _encoded(columns: Iterable[Leaf]) -> dict[str, Any]:
    """Return Parquet's encoding options for these columns.

    Numbers and times mostly grow from row to row, so their differences are small. For values that differ in every row,
    like ids and bodies, a dictionary costs a third of the writing time and makes files larger.
    """
    climbing = [leaf.name for leaf in columns if any(holds(leaf.kind) for holds in _CLIMBING)]
    repeated = [leaf.name for leaf in columns if pa.types.is_string(leaf.kind) and leaf.name not in _DIFFERENT]
    return {
        "use_dictionary": repeated or False,
        "column_encoding": dict.fromkeys(climbing, "DELTA_BINARY_PACKED"),
        "write_statistics": [leaf.name for leaf in columns if leaf.has_range] or False,
    }


def _split(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield each combination of partition values with its rows."""
    if not columns:
        yield (), batch
        return
    if batch.num_rows and all(_is_constant(batch.column(name)) for name in columns):
        first = batch.slice(0, 1)
        yield tuple(_text(first.column(name))[0].as_py() for name in columns), batch
        return
    keys = pa.table([_text(batch.column(name)) for name in columns], names=list(columns))
    groups = keys.group_by(list(columns)).aggregate([])
    for found in groups.to_pylist():
        values = _values(found, columns)
        chosen = None
        for name, value in zip(columns, values, strict=True):
            column = keys.column(name)
            here = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            chosen = here if chosen is None else pc.and_(chosen, here)
        assert chosen is not None
        yield values, batch.filter(chosen.combine_chunks())


def _is_constant(column: pa.Array) -> bool:
    """Return True if all values are equal. The check pays off, because most batches belong to one partition."""
    if column.null_count:
        return int(column.null_count) == len(column)
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _text(column: pa.Array) -> pa.Array:
    """Return partition values as text, the form in Delta's log."""
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _values(found: Mapping[str, str | None], columns: Iterable[str]) -> Values:
    return tuple(found[name] for name in columns)
