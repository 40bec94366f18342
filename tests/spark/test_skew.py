"""A short form of `python -m tests.spark.skew`, and a check that it finds late messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_nsq.lanes import Lane
from tests.spark import skew
from tests.support.simulated_lanes import Reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("limit", skew.LIMITS)
@pytest.mark.parametrize("ratio", skew.SKEWS)
def test_no_message_of_level_batches_is_late(ratio: int, limit: int) -> None:
    assert skew.late(Reading(skew.lanes(ratio), points=250), limit) == 0


def take_fair_shares(reading: Reading, limit: int) -> Mapping[Lane, range]:
    """Take the smallest lanes whole, whatever their times."""
    taken = {}
    lanes = sorted(reading.lanes, key=lambda lane: reading.lanes[lane].end - reading.places[lane])
    for place, lane in enumerate(lanes):
        rows = min(reading.lanes[lane].end - reading.places[lane], -(-limit // (len(lanes) - place)))
        if rows:
            taken[lane] = range(reading.places[lane], reading.places[lane] + rows)
            reading.places[lane] += rows
            limit -= rows
    return taken


def test_batches_that_are_not_level_lose_messages() -> None:
    assert skew.late(Reading(skew.lanes(150)), 20_000, take_fair_shares) > 40_000


def test_windows_in_spark_count_every_message(spark: SparkSession, tmp_path: Path) -> None:
    ratio, limit = skew.IN_SPARK[0]
    result = skew.run(spark, tmp_path, skew=ratio, limit=limit)
    assert (result.counted, result.dropped) == (result.published, 0), str(result)
    assert result.batches >= result.published / limit
