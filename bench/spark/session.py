"""The Spark session that is measured: local, with the settings that docs/how-to/spark.md recommends for local disks."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.work import HOST, ROOT, Failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def open_session(folder: Path) -> SparkSession:
    if shutil.which("java") is None:
        raise Failed("Spark needs Java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Failed("pyspark is missing: scripts/setup dev,spark") from None
    session = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", HOST)
        .config("spark.driver.bindAddress", HOST)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # a stream that is stopped in the middle of a batch logs much
    return session
