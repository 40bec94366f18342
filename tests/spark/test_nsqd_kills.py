"""nsqd is killed while Spark waits for its answer, and nothing is missing or there twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from nsqpipe.land import prepare_landing, start_landing
from pyspark_nsq.source.queries import From
from tests.support.pipe import Pipeline
from tests.support.process import SteadyNsqd
from tests.support.spark import KEPT, PATIENCE, address, numbered, patiently, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 2_000  # messages on each node
ROWS = 250  # messages of a task, so that each node is asked more than once


@contextmanager
def no_free_slot(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Keep Spark's slots busy meanwhile, so that queries are planned, and none of their tasks runs."""
    slots = spark.sparkContext.defaultParallelism
    folder.mkdir()

    def wait_for_end(slot: int) -> None:
        (folder / f"taken-{slot}").touch()
        while not (folder / "ended").exists():
            time.sleep(0.01)  # a file gives no event to wait for

    busy = Thread(target=spark.sparkContext.parallelize(range(slots), slots).foreach, args=(wait_for_end,))
    busy.start()
    try:
        patiently(lambda: len(list(folder.iterdir())) == slots)
        yield
    finally:
        (folder / "ended").touch()
        busy.join(PATIENCE)


def test_nothing_is_missing_or_twice_when_each_nsqd_is_killed_while_spark_waits_for_its_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    with SteadyNsqd(tmp_path / "one", KEPT) as one, SteadyNsqd(tmp_path / "two", KEPT) as two:
        for node, start in ((one, 0), (two, COUNT)):
            publish(node, "orders", numbered(COUNT, start=start))
        # Without a look for other nodes, a planned query asks a node for nothing but messages.
        options = {"rowsPerTask": f"{ROWS}", "discoverySeconds": "3600"}
        source = From(topics=("orders",), nsqd=(address(one), address(two)), options=options)
        pipeline = Pipeline(spark, source, tmp_path)
        with ExitStack() as at_end:
            with no_free_slot(spark, tmp_path / "slots"):
                (query,) = start_landing(spark, prepare_landing(pipeline.job))
                at_end.callback(query.stop)
                patiently((pipeline.checkpoint / "offsets" / "0").exists)
                for node in (one, two):
                    node.send_signal(signal.SIGSTOP)
            alive = [one, two]
            while alive:
                asked = patiently(lambda: [node for node in alive if node.has_unread_requests])[0]
                asked.kill()
                asked.start()
                alive.remove(asked)
            assert query.awaitTermination(PATIENCE)
        assert pipeline.numbers() == list(range(2 * COUNT))
