"""The short version of `python -m tests.spark.million`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark import million

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_new_queries_read_all_from_the_first_message_and_disturb_no_channel(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = million.run(spark, tmp_path, 5_000)
    assert result.is_right, str(result)
