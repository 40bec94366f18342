"""Whether a JVM uses the archive of Spark's classes. `bench` measures whether that makes it faster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqpipe.shared_classes import ARCHIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_uses_the_archive(spark: SparkSession) -> None:
    if not ARCHIVE.exists() and "CI" not in os.environ:
        pytest.skip("there is no archive: python -m nsqpipe.warm_up makes it")
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr,unused-ignore]
    assert str(ARCHIVE) in Path(f"/proc/{pid}/maps").read_text()
