"""`nsqpipe run`: several jobs in one Spark session, each as exact as alone, and each named in its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from nsqpipe.cli import app
from pyspark_nsq.kinds import OnFailure
from tests.support.process import Nsqd
from tests.support.spark import address, flip_a_byte_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(folder: Path, nsqd: Nsqd, text: str, *words: str) -> Result:
    """Run it. `T` is the folder of all tables."""
    return CliRunner().invoke(app, ["run", written(folder, nsqd, text), "--until-now", *words])


def written(folder: Path, nsqd: Nsqd, text: str) -> str:
    file = folder / "pipeline.toml"
    defaults = f'[defaults]\nnsqd = "{address(nsqd)}"\n'
    file.write_text(defaults + text.replace("T/", f"{folder}/"))
    return str(file)


def rows(path: Path) -> int:
    return int(DeltaTable(path).to_pyarrow_dataset().count_rows())


ORDERS = '[land.orders]\ntopic = "orders"\ntable = "T/orders"\ndecoder = "json"\nschema = "n int"\n'
CLICKS = '[land.clicks]\ntopic = "clicks"\ntable = "T/clicks"\n'
COUNTS = '[aggregate.counts]\ntopic = ["orders", "clicks"]\nresults = "T/results.json"\ncheckpoint = "T/counts"\n'


def test_tables_and_counts_in_one_session(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", [b'{"n": %d}' % number for number in range(300)])
    publish(nsqd, "clicks", numbered(100))
    done = run(tmp_path, nsqd, ORDERS + CLICKS + COUNTS)
    assert done.exit_code == 0, done.output
    assert (rows(tmp_path / "orders"), rows(tmp_path / "clicks")) == (300, 100)
    assert counted(tmp_path) == {"orders": 300, "clicks": 100}
    summary = done.stderr.splitlines()[-3:]
    assert [line.partition(" in ")[0] for line in summary] == [
        "orders: 300 rows read",
        "clicks: 100 rows read",
        "counts: 400 rows read",
    ]
    assert re.search(r", 300 landed in \d files?, 0 quarantined in 0 files, 0 late, 0 behind; table ", summary[0])


def counted(folder: Path) -> dict[str, int]:
    found = json.loads((folder / "results.json").read_text())
    return {topic: sum(it["messages"] for it in windows) for topic, windows in found["topics"].items()}


def damage(nsqd: Nsqd, topic: str) -> None:
    for number in range(9):
        publish(nsqd, topic, [b"%d00000" % number] * 10)
    flip_a_byte_of(nsqd, b"400000")


@pytest.mark.parametrize("policy", OnFailure)
def test_a_job_that_fails_is_named_and_the_others_do_as_they_are_told(
    policy: OnFailure, spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", [b'{"n": 1}'] * 100)
    damage(nsqd, "clicks")
    done = run(tmp_path, nsqd, CLICKS + ORDERS, f"--on-failure={policy}")
    assert done.exit_code == 1
    (failed,) = [line for line in done.stderr.splitlines() if line.startswith("nsqpipe: ")]
    assert failed.startswith("nsqpipe: clicks.land: ")
    assert "damaged" in failed
    if policy is OnFailure.GO_ON:
        assert rows(tmp_path / "orders") == 100
        assert f"{failed.removeprefix('nsqpipe: ')}; the others go on\n" in done.stderr
    assert not spark.streams.active


def test_a_job_that_cannot_be_started_is_named_too(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    publish(nsqd, "orders", [b'{"n": 1}'] * 100)
    publish(nsqd, "clicks", numbered(10))
    (tmp_path / "rules.toml").write_text('[[rule]]\ncheck = "no_such_column > 0"\n')
    done = run(tmp_path, nsqd, CLICKS + f'rules = "{tmp_path}/rules.toml"\n' + ORDERS, "--on-failure=go-on")
    assert done.exit_code == 1
    assert rows(tmp_path / "orders") == 100
    (failed,) = [line for line in done.stderr.splitlines() if line.startswith("nsqpipe: ")]
    assert failed.startswith("nsqpipe: clicks: [UNRESOLVED_COLUMN")
