"""`df.write.format("nsq")` and `df.writeStream.format("nsq")` on a real nsqd."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.http_sink import HttpSink
from tests.support.process import Nsqd, SteadyNsqd
from tests.support.spark import KEPT, PATIENCE, address, next_of, numbered, patiently, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW = "idempotence-window=1h"


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(cast(id as string) as binary) as body")


def bodies(nsqd: Nsqd, topic: str) -> Counter[int]:
    """Return what is in the topic, all of which is synced."""
    found = nsqd.topic(topic)
    count = found["message_count"] if found["channels"] else found["depth"]  # the former counts from the start on
    patiently(lambda: next_of(nsqd, topic) == count)
    lines = nsqd.http("GET", f"/topic/read?topic={topic}").body.splitlines()[:-1]
    return Counter(int(line.split(b'"body":"')[1].rstrip(b'"}')) for line in lines)


def save(frame: DataFrame, nsqd: Nsqd | str, **options: Any) -> None:
    where = nsqd if isinstance(nsqd, str) else address(nsqd)
    frame.write.format("nsq").mode("append").options(nsqd=where, **options).save()


def test_each_row_is_a_message(spark: SparkSession, nsqd: Nsqd) -> None:
    save(numbers(spark, 5_000), nsqd, topic="out")  # several publishes of each task
    assert bodies(nsqd, "out") == Counter(range(5_000))


def test_rows_say_where_and_when(spark: SparkSession, nsqd: Nsqd) -> None:
    frame = numbers(spark, 100).selectExpr(
        "body",
        "case when cast(cast(body as string) as int) % 2 = 0 then 'even' else 'odd' end as topic",
        "cast(case when cast(cast(body as string) as int) < 10 then 3600000 else 0 end as int) as defer_ms",
    )
    for topic in ("even", "odd"):
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=c")
    save(frame, nsqd)
    assert bodies(nsqd, "even") == Counter(range(0, 100, 2))
    assert bodies(nsqd, "odd") == Counter(range(1, 100, 2))
    channel = nsqd.channel("even")
    assert (channel["depth"], channel["deferred_count"]) == (45, 5)


@pytest.mark.parametrize("options", [{}, {"keys": "true"}])
def test_rows_may_have_headers(spark: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    with Nsqd(tmp_path / "n", KEPT, WINDOW) as nsqd:
        frame = numbers(spark, 20).selectExpr(
            "body",
            "if(cast(cast(body as string) as int) % 2 = 0, map('n', body, 'kind', cast('even' as binary)), null) as headers",
        )
        save(frame, nsqd, topic="out", **options)
        patiently(lambda: next_of(nsqd, "out") == 20)
        back = spark.read.format("nsq").options(nsqd=address(nsqd), topic="out", includeHeaders="true").load()
        for row in back.collect():
            number = int(row.body)
            expected = {"n": bytes(row.body), "kind": b"even"} if number % 2 == 0 else None
            assert (row.headers and {k: bytes(v) for k, v in row.headers.items()}) == expected


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ("map('No', body)", "invalid header name"),
        ("map('n', cast(null as binary))", "a row's headers"),
        ("array(body)", "column headers has to be map<string, binary>"),
    ],
)
def test_headers_that_are_none(spark: SparkSession, nsqd: Nsqd, headers: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        save(numbers(spark, 2).selectExpr("body", f"{headers} as headers"), nsqd, topic="out")
    assert not (nsqd.topic("out") or {}).get("message_count")


def test_an_nsqd_that_knows_no_headers_gets_nothing(spark: SparkSession) -> None:
    with HttpSink(lambda request: 404) as old:
        place = old.url.removeprefix("http://")
        with pytest.raises(Exception, match="knows no headers: the column headers needs our nsqd"):
            save(numbers(spark, 2).selectExpr("body", "map('n', body) as headers"), place, topic="out")
        assert not [request for request in old.requests if request.target.startswith("/mpub")]


def test_a_node_that_is_down_is_passed_over(spark: SparkSession, nsqd: Nsqd) -> None:
    save(numbers(spark, 100), f"127.0.0.1:1,{address(nsqd)}", topic="out")
    assert bodies(nsqd, "out") == Counter(range(100))


@pytest.mark.parametrize(
    ("expression", "options", "says"),
    [
        ("'x' as value", {"topic": "t"}, "the rows have no column body"),
        ("'x' as body", {}, "no column topic, and there is no option topic"),
        ("'x' as body", {"topic": "t", "colour": "red"}, "the sink has no option colour"),
        ("'' as body", {"topic": "t"}, "a row has an empty body"),
        ("repeat('x', 2000000) as body", {"topic": "t"}, "a row has a body of 2000000 bytes, and nsqd takes 1048576"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, nsqd: Nsqd, expression: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception) as caught:
        save(spark.range(1).selectExpr(expression), nsqd, **options)
    assert says in str(caught.value)
    assert not nsqd.topic("t")


def test_a_topic_is_not_overwritten(spark: SparkSession, nsqd: Nsqd) -> None:
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        numbers(spark, 1).write.format("nsq").mode("overwrite").options(nsqd=address(nsqd), topic="t").save()


def test_a_write_that_is_repeated_with_its_id_publishes_once(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a", KEPT, WINDOW) as one, Nsqd(tmp_path / "b", KEPT, WINDOW) as two:
        where = f"{address(one)},{address(two)}"
        for _ in range(2):
            save(numbers(spark, 5000, 4), where, topic="out", exactlyOnce="true", writeId="load-7")
        assert bodies(one, "out") + bodies(two, "out") == Counter(range(5000))
        assert min(len(bodies(one, "out")), len(bodies(two, "out"))) > 1000
        save(numbers(spark, 10), where, topic="out", exactlyOnce="true", writeId="load-8")
        assert sum((bodies(one, "out") + bodies(two, "out")).values()) == 5010


def test_a_row_with_a_key_is_published_once_whichever_write_brings_it(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "a", KEPT, WINDOW) as one, Nsqd(tmp_path / "b", KEPT, WINDOW) as two:
        keyed = numbers(spark, 200, 4).selectExpr("body", "concat('row-', cast(body as string)) as key")
        save(keyed, f"{address(one)},{address(two)}", topic="out", keys="true")
        save(keyed.repartition(3), f"{address(two)},{address(one)}", topic="out", keys="true")
        assert bodies(one, "out") + bodies(two, "out") == Counter(range(200))
        assert min(len(bodies(one, "out")), len(bodies(two, "out"))) > 50
        assert one.topic("out")["repeat_count"] + two.topic("out")["repeat_count"] == 200


def test_rows_without_a_key_get_one_that_a_repeated_write_makes_again(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT, WINDOW) as nsqd:
        same = spark.range(0, 40, 1, 2).selectExpr("cast(id % 10 as string) as body")
        for _ in range(2):
            save(same, nsqd, topic="out", keys="true", writeId="load-7")
        assert bodies(nsqd, "out") == Counter([row % 10 for row in range(40)])  # equal rows are still several


def test_a_write_that_comes_again_in_other_parts_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT, WINDOW) as nsqd:
        exactly_once = {"topic": "out", "exactlyOnce": "true", "writeId": "load"}
        save(numbers(spark, 1500, 1), nsqd, messagesPerPublish=500, **exactly_once)  # three parts, and then it died
        save(numbers(spark, 3000, 1), nsqd, messagesPerPublish=1000, **exactly_once)
        assert set(bodies(nsqd, "out")) == set(range(3000))


def test_who_cannot_publish_exactly_once_says_so_before_there_is_anything_to_publish(
    spark: SparkSession, tmp_path: Path
) -> None:
    needed = "this needs our nsqd with --idempotence-window"
    with Nsqd(tmp_path / "data", KEPT, "idempotence-window=0") as nsqd:
        nsqd.post("/topic/create?topic=in")
        with pytest.raises(Exception, match=needed):
            Copying(spark, nsqd, tmp_path, exactlyOnce="true").run()
        with pytest.raises(Exception, match=needed):
            save(spark.range(1).selectExpr("'x' as body"), nsqd, topic="t", exactlyOnce="true")
        with pytest.raises(Exception, match=f"keys: .* {needed}"):
            save(spark.range(1).selectExpr("'x' as body"), nsqd, topic="t", keys="true")


class Copying:
    """A stream from one topic to another."""

    def __init__(self, spark: SparkSession, nsqd: Nsqd, folder: Path, **options: Any) -> None:
        self._spark = spark
        self._nsqd = nsqd
        self._options = options
        self.checkpoint = folder / "checkpoint"

    def run(self) -> None:
        reader = self._spark.readStream.format("nsq").schema("body binary").option("maxRowsPerTrigger", 500)
        frame = reader.options(nsqd=address(self._nsqd), topic="in").load()
        writer = frame.writeStream.format("nsq").options(nsqd=address(self._nsqd), topic="out", **self._options)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)

    def forget_last_commit(self) -> None:
        """Remove the last commit, as if the driver had died when everything was published."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        for path in (self.checkpoint / "commits").glob(f"*{last}*"):
            path.unlink()


