"""`spark.readStream.format("nsq")`: batch by batch, again after a crash, and while nodes come and go."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Nsqd
from tests.support.spark import (
    KEPT,
    PATIENCE,
    address,
    drain,
    flip_a_byte_of,
    lane_of,
    next_of,
    numbered,
    patiently,
    publish,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Landing:
    """A query from a topic into a folder of Parquet, which can be stopped and started again."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        self._options = {"topic": "orders", "discoverySeconds": 1, **options}
        self._schema = "topic string, node string, sequence bigint, body binary"
        if str(options.get("gapRows")) == "true":
            self._schema += ", gap struct<end: bigint, reason: string>"

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("nsq").schema(self._schema).options(**self._options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start(str(self.table))

    def run(self) -> list[Any]:
        """Land everything that is there, and return the progress of each batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(PATIENCE)
        return list(query.recentProgress)

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = self.start()
        try:
            yield query
        finally:
            query.stop()

    @property
    def rows(self) -> DataFrame:
        return self._spark.read.schema(self._schema).parquet(str(self.table))

    def has_landed(self, count: int) -> Callable[[], bool]:
        """Return a condition to wait for: so many rows are committed. It looks at them only after another commit."""
        seen: set[Path] = set()

        def look() -> bool:
            nonlocal seen
            before, seen = seen, {*(self.table / "_spark_metadata").glob("[0-9]*")}
            return seen != before and self.rows.count() == count

        return look

    def bodies(self) -> list[int]:
        return sorted(int(bytes(row.body)) for row in self.rows.where("body is not null").select("body").collect())

    def gaps(self) -> list[tuple[int, int | None, str]]:
        return [(row.sequence, row.gap.end, row.gap.reason) for row in self.rows.where("gap is not null").collect()]

    def forget_commit(self, batch: int) -> None:
        """Remove Spark's commit, as if the driver had died after the sink's commit."""
        for path in (self.checkpoint / "commits").glob(f"*{batch}*"):
            path.unlink()

    def forget_batch_of_sink(self, batch: int) -> None:
        """Remove the sink's commit, as if the driver had died before it."""
        for path in (self.table / "_spark_metadata").glob(f"*{batch}*"):
            path.unlink()


def test_all_that_is_there_lands_once_in_batches_of_the_size_asked_for(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(2500))
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), maxRowsPerTrigger=1000)
    assert [it["numInputRows"] for it in landing.run() if it["numInputRows"]] == [1000, 1000, 500]
    publish(nsqd, "orders", numbered(10, start=2500))
    landing.run()
    assert landing.bodies() == list(range(2510))


def test_a_running_query_follows(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(1))
    landing = Landing(spark, tmp_path, nsqd=address(nsqd))
    with landing.running():
        for start in range(1, 4):
            publish(nsqd, "orders", numbered(1, start=start))
            patiently(landing.has_landed(start + 1))
    assert landing.bodies() == [0, 1, 2, 3]


@pytest.mark.parametrize("start", ["latest", "time"])
def test_a_first_batch_that_is_replayed_is_the_same_batch(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, start: str
) -> None:
    publish(nsqd, "orders", numbered(5))
    options = {"startingOffsets": "latest"} if start == "latest" else {"startingTimestamp": "2100-01-01T00:00:00Z"}
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), **options)
    with landing.running() as query:
        patiently(lambda: (landing.checkpoint / "commits" / "0").exists())
        publish(nsqd, "orders", numbered(5, start=5))
        patiently(landing.has_landed(5))
    del query
    before = landing.rows.collect()
    # The first batch with data becomes the first of all, so it is planned from a new initial offset.
    last = max(int(path.name) for path in (landing.checkpoint / "offsets").glob("[0-9]*"))
    ends = (landing.checkpoint / "offsets" / str(last)).read_text().splitlines()
    begun = json.loads((landing.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    end = json.loads(ends[-1])
    end["begins"] = begun["begins"]
    for folder in ("offsets", "commits"):
        shutil.rmtree(landing.checkpoint / folder)
    shutil.rmtree(landing.table)
    (landing.checkpoint / "offsets").mkdir()
    (landing.checkpoint / "offsets" / "0").write_text("\n".join([*ends[:-1], json.dumps(end)]))
    publish(nsqd, "orders", numbered(5, start=10))
    landing.run()
    assert landing.bodies() == list(range(5, 15))
    assert {row.sequence for row in before} <= {row.sequence for row in landing.rows.collect()}


@pytest.mark.parametrize("sink_knows", [True, False])
def test_a_batch_whose_commit_was_lost_lands_once(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, sink_knows: bool
) -> None:
    publish(nsqd, "orders", numbered(300))
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), maxRowsPerTrigger=100)
    landing.run()
    landing.forget_commit(2)
    if not sink_knows:
        landing.forget_batch_of_sink(2)
    publish(nsqd, "orders", numbered(50, start=300))
    landing.run()
    assert landing.bodies() == list(range(350))


