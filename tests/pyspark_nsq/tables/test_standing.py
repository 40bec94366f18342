"""Checkpoints and tables that may not belong together, without Spark; and a short form of `tests.spark.standing`."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from nsqpipe.lag import set_offsets
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.options import source_options
from pyspark_nsq.reports import rows_of
from pyspark_nsq.source import checkpoints
from pyspark_nsq.source.batch_source import NsqBatchReader, Task
from pyspark_nsq.source.checkpoints import checkpointed
from pyspark_nsq.source.queries import From
from pyspark_nsq.stores.places import Place
from pyspark_nsq.stores.storage import create_text, place_of, replace_text
from pyspark_nsq.tables import standing as standing_
from pyspark_nsq.tables.ends import Span
from pyspark_nsq.tables.standing import NOTES, Checkpoint, check_standing, claim, up_to_the_end
from pyspark_nsq.tables.table import Format, Table
from tests.pyspark_nsq.tables.test_landing import Job, landed
from tests.spark import standing
from tests.support.orders import Orders
from tests.support.spark import address, numbered, publish

T = TypeVar("T")


def planned(folder: Path, *batches: Mapping[str, object], done: int) -> str:
    """Write a checkpoint as Spark leaves it, of which this many batches are committed."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "q"}))
    for number, offset in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'v': 1, **offset})}")
        if number < done:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    return str(folder)


def source_of(orders: Orders, **options: str) -> From:
    return From(topics=(orders.topic,), nsqd=(address(orders.nsqd),), options=options)


def begins(source: From) -> dict[str, int]:
    return dict(json.loads(source.options["startingOffsets"]))


@pytest.mark.parametrize(("done", "place", "opens"), [(2, 70, False), (1, 40, False), (0, 5, True)])
def test_the_next_batch_of_a_checkpoint_begins_where_the_last_one_was_committed(
    done: int, place: int, opens: bool, tmp_path: Path
) -> None:
    lane = "n/orders/l"
    first = {"lanes": {lane: 40}, "begins": {lane: 5}}
    batches = [first] if done == 0 else [first, {"lanes": {lane: 70}}]
    found = Checkpoint.at(place_of(planned(tmp_path / "checkpoint", *batches, done=done)))
    assert found.spans == {lane: Span(lane, place, place, opens)}


@pytest.mark.parametrize("text", ["", "{", '{"id"', "[]", '{"id": 7}'])
def test_a_torn_file_of_a_checkpoint_is_named(text: str, tmp_path: Path) -> None:
    place = place_of(planned(tmp_path / "checkpoint", {"lanes": {"n/orders/l": 40}}, done=1))
    offsets, metadata = tmp_path / "checkpoint" / "offsets" / "0", tmp_path / "checkpoint" / "metadata"
    whole = offsets.read_text()
    for torn in (whole[:-3], whole.splitlines()[0], ""):
        offsets.write_text(torn)
        for read in (Checkpoint.at, checkpointed):
            with pytest.raises(PipeFailed, match=f"^{offsets} is torn"):
                read(place)
    offsets.write_text(whole)
    metadata.write_text(text)
    with pytest.raises(PipeFailed, match=f"^{metadata} is torn"):
        Checkpoint.at(place)


def test_a_torn_note_of_a_parquet_table_is_a_note(tmp_path: Path) -> None:
    table = parquet(tmp_path)
    (tmp_path / "table" / NOTES).mkdir(parents=True)
    (tmp_path / "table" / NOTES / "7.json").write_text('{"checkpoint": "')
    with pytest.raises(
        PipeFailed, match=f"another job, with the checkpoint whose note is {tmp_path}/table/{NOTES}/7.json"
    ):
        check_standing(From(topics=("orders",), nsqd=("127.0.0.1:1",)), table)


