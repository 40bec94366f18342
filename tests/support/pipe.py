"""What tests of nsqpipe share: its command in this process, running jobs to their end, and reading tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.testing import CliRunner, Result

from nsqpipe.cli import app
from nsqpipe.land import Land, prepare_landing, start_landing
from nsqpipe.running import Observer, run_queries
from nsqpipe.shape import Shape
from pyspark_nsq.source.queries import From
from pyspark_nsq.tables.table import Format, Table
from tests.support.process import Nsqd
from tests.support.spark import address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


IN_FOLDERS: Final = (Format.DELTA, Format.PARQUET)  # the formats whose tables are folders; Iceberg's are in a catalog


def nsqpipe(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def source_of(nsqd: Nsqd, topic: str, **options: Any) -> From:
    return From(topics=(topic,), nsqd=(address(nsqd),), options={name: str(value) for name, value in options.items()})


class Pipeline:
    """A topic that is landed in a folder, with a quarantine."""

    def __init__(
        self,
        spark: SparkSession,
        source: From,
        folder: Path,
        *,
        kind: Format = Format.DELTA,
        shape: Shape | None = None,
    ) -> None:
        self.spark = spark
        self.job = Land(
            source=source,
            table=Table(str(folder / "table"), kind),
            quarantine=Table(str(folder / "table.quarantine"), kind),
            shape=shape or Shape(),
            until_now=True,
        )

    def move(self, table: Table, quarantine: Table) -> None:
        """Move the tables to this place."""
        self.job = replace(self.job, table=table, quarantine=quarantine)

    @property
    def table(self) -> Table:
        return self.job.table

    @property
    def quarantine(self) -> Table:
        return self.job.quarantine

    @property
    def checkpoint(self) -> Path:
        return Path(self.table.checkpoint)

    def land(self, *observers: Observer) -> None:
        """Land all messages that are there now."""
        job = prepare_landing(self.job)
        run_queries(self.spark, lambda: start_landing(self.spark, job), observers=observers)

    @property
    def rows(self) -> DataFrame:
        return self.table.read(self.spark)

    def numbers(self) -> list[int]:
        """Return the numbers of the bodies in the table, each as often as it is there."""
        return sorted(int(bytes(row.body)) for row in self.rows.select("body").collect())

    def forget_commit(self, batch: int) -> None:
        """Remove Spark's own commit, as if the driver had died after the table's commit."""
        for name in (str(batch), f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def last_batch(self) -> int:
        return max(int(path.name) for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit())

    def reached(self) -> dict[str, int]:
        lines = (self.checkpoint / "offsets" / str(self.last_batch())).read_text().splitlines()
        return dict(json.loads(lines[2])["lanes"])
