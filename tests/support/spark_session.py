"""A small Spark session in this process, for short queries: the one that all tests share, and those of long forms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from nsqpipe.worker_python import worker_python
from tests.support.process import SOURCES
from tests.support.spark import NO_CODEGEN
from tests.support.spark_workers import workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(warehouse: Path) -> Iterator[SparkSession]:
    """Start a session, and stop it at the end. A process can have one at a time."""
    with workers() if sys.platform == "linux" else nullcontext(worker_python()) as python:
        environ = {
            # An editable install is found by an import hook, which Spark's search for sources does not use.
            "PYTHONPATH": SOURCES,
            # Spark takes the driver's for the sources, and the other one for what runs in tasks.
            "PYSPARK_DRIVER_PYTHON": python,
            "PYSPARK_PYTHON": python,
        }
        with patch.dict(os.environ, environ):  # for the JVM alone: others in this process start programs, too
            session = _started(warehouse)
        yield session
        session.stop()


def _started(warehouse: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")  # of test_connect.py
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map={**NO_CODEGEN})
        # A stream that has nothing to do asks its nodes a hundred times a second whether there is something.
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
