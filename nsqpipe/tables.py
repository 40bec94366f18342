"""Tables on disk: Delta, which commits with its rows, and Parquet as Spark's own file sink writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from nsqpipe.failures import PipeFailed
from nsqpipe.transforms import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter


class Format(StrEnum):
    DELTA = "delta"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Table:
    path: str
    format: Format
    checkpoint_path: str = ""

    @property
    def checkpoint(self) -> str:
        """Beside the table, unless said otherwise: the rows' place and the stream's belong together."""
        return self.checkpoint_path or f"{self.path.rstrip('/')}.checkpoint"

    def writer(self, rows: DataFrame, partitions: Sequence[str] = PARTITIONS) -> DataStreamWriter:
        if self.format is Format.DELTA:
            writer = rows.writeStream.format("nsqtable").option("partitioning", ",".join(partitions))
        else:
            writer = rows.writeStream.format("parquet").option("compression", "zstd").partitionBy(*partitions)
        return writer.option("path", self.path).outputMode("append")

    def read(self, spark: SparkSession) -> DataFrame:
        """What is in the table now. Of Delta exactly one version, though Spark here knows nothing of Delta."""
        if self.format is Format.PARQUET:
            if not is_parquet(self.path):
                raise PipeFailed(f"there is no table at {self.path}")
            return spark.read.parquet(self.path)
        table = self.delta()
        files = table.file_uris()
        if not files:
            raise PipeFailed(f"the table at {self.path} is empty")
        return spark.read.option("basePath", self.path).parquet(*files)

    def delta(self) -> DeltaTable:
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            raise PipeFailed(f"there is no Delta table at {self.path}") from None
        features = set(table.protocol().reader_features or ())
        if features & {"deletionVectors", "columnMapping"}:
            raise PipeFailed(f"the table at {self.path} uses {', '.join(sorted(features))}, which we cannot read")
        return table


def is_parquet(path: str) -> bool:
    """A local folder must be there; what lies elsewhere, Spark will say."""
    return "://" in path or (Path(path) / "_spark_metadata").is_dir() or any(Path(path).rglob("*.parquet"))


def table_at(path: str, spelled: Format | None = None) -> Table:
    """Delta where there is a Delta log; what is not there yet is made as it was asked for."""
    if spelled is not None:
        return Table(path, spelled)
    return Table(path, Format.DELTA if (Path(path) / "_delta_log").is_dir() else Format.PARQUET)
