"""The pages about Spark name each option and column."""

from __future__ import annotations

import re

import pytest

from pyspark_nsq.options import OPTIONS
from pyspark_nsq.source.rows import ALL_COLUMNS
from tests.support.process import ROOT

REFERENCE = (ROOT / "docs/reference/spark.md").read_text()
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
