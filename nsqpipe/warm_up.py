"""`python -m nsqpipe.warm_up`: creates the archive with which Spark starts faster here (`nsqpipe.shared_classes`).

This takes a minute and 170 MB. Repeat it when Java or pyspark was replaced.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from nsqpipe.session import open_session
from nsqpipe.shared_classes import ARCHIVE, MAKE, asking
from nsqpipe.transforms import counted
from pyspark_nsq.failures import PipeFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit

_PATIENCE: Final = 600.0  # seconds; it takes a quarter of a minute on a quiet machine


def make_archive(log: IO[bytes] | None, archive: Path = ARCHIVE) -> None:
    """Run the kinds of queries that jobs run, and archive their classes. Raises PipeFailed.

    An existing archive stays in use until the new one is complete.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder) / archive.name
            os.environ.update(asking(MAKE, made, os.environ))
            _run_queries(open_session("warm-up", log=log), Path(folder))
            _end_jvm()
            if not made.exists():
                raise PipeFailed("Java has made no archive")
            made.replace(archive)
    except OSError as error:
        raise PipeFailed(f"{archive}: {error.strerror}") from None


def _end_jvm() -> None:
    """End the JVM by closing its standard input; it then writes the archive."""
    gateway: Any = SparkContext._gateway
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        raise PipeFailed(f"Java is still not done after {_PATIENCE:.0f} s") from None


def _run_queries(spark: SparkSession, folder: Path) -> None:
    """Run a landing query, with source and sink in Python, and a query that counts windows."""
    spark.dataSource.register(_Example)
    rows = spark.readStream.format(_Example.name()).load()
    windows = counted(rows, window_seconds=60, watermark_seconds=60)
    lands = rows.writeStream.format(_Example.name())
    counts = windows.writeStream.foreachBatch(_collect).outputMode("update")
    for number, writer in enumerate((lands, counts)):
        writer = writer.option("checkpointLocation", str(folder / str(number)))
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _collect(batch: DataFrame, _number: int) -> None:
    batch.collect()


class _Example(DataSource):
    """A source of ten messages, and a sink that discards rows."""

    @classmethod
    def name(cls) -> str:
        return "nsqpipe_example"

    def schema(self) -> str:
        return "topic string, node string, sequence bigint, timestamp timestamp, body binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Messages()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return _Nowhere()


class _Messages(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"end": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"end": 10}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(range(start["end"], end["end"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, int, datetime, bytes]]:
        for number in partition.value:
            yield "orders", "node", number, datetime.fromtimestamp(number, UTC), b"body"


class _Nowhere(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


if __name__ == "__main__":
    with tempfile.TemporaryFile() as log:
        try:
            make_archive(log)
        except PipeFailed as failure:
            sys.exit(f"nsqpipe.warm_up: {failure}")
