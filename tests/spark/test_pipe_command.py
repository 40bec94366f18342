"""The command `nsqpipe` with Spark: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.support.pipe import nsqpipe
from tests.support.process import Nsqd
from tests.support.spark import address, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def orders(nsqd: Nsqd) -> Nsqd:
    publish(nsqd, "orders", numbered(120))
    return nsqd


def test_land_show_lag_and_replay(spark: SparkSession, orders: Nsqd, tmp_path: Path) -> None:
    table, where = tmp_path / "table", ("--nsqd", address(orders))
    landed = nsqpipe("land", *where, "--topic=orders", "--table", table, "--until-now", "--show")
    assert landed.exit_code == 0, landed.output
    assert "120 messages" in landed.stdout
    assert "█" in landed.stdout
    assert "land: batch 0, 120 rows" in landed.stderr
    behind = nsqpipe("lag", *where, "--topic=orders", "--checkpoint", f"{table}.checkpoint", "--json")
    assert json.loads(behind.stdout)["behind"] == 0
    again = ("replay", *where, "--table", table, "--destination-topic=again", "--where=sequence < 50", "--json")
    assert json.loads(nsqpipe(*again, "--dry-run").stdout) == {"messages": 50, "sent": 0, "slices": 1}
    assert json.loads(nsqpipe(*again, "--quiet").stdout) == {"messages": 50, "sent": 50, "slices": 1}
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "early"\ncheck = "sequence < 100"\n')
    judged = nsqpipe("quality", "--table", table, "--rules", rules, "--json")
    assert judged.exit_code == 3
    assert json.loads(judged.stdout) == {"rows": 120, "early": 20}


def test_bench_names_its_jobs(spark: SparkSession, orders: Nsqd) -> None:
    result = nsqpipe("bench", "--nsqd", address(orders), "--topic=orders", "--json")
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [it["name"] for it in found] == ["read", "to Parquet", "Parquet read again, by Spark", "to windows"]
    assert all(it["rows"] == 120 and it["seconds"] > 0 for it in found)


def test_a_table_that_lacks_a_column_gets_no_row_twice(spark: SparkSession, orders: Nsqd, tmp_path: Path) -> None:
    land = ("land", "--nsqd", address(orders), "--topic=orders", "--table", tmp_path / "table", "--until-now")
    assert nsqpipe(*land).exit_code == 0
    result = nsqpipe(*land, "--checkpoint", tmp_path / "other", "--decoder=json", "--schema=price double")
    assert result.exit_code == 0, result.output
    assert spark.read.parquet(*DeltaTable(str(tmp_path / "table")).file_uris()).count() == 120
