"""The pages about Spark are true."""

from __future__ import annotations

import json
import re
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from typer.testing import CliRunner

from nsqpipe.cli import app
from pyspark_nsq.listener import NsqListener
from pyspark_nsq.source.rows import ALL_COLUMNS
from tests.support.process import ROOT, Nsqd
from tests.support.spark import KEPT, address, next_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW_TO = (ROOT / "docs/how-to/spark.md").read_text()
FROM_KAFKA = (ROOT / "docs/how-to/from-kafka.md").read_text()


def test_the_pipeline_runs_as_it_is_written(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    section = HOW_TO.partition("## Several tables, with columns masked, in one session\n")[2].partition("\n## ")[0]
    pipeline, rules = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    here = pipeline.replace("127.0.0.1:4151", address(nsqd)).replace("/data/", f"{tmp_path}/")
    (tmp_path / "pipeline.toml").write_text(here)
    (tmp_path / "rules.toml").write_text(rules)
    order = b'{"user": "ann", "email": "ann@example.org", "amount": %d}'
    publish(nsqd, "orders", [order % amount for amount in (-1, 5, 100)])
    publish(nsqd, "clicks", numbered(10))
    for command in commands.splitlines():
        words = command.replace("pipeline.toml", f"{tmp_path}/pipeline.toml").split()[1:]
        result = CliRunner().invoke(app, [*words, "--until-now"])  # otherwise it would not end
        assert result.exit_code == 0, result.output
    table = pa.table(DeltaTable(tmp_path / "tables/orders").to_pyarrow_table().sort_by("sequence"))
    assert table["amount"].to_pylist() == [5, 100]
    assert table["is_large"].to_pylist() == [False, True]
    assert {"email", "amount", "is_large"} == {*table.column_names} - {*ALL_COLUMNS, "date", "hour"}
    assert "body" not in table.column_names
    assert b"ann@" not in b"".join(it.read_bytes() for it in (tmp_path / "tables/orders").rglob("*.parquet"))
    assert DeltaTable(tmp_path / "tables/orders.quarantine").to_pyarrow_dataset().count_rows() == 1
    assert DeltaTable(tmp_path / "tables/clicks").to_pyarrow_dataset().count_rows() == 10
    assert set(json.loads((tmp_path / "results/per-minute.json").read_text())["topics"]) == {"orders", "clicks"}


def test_the_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT, "idempotence-window=1h") as nsqd:
        publish(nsqd, "orders", numbered(10))
        names: dict[str, object] = {"spark": spark}
        examples = re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL)
        assert len(examples) == 7
        for example in (*examples, *re.findall(r"```python\n(.*?)```", FROM_KAFKA, re.DOTALL)):
            here = example.replace("127.0.0.1:4151", address(nsqd)).replace("127.0.0.1:9108", "127.0.0.1:0")
            exec(here.replace("/data/", f"{tmp_path}/"), names)
        exec(examples[-2].replace("127.0.0.1:4151", address(nsqd)), names)
        assert spark.read.parquet(f"{tmp_path}/tables/orders").count() == 10
        moved = spark.read.parquet(f"{tmp_path}/tables/from-kafka")
        assert moved.columns == ["topic", "partition", "offset", "timestamp", "value"]
        assert sorted(int(row.value) for row in moved.collect()) == list(range(10))
        listener, page = names["listener"], names["page"]
        assert isinstance(listener, NsqListener)
        assert isinstance(page, ThreadingHTTPServer)
        page.shutdown()
        page.server_close()
        spark.streams.removeListener(listener)
        assert sum(state.rows for state in listener.states.snapshot().values()) == 10
        nsqd.http("GET", "/topic/log?topic=numbers&wait=5s&next=0")
        assert nsqd.topic("numbers")["message_count"] == 2000
        assert next_of(nsqd, "orders") == 10
