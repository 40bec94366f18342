"""What `--metrics-address` tells of rows that the sink could not parse, as it is in the table's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsqpipe.metrics import Page, Quarantined, States
from pyspark_nsq.tables.table import Format, Table
from tests.pyspark_nsq.tables.test_landing import QUERY, Job, Odd
from tests.support.orders import Orders
from tests.support.process import Nsqd
from tests.support.spark import KEPT, numbered, publish

if TYPE_CHECKING:
    import pytest


def test_rows_that_the_sink_could_not_parse_are_counted_by_the_table_s_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(str(tmp_path / "table"), Format.DELTA)
    states = States({"land": Quarantined(table)})
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        publish(nsqd, "orders", numbered(100))
        job = Job(Orders(nsqd, "orders"), tmp_path, QUERY, decoder=Odd())
        job.batch_of(0, 40, opens=True)
        states.observe("land", {"id": QUERY})
        job.batch_of(40, 60)
        with monkeypatch.context() as down:
            down.setattr(Table, "exists", lambda _: 1 / 0)
            states.observe("land", {"id": QUERY})
        assert states.snapshot()["land"].broken == {"not parsed": 20}, "the rest later"
        job.batch_of(60, 80)
        states.observe("land", {"id": QUERY})
        job.query = "another"
        job.batch_of(80, 100)
        states.observe("land", {"id": QUERY})
    assert 'nsq_query_rule_broken_total{query="land",rule="not parsed"} 40\n' in Page(states).page().decode()
