"""Landing into Iceberg without Spark: tasks read a real nsqd, a driver commits, and the table is examined."""

from __future__ import annotations

import math
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.types import LongType
from pyiceberg.utils.config import Config
from pyspark.sql.pandas.types import from_arrow_schema
from typer.testing import CliRunner

from nsqpipe.cli import app
from nsqpipe.land import Land, prepare_landing
from nsqpipe.ledger import Ledger
from nsqpipe.shape import Shape
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.lanes import Range
from pyspark_nsq.options import source_options
from pyspark_nsq.source.queries import reporting
from pyspark_nsq.source.ranges import as_rows
from pyspark_nsq.tables import iceberg_tables, landing
from pyspark_nsq.tables.ends import ACCOUNTED, application, judgement
from pyspark_nsq.tables.iceberg_catalogs import open_catalog, with_stores
from pyspark_nsq.tables.iceberg_commits import SNAPSHOT
from pyspark_nsq.tables.iceberg_target import CatalogName
from pyspark_nsq.tables.landing import LandingWriter, land, landing_of
from pyspark_nsq.tables.lease import ABANDONED_AFTER
from pyspark_nsq.tables.marks import SELECTED, Marking
from pyspark_nsq.tables.shares import AnotherJob, Batch, NotJoined
from pyspark_nsq.tables.standing import check_standing
from pyspark_nsq.tables.table import Format, Table
from pyspark_nsq.tables.tending import tend
from pyspark_nsq.tables.unnamed import Unnamed
from pyspark_nsq.tables.upkeep import Policy
from tests.nsqpipe.whole.test_run import IMPORTED_BY_THREADS
from tests.pyspark_nsq.tables.iceberg_rest import RestCatalog
from tests.pyspark_nsq.tables.test_landing import GROWN, QUERY, Job, Odd, files, seen_by_sql
from tests.pyspark_nsq.tables.test_standing import begins, planned, source_of
from tests.spark import standing
from tests.support.iceberg import catalog_at, flags, landed, opened, rows_in, table_at
from tests.support.orders import Orders
from tests.support.process import ROOT
from tests.support.spark import address, publish

if TYPE_CHECKING:
    from pyiceberg.table import Table as Opened

BAD = "raw.bad"


class IcebergJob(Job):
    """A query that starts now, and learns from the tables how far they go."""

    def __init__(
        self,
        orders: Orders,
        folder: Path,
        query: str = "q",
        *,
        decoder: Odd | None = None,
        table: str = "raw.table",
        bad: str = BAD,
    ) -> None:
        super().__init__(orders, folder, query, decoder=decoder)
        rows, failed = landing.schemas(source_options(self.source), decoder, drops_body=False)
        theirs = table_at(folder, bad).sink_options(failed) if decoder else {}
        self.options |= table_at(folder, table).sink_options(rows)
        self.options |= {f"quarantine.{name}": text for name, text in theirs.items()} | {"quarantine": bad}


def before_the_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, times: int = 1) -> None:
    """Call this just before the next commits to the table, after they were judged."""
    commit, left = SqlCatalog.commit_table, times

    def beaten(catalog: SqlCatalog, table: Opened, *arguments: object) -> object:
        nonlocal left
        if table.name()[-1] == "table" and left:
            left -= 1
            now, left = left, 0  # the call may itself be a commit
            act()
            left = now
        return commit(catalog, table, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlCatalog, "commit_table", beaten)


def test_ranges_become_rows_with_the_end_of_their_lane_and_outlive_every_snapshot(
    orders: Orders, tmp_path: Path
) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 30, 60, opens=True)
    job.batch_of(60, 100)
    assert landed(tmp_path) == list(range(100))
    lane = application(str(job.head.lane))
    table = opened(tmp_path)
    assert table.properties[lane] == "100"
    (file,) = {path.rpartition("/")[0] for path in table.inspect.files()["file_path"].to_pylist()}
    row = rows_in(tmp_path).slice(0, 1).to_pylist()[0]
    assert (
        file
        == f"{table.location()}/data/topic={orders.topic}/date={row['timestamp'].date()}/hour={row['timestamp'].hour}"
    )
    assert (row["date"], row["hour"]) == (row["timestamp"].date(), row["timestamp"].hour)
    assert table.scan(row_filter=f"topic = '{orders.topic}' and hour = {row['hour']}").count() == 100
    told = table.metadata.snapshots[-1].summary
    assert told is not None
    assert (told["nsq.query"], told["nsq.batch"], told["nsq.rows"]) == ("q", "1", "40")
    table.append(table.scan().to_arrow().slice(0, 0))  # the newest snapshot is another writer's
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(opened(tmp_path).snapshots()) == 1
    assert opened(tmp_path).properties[lane] == "100"
    IcebergJob(orders, tmp_path, "again").batch_of(0, 100, opens=True)
    assert landed(tmp_path) == list(range(100))


