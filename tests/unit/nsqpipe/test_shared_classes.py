"""Whether a JVM uses the archive of Spark's classes. `bench` measures whether that makes it faster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqpipe.shared_classes import ARCHIVE, VARIABLE, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_archive_is_named_beside_what_was_said(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    assert environment(archive, {}) == {}
    archive.touch()
    assert environment(archive, {})[VARIABLE].startswith(f"-XX:SharedArchiveFile={archive} ")
    assert environment(archive, {VARIABLE: "-Da=b"})[VARIABLE].startswith(f"-Da=b -XX:SharedArchiveFile={archive} ")


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=mine", "-XX:ArchiveClassesAtExit=mine"])
def test_an_archive_that_was_asked_for_stays(option: str, tmp_path: Path) -> None:
    (tmp_path / "spark.jsa").touch()
    assert environment(tmp_path / "spark.jsa", {VARIABLE: option}) == {}


def test_spark_uses_the_archive(spark: SparkSession) -> None:
    if not ARCHIVE.exists() and "CI" not in os.environ:
        pytest.skip("there is no archive: python -m nsqpipe.warm_up makes it")
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr,unused-ignore]
    assert str(ARCHIVE) in Path(f"/proc/{pid}/maps").read_text()
