"""`spark.read.format("nsq")` on a real nsqd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import Nsqd
from tests.support.spark import KEPT, address, lane_of, next_of, numbered, patiently, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, nsqd: Nsqd, topic: str = "orders", **options: Any) -> DataFrame:
    return spark.read.format("nsq").options(nsqd=address(nsqd), topic=topic, **options).load()


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def test_every_message_is_a_row(spark: SparkSession, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", [b"one", b"\x00\xff", b"three"])
    rows = read(spark, nsqd).orderBy("sequence").collect()
    assert [bytes(row.body) for row in rows] == [b"one", b"\x00\xff", b"three"]
    assert [row.sequence for row in rows] == [0, 1, 2]
    assert {row.topic for row in rows} == {"orders"}
    assert {f"{row.node}/orders" for row in rows} == {lane_of(nsqd, "orders").rpartition("/")[0]}
    assert len({row.id for row in rows}) == 3
    found = nsqd.http("GET", "/topic/read?topic=orders&limit=1").body
    assert f'"id":"{rows[0].id}"'.encode() in found


def test_headers_are_a_column_for_who_asks(spark: SparkSession, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", [b"none"])
    headers = {"Nsq-Header-who": "ana", "traceparent": "00-0af7-b7ad-01"}
    assert nsqd.http("POST", "/pub?topic=orders", b"two", headers=headers).status == 200
    assert nsqd.http("POST", "/mpub?topic=orders", b"a\nb", headers={"ce-type": "x"}).status == 200
    patiently(lambda: next_of(nsqd, "orders") == 4)
    asked = read(spark, nsqd, includeHeaders="true").orderBy("sequence")
    expected = [None, {"who": b"ana", "traceparent": b"00-0af7-b7ad-01"}, {"ce-type": b"x"}, {"ce-type": b"x"}]
    assert [row.headers and {k: bytes(v) for k, v in row.headers.items()} for row in asked.collect()] == expected
    assert asked.where("cast(headers['who'] as string) = 'ana'").count() == 1
    frame = spark.read.format("nsq").options(nsqd=address(nsqd), topic="orders").schema("headers map<string, binary>")
    assert sorted(len(row.headers or {}) for row in frame.load().collect()) == [0, 1, 1, 2]
    assert "headers" not in read(spark, nsqd).columns
    gaps = read(spark, nsqd, includeHeaders="true", gapRows="true")
    assert gaps.columns == ["topic", "node", "sequence", "id", "timestamp", "body", "headers", "gap"]


def test_a_long_log_is_cut_into_tasks(spark: SparkSession, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(6_000))
    frame = read(spark, nsqd, rowsPerTask=800)
    assert frame.rdd.getNumPartitions() == 8
    (found,) = frame.selectExpr("count(distinct cast(body as string)) as messages", "max(sequence) as last").collect()
    assert (found.messages, found.last) == (6_000, 5_999)


def test_a_frame_in_two_branches_counts_right(spark: SparkSession, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", [b"%d" % (number % 4) for number in range(40)])
    frame = read(spark, nsqd).selectExpr("cast(cast(body as string) as int) as k")
    both = frame.where("k = 1").union(frame.where("k = 2"))
    assert frame.count() == 40
    assert frame.where("k = 2").count() == 10
    assert frame.count() == 40
    assert {row.k: row["count"] for row in both.groupBy("k").count().collect()} == {1: 10, 2: 10}


def test_offsets_and_times_bound_what_is_read(spark: SparkSession, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", numbered(10))
    publish(nsqd, "orders", numbered(10, start=10))
    lane = lane_of(nsqd, "orders")
    some = read(spark, nsqd, startingOffsets=f'{{"{lane}": 3}}', endingOffsets=f'{{"v": 1, "lanes": {{"{lane}": 6}}}}')
    assert sequences(some) == [3, 4, 5]
    assert sequences(read(spark, nsqd, startingOffsets="latest")) == []
    moment = min(row.timestamp for row in read(spark, nsqd).where("sequence = 10").collect()).isoformat() + "Z"
    assert sequences(read(spark, nsqd, startingTimestamp=moment)) == list(range(10, 20))
    assert sequences(read(spark, nsqd, endingTimestamp=moment)) == list(range(10))


def test_topics_by_name_and_pattern_on_several_nodes(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "one", KEPT) as one, Nsqd(tmp_path / "two", KEPT) as two:
        publish(one, "click.a", [b"1"])
        publish(two, "click.a", [b"2"])
        publish(two, "click.b", [b"3"])
        publish(two, "orders", [b"4"])
        publish(two, "other", [b"5"])
        nodes = f"{address(one)},{address(two)}"
        frame = spark.read.format("nsq").options(nsqd=nodes, topic="orders,click.*").load()
        rows = sorted((row.topic, bytes(row.body)) for row in frame.collect())
        assert rows == [("click.a", b"1"), ("click.a", b"2"), ("click.b", b"3"), ("orders", b"4")]
        only = spark.read.format("nsq").options(nsqd=nodes, topic="click.a", lanes=lane_of(one, "click.a")).load()
        assert [bytes(row.body) for row in only.collect()] == [b"1"]


def test_a_schema_of_the_users_own_leaves_columns_out(spark: SparkSession, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", [b"one"])
    frame = spark.read.format("nsq").schema("body binary, sequence bigint").options(nsqd=address(nsqd), topic="orders")
    assert [(bytes(row.body), row.sequence) for row in frame.load().collect()] == [(b"one", 0)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "nothing"}, "there is no topic nothing at 127.0.0.1"),
        ({"topic": "nothing.*"}, "matches nothing.*"),
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"startingOffsets": '{"x": 1}'}, "'x' is not a lane"),
        ({"startingOffsets": '{"x/orders/y": 1}'}, "there is no lane x/orders/y"),
        ({"nsqd": "127.0.0.1:1"}, "127.0.0.1:1 cannot be reached"),
        ({"nsqd": "", "lookupd": "127.0.0.1:1"}, "127.0.0.1:1 cannot be reached"),
    ],
)
def test_what_is_wrong_is_said_at_the_start(
    spark: SparkSession, nsqd: Nsqd, options: dict[str, str], says: str
) -> None:
    publish(nsqd, "orders", [b"one"])
    given = {"nsqd": address(nsqd), "topic": "orders", **options}
    with pytest.raises(Exception) as caught:
        spark.read.format("nsq").options(**given).load().count()
    assert says in str(caught.value)


def test_retention_that_is_off_is_said_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        publish(nsqd, "orders", [b"one"])
        with pytest.raises(Exception, match="retention is off for topic orders at"):
            read(spark, nsqd).count()
        assert read(spark, nsqd, requireRetention="false").count() == 1