@pytest.mark.parametrize(
    "metrics",
    [
        {"default": "none"},
        {"default": "counts"},
        {"column.hour": "none", "column.date": "none", "column.topic": "none"},
    ],
)
def test_files_have_the_partition_of_their_rows_whatever_metrics_the_table_keeps(
    orders: Orders, tmp_path: Path, metrics: dict[str, str]
) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 40, opens=True)
    with opened(tmp_path).transaction() as transaction:
        transaction.set_properties({f"write.metadata.metrics.{name}": mode for name, mode in metrics.items()})
    job.batch_of(40, 100)
    table, row = opened(tmp_path), rows_in(tmp_path).slice(0, 1).to_pylist()[0]
    for condition in (f"topic = '{orders.topic}'", f"date = '{row['date']}'", f"hour = {row['hour']}"):
        assert table.scan(row_filter=condition).count() == 100, condition
    partitions = table.inspect.files()["partition"].to_pylist()
    assert partitions == 2 * [{name: row[name] for name in ("topic", "date", "hour")}]


def test_a_checkpoint_that_is_lost_or_old_adds_what_is_not_there(orders: Orders, tmp_path: Path) -> None:
    IcebergJob(orders, tmp_path).batch_of(0, 60, opens=True)
    again = IcebergJob(orders, tmp_path, "another")
    again.batch_of(0, 20, 40, opens=True)  # the table has all of it
    again.batch_of(40, 50, 80)  # and a part of this one
    again.batch_of(80, 100)
    assert landed(tmp_path) == list(range(100))


def test_a_checkpoint_that_is_ahead_is_refused_and_leaves_nothing_behind(orders: Orders, tmp_path: Path) -> None:
    IcebergJob(orders, tmp_path).batch_of(0, 60, opens=True)
    before = files(tmp_path)
    with pytest.raises(NotJoined, match=r"table ends at 60: messages \[60, 70\) would be missing"):
        IcebergJob(orders, tmp_path, "another").batch_of(70, 100)
    assert (landed(tmp_path), files(tmp_path)) == (list(range(60)), before)


def test_a_table_that_was_removed_does_not_begin_in_the_middle(orders: Orders, tmp_path: Path) -> None:
    with pytest.raises(NotJoined, match="the table was removed"):
        IcebergJob(orders, tmp_path).batch_of(50, 100)
    job = IcebergJob(orders, tmp_path)
    open_catalog(catalog_at(tmp_path)).drop_table("raw.table")
    with pytest.raises(NotJoined, match=r"the table raw\.table was removed"):
        job.batch_of(0, 100, opens=True)


def test_of_two_jobs_the_later_one_says_that_there_is_another(orders: Orders, tmp_path: Path) -> None:
    first, second = IcebergJob(orders, tmp_path), IcebergJob(orders, tmp_path, "second")
    first.batch_of(0, 10, opens=True)
    tasks = second.tasks(10, 50)
    first.batch_of(10, 50)
    before = files(tmp_path)
    with pytest.raises(AnotherJob, match=r"another job lands into the table raw\.table"):
        second.commit(tasks)
    assert files(tmp_path) == before - len(tasks)
    IcebergJob(orders, tmp_path, "third").batch_of(10, 50, 100)
    assert landed(tmp_path) == list(range(100))


