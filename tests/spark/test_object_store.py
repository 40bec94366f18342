"""`nsqpipe` on tables in an object store: landed, killed and repeated, compacted, read, replayed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from nsqpipe import replay
from nsqpipe.cli import app
from pyspark_nsq.stores.storage import place_of
from pyspark_nsq.tables.table import Format, Table
from pyspark_nsq.tables.tending import tend
from pyspark_nsq.tables.upkeep import Policy
from tests.support.pipe import Pipeline, source_of
from tests.support.process import ROOT, Nsqd
from tests.support.s3 import SECRET, S3Server
from tests.support.spark import address, next_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def in_store(s3: S3Server, pipeline: Pipeline) -> Pipeline:
    """Return the same pipeline with its tables in the store, and its checkpoints on disk."""
    table = Table(s3.new_uri(), Format.DELTA, pipeline.table.checkpoint, s3.storage)
    quarantine = Table(f"{table.path}.quarantine", Format.DELTA, pipeline.quarantine.checkpoint, s3.storage)
    pipeline.move(table, quarantine)
    return pipeline


def test_a_topic_lands_in_a_store_once_and_is_joined_read_and_replayed(
    spark: SparkSession, s3: S3Server, nsqd: Nsqd, tmp_path: Path
) -> None:
    pipeline = in_store(s3, Pipeline(spark, source_of(nsqd, "orders"), tmp_path))
    place = pipeline.table.place
    for first in (0, 500):
        publish(nsqd, "orders", numbered(500, start=first))
        pipeline.land()
    pipeline.forget_commit(pipeline.last_batch())
    pipeline.land()
    assert len(DeltaTable(**place.for_delta()).file_uris()) > 1
    done = tend(pipeline.table, Policy(), now=time.time() + 1000)
    assert (done.made, done.files) == (1, 1)
    rows = DeltaTable(**place.for_delta()).to_pyarrow_table()
    assert sorted(rows["sequence"].to_pylist()) == list(range(1000))
    assert pipeline.numbers() == list(range(1000)), "what Spark reads, without a jar"
    assert SECRET not in pipeline.rows._jdf.queryExecution().toString()

    sink = {"nsqd": address(nsqd), "topic": "again"}
    progress = place_of(f"{place}.replay.json", s3.storage)
    job = replay.Replay(sink=sink, rate=0, exactly_once=False, name="")
    for _ in range(2):
        reached = replay.Reached.load(progress, "once", "orders")
        chosen = pipeline.rows.where("sequence < 10")
        replay.run(chosen, replay.plan(chosen, 0, reached), job, reached, lambda text: None)
    assert next_of(nsqd, "again") == 10


@pytest.mark.own_jvm("the doctor asks Java for its version")
def test_the_commands_of_the_page_about_object_stores_run(
    spark: SparkSession, s3: S3Server, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(100))
    for name, text in s3.environment.items():
        monkeypatch.setenv(name, text)
    section = (ROOT / "docs/how-to/spark.md").read_text().partition("## Object stores")[2].partition("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("nsqpipe ")]
    assert len(commands) == 4
    for command in commands:
        words = command.replace("127.0.0.1:4151", address(nsqd)).replace("/data/", f"{tmp_path}/").split()[1:]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    rows = DeltaTable("s3://lake/orders", storage_options=place_of("s3://lake/orders").storage_options())
    assert len(rows.to_pyarrow_table()) == 100


def test_a_table_in_a_store_needs_keys_and_a_checkpoint_on_a_disk(
    s3: S3Server, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(1))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    where = ["land", f"--nsqd={address(nsqd)}", "--topic=orders", f"--table={s3.new_uri()}", "--until-now"]
    keys = [f"--conf=spark.hadoop.fs.s3a.{name}" for name in ("access.key=tests", f"secret.key={SECRET}")]
    for words, complaint in (
        ([*where, f"--storage=endpoint={s3.endpoint}"], "there are no keys"),
        ([*where, *keys, f"--storage=endpoint={s3.endpoint}"], "it needs the jar hadoop-aws"),
        ([*where, "--storage=endpoint=minio:9000"], "expected https://HOST:PORT"),
        ([*where, "--storage=endpint=http://minio"], "there is no option storage.endpint"),
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1
        assert complaint in result.stderr
        assert result.stderr.count("\n") == 1
        assert SECRET not in result.output
