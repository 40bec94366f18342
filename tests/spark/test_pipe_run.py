"""`nsqpipe run`: several jobs in one Spark session, each as exact as alone, and each of them named when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from nsqpipe.cli import app
from tests.support.process import Nsqd
from tests.support.spark import address, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(folder: Path, nsqd: Nsqd, text: str, *words: str) -> Result:
    """`T` is the folder of all tables."""
    file = folder / "pipeline.toml"
    defaults = f'[defaults]\nnsqd = "{address(nsqd)}"\n'
    file.write_text(defaults + text.replace("T/", f"{folder}/"))
    return CliRunner().invoke(app, ["run", str(file), "--until-now", *words])


def rows(path: Path) -> int:
    return int(DeltaTable(path).to_pyarrow_dataset().count_rows())


ORDERS = '[land.orders]\ntopic = "orders"\ntable = "T/orders"\ndecoder = "json"\nschema = "n int"\n'
CLICKS = '[land.clicks]\ntopic = "clicks"\ntable = "T/clicks"\n'
COUNTS = '[aggregate.counts]\ntopic = ["orders", "clicks"]\nresults = "T/results.json"\ncheckpoint = "T/counts"\n'


def test_tables_and_counts_in_one_session(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    for total in (300, 500):  # the second time it goes on
        publish(nsqd, "orders", [b'{"n": %d}' % number for number in range(total - rows_of(tmp_path, "orders"))])
        publish(nsqd, "clicks", numbered(100))
        done = run(tmp_path, nsqd, ORDERS + CLICKS + COUNTS)
        assert done.exit_code == 0, done.output
        assert rows(tmp_path / "orders") == total
    assert rows(tmp_path / "clicks") == 200
    found = json.loads((tmp_path / "results.json").read_text())
    counts = {topic: sum(it["messages"] for it in windows) for topic, windows in found["topics"].items()}
    assert counts == {"orders": 500, "clicks": 200}
    summary = done.stderr.splitlines()[-3:]
    assert [line.partition(" in ")[0] for line in summary] == [
        "orders: 200 rows read",
        "clicks: 100 rows read",
        "counts: 300 rows read",
    ]
    assert ", 200 landed in 1 file, 0 quarantined in 0 files, 0 late, 0 behind; table " in summary[0]
    assert " streams): batch " in done.stderr


def rows_of(folder: Path, name: str) -> int:
    return rows(folder / name) if (folder / name).exists() else 0
