"""`format("nsqtable")` without Spark: what is committed, what is removed, and what does not fit."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import date
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import CommitFailedError
from pyarrow.fs import LocalFileSystem

from pyspark_nsq.tables import sink
from pyspark_nsq.tables.files import PartitionedWriter
from pyspark_nsq.tables.sink import BadTable, Overtaken, TableStreamWriter, TableWriter, Target, Written, turn_of
from tests.support.commits import delay_a_commit, lose_an_answer
from tests.support.open_files import open_files

SCHEMA = pa.schema([("hour", pa.int32()), ("body", pa.binary())])


def rows(*hours: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"hour": hours, "body": [b"%d" % hour for hour in hours]}, SCHEMA)


def target(folder: Path, schema: pa.Schema = SCHEMA) -> Target:
    return Target(str(folder), ("hour",), "", schema)


def written(folder: Path, *batches: pa.RecordBatch) -> Written:
    """Return what a task hands to the driver."""
    writer = PartitionedWriter(LocalFileSystem(), str(folder), ("hour",), "part")
    for batch in batches:
        writer.write(batch)
    return Written("query", writer.finish())


def landed(folder: Path) -> list[int]:
    return sorted(int(body) for body in DeltaTable(folder).to_pyarrow_table()["body"].to_pylist())


def test_a_batch_that_comes_twice_is_there_once_and_its_second_files_go(tmp_path: Path) -> None:
    writer = TableStreamWriter(target(tmp_path))
    for _ in range(2):
        writer.commit([written(tmp_path, rows(1, 2)), None], 0)
    assert landed(tmp_path) == [1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_an_abort_after_a_commit_that_failed_too_late_removes_nothing_of_the_table(tmp_path: Path) -> None:
    writer = TableStreamWriter(target(tmp_path))
    first, second = written(tmp_path, rows(1, 2)), written(tmp_path, rows(3))
    writer.commit([first], 0)
    writer.abort([first], 0)  # Spark aborts whenever commit() raises, though the log may have the commit by then
    writer.abort([second, None], 1)
    assert landed(tmp_path) == [1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_of_writes_that_were_chosen_by_the_same_version_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turn(number: int) -> TableWriter:
        return TableWriter(replace(target(tmp_path), turn=number))

    def commit(writer: TableWriter, *hours: int) -> None:
        writer.commit([written(tmp_path, rows(*hours)), None])

    commit(turn(0), 1)
    with pytest.raises(Overtaken, match="run this one again"):
        commit(turn(0), 2)
    assert turn_of(DeltaTable(tmp_path)) == 1
    make = DeltaTable.create_write_transaction

    def beaten(table: DeltaTable, *arguments: object, **more: object) -> None:
        monkeypatch.undo()
        commit(turn(1), 3)
        make(table, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create_write_transaction", beaten)
    with pytest.raises(Overtaken):
        commit(turn(1), 4)
    TableStreamWriter(target(tmp_path)).commit([written(tmp_path, rows(5))], 0)
    commit(turn(2), 6)
    assert landed(tmp_path) == [1, 3, 5, 6]


def test_a_commit_that_arrives_after_the_abort_finds_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, batch = TableStreamWriter(target(tmp_path)), TableWriter(target(tmp_path))
    tasks = [[written(tmp_path, rows(number))] for number in range(2)]
    arrive = delay_a_commit(monkeypatch)
    with pytest.raises(OSError, match="timed out"):
        stream.commit([*tasks[0]], 0)
    stream.abort([*tasks[0]], 0)
    arrive()
    arrive = delay_a_commit(monkeypatch)
    with pytest.raises(OSError, match="timed out"):
        batch.commit([*tasks[1]])
    batch.abort([*tasks[1]])
    arrive()
    assert landed(tmp_path) == [0, 1]


@pytest.mark.parametrize("refused", [False, True])
def test_a_commit_whose_answer_is_lost_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    lose_an_answer(monkeypatch, refused=refused)
    TableStreamWriter(target(tmp_path)).commit([written(tmp_path, rows(1, 2))], 0)
    assert landed(tmp_path) == [1, 2]


def test_rows_of_another_shape_are_refused_instead_of_hidden(tmp_path: Path) -> None:
    TableStreamWriter(target(tmp_path)).commit([written(tmp_path, rows(1))], 0)
    texts = pa.schema([("hour", pa.int32()), ("body", pa.string())])
    with pytest.raises(BadTable, match=r"the rows do not fit into the table at .*: body: string is not binary"):
        TableStreamWriter(target(tmp_path, texts)).commit([written(tmp_path, rows(2))], 1)
    with pytest.raises(BadTable, match="is partitioned by hour"):
        TableStreamWriter(Target(str(tmp_path), (), "", SCHEMA)).commit([written(tmp_path, rows(2))], 1)
    assert landed(tmp_path) == [1]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1, "what was refused is gone"


def test_rows_with_a_new_field_widen_the_table_and_older_writers_go_on(tmp_path: Path) -> None:
    old, wide = TableStreamWriter(target(tmp_path)), pa.schema([*SCHEMA, ("value", pa.string())])
    old.commit([written(tmp_path, rows(1))], 0)
    more = pa.RecordBatch.from_pydict({"hour": [2], "body": [b"2"], "value": ["two"]}, wide)
    TableStreamWriter(target(tmp_path, wide)).commit([written(tmp_path, more)], 1)
    old.commit([written(tmp_path, rows(3))], 2)
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("hour").to_pylist()
    assert [(row["body"], row["value"]) for row in found] == [(b"1", None), (b"2", "two"), (b"3", None)]


@pytest.mark.parametrize("step", ["additions", "widen", "check_leases"])
def test_of_two_drivers_with_the_same_batch_and_a_new_field_one_adds_it(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TableStreamWriter(target(tmp_path)).commit([written(tmp_path, rows(1))], 0)
    schema = pa.schema([*SCHEMA, ("value", pa.string())])
    more = pa.RecordBatch.from_pydict({"hour": [2], "body": [b"2"], "value": ["two"]}, schema)
    writer, another = TableStreamWriter(target(tmp_path, schema)), TableStreamWriter(target(tmp_path, schema))
    tasks, theirs = [written(tmp_path, more)], [written(tmp_path, more)]
    real = getattr(sink, step)

    def beaten(*given_: Any) -> Any:
        monkeypatch.undo()
        another.commit([*theirs], 1)
        return real(*given_)

    monkeypatch.setattr(sink, step, beaten)
    with suppress(CommitFailedError):  # Spark then runs the batch again
        writer.commit([*tasks], 1)
    writer.commit([written(tmp_path, more)], 1)
    assert landed(tmp_path) == [1, 2]


def test_rows_of_very_many_hours_are_written_with_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_nsq.tables.files._MOST_OPEN", 3)
    writer = PartitionedWriter(LocalFileSystem(), str(tmp_path), ("hour",), "part")
    for hour in (*range(10), *range(5)):
        writer.write(rows(hour))
        assert open_files(tmp_path) <= 3
    files = writer.finish()
    TableStreamWriter(target(tmp_path)).commit([Written("query", files)], 0)
    assert landed(tmp_path) == sorted([*range(10), *range(5)])


def test_the_log_says_of_every_column_what_readers_skip_files_by(tmp_path: Path) -> None:
    value = pa.struct(
        [("user", pa.string()), ("amount", pa.float64()), ("tags", pa.list_(pa.string())), ("day", pa.date32())]
    )
    schema = pa.schema([("hour", pa.int32()), ("sequence", pa.int64()), ("id", pa.string()), ("value", value)])
    batches = [
        pa.RecordBatch.from_pylist(
            [
                {"hour": 1, "sequence": place, "id": "f" * 40, "value": None if place == 3 else given}
                for place, given in zip(places, values, strict=True)
            ],
            schema,
        )
        for places, values in (
            ([1, 2, 3], [{"user": "b", "amount": 2.5, "tags": ["x"], "day": date(2026, 3, 1)}, {"user": "a"}, None]),
            ([7], [{"user": "é", "amount": -1.0, "tags": [], "day": date(2026, 3, 2)}]),
        )
    ]
    writer = PartitionedWriter(LocalFileSystem(), str(tmp_path), ("hour",), "part")
    for batch in batches:
        writer.write(batch)
    (file,) = writer.finish()
    assert json.loads(file.stats) == {
        "numRecords": 4,
        "minValues": {"sequence": 1, "id": "f" * 32, "value": {"user": "a", "amount": -1.0, "day": "2026-03-01"}},
        "maxValues": {
            "sequence": 7,
            "id": "f" * 32 + "\U0010ffff",
            "value": {"user": "é", "amount": 2.5, "day": "2026-03-02"},
        },
        "nullCount": {"sequence": 0, "id": 0, "value": {"user": 1, "amount": 2, "day": 2}},
    }
    TableStreamWriter(target(tmp_path, schema)).commit([Written("query", [file])], 0)
    table = DeltaTable(tmp_path)
    assert table.to_pyarrow_table(filters=[("sequence", ">", 3)])["sequence"].to_pylist() == [7]
    assert table.count() == 4
    assert file.size == (tmp_path / file.path).stat().st_size


def log_of(folder: Path, column: pa.Array, **beside: pa.Array) -> str:
    """Make a table of one file, and return what its log says of the file."""
    rows = pa.record_batch({"a": column, **beside})
    writer = PartitionedWriter(LocalFileSystem(), str(folder), (), "part")
    writer.write(rows)
    (file,) = writer.finish()
    TableStreamWriter(Target(str(folder), (), "", rows.schema)).commit([Written("query", [file])], 0)
    return file.stats


def found_by_sql(folder: Path, value: str) -> int:
    query = QueryBuilder().register("t", DeltaTable(folder)).execute(f"select * from t where a = {value}")
    return int(pa.table(query.read_all()).num_rows)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("12345678901234567891", pa.decimal128(38, 0)),
        ("-12345678901234567890123456789012345678", pa.decimal128(38, 0)),
        ("9007199254740993.01", pa.decimal128(18, 2)),
        ("0.29", pa.decimal128(18, 2)),
        ("0.0000025", pa.decimal128(9, 7)),
        ("0.0000000", pa.decimal128(38, 7)),
    ],
)
def test_a_decimal_is_found_by_its_value(text: str, kind: pa.DataType, tmp_path: Path) -> None:
    value = pa.array([Decimal(text)], kind)
    stats = log_of(tmp_path, value)
    assert (
        stats
        == f'{{"numRecords": 1, "minValues": {{"a": {text}}}, "maxValues": {{"a": {text}}}, "nullCount": {{"a": 0}}}}'
    )
    for _ in range(2):
        rows = DeltaTable(tmp_path).to_pyarrow_dataset()
        assert rows.to_table(filter=pc.field("a") == value[0]).num_rows == 1
        assert found_by_sql(tmp_path, f"cast('{text}' as decimal({kind.precision}, {kind.scale}))") == 1
        DeltaTable(tmp_path).create_checkpoint()


@pytest.mark.parametrize("numbers", [[1.0, inf], [-inf, 1.0], [inf], [nan]])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_an_infinity_has_no_range_and_the_log_is_json(numbers: list[float], kind: pa.DataType, tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(log_of(tmp_path, pa.array(numbers, kind)), parse_constant=refuse)
    assert found["numRecords"] == len(numbers)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    for _ in range(2):
        actions = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True))
        assert actions["num_records"].to_pylist() == [len(numbers)], "one word that is no JSON spoils all of the file's"
        for number in numbers:
            assert found_by_sql(tmp_path, f"arrow_cast('{number}', 'Float64')") == 1
        DeltaTable(tmp_path).create_checkpoint()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_column_with_nan_has_no_range_so_nan_is_not_taken_for_what_the_range_says(
    kind: pa.DataType, tmp_path: Path
) -> None:
    found = json.loads(log_of(tmp_path, pa.array([1.0, float("nan"), None], kind), b=pa.array([1.0, 2.0, 3.0])))
    assert (found["minValues"], found["maxValues"]) == ({"b": 1.0}, {"b": 3.0})
    assert found["nullCount"] == {"a": 1, "b": 0}
    assert found_by_sql(tmp_path, "1.0") == 1


def test_nan_is_seen_in_a_struct(tmp_path: Path) -> None:
    inner = pa.array([{"x": 1.0}, {"x": float("nan")}, None], pa.struct([("x", pa.float64())]))
    assert "x" not in json.loads(log_of(tmp_path, inner))["minValues"].get("a", {})


def test_a_flag_is_found_beside_what_has_a_range(tmp_path: Path) -> None:
    log_of(tmp_path, pa.array([True, None, True]), numbers=pa.array([1, 2, 3]))
    rows = DeltaTable(tmp_path).to_pyarrow_dataset()
    assert [rows.to_table(filter=pc.field("a") == flag).num_rows for flag in (True, False)] == [2, 0]
