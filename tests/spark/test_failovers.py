"""Spark reads on when another machine takes a node over. The long form is `python -m tests.failover rf7 --count 10`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.failover.stores import NewStore, stores
from tests.failover.suites import SUITES, live
from tests.planted.planting import bugs_for, with_bug
from tests.support.lengths import IS_LONG, new_chance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHANCE = new_chance()
_SUITE = SUITES["rf7"]

# What is said of a planted bug
_VERDICTS = {"history shows what another machine may not have": "is message|lacks|has lost"}


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[NewStore]:
    with stores("file", tmp_path) as found:
        yield found


@pytest.mark.slow
def test_nothing_is_missing_or_twice_when_another_machine_takes_over(
    spark: SparkSession, tmp_path: Path, new_store: NewStore
) -> None:
    outcome = live(_SUITE, tmp_path, _CHANCE.getrandbits(32), new_store)
    assert outcome.failovers
    assert outcome.figures["spark_rows"]


if IS_LONG:  # scripts/test-planted does the same

    @pytest.mark.slow
    @pytest.mark.parametrize("bug", bugs_for("failovers under Spark"))
    def test_a_planted_bug_is_found(bug: str, spark: SparkSession, tmp_path: Path, new_store: NewStore) -> None:
        with pytest.raises(AssertionError, match=_VERDICTS[bug]):
            live(_SUITE, tmp_path, 0, new_store, with_bug(bug))