def test_a_table_that_lost_its_checkpoint_is_gone_on_with_where_it_ends(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    lane = str(job.head.lane)
    table = Table(str(tmp_path / "table"), Format.DELTA)
    assert check_standing(source_of(orders), table) == source_of(orders), "nothing is there yet"
    job.batch_of(0, 60, opens=True)
    for options in (
        {},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "2026-03-01T12:00:00Z"},
        {"startingOffsetsByTimestamp": json.dumps({lane: "2026-03-01T12:00:00Z"})},
    ):
        found = check_standing(source_of(orders, **options), table)
        assert begins(found) == {lane: 60}
        source_options(found.as_options())  # raises where it says it twice


def test_a_lane_that_the_table_does_not_know_begins_where_the_options_say(orders: Orders, tmp_path: Path) -> None:
    Job(orders, tmp_path).batch_of(0, 60, opens=True)
    other = f"{orders.topic}2"
    publish(orders.nsqd, other, numbered(30))
    source = From(topics=(f"{orders.topic}*",), nsqd=(address(orders.nsqd),), options={"startingOffsets": "latest"})
    found = begins(check_standing(source, Table(str(tmp_path / "table"), Format.DELTA)))
    assert sorted(found.values()) == [30, 60]


def planned_by(source: From) -> dict[str, tuple[int, int | None]]:
    """Return what a batch query would read."""
    reader = NsqBatchReader(source_options(source.as_options()), pa.schema([("sequence", pa.int64())]))
    tasks = [task for task in reader.partitions() if isinstance(task, Task)]
    return {str(it.lane): (it.begin, it.end) for task in tasks for it in task.ranges}


def test_a_backfill_stops_where_the_table_ends_and_leaves_the_rest_to_landing(orders: Orders, tmp_path: Path) -> None:
    table = Table(str(tmp_path / "table"), Format.DELTA)
    other = f"{orders.topic}2"
    publish(orders.nsqd, other, numbered(30))
    source = From(topics=(orders.topic, other), nsqd=(address(orders.nsqd),))
    assert up_to_the_end(source, table) == (source, 0), "nothing is landed into it"
    job = Job(orders, tmp_path)
    lane = str(job.head.lane)
    job.batch_of(40, 60, opens=True)
    found, left = up_to_the_end(source, table)
    assert left == 40 + 30, "the other lane may be landed from its first message on"
    assert found is not None
    assert planned_by(found) == {lane: (0, 60)}
    late = replace(source, options={"startingTimestamp": "2100-01-01T00:00:00Z"})
    assert up_to_the_end(late, table) == (None, 0)
    ahead = replace(source, options={"startingOffsets": json.dumps({lane: 70, other_lane(orders, other): 0})})
    assert up_to_the_end(ahead, table) == (None, 30 + 30)
    with pytest.raises(PipeFailed, match="there is no topic"):
        up_to_the_end(replace(source, topics=("nowhere",)), table)


def other_lane(orders: Orders, topic: str) -> str:
    return str(Orders(orders.nsqd, topic).head.lane)


def refused(source: From, table: Table) -> str:
    with pytest.raises(PipeFailed) as failed:
        check_standing(source, table)
    said = str(failed.value)
    assert "\n" not in said
    assert "failOnDataLoss" not in said, "it is no advice to lose data"
    return said


