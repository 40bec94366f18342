"""Jobs on existing tables and checkpoints: counts, replays, repairs."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from nsqpipe import maintenance, replay
from nsqpipe.aggregate import Aggregate, start_aggregating
from nsqpipe.lag import lags, set_offsets
from nsqpipe.running import run_queries
from nsqpipe.shape import Shape
from nsqpipe.transforms import counted
from pyspark_nsq.failures import PipeFailed, first_cause
from pyspark_nsq.source import queries
from pyspark_nsq.source.checkpoints import checkpointed
from pyspark_nsq.stores.storage import place_of
from pyspark_nsq.tables.sink import Overtaken
from pyspark_nsq.tables.table import Format, Table
from tests.pyspark_nsq.tables.test_landing import Job
from tests.support.orders import Orders
from tests.support.pipe import Pipeline, source_of
from tests.support.process import Nsqd
from tests.support.spark import address, lane_of, next_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter


def test_windows_of_a_stream_are_those_of_a_batch(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(300, size=50))
    publish(nsqd, "clicks", numbered(100, size=20))
    source = source_of(nsqd, "orders,clicks")
    results = tmp_path / "results.json"
    job = Aggregate(
        source=source,
        window_seconds=60,
        watermark_seconds=60,
        checkpoint=str(tmp_path / "checkpoint"),
        results=place_of(str(results)),
        keep=100,
        table=None,
        every="",
        until_now=True,
    )
    run_queries(spark, lambda: start_aggregating(spark, job))
    found = json.loads(results.read_text())
    assert {topic: sum(it["messages"] for it in windows) for topic, windows in found["topics"].items()} == {
        "clicks": 100,
        "orders": 300,
    }
    window = found["topics"]["orders"][0]
    assert window["size_p50"] == window["size_p99"] == 50
    assert window["bytes"] == window["messages"] * 50
    updated, start = (datetime.fromisoformat(it) for it in (found["updated"], window["start"]))
    so_far = (updated - start).total_seconds()  # whole seconds are written
    assert window["messages"] / (so_far + 1) < window["rate"] <= window["messages"] / min(60, max(1, so_far))
    batch = counted(queries.batch(spark, source), window_seconds=60, watermark_seconds=60)
    assert {(row.topic, row.messages, row.bytes) for row in batch.collect()} == {
        (topic, it["messages"], it["bytes"]) for topic, windows in found["topics"].items() for it in windows
    }


class Interrupted(Exception):
    """Stands for a power cut."""


def test_a_replay_that_was_interrupted_goes_on_and_sends_everything_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_SLICE_SECONDS", 0.01)  # or 5 s would pass
    with Nsqd(tmp_path / "data", "retention-bytes=10GB", "idempotence-window=10m") as nsqd:
        pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path)
        publish(nsqd, "orders", numbered(100))
        pipeline.land()
        progress = tmp_path / "progress.json"
        sink = {"topic": "again", "nsqd": address(nsqd)}
        job = replay.Replay(sink=sink, rate=4000, exactly_once=True, name="once")  # slices of 40

        def run(told: object = None) -> int:
            place = replay.Reached.load(place_of(str(progress)), "once", "orders")
            rows = replay.chosen(pipeline.rows, topic="orders", since="", until="", where="sequence >= 0")
            slices = replay.plan(rows, job.rate, place)
            return replay.run(rows, slices, job, place, told if callable(told) else lambda text: None)

        def interrupt(text: str) -> None:
            raise Interrupted(text)

        with pytest.raises(Interrupted, match="40 of 100"):
            run(interrupt)
        # As if it had died after the slice's last OK, before it recorded that.
        written = json.loads(progress.read_text())
        (origin, end), *_ = written["reached"].items()
        node, topic = origin.split("/")
        sending = {"node": node, "topic": topic, "first": 0, "end": end, "rows": 40}
        progress.write_text(json.dumps({**written, "reached": {}, "sending": sending}))
        assert run() == 100, "the first slice again, which nsqd knows, and the rest"
        assert next_of(nsqd, "again") == 100
        assert run() == 0
        with pytest.raises(PipeFailed, match="belongs to another replay: once, orders"):
            replay.Reached.load(place_of(str(progress)), "once", "other orders")
        copied = Pipeline(spark, source_of(nsqd, "again"), tmp_path / "copied")
        copied.land()
        in_order = [int(bytes(row.body)) for row in copied.rows.orderBy("sequence").collect()]
        assert in_order == list(range(100))


def test_few_rows_far_apart_are_few_slices(spark: SparkSession) -> None:
    rows = spark.range(2000).selectExpr("if(id < 1000, 'a', 'b') as node", "'t' as topic", "id % 1000 as sequence")
    place = replay.Reached(None, "", "")
    every = replay.plan(rows, 50, place)
    assert [part.rows for part in every] == [100] * 20
    few = replay.plan(rows.where("sequence % 50 = 7"), 5, place)  # by sequences alone, a slice would have one row
    assert [(part.node, part.first, part.end, part.rows) for part in few] == [
        ("a", 7, 458, 10),
        ("a", 507, 958, 10),
        ("b", 7, 458, 10),
        ("b", 507, 958, 10),
    ]


def test_small_files_become_one_and_the_table_still_knows_its_batches(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, source_of(nsqd, "orders", maxRowsPerTrigger=100), tmp_path)
    publish(nsqd, "orders", numbered(500))
    pipeline.land()
    before = len(DeltaTable(pipeline.table.path).file_uris())
    found = maintenance.compact(pipeline.table, target_bytes=1 << 20, keep=timedelta(0))
    hours = pipeline.rows.select("date", "hour").distinct().count()
    assert found["removed"] == found["vacuumed"] == before
    assert len(DeltaTable(pipeline.table.path).file_uris()) == hours
    pipeline.forget_commit(pipeline.last_batch())
    pipeline.land()
    assert pipeline.numbers() == list(range(500))


def test_a_backfill_adds_what_is_missing_and_a_dedupe_removes_what_is_there_twice(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(100))
    pipeline = Pipeline(
        spark, source_of(nsqd, "orders", startingOffsets=json.dumps({lane_of(nsqd, "orders"): 60})), tmp_path
    )
    pipeline.land()
    assert pipeline.numbers() == list(range(60, 100))
    publish(nsqd, "orders", numbered(20, start=100))
    whole = source_of(nsqd, "orders")
    for added in (60, 0):
        found = maintenance.backfill(spark, whole, Shape(), pipeline.table, pipeline.quarantine)
        assert found == {"added": added, "left_to_land": 20}
        assert pipeline.numbers() == list(range(100))
    pipeline.land()
    assert pipeline.numbers() == list(range(120))
    # The commit of a writer that knows nothing of lanes.
    pipeline.table.batch_writer(pipeline.rows.where("sequence < 30")).save()
    assert maintenance.dedupe(spark, pipeline.table)["removed"] == 30
    assert pipeline.numbers() == list(range(120))
    assert maintenance.dedupe(spark, pipeline.table) == {"partitions": 0, "removed": 0}


def test_of_two_backfills_at_once_one_is_refused(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(nsqd, "orders", numbered(50))
    pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path)
    batch_writer = Table.batch_writer

    def backfill() -> None:
        maintenance.backfill(spark, source_of(nsqd, "orders"), Shape(), pipeline.table, pipeline.quarantine)

    def overtaken(table: Table, rows: DataFrame) -> DataFrameWriter:
        monkeypatch.undo()
        backfill()
        return batch_writer(table, rows)

    monkeypatch.setattr(Table, "batch_writer", overtaken)
    with pytest.raises(Exception, match="run this one again") as refused:
        backfill()
    assert first_cause(refused.value) == (
        f"another job has begun to add rows to {pipeline.table.path} meanwhile: run this one again"
    )
    assert pipeline.numbers() == list(range(50))


@pytest.mark.parametrize("instant", ["asked", "read", "written"])
def test_a_backfill_is_refused_when_somebody_begins_to_land_meanwhile(
    instant: str, spark: SparkSession, nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that nothing was landed into does not say what a landing will bring."""
    publish(nsqd, "orders", numbered(50))
    landing = Job(Orders(nsqd, "orders"), tmp_path)
    steps: dict[str, tuple[object, str]] = {
        "asked": (maintenance, "up_to_the_end"),
        "read": (queries, "batch"),
        "written": (Table, "batch_writer"),
    }
    step = getattr(*steps[instant])

    def overtaken(*arguments: object) -> object:
        done = step(*arguments)
        monkeypatch.undo()
        landing.batch_of(0, 20, opens=True)
        return done

    monkeypatch.setattr(*steps[instant], overtaken)
    pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path)
    with pytest.raises(Exception, match="run this one again"):
        maintenance.backfill(spark, pipeline.job.source, Shape(), pipeline.table, pipeline.quarantine)
    landing.batch_of(20, 50)
    assert pipeline.numbers() == list(range(50))


