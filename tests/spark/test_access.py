"""A topic behind TLS and tokens is written and read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pyspark_nsq.whole.test_access import guarded
from tests.support.spark import address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_topics_behind_tls_and_tokens_are_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    nsqd, access = guarded(tmp_path)
    with nsqd:
        where = {"nsqd": address(nsqd), "topic": "orders", **access}  # the plain port, whose 403 names the HTTPS port
        rows = spark.range(100).selectExpr("cast(id as string) as body")
        rows.write.format("nsq").mode("append").options(**where).save()
        assert spark.read.format("nsq").options(**where).load().count() == 100
        where["nsqd"] = f"https://127.0.0.1:{nsqd.https_address[1]}"
        assert spark.read.format("nsq").options(**where).load().count() == 100
