"""What the pages about Spark say is what there is."""

from __future__ import annotations

import re
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_nsq.listener import NsqListener
from pyspark_nsq.options import OPTIONS
from pyspark_nsq.rows import ALL_COLUMNS
from tests.support.process import ROOT, Nsqd
from tests.support.spark import KEPT, address, next_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFERENCE = (ROOT / "docs/reference/spark.md").read_text()
HOW_TO = (ROOT / "docs/how-to/spark.md").read_text()
FROM_KAFKA = (ROOT / "docs/how-to/from-kafka.md").read_text()


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_in_the_reference_with_its_default(name: str) -> None:
    row = next((line for line in REFERENCE.splitlines() if line.startswith("|") and f"`{name}`" in line), None)
    assert row is not None
    default = OPTIONS[name][1]
    assert not default or f"| `{default}` |" in row


@pytest.mark.parametrize("name", ALL_COLUMNS)
def test_each_column_is_in_the_reference(name: str) -> None:
    assert f"\n| `{name}` | " in REFERENCE


def test_each_option_that_kafkas_are_said_to_be_is_there() -> None:
    (section,) = re.findall(r"## Options of the source\n(.*?)\n## ", FROM_KAFKA, re.DOTALL)
    ours = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")][2:]
    named = {name for cell in ours for name in re.findall(r"`(\w+)`", cell)}
    assert len(ours) > 20
    assert named <= {*OPTIONS}


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
