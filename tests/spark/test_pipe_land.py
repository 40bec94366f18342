"""`nsqpipe land`: each message once in the table or in the quarantine, whatever is lost in between."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fastavro
import msgpack
import pytest

from nsqpipe import land, replay
from nsqpipe.decoders import make_decoder
from nsqpipe.quality import UNPARSED, Rule, Then, broken_counts
from nsqpipe.shape import Shape
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Kind
from pyspark_nsq.listener import OBSERVED
from pyspark_nsq.tables.table import Format
from tests.support.pipe import IN_FOLDERS, Pipeline, source_of
from tests.support.process import Nsqd
from tests.support.spark import flip_a_byte_of, next_of, numbered, patiently, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = "user string, amount double"
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "user", "type": "string"}, {"name": "amount", "type": "double"}],
}


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_a_topic_lands_once_by_topic_date_and_hour(
    kind: Format, spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, source_of(nsqd, "007", maxRowsPerTrigger=700), tmp_path, kind=kind)
    publish(nsqd, "007", numbered(2000))
    pipeline.land()
    publish(nsqd, "007", numbered(500, start=2000))
    pipeline.land()
    pipeline.land()
    assert pipeline.numbers() == list(range(2500))
    (reader,) = nsqd.http("GET", "/topic/log?topic=007&readers=true").json["readers"]
    assert (reader["into"], reader["format"], reader["behind"]) == (pipeline.table.path, kind.value, 0)
    found = pipeline.rows.select("topic", "date", "hour", "timestamp").distinct().collect()
    assert {row.topic for row in found} == {"007"}, "a topic that looks like a number keeps its zeros"
    assert all((row.date, row.hour) == (row.timestamp.date(), row.timestamp.hour) for row in found)
    assert list(Path(pipeline.table.path).glob("topic=007/date=*/hour=*/*.parquet"))


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_a_batch_whose_commit_spark_forgot_is_in_the_table_once(
    kind: Format, spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, source_of(nsqd, "orders", maxRowsPerTrigger=400), tmp_path, kind=kind)
    publish(nsqd, "orders", numbered(1000))
    pipeline.land()
    before = sorted(map(str, pipeline.rows.collect()))
    for _ in range(2):
        pipeline.forget_commit(pipeline.last_batch())
        pipeline.land()
        assert sorted(map(str, pipeline.rows.collect())) == before
    assert pipeline.numbers() == list(range(1000))


@pytest.mark.parametrize("start", [{"startingOffsets": "latest"}, {"startingTimestamp": "now"}])
def test_the_first_batch_again_begins_where_it_began(
    start: dict[str, str], spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(100, start=900_000))
    start = {name: text.replace("now", datetime.now(UTC).isoformat()) for name, text in start.items()}
    pipeline = Pipeline(spark, source_of(nsqd, "orders", **start), tmp_path)
    pipeline.land()  # finds its position, and no new message
    pipeline.forget_commit(0)
    publish(nsqd, "orders", numbered(300))
    pipeline.land()
    assert pipeline.numbers() == list(range(300)), "nothing lost by asking anew where to begin"


def encoded(kind: Kind, record: dict[str, Any]) -> bytes:
    if kind is Kind.JSON:
        return json.dumps(record).encode()
    if kind is Kind.MSGPACK:
        return bytes(msgpack.packb(record))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, AVRO, record)
    return stream.getvalue()


@pytest.mark.parametrize("kind", [Kind.JSON, Kind.MSGPACK, Kind.AVRO])
def test_what_does_not_parse_is_in_the_quarantine_and_the_stream_goes_on(
    kind: Kind, spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    decoder = make_decoder(kind, FIELDS, str(tmp_path / "order.avsc") if kind is Kind.AVRO else "")
    pipeline = Pipeline(
        spark, source_of(nsqd, "orders", maxRowsPerTrigger=10), tmp_path, shape=Shape(decoder=decoder, drops_body=True)
    )
    good = [encoded(kind, {"user": f"u{number}", "amount": number / 2}) for number in range(25)]
    broken = [b"\xff\xfe nothing of the kind", good[3][:-1]]
    publish(nsqd, "orders", [*good[:10], *broken, *good[10:]])
    pipeline.land()
    values = [row.value for row in pipeline.rows.orderBy("sequence").collect()]
    assert [(value.user, value.amount) for value in values] == [(f"u{number}", number / 2) for number in range(25)]
    assert "body" not in pipeline.rows.columns
    bad = pipeline.quarantine.read(spark).orderBy("sequence").collect()
    assert [bytes(row.body) for row in bad] == broken
    assert all(row.error for row in bad)


def test_rows_that_break_a_rule_are_quarantined_or_only_counted(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    rules = (
        Rule("positive", "value.amount > 0", Then.QUARANTINE),
        Rule("has a user", "value.user is not null", Then.COUNT),
    )
    shape = Shape(decoder=make_decoder(Kind.JSON, FIELDS), rules=rules)
    pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path, shape=shape)
    publish(nsqd, "orders", [b'{"user":"a","amount":1}', b'{"user":"b","amount":-1}', b'{"amount":2}', b"no"])
    seen: dict[str, int] = {}

    def observe(query: str, report: dict[str, Any]) -> None:
        for name, count in report.get("observedMetrics", {}).get(OBSERVED, {}).items():
            seen[name] = seen.get(name, 0) + count

    pipeline.land(observe)
    assert seen == {"positive": 1, "has a user": 1, UNPARSED: 1}
    assert sorted(row.value.amount for row in pipeline.rows.collect()) == [1, 2]
    errors = {bytes(row.body): row.error for row in pipeline.quarantine.read(spark).collect()}
    assert errors == {b'{"user":"b","amount":-1}': "rule: positive", b"no": "not JSON: ends too early at byte 2"}
    assert broken_counts(pipeline.rows, rules) == {"rows": 2, "positive": 0, "has a user": 1}


def test_gaps_land_too_and_are_no_messages(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    for number in range(9):
        publish(nsqd, "orders", [b"%d00000" % number] * 10)
    flip_a_byte_of(nsqd, b"400000")
    pipeline = Pipeline(spark, source_of(nsqd, "orders", skipCorrupt="true", gapRows="true"), tmp_path)
    pipeline.land()
    gaps = pipeline.rows.where("gap is not null").collect()
    assert [(row.sequence, row.gap.end, row.gap.reason, row.date) for row in gaps] == [(40, 50, "damaged", None)]
    chosen = replay.chosen(pipeline.rows, topic="orders", since="", until="", where="")
    assert sum(part.rows for part in replay.plan(chosen, 0, replay.Reached(None, "", ""))) == 80


def test_headers_land_too(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", [b"none"])
    assert nsqd.http("POST", "/pub?topic=orders", b"one", headers={"Nsq-Header-who": "ana"}).status == 200
    patiently(lambda: next_of(nsqd, "orders") == 2)
    pipeline = Pipeline(spark, source_of(nsqd, "orders", includeHeaders="true"), tmp_path)
    pipeline.land()
    found = {bytes(row.body): row.headers for row in pipeline.rows.collect()}
    assert found[b"none"] is None
    assert {name: bytes(value) for name, value in found[b"one"].items()} == {"who": b"ana"}


def test_a_topic_that_is_not_there_is_one_clear_error_at_the_start(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    with pytest.raises(PipeFailed, match="there is no topic nothing"):
        Pipeline(spark, source_of(nsqd, "nothing"), tmp_path).land()


def test_a_node_that_is_down_is_one_clear_error_at_the_start(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    source = source_of(nsqd, "orders")
    nsqd.stop()
    with pytest.raises(PipeFailed, match=f"land: .*{nsqd.http_address[1]}"):
        Pipeline(spark, source, tmp_path).land()


@pytest.mark.parametrize(
    ("master", "asked"), [("local[3]", {"tasksPerBatch": "6"}), ("spark://host:7077", {}), (None, {})]
)
def test_only_on_one_machine_is_known_how_many_tasks_keep_all_cores_busy(
    master: str | None, asked: dict[str, str]
) -> None:
    """A cluster may get its executors later, and by the number of tasks that wait."""
    context = SimpleNamespace(master=master, defaultParallelism=3)
    assert land.tasks_for(SimpleNamespace(sparkContext=context)) == asked  # type: ignore[arg-type]
