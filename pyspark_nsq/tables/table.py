"""The tables of jobs: Delta, Iceberg, and Parquet as Spark's own file sink writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Format as Format
from pyspark_nsq.tables.files import PARTITIONS
from pyspark_nsq.tables.reading import UNREADABLE, schema_of
from pyspark_nsq.tables.sink import BadTable, check_table
from pyspark_nsq.tables.table_name import TableName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class Table(TableName):
    """A table that jobs read and write."""

    def stream_writer(self, rows: DataFrame, partitions: Sequence[str] = PARTITIONS) -> DataStreamWriter:
        if self.format is Format.DELTA:
            self._check(rows, partitions)
            writer = rows.writeStream.format("nsqtable").option("partitioning", ",".join(partitions))
        else:
            writer = rows.writeStream.format("parquet").option("compression", "zstd").partitionBy(*partitions)
            return writer.option("path", self.place.for_spark()).outputMode("append")
        return writer.options(path=self.path, **self.place.access.as_options()).outputMode("append")

    def batch_writer(self, rows: DataFrame, partitions: Sequence[str] = PARTITIONS) -> DataFrameWriter:
        """Return a writer of new rows. For Delta only: readers of Parquet only see files by Spark's file sink."""
        self.need_delta()
        self._check(rows, partitions)
        writer = rows.write.format("nsqtable").option("partitioning", ",".join(partitions))
        return writer.options(path=self.path, **self.place.access.as_options()).mode("append")

    def _check(self, rows: DataFrame, partitions: Sequence[str]) -> None:
        """Check now if the rows fit: the sink only checks when it has something to commit."""
        check_table(self.place, to_arrow_schema(rows.schema, timezone="UTC"), tuple(partitions))

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the table's present rows."""
        if self.format is Format.ICEBERG:
            raise PipeFailed(f"{self.path}: Iceberg tables are not read here")
        if self.format is Format.DELTA:
            return self.read_version(spark, self.delta())
        path = self.place.for_spark()
        if self.place.is_local and not _is_parquet(path):  # in a store, Spark reports that there is none
            raise PipeFailed(f"there is no table at {self.path}")
        # On its own, Spark would read a folder topic=007 as a number.
        found = spark.read.parquet(path).schema
        schema = StructType([StructField(it.name, StringType() if it.name == "topic" else it.dataType) for it in found])
        return spark.read.schema(schema).parquet(path)

    def read_version(self, spark: SparkSession, table: DeltaTable) -> DataFrame:
        """Return the rows of exactly the version that `table` has loaded; Spark without jars can't read Delta.

        Spark's own Parquet reader reads local files, and skips columns and rows that a query doesn't need; it can't
        read an object store.
        """
        if not self.place.is_local:
            reader = spark.read.format("nsqtable").options(path=self.path, **self.place.access.as_options())
            return reader.option("version", str(table.version())).load()
        schema = schema_of(table)
        files = table.file_uris()
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).option("basePath", table.table_uri).parquet(*files)

    def delta(self) -> DeltaTable:
        """Open the table. Raises PipeFailed if it doesn't exist, or uses features that we can't read."""
        self.need_delta()
        try:
            table = DeltaTable(**self.place.for_delta())
        except TableNotFoundError:
            raise PipeFailed(f"there is no Delta table at {self.path}") from None
        if features := UNREADABLE.intersection(table.protocol().reader_features or ()):
            raise PipeFailed(f"the table at {self.path} uses {', '.join(sorted(features))}, which we cannot read")
        return table

    def exists(self) -> bool:
        self.need_delta()
        return DeltaTable.is_deltatable(**self.place.for_delta())

    def check_rows(self, rows: pa.Schema) -> None:
        """Raise PipeFailed if the table exists and can't store rows of this schema."""
        if self.format is Format.ICEBERG:
            from pyspark_nsq.tables import iceberg_tables  # imports pyiceberg

            iceberg_tables.check_rows(self, rows, PARTITIONS)
            return
        self.need_delta()
        try:
            check_table(self.place, rows, PARTITIONS)
        except BadTable as error:
            raise PipeFailed(str(error)) from None

    def sink_options(self, rows: pa.Schema) -> dict[str, str]:
        """Return the sink options that locate the table; create an Iceberg table.

        Raises the same PipeFailed as `check_rows`.
        """
        if self.format is Format.ICEBERG:
            from pyspark_nsq.tables import iceberg_tables  # imports pyiceberg

            return iceberg_tables.ready(self, rows, PARTITIONS)
        self.check_rows(rows)
        return {"path": self.path, **self.place.access.as_options()}

    def need_delta(self) -> None:
        if self.format is not Format.DELTA:
            raise PipeFailed(f"this needs a Delta table, but {self.path} is not one")


def table_at(path: str, spelled: Format | None = None, storage: Mapping[str, str] | None = None) -> Table:
    """Return the table at this path. Without a format, it is Delta if there is a Delta log, and otherwise Parquet."""
    table = Table(path, spelled or Format.DELTA, storage=storage or {})
    return table if spelled is not None or table.exists() else replace(table, format=Format.PARQUET)


def _is_parquet(path: str) -> bool:
    return (Path(path) / "_spark_metadata").is_dir() or any(Path(path).rglob("*.parquet"))
