"""The listener counts queries that run without `nsqpipe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_nsq.listener import NsqListener
from tests.support.process import Nsqd
from tests.support.spark import KEPT, PATIENCE, address, numbered, patiently, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_queries_without_nsqpipe_are_watched(spark: SparkSession, tmp_path: Path) -> None:
    small = ("max-bytes-per-file=20000", "retention-bytes=40000")
    listener = NsqListener()
    spark.streams.addListener(listener)
    with Nsqd(tmp_path / "data", *small) as nsqd, Nsqd(tmp_path / "other", KEPT) as other:
        publish(nsqd, "orders", numbered(100, size=100))
        publish(other, "orders", numbered(100))
        nsqds = f"{address(nsqd)},{address(other)}"

        def run(name: str, **options: str) -> None:
            given = {"nsqd": nsqds, "topic": "orders", "failOnDataLoss": "false", **options}
            rows = spark.readStream.format("nsq").options(**given).load()
            writer = rows.writeStream.format("noop").queryName(name).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            assert query.awaitTermination(PATIENCE)

        run("first", startingOffsets="earliest")
        for start in range(100, 2100, 100):
            publish(nsqd, "orders", numbered(100, start=start, size=100))
        nsqd.post("/channel/create?topic=orders&channel=c")
        nsqd.post("/channel/empty?topic=orders&channel=c")
        first = patiently(lambda: max(0, int(nsqd.http("GET", "/topic/log?topic=orders").json["first"]) - 100))
        other.kill()
        run("second")
        with pytest.raises(Exception, match="no option startingoffset"):
            run("third", startingoffset="latest")
        patiently(lambda: not any(it.is_active for it in listener.states.snapshot().values()))
    spark.streams.removeListener(listener)
    found = listener.states.snapshot()
    assert (found["first"].rows, found["first"].lag, found["first"].starts, found["first"].failures) == (200, 0, 1, 0)
    assert found["second"].gap == first
    assert [*found["second"].missing] == [address(other)]
    assert found["second"].last_success is not None
    assert found["second"].commit_seconds > 0
