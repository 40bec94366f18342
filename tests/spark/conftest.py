"""One Spark session for all tests of a process: it takes ten seconds to start.

Where Java or pyspark is missing the tests are skipped and say so; where CI is set, that is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsqpipe.worker_python import worker_python
from tests.support.needs import missing, need
from tests.support.process import SOURCES, Nsqd
from tests.support.spark import KEPT, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.orders import Orders

NEEDED = ("Java", "pyspark", "pyarrow")  # the packages come with `scripts/setup dev,spark`


class _Skipped(pytest.Module):
    def collect(self) -> Iterator[Any]:
        need(*NEEDED)
        yield from ()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _Skipped.from_parent(parent, path=module_path) if missing(*NEEDED) else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    # An editable install is found by an import hook, which Spark's search for sources does not use.
    os.environ["PYTHONPATH"] = SOURCES
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python(), sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "data", KEPT) as process:
        yield process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("node") / "data", KEPT) as process:
        yield process


@pytest.fixture
def orders(node: Nsqd, request: pytest.FixtureRequest) -> Orders:
    """Return a topic of its own for each test."""
    from tests.support.orders import Orders

    topic = request.node.name.partition("[")[0][-60:]
    publish(node, topic, numbered(100))
    return Orders(node, topic)
