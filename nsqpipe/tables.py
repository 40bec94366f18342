"""Tables on disk: Delta, which commits with its rows, and Parquet as Spark's own file sink writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from nsqpipe.failures import PipeFailed
from nsqpipe.kinds import Format as Format
from nsqpipe.transforms import PARTITIONS
from pyspark_nsqtable.sink import check_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True)
class Table:
    path: str
    format: Format
    checkpoint_path: str = ""

    @property
    def checkpoint(self) -> str:
        """Beside the table, unless said otherwise: the rows' place and the stream's belong together."""
        return self.checkpoint_path or f"{self.path.rstrip('/')}.checkpoint"

    def stream_writer(self, rows: DataFrame, partitions: Sequence[str] = PARTITIONS) -> DataStreamWriter:
        if self.format is Format.DELTA:
            self._check(rows, partitions)
            writer = rows.writeStream.format("nsqtable").option("partitioning", ",".join(partitions))
        else:
            writer = rows.writeStream.format("parquet").option("compression", "zstd").partitionBy(*partitions)
        return writer.option("path", self.path).outputMode("append")

    def batch_writer(self, rows: DataFrame, partitions: Sequence[str] = PARTITIONS) -> DataFrameWriter:
        """Of Delta only: what Spark's file sink has not written, its readers do not see."""
        self.need_delta()
        self._check(rows, partitions)
        writer = rows.write.format("nsqtable").option("partitioning", ",".join(partitions))
        return writer.option("path", self.path).mode("append")

    def _check(self, rows: DataFrame, partitions: Sequence[str]) -> None:
        """The sink does it too, but only when it has something to commit."""
        check_table(self.path, to_arrow_schema(rows.schema, timezone="UTC"), tuple(partitions))

    def read(self, spark: SparkSession) -> DataFrame:
        """What is in the table now."""
        if self.format is Format.DELTA:
            return read_version(spark, self.delta())
        if not _is_parquet(self.path):
            raise PipeFailed(f"there is no table at {self.path}")
        # Left alone, Spark takes a folder topic=007 for a number.
        found = spark.read.parquet(self.path).schema
        schema = StructType([StructField(it.name, StringType() if it.name == "topic" else it.dataType) for it in found])
        return spark.read.schema(schema).parquet(self.path)

    def delta(self) -> DeltaTable:
        self.need_delta()
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            raise PipeFailed(f"there is no Delta table at {self.path}") from None
        features = set(table.protocol().reader_features or ()) & {"deletionVectors", "columnMapping"}
        if features:
            raise PipeFailed(f"the table at {self.path} uses {', '.join(sorted(features))}, which we cannot read")
        return table

    def exists(self) -> bool:
        self.need_delta()
        return DeltaTable.is_deltatable(self.path)

    def need_delta(self) -> None:
        if self.format is not Format.DELTA:
            raise PipeFailed(f"this needs a Delta table, and {self.path} is none")


def read_version(spark: SparkSession, table: DeltaTable) -> DataFrame:
    """Exactly the version that `table` stands for, though Spark here knows nothing of Delta."""
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    files = table.file_uris()
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", table.table_uri).parquet(*files)


def table_at(path: str, spelled: Format | None = None) -> Table:
    """Delta where there is a Delta log, unless said otherwise."""
    if spelled is not None:
        return Table(path, spelled)
    return Table(path, Format.DELTA if DeltaTable.is_deltatable(path) else Format.PARQUET)


def _is_parquet(path: str) -> bool:
    """A local folder must be there; what lies elsewhere, Spark will say."""
    return "://" in path or (Path(path) / "_spark_metadata").is_dir() or any(Path(path).rglob("*.parquet"))
