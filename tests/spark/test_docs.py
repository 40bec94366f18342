"""What the pages about Spark say is what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_nsq.options import OPTIONS
from pyspark_nsq.rows import ALL_COLUMNS
from tests.support.process import ROOT, Nsqd
from tests.support.spark import KEPT, address, next_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFERENCE = (ROOT / "docs/reference/spark.md").read_text()
HOW_TO = (ROOT / "docs/how-to/spark.md").read_text()


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_in_the_reference_with_its_default(name: str) -> None:
    row = next((line for line in REFERENCE.splitlines() if line.startswith("|") and f"`{name}`" in line), None)
    assert row is not None
    default = OPTIONS[name][1]
    assert not default or f"| `{default}` |" in row


@pytest.mark.parametrize("name", ALL_COLUMNS)
def test_each_column_is_in_the_reference(name: str) -> None:
    assert f"\n| `{name}` | " in REFERENCE


def test_the_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT, "idempotence-window=1h") as nsqd:
        publish(nsqd, "orders", numbered(10))
        names: dict[str, object] = {"spark": spark}
        examples = re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL)
        assert len(examples) == 6
        for example in examples:
            exec(example.replace("127.0.0.1:4151", address(nsqd)).replace("/data/", f"{tmp_path}/"), names)
        exec(examples[-1].replace("127.0.0.1:4151", address(nsqd)), names)
        assert spark.read.parquet(f"{tmp_path}/tables/orders").count() == 10
        nsqd.http("GET", "/topic/log?topic=numbers&wait=5s&next=0")
        assert nsqd.topic("numbers")["message_count"] == 2000
        assert next_of(nsqd, "orders") == 10