def test_a_checkpoint_that_is_ahead_of_the_table_is_named(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    lane = str(job.head.lane)
    job.batch_of(0, 60, opens=True)
    checkpoint = planned(tmp_path / "foreign", {"lanes": {lane: 80}, "begins": {lane: 0}}, done=1)
    table = Table(str(tmp_path / "table"), Format.DELTA, checkpoint)
    assert f"goes on at 80 of lane {lane}, and the table {table.path} ends at 60" in refused(source_of(orders), table)
    shutil.rmtree(table.path)
    assert f"there is no table at {table.path}" in refused(source_of(orders), table)


def test_a_checkpoint_that_is_behind_the_table_may_go_on(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    lane = str(job.head.lane)
    job.batch_of(0, 60, opens=True)
    checkpoint = planned(tmp_path / "old", {"lanes": {lane: 20}, "begins": {lane: 0}}, done=1)
    assert check_standing(source_of(orders), Table(str(tmp_path / "table"), Format.DELTA, checkpoint)) == source_of(
        orders
    )


def test_a_checkpoint_that_was_made_to_begin_somewhere_may_fill_a_new_table(orders: Orders, tmp_path: Path) -> None:
    table = Table(str(tmp_path / "table"), Format.DELTA, str(tmp_path / "made"))
    set_offsets(table.checkpoint_place, {str(orders.head.lane): 40})
    assert check_standing(source_of(orders), table) == source_of(orders)


@pytest.mark.parametrize("written", range(4))
def test_a_checkpoint_that_is_half_made_plans_nothing(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed before one of its three files."""
    lane, place = f"{'1' * 32}/orders/{'2' * 32}", place_of(str(tmp_path / "made"))
    left = iter(range(written))

    def until_killed(write: Callable[[Place, str], T]) -> Callable[[Place, str], T]:
        def one(file: Place, text: str) -> T:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return write(file, text)

        return one

    monkeypatch.setattr(checkpoints, "create_text", until_killed(create_text))
    monkeypatch.setattr(checkpoints, "replace_text", until_killed(replace_text))
    with suppress(KeyboardInterrupt):
        set_offsets(place, {lane: 40})
    assert len([it for it in (tmp_path / "made").rglob("*") if it.is_file()]) == written
    if written == 1:
        with pytest.raises(PipeFailed, match=f"^{place}/offsets is torn"):
            Checkpoint.at(place)
        return
    found = Checkpoint.at(place)
    assert found.spans == ({} if written == 0 else {lane: Span(lane, 40, 40, True)})
    assert bool(found.id) == (written == 3)


def test_a_checkpoint_of_another_topic_is_named(orders: Orders, tmp_path: Path) -> None:
    checkpoint = planned(tmp_path / "other", {"lanes": {"n/clicks/l": 40}, "begins": {"n/clicks/l": 0}}, done=1)
    for kind in Format:
        said = refused(source_of(orders), Table(str(tmp_path / "table"), kind, checkpoint))
        assert f"is for topic clicks, and this job reads {orders.topic}" in said


def test_a_table_with_rows_and_without_ends_is_refused(orders: Orders, tmp_path: Path) -> None:
    Job(orders, tmp_path).batch_of(0, 60, opens=True)
    write_deltalake(tmp_path / "copy", DeltaTable(tmp_path / "table").to_pyarrow_table())
    said = refused(source_of(orders), Table(str(tmp_path / "copy"), Format.DELTA))
    assert "does not say which messages of which log they are" in said
    assert len(landed(tmp_path, "copy")) == 60


def parquet(folder: Path, checkpoint: str = "") -> Table:
    return Table(str(folder / "table"), Format.PARQUET, checkpoint)


def fill(table: Table) -> None:
    """Fill the table as Spark's file sink does."""
    (Path(table.path) / "_spark_metadata").mkdir(parents=True, exist_ok=True)
    (Path(table.path) / "_spark_metadata" / "0").write_text("v1")


def test_a_parquet_table_is_filled_by_the_checkpoint_that_has_begun_it(orders: Orders, tmp_path: Path) -> None:
    table = parquet(tmp_path)
    check_standing(source_of(orders), table)
    claim(table)
    rival = parquet(tmp_path, str(tmp_path / "rival"))
    begun = f"another job, with the checkpoint {table.checkpoint} on {socket.gethostname()}, has begun"
    assert begun in refused(source_of(orders), rival)
    (Path(table.path) / "part-of-the-first-batch.parquet").touch()
    check_standing(source_of(orders), table)
    fill(table)
    check_standing(source_of(orders), table)
    claim(table)
    shutil.rmtree(table.checkpoint)
    said = refused(source_of(orders), table)
    assert f"the checkpoint {table.checkpoint} is not the one that has filled the Parquet table" in said
    other = parquet(tmp_path, planned(tmp_path / "other", done=0))
    assert f"which the checkpoint {table.checkpoint} on {socket.gethostname()} has filled" in refused(
        source_of(orders), other
    )
    shutil.rmtree(Path(table.path) / NOTES)
    assert "such a table does not say" in refused(source_of(orders), other)


def test_of_jobs_that_begin_to_fill_a_parquet_table_at_once_one_may_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = From(topics=("orders",), nsqd=("127.0.0.1:1",))
    tables = [parquet(tmp_path, str(tmp_path / f"checkpoint{number}")) for number in range(8)]
    for table in tables:
        check_standing(source, table)
    together = threading.Barrier(len(tables))

    def put_together(place: Place, text: str) -> None:
        together.wait(30)
        replace_text(place, text)

    def refusal_of(table: Table) -> str:
        try:
            claim(table)
        except PipeFailed as error:
            return str(error)
        return ""

    monkeypatch.setattr(standing_, "replace_text", put_together)
    with ThreadPoolExecutor(len(tables)) as pool:
        said = list(pool.map(refusal_of, tables))
    monkeypatch.undo()
    assert said.count("") <= 1
    assert all("has begun to fill" in it for it in said if it)
    assert len(list((tmp_path / "table" / NOTES).iterdir())) == said.count(""), "who was refused left nothing"
    claim(tables[said.index("") if "" in said else 0])


def test_jobs_that_share_a_new_checkpoint_agree_on_its_id(tmp_path: Path) -> None:
    table = parquet(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, [table] * 8))
    claim(table)
    assert [it.name for it in (tmp_path / "table.checkpoint").iterdir()] == ["metadata"]


def test_a_note_whose_checkpoint_cannot_be_seen_from_here_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = From(topics=("orders",), nsqd=("127.0.0.1:1",))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    table = parquet(tmp_path, "checkpoint")
    monkeypatch.chdir(tmp_path / "one")
    check_standing(source, table)
    claim(table)
    monkeypatch.chdir(tmp_path / "two")
    assert f"the checkpoint {tmp_path}/one/checkpoint on {socket.gethostname()}, has begun" in refused(source, table)
    with pytest.raises(PipeFailed, match="has begun to fill"):
        claim(table)
    shutil.rmtree(tmp_path / "one")
    assert "remove the note in" in refused(source, table), "it may only be out of sight"


def test_parquet_files_of_somebody_else_and_a_table_that_was_removed_are_refused(
    orders: Orders, tmp_path: Path
) -> None:
    table = parquet(tmp_path)
    Path(table.path).mkdir()
    (Path(table.path) / "part.parquet").touch()
    assert "has files that no landing has written" in refused(source_of(orders), table)
    lane = str(orders.head.lane)
    gone = parquet(tmp_path / "gone", planned(tmp_path / "old", {"lanes": {lane: 20}, "begins": {lane: 0}}, done=1))
    assert "there is no table at" in refused(source_of(orders), gone)


def test_rows_of_a_batch_are_counted_by_its_offsets() -> None:
    source = {
        "startOffset": {"v": 1, "lanes": {"a": 10, "b": 5}},
        "endOffset": {"v": 1, "lanes": {"a": 30, "b": 5, "c": 9}, "begins": {"c": 2}},
    }
    assert rows_of({"sources": [source], "numInputRows": 3}) == 27
    assert rows_of({"sources": [], "numInputRows": 3}) == 3


def test_no_disorder_doubles_or_loses_a_row(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    results = list(standing.run(tmp_path, engine=standing.Model, orders=4, steps=6, seed=seed))
    assert len(results) == 4
    assert all(result.is_exact for result in results), "\n".join(map(str, results))
    assert all(result.refused for result in results), "a wrong topic is refused at least"