def test_two_commits_at_once_of_a_lane_collide(orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself pyiceberg would add the rows of both, and say that the table ends at 50."""
    first, second = IcebergJob(orders, tmp_path), IcebergJob(orders, tmp_path, "second")
    tasks, rival = first.tasks(0, 50, opens=True), second.tasks(0, 80, opens=True)
    before_the_commit(monkeypatch, lambda: second.commit(rival))
    with pytest.raises(AnotherJob):
        first.commit(tasks)
    assert landed(tmp_path) == list(range(80))
    assert opened(tmp_path).properties[application(str(first.head.lane))] == "80"


def test_who_commits_something_else_meanwhile_is_no_other_job(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 50, opens=True)
    nothing = rows_in(tmp_path).slice(0, 0)
    before_the_commit(monkeypatch, lambda: opened(tmp_path).append(nothing), times=3)
    job.batch_of(50, 100)
    assert landed(tmp_path) == list(range(100))
    assert opened(tmp_path).properties[application(str(job.head.lane))] == "100"


def test_what_does_not_decode_lies_in_the_quarantine(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 50, 100, opens=True)
    assert landed(tmp_path) == list(range(0, 100, 2))
    assert landed(tmp_path, BAD) == list(range(1, 100, 2))
    good, bad = rows_in(tmp_path), rows_in(tmp_path, BAD)
    assert sorted(value["n"] for value in good["value"].to_pylist()) == list(range(0, 100, 2))
    assert set(bad["error"].to_pylist()) == {"odd"}
    assert "value" not in bad.column_names
    assert "error" not in good.column_names


def test_a_table_grows_while_it_is_landed_into_and_who_writes_the_old_fields_goes_on(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = IcebergJob(orders, tmp_path, decoder=Odd())
    old.batch_of(0, 20, opens=True)

    def widen() -> None:
        with opened(tmp_path).update_schema() as update:
            update.add_column(("value", "m"), LongType())

    before_the_commit(monkeypatch, widen)
    old.batch_of(20, 40)
    IcebergJob(orders, tmp_path, "new", decoder=Odd(GROWN)).batch_of(40, 60)
    IcebergJob(orders, tmp_path, "old again", decoder=Odd()).batch_of(60, 100)
    assert landed(tmp_path) == list(range(0, 100, 2))
    assert landed(tmp_path, BAD) == list(range(1, 100, 2))
    values = rows_in(tmp_path)["value"].to_pylist()
    assert sorted((it["n"], it["m"]) for it in values if it["m"] is not None) == [(n, n) for n in range(40, 60, 2)]


def test_a_batch_brings_the_fields_that_the_table_lacks(orders: Orders, tmp_path: Path) -> None:
    IcebergJob(orders, tmp_path, decoder=Odd()).batch_of(0, 20, opens=True)
    ahead = IcebergJob(orders, tmp_path, "ahead", decoder=Odd(GROWN))
    with pytest.raises(NotJoined):
        ahead.batch_of(30, 60)
    assert "m" not in rows_in(tmp_path)["value"].to_pylist()[0], "what is refused leaves the schema alone"
    IcebergJob(orders, tmp_path, "new", decoder=Odd(GROWN)).batch_of(20, 40)
    assert sorted(it["m"] for it in rows_in(tmp_path)["value"].to_pylist() if it["m"] is not None) == list(
        range(20, 40, 2)
    )


def test_fields_of_another_type_are_refused_before_anything_is_read(orders: Orders, tmp_path: Path) -> None:
    IcebergJob(orders, tmp_path, decoder=Odd())
    with pytest.raises(PipeFailed, match=r"do not fit into the table raw\.table: value\.n: string is not bigint"):
        IcebergJob(orders, tmp_path, decoder=Odd(pa.struct([("n", pa.string())])))


def test_a_crash_between_the_two_commits_is_a_batch_that_is_half_done(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = IcebergJob(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 10, opens=True)
    tasks = job.tasks(10, 60)

    def crash() -> None:
        raise SystemExit

    before_the_commit(monkeypatch, crash)
    with pytest.raises(SystemExit):
        job.commit(tasks)
    monkeypatch.undo()
    assert (landed(tmp_path), landed(tmp_path, BAD)) == (list(range(0, 10, 2)), list(range(1, 60, 2)))
    IcebergJob(orders, tmp_path, decoder=Odd()).batch_of(10, 60)
    assert (landed(tmp_path), landed(tmp_path, BAD)) == (list(range(0, 60, 2)), list(range(1, 60, 2)))


def test_a_batch_without_a_row_that_the_table_keeps_still_moves_its_end_and_collides(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders.nsqd, orders.topic, [b"1"] * 50)
    job = IcebergJob(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 100, opens=True)
    rival = IcebergJob(orders, tmp_path, "rival", decoder=Odd())
    tasks, theirs = job.tasks(100, 120), rival.tasks(100, 150)
    table = rival.writer._landing.table
    brought = Unnamed(*table.filesystem(), [])
    before_the_commit(monkeypatch, lambda: table.append([it.table for it in theirs], Batch("rival", 0, {}), brought))
    with pytest.raises(AnotherJob):
        job.commit(tasks)
    assert opened(tmp_path).properties[application(str(job.head.lane))] == "150"
    assert len(landed(tmp_path)) == 50


def test_a_table_whose_rows_have_no_ends_is_not_added_to(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 10, opens=True)
    with opened(tmp_path).transaction() as transaction:
        transaction.remove_properties(ACCOUNTED, SNAPSHOT)
    for act in (lambda: job.batch_of(10, 20), lambda: IcebergJob(orders, tmp_path)):
        with pytest.raises((NotJoined, PipeFailed), match="does not say which messages"):
            act()


def test_a_table_that_was_set_back_is_not_added_to(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 50, opens=True)
    job.batch_of(50, 80)
    first = opened(tmp_path).history()[0].snapshot_id
    opened(tmp_path).manage_snapshots().rollback_to_snapshot(first).commit()
    assert landed(tmp_path) == list(range(50)), "and the ends say 80"
    job.batch = 1  # the lost batch runs again: its snapshot is still there
    for borders in ((50, 80), (80, 100)):
        with pytest.raises(NotJoined, match="was set back to a snapshot"):
            job.batch_of(*borders)
    assert tend(table_at(tmp_path), Policy(vacuum_after=0.0), now=time.time() + 1).failed == ""
    with pytest.raises(PipeFailed, match="was set back to a snapshot"):
        check_standing(source_of(orders), table_at(tmp_path))


def test_a_table_that_was_set_back_is_known_though_its_newest_snapshot_has_expired(
    orders: Orders, tmp_path: Path
) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 50, opens=True)
    job.batch_of(50, 80)
    first, newest = (it.snapshot_id for it in opened(tmp_path).history())
    opened(tmp_path).manage_snapshots().rollback_to_snapshot(first).commit()
    opened(tmp_path).maintenance.expire_snapshots().by_id(newest).commit()
    with pytest.raises(NotJoined, match="was set back to a snapshot"):
        job.batch_of(80, 100)
    assert landed(tmp_path) == list(range(50))


def delay_a_commit(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> Callable[[], object]:
    """Let the next commit to this table raise; the catalog gets it when the returned function is called."""
    commit, late = SqlCatalog.commit_table, []

    def slow(catalog: SqlCatalog, table: Opened, *arguments: object) -> object:
        if table.name()[-1] != name:
            return commit(catalog, table, *arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        late.append(partial(commit, catalog, table, *arguments))  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(SqlCatalog, "commit_table", slow)
    return lambda: late.pop()()


@pytest.mark.parametrize("name", ["table", "bad"])
def test_a_commit_that_arrives_after_the_abort_finds_its_files(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Spark aborts in another process, which knows nothing of the commit. The next run finds what has arrived."""
    job = IcebergJob(orders, tmp_path, decoder=Odd())
    tasks = job.tasks(0, 40, opens=True)
    arrive = delay_a_commit(monkeypatch, name, CommitStateUnknownException("502"))
    with pytest.raises(CommitStateUnknownException):
        job.commit(tasks)
    job.writer.abort(list(tasks), 0)
    arrive()
    IcebergJob(orders, tmp_path, decoder=Odd()).batch_of(0, 40, opens=True)
    assert (landed(tmp_path), landed(tmp_path, BAD)) == (list(range(0, 40, 2)), list(range(1, 40, 2)))


def test_a_commit_that_arrives_after_it_was_said_to_be_refused_finds_its_files_and_is_not_another_job(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 10, opens=True)
    tasks = job.tasks(10, 40)
    arrive = delay_a_commit(monkeypatch, "table", CommitFailedException("somebody else has the lock"))
    commit = SqlCatalog.commit_table  # until the commit has happened, this is the delaying function

    def late(catalog: SqlCatalog, *arguments: object) -> object:
        try:
            return commit(catalog, *arguments)  # type: ignore[arg-type]
        finally:
            before_the_commit(monkeypatch, arrive)

    monkeypatch.setattr(SqlCatalog, "commit_table", late)
    job.commit(tasks)
    monkeypatch.undo()
    assert landed(tmp_path) == list(range(40))
    assert len(opened(tmp_path).snapshots()) == 2


def test_files_of_tasks_beside_one_that_has_failed_are_removed(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path, decoder=Odd())
    tasks = job.tasks(0, 60, opens=True)
    assert files(tmp_path) == 2
    job.writer.abort([*tasks, None], 0)
    assert files(tmp_path) == 0


@pytest.mark.parametrize("error", [CommitFailedException, CommitStateUnknownException])
def test_an_answer_that_was_lost_doubles_nothing(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The commit was made, and the client's own transport repeats it, which is refused."""
    job = IcebergJob(orders, tmp_path)
    commit = SqlCatalog.commit_table

    def twice(catalog: SqlCatalog, *arguments: object) -> object:
        monkeypatch.undo()
        commit(catalog, *arguments)  # type: ignore[arg-type]
        raise error("somebody else has committed")

    tasks = job.tasks(0, 60, opens=True)
    monkeypatch.setattr(SqlCatalog, "commit_table", twice)
    job.commit(tasks)
    assert landed(tmp_path) == list(range(60))


def crash_between_the_two_commits(job: IcebergJob, monkeypatch: pytest.MonkeyPatch, *borders: int) -> None:
    tasks = job.tasks(*borders, opens=True)
    delay_a_commit(monkeypatch, "table", CommitStateUnknownException("502"))  # for ever
    with pytest.raises(CommitStateUnknownException):
        job.commit(tasks)


def test_whoever_judges_otherwise_does_not_go_on_where_the_quarantine_is_ahead(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the decoder was corrected: 1, 3, ... are in the quarantine.

    0, 4, ... would be in neither table.
    """
    crash_between_the_two_commits(IcebergJob(orders, tmp_path, decoder=Odd()), monkeypatch, 0, 20)
    old, new = IcebergJob(orders, tmp_path, decoder=Odd()), IcebergJob(orders, tmp_path, decoder=Odd(fails=0))
    for borders in ((0, 20), (0, 0), (0, 40)):
        with pytest.raises(NotJoined, match=r"before 20 of lane .* were judged by another decoder"):
            new.batch_of(*borders, opens=True)
    old.batch_of(0, 20, opens=True)
    IcebergJob(orders, tmp_path, decoder=Odd(fails=0)).batch_of(20, 40)
    assert landed(tmp_path) == [*range(0, 20, 2), *range(21, 40, 2)]
    assert landed(tmp_path, BAD) == [*range(1, 20, 2), *range(20, 40, 2)]


def test_a_new_quarantine_is_a_way_to_go_on(orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_between_the_two_commits(IcebergJob(orders, tmp_path, decoder=Odd()), monkeypatch, 0, 20)
    IcebergJob(orders, tmp_path, decoder=Odd(fails=0), bad="raw.worse").batch_of(0, 20, opens=True)
    assert (landed(tmp_path), landed(tmp_path, "raw.worse")) == (list(range(1, 20, 2)), list(range(0, 20, 2)))


def test_two_tables_share_a_quarantine(orders: Orders, tmp_path: Path) -> None:
    first = IcebergJob(orders, tmp_path, decoder=Odd())
    second = IcebergJob(orders, tmp_path, decoder=Odd(fails=0), table="raw.other")
    for job in (first, second, first, second):
        job.batch_of(job.batch * 50, job.batch * 50 + 50, opens=job.batch == 0)
    assert (landed(tmp_path), landed(tmp_path, "raw.other")) == (list(range(0, 100, 2)), list(range(1, 100, 2)))
    assert landed(tmp_path, BAD) == list(range(100))
    said, lane = opened(tmp_path, BAD).properties, str(first.head.lane)
    ids = [str(opened(tmp_path, name).metadata.table_uuid) for name in ("raw.table", "raw.other")]
    assert [said[application(lane, it)] for it in ids] == ["100", "100"]
    assert len({said[judgement(lane, it)] for it in ids}) == 2


def land_selected(
    orders: Orders, folder: Path, made: pa.StructType, select: Callable[[int], dict[str, object]]
) -> None:
    """Land as after `--select`, which makes this of the numbers."""
    seen = seen_by_sql(Job(orders, folder), (SELECTED, made))
    rows, _ = landing.seen_by_sql(seen, drops_body=False)
    to = landing_of(table_at(folder).sink_options(rows), from_arrow_schema(seen))
    head = orders.head
    ranges = as_rows([Range(head.lane, head.address, 0, 100)], frozenset([(head.lane, 0)]))

    def after_sql() -> Iterator[pa.RecordBatch]:
        for batch in Marking(source_options(orders.source))(iter([ranges])):
            found = [None if body is None else select(int(body)) for body in batch.column("body").to_pylist()]
            days = batch.column("timestamp").cast(pa.date32())
            batch = batch.append_column(SELECTED, pa.array(found, made)).append_column("date", days)
            yield batch.append_column("hour", pa.nulls(batch.num_rows, pa.int32())).select(seen.names)

    joined = pa.Table.from_batches(after_sql()).combine_chunks().to_batches()
    LandingWriter(to).commit([land(to, iter(joined), query="q", name="q-0-0")], 0)


def test_what_sql_makes_of_messages_lands_and_is_not_forgotten(orders: Orders, tmp_path: Path) -> None:
    land_selected(orders, tmp_path, pa.struct([("twice", pa.int16())]), lambda number: {"twice": 2 * number})
    found = rows_in(tmp_path)
    assert sorted(found["twice"].to_pylist()) == list(range(0, 200, 2))
    assert "body" not in found.column_names
    table, quarantine = table_at(tmp_path), table_at(tmp_path, BAD)
    job = Land(source=source_of(orders), table=table, quarantine=quarantine, shape=Shape(select="1 as one"))
    prepare_landing(job)
    with pytest.raises(PipeFailed, match=r"raw\.table was filled with --select: give the same --select"):
        prepare_landing(replace(job, shape=Shape()))


def test_nodes_are_told_the_table_and_its_catalog(orders: Orders, tmp_path: Path) -> None:
    def told(catalog: CatalogName) -> str:
        table = replace(table_at(tmp_path), catalog=catalog)
        return reporting(source_of(orders), "land", table.absolute(), table.format).options["readerInto"]

    assert told(CatalogName("lake")) == "raw.table in lake"
    assert told(CatalogName()) == "raw.table"
    assert told(catalog_at(tmp_path)) == f"raw.table in sqlite:///{tmp_path}/catalog.db"
    assert (
        told(CatalogName("", {"uri": "postgresql://me:hidden@host/c"})) == "raw.table in postgresql://me:xxxxx@host/c"
    )


def test_two_that_make_a_catalog_at_once_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def beaten(catalog: SqlCatalog) -> None:
        monkeypatch.undo()
        open_catalog(catalog_at(tmp_path))
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)  # it has checked before

    monkeypatch.setattr(SqlCatalog, "create_tables", beaten)
    assert iceberg_tables.standing(table_at(tmp_path)) is None


def test_two_that_make_a_namespace_at_once_both_have_it(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = SqlCatalog.namespace_exists

    def beaten(catalog: SqlCatalog, namespace: str) -> bool:
        found = exists(catalog, namespace)
        monkeypatch.undo()
        open_catalog(catalog_at(tmp_path)).create_namespace(namespace)  # after the other has checked
        return found

    monkeypatch.setattr(SqlCatalog, "namespace_exists", beaten)
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 20, opens=True)
    assert landed(tmp_path) == list(range(20))


def test_a_namespace_that_cannot_be_made_is_said(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError("no namespaces for you")

    monkeypatch.setattr(SqlCatalog, "create_namespace", forbidden)
    with pytest.raises(PipeFailed, match=r"the catalog of raw\.table cannot be used: no namespaces for you"):
        IcebergJob(orders, tmp_path)


def test_each_catalog_that_is_opened_is_closed(orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SqlCatalog] = []
    closed: list[SqlCatalog] = []
    make, close = SqlCatalog.__init__, SqlCatalog.close

    def made_by_us(catalog: SqlCatalog, *arguments: object, **more: object) -> None:
        made.append(catalog)
        make(catalog, *arguments, **more)  # type: ignore[arg-type]

    def closed_by_us(catalog: SqlCatalog) -> None:
        closed.append(catalog)
        close(catalog)

    monkeypatch.setattr(SqlCatalog, "__init__", made_by_us)
    monkeypatch.setattr(SqlCatalog, "close", closed_by_us)
    job = IcebergJob(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 20, opens=True)
    with pytest.raises(NotJoined):
        job.batch_of(30, 40)
    IcebergJob(orders, tmp_path, decoder=Odd())  # whose tables exist
    table = table_at(tmp_path)
    check_standing(source_of(orders), table)
    table.check_rows(pa.schema([("body", pa.binary())]))
    iceberg_tables.contents(table)
    assert tend(table, Policy(vacuum_after=0.0), now=time.time() + 1).failed == ""
    assert len(made) > 8
    assert sorted(map(id, closed)) == sorted(map(id, made))


def pipeline_file(orders: Orders, folder: Path, *names: str) -> Path:
    """Write a file of jobs for `nsqpipe run`."""
    file = folder / "pipeline.toml"
    properties = dict(catalog_at(folder).properties)
    lines = ["[defaults]", f'nsqd = "{address(orders.nsqd)}"', f'topic = "{orders.topic}"', 'format = "iceberg"']
    lines += [f'catalog-uri = "{properties.pop("uri")}"']
    lines += ["[defaults.catalog_option]", *(f'{name} = "{text}"' for name, text in properties.items())]
    for name in names:
        lines += [f"[land.{name}]", f'table = "raw.{name}"', f'checkpoint = "{folder}/{name}"']
    file.write_text("\n".join(lines))
    return file


def test_several_jobs_of_one_file_land_into_iceberg(orders: Orders, tmp_path: Path) -> None:
    names = [f"table{number}" for number in range(6)]
    file = pipeline_file(orders, tmp_path, *names)
    done = CliRunner().invoke(app, ["run", str(file), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"can run: {', '.join(f'[land.{name}]' for name in names)}"
    remote = CliRunner().invoke(app, ["run", str(file), "--dry-run", "--remote=sc://127.0.0.1:1"])
    assert remote.exit_code == 2
    assert "[land.table0] --format iceberg: the driver commits, so it does not work with --remote" in remote.stderr


def test_jobs_that_are_checked_beside_each_other_import_nothing(orders: Orders, tmp_path: Path) -> None:
    file = pipeline_file(orders, tmp_path, "one", "two")
    command = [sys.executable, "-c", IMPORTED_BY_THREADS, str(file), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "late:", done


def test_where_landing_goes_on_is_what_the_table_says(orders: Orders, tmp_path: Path) -> None:
    table = table_at(tmp_path, checkpoint=str(tmp_path / "lost"))
    assert check_standing(source_of(orders), table) == source_of(orders), "nothing is there yet"
    job = IcebergJob(orders, tmp_path)
    lane = str(job.head.lane)
    job.batch_of(0, 60, opens=True)
    assert begins(check_standing(source_of(orders), table)) == {lane: 60}
    ahead = planned(tmp_path / "foreign", {"lanes": {lane: 80}, "begins": {lane: 0}}, done=1)
    with pytest.raises(PipeFailed, match=rf"goes on at 80 of lane {lane}, and the table raw\.table ends at 60"):
        check_standing(source_of(orders), table_at(tmp_path, checkpoint=ahead))
    behind = planned(tmp_path / "old", {"lanes": {lane: 20}, "begins": {lane: 0}}, done=1)
    assert check_standing(source_of(orders), table_at(tmp_path, checkpoint=behind)) == source_of(orders)


def test_the_catalog_is_found_by_its_name_in_the_environment(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 60, opens=True)
    for name, text in catalog_at(tmp_path).properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}", text)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # pyiceberg reads it when it is imported
    found = iceberg_tables.standing(Table("raw.table", Format.ICEBERG, catalog=CatalogName("default")))
    assert found is not None
    assert found.end_of(str(job.head.lane)) == 60


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, **more: str) -> None:
    """Have pyiceberg's configuration name a catalog `lake`, its default, with these properties beside those of tests."""
    properties = {**catalog_at(folder).properties, **{name.replace("_", "-"): text for name, text in more.items()}}
    lines = ["default-catalog: lake", "catalog:", "  lake:"]
    lines += [f"    {name}: {text}" for name, text in properties.items()]
    folder.joinpath(".pyiceberg.yaml").write_text("\n".join(lines))
    monkeypatch.setenv("PYICEBERG_HOME", str(folder))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # pyiceberg reads it when it is imported


def test_checks_and_commits_ask_the_default_catalog_of_the_configuration(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    table = replace(table_at(tmp_path), catalog=CatalogName("", {"pool_pre_ping": "true"}))
    good, _ = landing.schemas(source_options(orders.source), None, drops_body=False)
    job = Job(orders, tmp_path)
    job.options |= table.sink_options(good)
    job.batch_of(0, 60, opens=True)
    assert load_catalog("lake").load_table("raw.table").scan().count() == 60
    for catalog in (CatalogName(), CatalogName("lake")):
        assert begins(check_standing(source_of(orders), replace(table, catalog=catalog))) == {str(job.head.lane): 60}


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "id of the environment",
    "AWS_SECRET_ACCESS_KEY": "secret of the environment",
    "AWS_SESSION_TOKEN": "token of the environment",
    "AWS_REGION": "region of the environment",
    "AZURE_STORAGE_ACCOUNT_KEY": "key of the environment",
}


def reached(storage: dict[str, str], **more: str) -> dict[str, object]:
    """Return what pyiceberg knows about stores."""
    found = load_catalog("lake", **with_stores(CatalogName("lake", more), storage, ENVIRONMENT).properties).properties
    return {name: text for name, text in found.items() if name.startswith(("s3.", "client.", "gcs.", "adls."))}


@pytest.mark.parametrize("store", ["s3", "client"])
def test_configuration_stands_above_the_environment_and_what_is_said_above_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    keys = {f"{store}.access-key-id": "id of lake", f"{store}.secret-access-key": "secret of lake"}
    configure(monkeypatch, tmp_path, **keys)
    environment = {"s3.region": "region of the environment", "adls.account-key": "key of the environment"}
    assert reached({}) == {**keys, **environment}, "no session token of somebody else"
    said = reached({"storage.accessKey": "my id", "storage.secretKey": "mine", "storage.region": "here"})
    mine = {"s3.access-key-id": "my id", "s3.secret-access-key": "mine", "s3.region": "here"}
    assert said == {**keys, **environment, **mine}
    assert reached({"storage.region": "here"}, **{"s3.region": "there"})["s3.region"] == "there"


def test_keys_of_the_environment_count_where_nobody_else_has_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, tmp_path, **{"s3.endpoint": "http://minio:9000"})
    assert reached({"storage.token": "sas"}) == {
        "s3.endpoint": "http://minio:9000",
        "s3.access-key-id": "id of the environment",
        "s3.secret-access-key": "secret of the environment",
        "s3.session-token": "token of the environment",
        "s3.region": "region of the environment",
        "adls.sas-token": "sas",
    }


def test_options_of_each_store_are_those_that_pyiceberg_has_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, tmp_path)
    table = replace(table_at(tmp_path), catalog=CatalogName("lake"))
    assert iceberg_tables.standing(replace(table, storage={"storage.secretKey": "azure's"})) is None
    assert reached({"storage.secretKey": "azure's"})["adls.account-key"] == "azure's"
    found = reached({"storage.endpoint": "http://here:1"})
    assert (found["gcs.service.host"], found["adls.dfs-storage-authority"]) == ("http://here:1", "here:1")
    for name, said in (("key", r"there is no option storage\.key"), ("accessKey", "an access key needs both")):
        with pytest.raises(PipeFailed, match=said):
            iceberg_tables.standing(replace(table, storage={f"storage.{name}": "mine"}))


def test_upkeep_forgets_snapshots_and_removes_what_crashes_have_left(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path, QUERY)
    job.batch_of(0, 20, opens=True)
    job.batch_of(20, 40)
    job.tasks(40, 60)  # and the driver dies
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (0, 0))
    strange = tmp_path / "lake" / "raw" / "table" / "data" / "strange.parquet"
    strange.touch()
    os.utime(strange, (0, 0))
    before = files(tmp_path)
    now = time.time() + ABANDONED_AFTER
    done = tend(table_at(tmp_path), Policy(vacuum_after=60.0), now=now)
    assert (done.files, done.removed, done.failed) == (2, 1, "")
    assert files(tmp_path) == before - 1
    assert strange.exists()
    assert len(opened(tmp_path).snapshots()) == 1
    assert landed(tmp_path) == list(range(40))
    assert tend(table_at(tmp_path), Policy(vacuum_after=60.0), now=now + 1).removed == 0, "and not at each look"
    job.batch_of(40, 60)
    assert landed(tmp_path) == list(range(60))