@pytest.mark.parametrize("option", ["", "exactlyOnce", "keys"])
def test_a_batch_that_is_run_again(spark: SparkSession, tmp_path: Path, option: str) -> None:
    with Nsqd(tmp_path / "data", KEPT, WINDOW) as nsqd:
        publish(nsqd, "in", numbered(1200))
        copying = Copying(spark, nsqd, tmp_path, **({option: "true"} if option else {}))
        copying.run()
        copying.forget_last_commit()
        copying.run()
        found = bodies(nsqd, "out")
        assert set(found) == set(range(1200))
        repeated = sum(found.values()) - 1200
        assert repeated == (0 if option else 200)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_an_nsqd_that_is_killed_under_the_sink_loses_nothing(
    spark: SparkSession, tmp_path: Path, exactly_once: bool
) -> None:
    count = 8_000
    with SteadyNsqd(tmp_path / "data", KEPT, WINDOW) as nsqd:
        saved = threading.Event()

        def are_there(wanted: int) -> bool:
            return saved.is_set() or next_of(nsqd, "out") >= wanted

        def trouble() -> None:
            for wanted in (count // 4, count // 2):
                patiently(partial(are_there, wanted))
                nsqd.kill()
                nsqd.start()

        thread = threading.Thread(target=trouble)
        thread.start()
        try:
            save(
                numbers(spark, count, 4),
                nsqd,
                topic="out",
                messagesPerPublish=20,
                exactlyOnce=str(exactly_once).lower(),
            )
        finally:
            saved.set()
            thread.join()
        found = bodies(nsqd, "out")
        assert set(found) == set(range(count))
        if exactly_once:
            assert sum(found.values()) == count