def test_a_backfill_that_only_has_rows_that_fail_sees_who_begins_to_land_too(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quarantine may serve other tables, so that its own commits do not tell when this one's landing begins."""
    publish(nsqd, "orders", numbered(50))
    source = source_of(nsqd, "orders")
    landing = Job(Orders(nsqd, "orders"), tmp_path)
    appended: list[str] = []

    def append(_spark: object, _rows: object, table: Table, _turn: int) -> int:
        appended.append(table.path)
        landing.batch_of(0, 20, opens=True)
        return 0

    monkeypatch.setattr(maintenance, "_append_missing", append)
    monkeypatch.setattr(queries, "batch", lambda *_: None)
    shape = SimpleNamespace(select="", can_fail=True, good=lambda _: None, bad=lambda _: None)
    table, quarantine = Table(str(tmp_path / "table"), Format.DELTA), Table(str(tmp_path / "bad"), Format.DELTA)
    with pytest.raises(Overtaken):
        maintenance.backfill(None, source, shape, table, quarantine)  # type: ignore[arg-type]
    assert appended == [table.path]


def test_a_checkpoint_that_was_made_begins_where_it_says_and_lag_is_what_it_lacks(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(100))
    pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path)
    lane = lane_of(nsqd, "orders")
    set_offsets(place_of(str(pipeline.checkpoint)), {lane: 70})
    assert [(it.lane, it.behind) for it in lags(pipeline.job.source, place_of(str(pipeline.checkpoint))).lanes] == [
        (lane, 30)
    ]
    pipeline.land()
    assert pipeline.numbers() == list(range(70, 100))
    assert [
        (it.reached, it.behind, it.lost) for it in lags(pipeline.job.source, place_of(str(pipeline.checkpoint))).lanes
    ] == [(100, 0, 0)]
    assert checkpointed(place_of(str(pipeline.checkpoint)))[1] == [{lane: 100}]


def test_a_version_of_a_table_is_read_though_it_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = Table(path, Format.DELTA)
    rows = spark.createDataFrame([], "topic string, date date, hour int, body binary")
    table.batch_writer(rows).save()
    assert not table.exists()
    DeltaTable.create(path, rows.toArrow().schema)
    assert table.read(spark).collect() == []