def test_a_limited_batch_has_the_oldest_messages_of_all_lanes(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "busy", numbered(1500))
    publish(nsqd, "quiet", numbered(100))
    publish(nsqd, "busy", numbered(1500, start=1500))
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), topic="busy,quiet", maxRowsPerTrigger=1000)
    busy, quiet = lane_of(nsqd, "busy"), lane_of(nsqd, "quiet")
    ends = [json.loads(report["sources"][0]["endOffset"])["lanes"] for report in landing.run()]
    assert 0 < ends[0][busy] <= 1000
    for end in ends:  # neither lane runs ahead of the other
        assert end[quiet] == 0 or end[busy] >= 1500
        assert end[busy] <= 1500 or end[quiet] == 100
    assert landing.rows.groupBy("topic").count().orderBy("topic").collect() == [("busy", 3000), ("quiet", 100)]


# Nodes that come and go


def test_a_node_that_joins_is_read_from_its_first_message(spark: SparkSession, tmp_path: Path) -> None:
    from tests.support.process import Nsqlookupd

    with Nsqlookupd() as lookupd:
        lookup = f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"
        local = "broadcast-address=127.0.0.1"
        with Nsqd(tmp_path / "one", KEPT, lookup, local) as one, Nsqd(tmp_path / "two", KEPT, lookup, local) as two:
            publish(one, "orders", numbered(10))
            patiently(lambda: lookupd.producers("orders") == {one.tcp[1]})
            landing = Landing(spark, tmp_path, lookupd=f"127.0.0.1:{lookupd.http_address[1]}")
            with landing.running():
                patiently(landing.has_landed(10))
                publish(two, "orders", numbered(10, start=10))
                patiently(landing.has_landed(20))
                one.kill()
                publish(two, "orders", numbered(10, start=20))
                patiently(landing.has_landed(30))
            assert landing.bodies() == list(range(30))


def test_a_node_that_is_drained_read_to_its_end_and_gone_is_no_loss_and_one_that_is_not_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    from tests.support.process import Nsqlookupd

    with Nsqlookupd() as lookupd:
        options = (KEPT, f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}", "broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "one", *options) as one, Nsqd(tmp_path / "two", *options) as two:
            publish(one, "orders", numbered(10))
            publish(two, "orders", numbered(10, start=10))
            patiently(lambda: len(lookupd.producers("orders")) == 2)
            landing = Landing(spark, tmp_path, lookupd=f"127.0.0.1:{lookupd.http_address[1]}", maxRowsPerTrigger=20)
            landing.run()
            drain(one, "orders", "stay=1h&retire=true")
            landing.run()
            one.kill()
            publish(two, "orders", numbered(40, start=20))
            landing.run()
            assert landing.bodies() == list(range(60))
            lane = lane_of(two, "orders")
            publish(two, "orders", numbered(25, start=60))
            drain(two, "orders", "stay=1h&retire=true")
            query = landing.start(processingTime="1 hour")  # takes one batch, of 20
            landed = landing.has_landed(80)
            patiently(lambda: landed() or query.exception())
            query.stop()
            two.kill()
            with Nsqd(tmp_path / "three", *options) as three:
                publish(three, "orders", numbered(1))
                with pytest.raises(Exception, match=rf"lane {lane}: 5 messages \[70, 75\) cannot be read"):
                    landing.run()


def test_a_drained_node_that_is_started_again_is_read_on(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(10))
    drain(nsqd, "orders")
    landing = Landing(spark, tmp_path, nsqd=address(nsqd))
    landing.run()
    nsqd.kill()
    publish(nsqd.start(), "orders", numbered(10, start=10))
    landing.run()
    assert landing.bodies() == list(range(20))


def wiped(nsqd: Nsqd, *more: str) -> Nsqd:
    """Replace the node by one with the same address and another data path."""
    nsqd.kill()
    shutil.rmtree(nsqd.data_path)
    nsqd.options = (*nsqd.options, *more)
    return nsqd.start()


def test_a_wiped_data_path_is_an_error_that_names_the_lane(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(10))
    lane = lane_of(nsqd, "orders")
    landing = Landing(spark, tmp_path, nsqd=address(nsqd))
    query = landing.start()
    try:
        patiently(landing.has_landed(10))
        publish(wiped(nsqd), "orders", numbered(10, start=10))
        with pytest.raises(Exception, match=rf"lane {lane}: everything from 10 on cannot be read"):
            query.awaitTermination(PATIENCE)
    finally:
        query.stop()
    with pytest.raises(Exception, match=rf"lane {lane}: everything from 10 on cannot be read: none of the nsqd"):
        landing.run()