def append_nothing(folder: Path, *, times: int) -> None:
    """Make further snapshots as another writer."""
    for _ in range(times):
        opened(folder).append(rows_in(folder).slice(0, 0))


def test_upkeep_keeps_the_way_to_the_snapshot_that_set_the_ends(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 10, opens=True)
    job.batch_of(10, 20)
    append_nothing(tmp_path, times=2)
    for _ in range(2):
        assert tend(table_at(tmp_path), Policy(vacuum_after=0.0), now=time.time() + 1).failed == ""
        assert len(opened(tmp_path).snapshots()) == 3
    job.batch_of(20, 40)
    assert landed(tmp_path) == list(range(40))
    tend(table_at(tmp_path), Policy(vacuum_after=0.0), now=time.time() + 1)
    assert len(opened(tmp_path).snapshots()) == 1


def test_a_way_that_somebody_else_has_cut_is_said_with_what_can_be_done(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path)
    job.batch_of(0, 20, opens=True)
    append_nothing(tmp_path, times=2)
    named, between, _ = opened(tmp_path).snapshots()
    opened(tmp_path).maintenance.expire_snapshots().by_id(between.snapshot_id).commit()
    said = (
        rf"has lost the snapshots that lead from {named.snapshot_id}, .* If it was not, expire {named.snapshot_id} too"
    )
    with pytest.raises(NotJoined, match=said):
        job.batch_of(20, 40)
    opened(tmp_path).maintenance.expire_snapshots().by_id(named.snapshot_id).commit()
    job.batch_of(20, 40)
    assert landed(tmp_path) == list(range(40))


