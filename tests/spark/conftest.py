"""One Spark session for all tests in here: it takes ten seconds to start, and one process gets all of these tests.

Which process that is: `tests/support/distribution.py`. A test that starts a JVM of its own says why by the mark
`own_jvm`; without the mark it finds no Java.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from nsqpipe.worker_python import worker_python
from tests.support.kept import no_other_jvm, node, nsqd, orders
from tests.support.process import SOURCES
from tests.support.py4j_names import names_kept
from tests.support.spark_workers import workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_other_jvm", "node", "nsqd", "orders", "spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    with workers() if sys.platform == "linux" else nullcontext(worker_python()) as python, names_kept():
        environ = {
            # An editable install is found by an import hook, which Spark's search for sources does not use.
            "PYTHONPATH": SOURCES,
            # Spark takes the driver's for the sources, and the other one for what runs in tasks.
            "PYSPARK_DRIVER_PYTHON": python,
            "PYSPARK_PYTHON": python,
        }
        with patch.dict(os.environ, environ):  # for the JVM alone: other tests of this process start programs, too
            session = _started(folder / "warehouse")
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
        # It writes, compiles and loads classes for each query, which takes longer than these have to run.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
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
