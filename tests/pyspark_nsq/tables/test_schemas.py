"""A table's schema grows only by nullable fields; writers of the old schema go on."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_nsq.bodies.ddl import as_nullable, parse_fields
from pyspark_nsq.tables.schemas import Misfit, additions, retried, widen
from tests.pyspark_nsq.bodies.bodies import schemas
from tests.support.examples import examples


def fields(text: str) -> Schema:
    return Schema.from_arrow(pa.schema(list(parse_fields(text))))


@pytest.mark.parametrize(
    ("there", "given_", "added"),
    [
        ("a int", "a int", []),
        ("a int, b string", "a int", []),
        ("a int, b string", "b string, a int", []),
        ("a int", "a int, b string", ["b"]),
        ("a int, value struct<x: int>", "a int, value struct<x: int, y: double>", ["value"]),
        ("value struct<x: int, y: double>", "value struct<y: double>", []),
        ("v array<struct<x: int>>", "v array<struct<x: int, y: int>>, w int", ["v", "w"]),
        ("v map<string, struct<x: int>>", "v map<string, struct<y: int>>", ["v"]),
    ],
)
def test_what_a_table_gets_for_rows(there: str, given_: str, added: list[str]) -> None:
    assert [field.name for field in additions(fields(there), fields(given_))] == added


@pytest.mark.parametrize(
    ("there", "given_", "said"),
    [
        ("value struct<price: string>", "value struct<price: double>", "^value.price: double is not string$"),
        ("a int", "a bigint", "^a: bigint is not int$"),
        ("v array<struct<x: int>>", "v array<struct<x: date>>", "^v.element.x: date is not int$"),
        ("v map<string, int>", "v map<string, array<int>>", "^v.value: array<int> is not int$"),
        ("v int", "v struct<x: int>", "^v: struct<x: int> is not int$"),
        ("a int, b int not null", "a int", "^b: the table requires it, and the rows lack it$"),
        ("user int", "User int", "^User: the table spells it user$"),
    ],
)
def test_a_misfit_names_the_very_field(there: str, given_: str, said: str) -> None:
    with pytest.raises(Misfit, match=said):
        additions(fields(there), fields(given_))


def test_what_is_added_is_nullable_all_the_way_down() -> None:
    [found] = additions(fields("a int"), fields("a int, s struct<b: int not null> not null"))
    assert found == fields("s struct<b: int>").fields[0]


def test_two_writers_that_widen_at_once_both_get_their_fields(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), schema=fields("a int, value struct<x: int>"))
    stale = [DeltaTable(str(tmp_path)) for _ in range(3)]
    for number, table in enumerate(stale):
        widen(table, fields(f"a int, value struct<x: int, y{number % 2}: int>"))
    assert DeltaTable(str(tmp_path)).schema() == fields("a int, value struct<x: int, y0: int, y1: int>")


def test_two_writers_that_widen_by_different_types_do_not_both_get_them(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), schema=fields("a int"))
    stale = [DeltaTable(str(tmp_path)) for _ in range(2)]
    widen(stale[0], fields("a int, b int"))
    with pytest.raises(Misfit, match="b: string is not int"):
        widen(stale[1], fields("a int, b string"))


def test_another_failure_of_a_commit_is_not_tried_again() -> None:
    tries = []

    def attempt() -> None:
        tries.append(1)
        raise CommitFailedError("Failed to commit transaction: Concurrent transaction failed.")

    with pytest.raises(CommitFailedError):
        retried(attempt, again=tries.clear)
    assert tries == [1]


@st.composite
def parts_of(draw: Any, kind: pa.DataType) -> pa.DataType:
    """Return the same type without some of its fields."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", draw(parts_of(kind.value_type))))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), draw(parts_of(kind.item_type)))
    if not pa.types.is_struct(kind):
        return kind
    kept = [field for field in kind if draw(st.booleans())] or [kind.field(0)]
    return pa.struct([pa.field(field.name, draw(parts_of(field.type))) for field in kept])


@settings(deadline=None, max_examples=examples(60))
@given(st.data(), schemas(rich=True))
def test_a_widened_table_lacks_nothing_of_either_writer(data: st.DataObject, whole: pa.StructType) -> None:
    one, other = (Schema.from_arrow(pa.schema([("v", data.draw(parts_of(as_nullable(whole))))])) for _ in range(2))
    merged = Schema(additions(one, other) or one.fields)
    assert additions(merged, one) == additions(merged, other) == []
    back = Schema(additions(other, one) or other.fields)
    assert additions(merged, back) == additions(back, merged) == [], "whoever comes first"


def append(table: DeltaTable, path: Path, rows: list[dict[str, object]], schema: pa.Schema) -> None:
    """Append as the sink does; `table` may be an older version."""

    def attempt() -> None:
        widen(table, Schema.from_arrow(schema))
        name = f"{time.time_ns()}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path / name)
        stats = json.dumps({"numRecords": len(rows)})
        added = AddAction(name, (path / name).stat().st_size, {}, time.time_ns() // 1_000_000, True, stats)
        table.create_write_transaction([added], mode="append", schema=schema)

    retried(attempt, again=table.update_incremental)


def test_a_writer_that_has_not_seen_the_table_grow_tries_again(tmp_path: Path) -> None:
    old, new = (pa.schema(list(parse_fields(text))) for text in ("n int", "n int, more string"))
    stale = DeltaTable.create(str(tmp_path), schema=Schema.from_arrow(old))
    append(DeltaTable(str(tmp_path)), tmp_path, [{"n": 1, "more": "x"}], new)
    append(stale, tmp_path, [{"n": 2}], old)
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: row["n"]) == [{"n": 1, "more": "x"}, {"n": 2, "more": None}]


def test_an_old_writer_goes_on_while_a_new_one_widens(tmp_path: Path) -> None:
    old = pa.schema([("n", pa.int32()), ("value", pa.struct([("x", pa.int32())]))])
    DeltaTable.create(str(tmp_path), schema=Schema.from_arrow(old))
    versions = [parse_fields(", ".join(["x int", *(f"y{n} int" for n in range(version))])) for version in range(4)]
    failures: list[BaseException] = []

    def write(first: int, kinds: list[pa.StructType]) -> None:
        try:
            table = DeltaTable(str(tmp_path))
            for number, kind in enumerate(kinds):
                row = {"n": first + number, "value": dict.fromkeys(kind.names, first + number)}
                append(table, tmp_path, [row], pa.schema([("n", pa.int32()), ("value", kind)]))
        except BaseException as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=write, args=(0, versions * 3)),
        threading.Thread(target=write, args=(100, versions[:1] * 12)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    table = DeltaTable(str(tmp_path))
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["n"])
    assert [row["n"] for row in rows] == [*range(12), *range(100, 112)]
    for row in rows:
        had = row["n"] % 4 if row["n"] < 100 else 0
        assert row["value"] == {"x": row["n"], **{f"y{n}": row["n"] if n < had else None for n in range(3)}}