def test_snapshots_do_not_become_more_and_more(orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_tables, "_MOST_SNAPSHOTS", 4)
    monkeypatch.setattr(iceberg_tables, "_KEPT_SNAPSHOTS", 2)
    job = IcebergJob(orders, tmp_path)
    counts = []
    for begin in range(0, 100, 20):
        job.batch_of(begin, begin + 20, opens=begin == 0)
        tend(table_at(tmp_path), Policy(), now=time.time())
        counts.append(len(opened(tmp_path).snapshots()))
    assert counts == [1, 2, 3, 4, 2]
    assert landed(tmp_path) == list(range(100))


def test_the_last_line_says_what_the_table_has_grown_by(orders: Orders, tmp_path: Path) -> None:
    IcebergJob(orders, tmp_path).batch_of(0, 20, opens=True)
    ledger = Ledger("land", "table raw.table")
    ledger.watch("landed", table_at(tmp_path))
    IcebergJob(orders, tmp_path).batch_of(20, 50, 100)
    assert "80 landed in 2 files" in ledger.summary(1.0)


def test_a_catalog_that_does_not_answer_is_said_in_one_line(tmp_path: Path) -> None:
    table = table_at(tmp_path / "nowhere")
    with pytest.raises(PipeFailed, match=r"the catalog of raw\.table cannot be used: ") as failed:
        iceberg_tables.standing(table)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format=iceberg", "--table=/data/t", "--checkpoint=c"], "an Iceberg table is named NAMESPACE.TABLE"),
        (["--format=iceberg", "--table=raw.t"], "--format iceberg needs a --checkpoint"),
        (["--format=iceberg", "--table=raw.t", "--checkpoint=c", "--remote=sc://h:1"], "does not work with --remote"),
        (["--format=iceberg", "--table=raw.t", "--checkpoint=c", "--show"], "--show"),
        (["--table=t", "--catalog=lake"], "need --format iceberg"),
    ],
)
def test_what_cannot_be_meant_is_said(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["land", "--nsqd=127.0.0.1:1", "--topic=orders", *words])
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_table_and_a_catalog_that_are_wrong_are_said_before_spark_is_started(orders: Orders, tmp_path: Path) -> None:
    IcebergJob(orders, tmp_path, decoder=Odd())
    land = ["land", f"--nsqd={address(orders.nsqd)}", f"--topic={orders.topic}", f"--checkpoint={tmp_path}/checkpoint"]
    other_type = CliRunner().invoke(app, [*land, *flags(tmp_path), "--decoder=json", "--schema=n string"])
    assert (other_type.exit_code, "value.n: string is not bigint" in other_type.stderr) == (1, True), other_type.stderr
    nowhere = CliRunner().invoke(app, [*land, *flags(tmp_path / "nowhere")])
    assert nowhere.exit_code == 1
    assert "the catalog of raw.table cannot be used" in nowhere.stderr
    assert len(nowhere.stderr.splitlines()) == 1
    others = CliRunner().invoke(app, ["quality", "--format=iceberg", "--table=raw.table", "--rules=r"])
    assert others.exit_code == 2
    assert "only `land` supports Iceberg tables" in others.stderr


