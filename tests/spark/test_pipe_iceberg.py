"""`nsqpipe land --format iceberg` with Spark: pyiceberg reads each message once, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from nsqpipe.cli import app
from nsqpipe.decoders import make_decoder
from nsqpipe.land import prepare_landing, start_landing
from nsqpipe.quality import Rule, Then
from nsqpipe.running import run_queries
from nsqpipe.shape import Shape
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Kind
from pyspark_nsq.source.queries import From
from tests.support.iceberg import catalog_at, flags, landed, rows_in, table_at
from tests.support.pipe import Pipeline, source_of
from tests.support.process import Nsqd, eventually
from tests.support.spark import address, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD = "raw.bad"


def pipeline_of(
    spark: SparkSession, source: From, folder: Path, *, shape: Shape | None = None, checkpoint: str = ""
) -> Pipeline:
    pipeline = Pipeline(spark, source, folder, shape=shape)
    pipeline.move(table_at(folder, checkpoint=checkpoint), table_at(folder, BAD))
    return pipeline


def test_checkpoints_may_be_forgotten_deleted_and_foreign(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(1000))
    pipeline = pipeline_of(spark, source_of(nsqd, "orders", maxRowsPerTrigger=600), tmp_path)
    pipeline.land()
    assert landed(tmp_path) == list(range(1000))
    pipeline.forget_commit(pipeline.last_batch())  # as if the driver had died between the two commits
    pipeline.land()
    assert landed(tmp_path) == list(range(1000))
    publish(nsqd, "orders", numbered(500, start=1000))
    shutil.rmtree(pipeline.checkpoint)
    pipeline.land()
    assert landed(tmp_path) == list(range(1500))
    (tmp_path / "elsewhere").mkdir()
    elsewhere = pipeline_of(spark, source_of(nsqd, "orders"), tmp_path / "elsewhere")
    publish(nsqd, "orders", numbered(100, start=1500))
    elsewhere.land()
    foreign = pipeline_of(spark, source_of(nsqd, "orders"), tmp_path, checkpoint=str(elsewhere.checkpoint))
    with pytest.raises(PipeFailed, match=r"and the table raw\.table ends at 1500"):
        foreign.land()
    assert landed(tmp_path) == list(range(1500))


def test_a_second_job_with_a_checkpoint_of_its_own_adds_nothing(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", numbered(600))
    source = source_of(nsqd, "orders", maxRowsPerTrigger=400)
    pair = [pipeline_of(spark, source, tmp_path, checkpoint=str(tmp_path / name)) for name in ("one", "two")]
    jobs = [prepare_landing(it.job) for it in pair]  # neither knows of the other
    for job in jobs:
        run_queries(spark, partial(start_landing, spark, job))
    assert landed(tmp_path) == list(range(600))
    assert all(it.checkpoint.exists() for it in pair)


def test_rows_that_fail_lie_in_a_table_of_their_own(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", [*(b'{"n": %d}' % number for number in range(100)), b"{", b'{"n": "x"}'])
    decoder = make_decoder(Kind.JSON, "n int", "")
    source = source_of(nsqd, "orders", maxRowsPerTrigger=60)
    pipeline_of(spark, source, tmp_path, shape=Shape(decoder=decoder)).land()
    assert sorted(it["n"] for it in rows_in(tmp_path)["value"].to_pylist()) == list(range(100))
    assert len(rows_in(tmp_path, BAD)) == 2
    rules = (Rule("small", "value.n < 50", Then.QUARANTINE),)
    grown = make_decoder(Kind.JSON, "n int, m string", "")
    publish(nsqd, "orders", [b'{"n": 1, "m": "new"}', b'{"n": 70}'])
    pipeline_of(spark, source, tmp_path, shape=Shape(decoder=grown, rules=rules)).land()
    values = rows_in(tmp_path)["value"].to_pylist()
    assert [it for it in values if it["m"] is not None] == [{"n": 1, "m": "new"}]
    assert len(values) == 101
    assert len(rows_in(tmp_path, BAD)) == 3


def test_a_table_gets_what_is_selected_once(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    select = "sha2(value.email, 256) as email, cast(value.amount as smallint) as amount, md5(body) as body"
    shape = Shape(decoder=make_decoder(Kind.JSON, "email string, amount int", ""), select=select)
    publish(nsqd, "orders", [*(b'{"email": "a@b", "amount": %d}' % number for number in range(100)), b"no JSON"])
    pipeline = pipeline_of(spark, source_of(nsqd, "orders", maxRowsPerTrigger=60), tmp_path, shape=shape)
    pipeline.land()
    pipeline.forget_commit(pipeline.last_batch())
    pipeline.land()
    found = rows_in(tmp_path)
    assert sorted(found["amount"].to_pylist()) == list(range(100))
    assert set(found["email"].to_pylist()) == {hashlib.sha256(b"a@b").hexdigest()}
    assert rows_in(tmp_path, BAD)["body"].to_pylist() == [b"no JSON"]
    forgotten = pipeline_of(spark, pipeline.job.source, tmp_path, shape=replace(shape, select=""))
    with pytest.raises(PipeFailed, match="give the same --select"):
        forgotten.land()


def test_several_jobs_of_one_file_land_and_nodes_know_where(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(100))
    file = tmp_path / "pipeline.toml"
    properties = catalog_at(tmp_path).properties
    lines = [f'[defaults]\nnsqd = "{address(nsqd)}"\ntopic = "orders"\nformat = "iceberg"']
    lines += [f'catalog_uri = "{properties["uri"]}"\ncatalog_option = "warehouse={properties["warehouse"]}"']
    lines += [f'[land.{name}]\ntable = "raw.{name}"\ncheckpoint = "{tmp_path}/{name}"' for name in ("one", "two")]
    file.write_text("\n".join(lines))
    done = CliRunner().invoke(app, ["run", str(file), "--until-now"])
    assert done.exit_code == 0, done.output
    assert [landed(tmp_path, f"raw.{name}") for name in ("one", "two")] == [list(range(100))] * 2

    def told() -> set[tuple[str, str]]:
        readers = nsqd.http("GET", "/topic/log?topic=orders&readers=true").json["readers"]
        return {(it["into"], it["format"]) for it in readers}

    expected = {(f"raw.{name} in {properties['uri']}", "iceberg") for name in ("one", "two")}
    assert eventually(lambda: told() == expected, timeout=30)


def test_the_command_lands_says_so_and_knows_its_lag(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", numbered(120))
    where = [f"--nsqd={address(nsqd)}", "--topic=orders", f"--checkpoint={tmp_path}/checkpoint"]
    done = CliRunner().invoke(app, ["land", *where, *flags(tmp_path), "--until-now"])
    assert done.exit_code == 0, done.output
    assert "120 landed in 1 file" in done.stderr
    assert "table raw.table" in done.stderr
    assert landed(tmp_path) == list(range(120))
    lag = CliRunner().invoke(app, ["lag", *where, "--json"])
    assert json.loads(lag.stdout)["behind"] == 0
