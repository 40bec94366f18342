"""What `--metrics-address` exports in addition to the listener's metrics. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from nsqpipe.metrics import Quarantined, States
from pyspark_nsq.tables.table import Format, Table
from tests.pyspark_nsq.tables.test_landing import QUERY

if TYPE_CHECKING:
    import pytest


def test_a_commit_that_comes_during_a_look_is_counted_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(failed: int) -> None:
        told = {"nsq.query": QUERY, "nsq.quarantined": str(failed)}
        rows = pa.table({"n": [failed]})
        write_deltalake(tmp_path, rows, mode="append", commit_properties=CommitProperties(custom_metadata=told))

    commit(1)
    counting = Quarantined(Table(str(tmp_path), Format.DELTA))
    commit(10)
    version = DeltaTable.version

    def beaten(table: DeltaTable) -> int:
        monkeypatch.undo()
        found = version(table)
        commit(100)
        return found

    monkeypatch.setattr(DeltaTable, "version", beaten)
    assert [counting.since_last(QUERY), counting.since_last(QUERY)] == [10, 100]


def test_what_spark_has_counted_is_not_counted_again(tmp_path: Path) -> None:
    states = States({"land": Quarantined(Table(str(tmp_path / "table"), Format.DELTA))})
    states.observe("land", {"id": QUERY, "observedMetrics": {"quality": {"not parsed": 3, "positive": 1}}})
    assert states.snapshot()["land"].broken == {"not parsed": 3, "positive": 1}