def test_no_disorder_doubles_or_loses_a_row(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    results = list(standing.run(tmp_path, engine=standing.Model, kind=Format.ICEBERG, orders=1, steps=6, seed=seed))
    assert results
    assert all(result.is_exact for result in results), "\n".join(map(str, results))
    assert all(result.refused for result in results), "a wrong topic is refused at least"


def test_a_rest_catalog_refuses_what_a_rival_was_quicker_with(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RestCatalog(tmp_path) as rest:
        table = replace(table_at(tmp_path), catalog=CatalogName("", {"uri": rest.url, "type": "rest"}))
        good, _ = landing.schemas(source_options(orders.source), None, drops_body=False)
        job, rival = Job(orders, tmp_path), Job(orders, tmp_path, "rival")
        for it in (job, rival):
            it.options |= table.sink_options(good)
        job.batch_of(0, 30, opens=True)
        tasks, theirs = job.tasks(30, 50), rival.tasks(30, 80)
        before_the_commit(monkeypatch, lambda: rival.commit(theirs))
        with pytest.raises(AnotherJob):
            job.commit(tasks)
        assert landed(tmp_path) == list(range(80))
        assert begins(check_standing(source_of(orders), table)) == {str(job.head.lane): 80}


def test_executors_need_neither_pyiceberg_nor_the_catalog(orders: Orders, tmp_path: Path) -> None:
    job = IcebergJob(orders, tmp_path)
    ranges = as_rows([Range(job.head.lane, job.head.address, 0, 100)], frozenset([(job.head.lane, 0)]))
    given, written = tmp_path / "given", tmp_path / "written"
    given.write_bytes(pickle.dumps((job.writer._landing, ranges)))
    code = (
        "import pickle, sys; sys.modules['pyiceberg'] = None\n"
        "from pyspark_nsq.tables.landing import land\n"
        "landing, ranges = pickle.load(open(sys.argv[1], 'rb'))\n"
        "pickle.dump(land(landing, iter([ranges]), query='q', name='q-0-0'), open(sys.argv[2], 'wb'))\n"
    )
    (tmp_path / "catalog.db").rename(tmp_path / "away")
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, given, written], cwd=ROOT, timeout=150, check=True)
    (tmp_path / "away").rename(tmp_path / "catalog.db")
    job.commit([pickle.loads(written.read_bytes())])
    assert landed(tmp_path) == list(range(100))


def test_nan_is_not_taken_for_what_the_range_of_its_file_says(orders: Orders, tmp_path: Path) -> None:
    made = pa.struct([("x", pa.float64()), ("y", pa.float64())])
    land_selected(orders, tmp_path, made, lambda number: {"x": 1.0 if number % 2 else math.nan, "y": 1.0})
    table = opened(tmp_path)
    (metrics,) = table.inspect.files()["readable_metrics"].to_pylist()
    assert [metrics[name]["lower_bound"] for name in "xy"] == [None, 1.0]
    assert [metrics[name]["upper_bound"] for name in "xy"] == [None, 1.0]
    table.delete("x == 1.0")
    assert sorted(rows_in(tmp_path)["sequence"].to_pylist()) == list(range(0, 100, 2))
