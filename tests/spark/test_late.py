"""A node that was away is late: Spark drops its rows, and that is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqpipe.late import LateRows
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Late
from tests.spark import skew
from tests.support.process import Nsqd
from tests.support.spark import KEPT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_node_that_was_away_for_ten_minutes_is_late_and_that_is_said(spark: SparkSession, tmp_path: Path) -> None:
    here = skew.written(tmp_path / "here", skew.evenly(1000, 10), minutes_ago=10)
    away = skew.written(tmp_path / "away", skew.evenly(800, 10), minutes_ago=20)
    with Nsqd(here, KEPT) as first:
        assert skew.aggregated(spark, tmp_path, [first], {}) == 1000
        with Nsqd(away, KEPT) as second:
            late = LateRows(Late.ERROR)
            with pytest.raises(PipeFailed, match=r"aggregate: at least [1-9][0-9]* late rows were dropped"):
                skew.aggregated(spark, tmp_path, [first, second], {}, late=late)
            # A batch that begins with both of them has nothing late.
            strict = LateRows(Late.ERROR)
            limited = {"maxRowsPerTrigger": "900"}
            assert skew.aggregated(spark, tmp_path / "whole", [first, second], limited, late=strict) == 1800