def test_with_loss_allowed_a_wiped_data_path_is_a_gap(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(10))
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), failOnDataLoss="false", gapRows="true")
    with landing.running():
        patiently(landing.has_landed(10))
        publish(wiped(nsqd), "orders", numbered(10, start=10))
        patiently(landing.has_landed(21))
    assert landing.bodies() == list(range(20))
    assert landing.gaps() == [(10, None, "vanished")]


def test_with_loss_allowed_a_batch_that_is_run_again_goes_on_without_a_lane_that_vanished(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(10))
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), failOnDataLoss="false", gapRows="true")
    landing.run()
    landing.forget_commit(0)
    landing.forget_batch_of_sink(0)
    publish(wiped(nsqd), "orders", numbered(10, start=10))
    landing.run()
    assert landing.bodies() == list(range(10, 20))
    assert sorted(landing.gaps()) == [(0, 10, "vanished"), (10, None, "vanished")]


@pytest.mark.parametrize("lossless", ["true", "false"])
@pytest.mark.parametrize(
    ("topic", "options", "says"),
    [
        ("nothing", (KEPT,), "there is no topic nothing at 127.0.0.1"),
        ("orders", (), "retention is off for topic orders at"),
    ],
)
def test_what_is_wrong_is_said_at_the_start_of_a_stream(
    spark: SparkSession, tmp_path: Path, topic: str, options: tuple[str, ...], says: str, lossless: str
) -> None:
    with Nsqd(tmp_path / "data", *options) as nsqd:
        nsqd.post("/topic/create?topic=orders")
        with pytest.raises(Exception, match=says):
            Landing(spark, tmp_path, nsqd=address(nsqd), topic=topic, failOnDataLoss=lossless).run()


SMALL_FILES = ("max-bytes-per-file=20000", "retention-bytes=40000")


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Nsqd]:
    """Run an nsqd that keeps about 40 kB behind its channel."""
    with Nsqd(tmp_path / "forgetful", *SMALL_FILES) as nsqd:
        yield nsqd


def overtaken(spark: SparkSession, nsqd: Nsqd, folder: Path, **options: str) -> tuple[Landing, int]:
    """Return a checkpoint that retention has passed, and what is left."""
    publish(nsqd, "orders", numbered(100, size=100))
    landing = Landing(spark, folder, nsqd=address(nsqd), **options)
    landing.run()
    for start in range(100, 2100, 100):
        publish(nsqd, "orders", numbered(100, start=start, size=100))
    nsqd.post("/channel/create?topic=orders&channel=c")
    nsqd.post("/channel/empty?topic=orders&channel=c")
    first = patiently(lambda: first_of(nsqd))
    return landing, first


def first_of(nsqd: Nsqd) -> int:
    found = nsqd.http("GET", "/topic/log?topic=orders").json["first"]
    return int(found) if found > 100 else 0


def test_retention_that_passes_a_checkpoint_is_an_error_that_names_lane_and_range(
    spark: SparkSession, forgetful: Nsqd, tmp_path: Path
) -> None:
    landing, first = overtaken(spark, forgetful, tmp_path)
    with pytest.raises(
        Exception, match=rf"lane {lane_of(forgetful, 'orders')}: messages \[100, {first}\) were removed"
    ):
        landing.run()


def test_with_loss_allowed_what_retention_removed_is_a_counted_gap(
    spark: SparkSession, forgetful: Nsqd, tmp_path: Path
) -> None:
    landing, first = overtaken(spark, forgetful, tmp_path, failOnDataLoss="false", gapRows="true")
    landing.run()
    assert landing.bodies() == [*range(100), *range(first, 2100)]
    assert landing.gaps() == [(100, first, "removed")]


# Damage


def test_a_flipped_byte_fails_the_query_with_lane_and_sequence(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    for number in range(9):
        publish(nsqd, "orders", [b"%d00000" % number] * 10)
    flip_a_byte_of(nsqd, b"400000")
    landing = Landing(spark, tmp_path, nsqd=address(nsqd))
    with pytest.raises(Exception, match=rf"lane {lane_of(nsqd, 'orders')}: messages \[40, 50\) are damaged"):
        landing.run()


def test_damage_that_is_skipped_is_a_gap(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    for number in range(9):
        publish(nsqd, "orders", [b"%d00000" % number] * 10)
    flip_a_byte_of(nsqd, b"400000")
    landing = Landing(spark, tmp_path, nsqd=address(nsqd), skipCorrupt="true", gapRows="true")
    landing.run()
    assert landing.gaps() == [(40, 50, "damaged")]
    assert landing.rows.where("body is not null").count() == 80
    assert next_of(nsqd, "orders") == 90
