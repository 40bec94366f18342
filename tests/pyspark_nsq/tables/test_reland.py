"""`nsqpipe reland` moves quarantined rows into the table once they are understood, each once, despite interruptions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableAlterer
from typer.testing import CliRunner

from nsqpipe.cli import app
from pyspark_nsq.bodies.ddl import as_nullable, parse_fields
from pyspark_nsq.bodies.decoding import Decoder, RawDecoder, json_decoder
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.stores.storage import place_of
from pyspark_nsq.tables import reland as relanding
from pyspark_nsq.tables.files import PARTITIONS
from pyspark_nsq.tables.reland import Reland, Relanded, reland
from tests.support.commits import delay_a_commit

CAME = [
    pa.field("topic", pa.string()),
    pa.field("node", pa.string()),
    pa.field("sequence", pa.int64()),
    pa.field("id", pa.string()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("body", pa.binary()),
]
WHEN = [pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
OLD, NEW = "user string, amount int", "user string, amount double, note string"


def message(sequence: int, body: bytes, **more: object) -> dict[str, object]:
    came = {"topic": "007", "node": "n1", "sequence": sequence, "id": f"{sequence:016x}", "timestamp": AT, "body": body}
    return {**came, "date": date(2026, 3, 1), "hour": 12, **more}


class Tables:
    """A table of the old schema with a quarantine, as a landing leaves them."""

    def __init__(self, folder: Path, *, fields: str = OLD, with_body: bool = True) -> None:
        self.table, self.quarantine = str(folder / "table"), str(folder / "table.quarantine")
        value = pa.field("value", as_nullable(parse_fields(fields)))
        self._good = pa.schema([*(it for it in CAME if with_body or it.name != "body"), value, *WHEN])
        for path, schema in ((self.table, self._good), (self.quarantine, self._bad)):
            DeltaTable.create(path, schema=schema, partition_by=list(PARTITIONS))

    _bad = pa.schema([*CAME, pa.field("error", pa.string()), *WHEN])

    def land(self, *rows: dict[str, object]) -> None:
        write_deltalake(self.table, pa.Table.from_pylist(list(rows), self._good), mode="append")

    def fail(self, *rows: dict[str, object]) -> None:
        write_deltalake(
            self.quarantine, pa.Table.from_pylist([{"error": "?", **row} for row in rows], self._bad), mode="append"
        )

    def reland(self, fields: str = NEW) -> Relanded:
        return reland(self.job(json_decoder(parse_fields(fields))))

    def job(self, decoder: Decoder) -> Reland:
        return Reland(table=place_of(self.table), quarantine=place_of(self.quarantine), decoder=decoder)

    def landed(self) -> list[dict[str, Any]]:
        return list(DeltaTable(self.table).to_pyarrow_table().sort_by("sequence").to_pylist())

    def failing(self) -> dict[int, str]:
        rows = DeltaTable(self.quarantine).to_pyarrow_table().sort_by("sequence").to_pylist()
        assert len({row["sequence"] for row in rows}) == len(rows)
        return {row["sequence"]: row["error"] for row in rows}


def test_what_is_understood_now_is_in_the_table_and_the_rest_says_why_it_fails(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.land(message(1, b"{}", value={"user": "a", "amount": 1}))
    tables.fail(message(2, b'{"user": "b", "amount": 2.5, "note": "n"}'), message(3, b'{"user": 3}'), message(4, b"{"))
    with pytest.raises(PipeFailed, match=r"value\.amount: double is not int; name another table"):
        tables.reland()
    found = tables.reland("user string, amount int, note string")
    assert found == Relanded(landed=0, failing=3)
    assert tables.failing() == {
        2: "wrong type: value.amount: expected int, found number 2.5",
        3: "wrong type: value.user: expected string, found integer 3",
        4: "not JSON: ends too early at byte 1",
    }
    assert tables.reland("user string, note string") == Relanded(landed=1, failing=2, extra_fields=1)
    assert [(row["sequence"], row["body"], row["value"]) for row in tables.landed()] == [
        (1, b"{}", {"user": "a", "amount": 1, "note": None}),
        (2, b'{"user": "b", "amount": 2.5, "note": "n"}', {"user": "b", "amount": None, "note": "n"}),
    ]
    assert list(tables.failing()) == [3, 4]
    [row] = [row for row in tables.landed() if row["sequence"] == 2]
    assert (row["topic"], row["node"], row["timestamp"], row["date"], row["hour"]) == (
        "007",
        "n1",
        AT,
        date(2026, 3, 1),
        12,
    )


def test_fields_that_are_missing_or_passed_over_are_counted_in_the_rows_that_land(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a", "more": 1}'), message(2, b'{"user": 2, "other": 3}'))
    found = tables.reland(OLD)
    assert (found.landed, found.missing_fields, found.extra_fields) == (1, 1, 1)
    told = DeltaTable(tables.table).history(1)[0]
    assert (told["nsq.missing_fields"], told["nsq.extra_fields"]) == ("1", "1")


def test_an_append_that_arrives_after_it_was_given_up_finds_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a", "amount": 1}'))
    arrive = delay_a_commit(monkeypatch)
    with pytest.raises(OSError, match="timed out"):
        tables.reland(OLD)
    arrive()
    assert [row["sequence"] for row in tables.landed()] == [1]
    assert tables.reland(OLD) == Relanded(landed=1)
    assert (len(tables.landed()), tables.failing()) == (1, {})


def test_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a"}'), message(2, b"{"))
    tables.reland(OLD)
    versions = [DeltaTable(path).version() for path in (tables.table, tables.quarantine)]
    assert tables.reland(OLD) == Relanded(failing=1)
    assert [DeltaTable(path).version() for path in (tables.table, tables.quarantine)] == versions


class Killed(BaseException):
    """Stands for kill -9, at a place of the test's choice."""


@pytest.mark.parametrize("place", ["_append", "_settle"])
@pytest.mark.parametrize("is_done", [False, True])
def test_killed_in_the_middle_and_run_again_each_row_is_there_once(
    place: str, is_done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path)
    for hour in range(3):
        tables.fail(*(message(10 * hour + n, b'{"user": "u"}' if n % 2 else b"{", hour=hour) for n in range(10)))
    real, calls = getattr(relanding, place), []

    def dying(*given_: Any) -> None:
        calls.append(1)
        if len(calls) == 2 and not is_done:
            raise Killed
        real(*given_)
        if len(calls) == 2:
            raise Killed

    monkeypatch.setattr(relanding, place, dying)
    with pytest.raises(Killed):
        tables.reland(OLD)
    monkeypatch.undo()
    tables.fail(message(100, b'{"user": "came meanwhile"}', hour=1))
    tables.reland(OLD)
    assert [row["sequence"] for row in tables.landed()] == [*(n for n in range(30) if n % 2), 100]
    assert list(tables.failing()) == [n for n in range(30) if n % 2 == 0]


def test_what_came_into_the_table_in_another_way_only_leaves_the_quarantine(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.land(message(1, b"", value={"user": "backfilled"}))
    tables.land(message(2, b"", id="of another log", value={"user": "other"}))
    tables.fail(message(1, b'{"user": "a"}'), message(2, b'{"user": "b"}'))
    tables.reland(OLD)
    found = sorted((row["sequence"], row["value"]["user"]) for row in tables.landed())
    assert found == [(1, "backfilled"), (2, "b"), (2, "other")]
    assert not tables.failing()


def test_a_message_that_is_quarantined_twice_lands_once(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    for _ in range(2):
        tables.fail(message(1, b'{"user": "a"}'))
    tables.reland(OLD)
    assert [row["sequence"] for row in tables.landed()] == [1]
    assert not tables.failing()


def test_rows_that_a_rule_refused_stay(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a"}', error="rule: amount is positive"), message(2, b'{"user": "b"}'))
    assert tables.reland(OLD) == Relanded(landed=1, by_rule=1, missing_fields=1)
    assert tables.failing() == {1: "rule: amount is positive"}


def test_a_table_without_bodies_gets_none(tmp_path: Path) -> None:
    tables = Tables(tmp_path, with_body=False)
    tables.fail(message(1, b'{"user": "a"}'))
    tables.reland(OLD)
    [row] = tables.landed()
    assert "body" not in row
    assert row["value"]["user"] == "a"


def test_two_at_once_do_not_both_land_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a"}'), message(2, b"{"))
    real = relanding._append
    others: list[Relanded] = []

    def late(*given_: Any) -> None:
        monkeypatch.undo()
        others.append(tables.reland(OLD))  # the other one is quicker
        real(*given_)

    monkeypatch.setattr(relanding, "_append", late)
    tables.reland(OLD)
    assert others == [Relanded(landed=1, failing=1, missing_fields=1)]
    assert [row["sequence"] for row in tables.landed()] == [1]
    assert list(tables.failing()) == [2]


GROWN = f"{OLD}, note string"


@pytest.mark.parametrize(
    ("owner", "step"), [(relanding, "_judged"), (relanding, "widen"), (TableAlterer, "add_columns")]
)
def test_two_at_once_that_bring_a_new_field_do_not_both_land_a_row(
    owner: object, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path)
    tables.land(message(0, b"", value={"user": "z"}))
    tables.fail(message(1, b'{"user": "a", "note": "n"}'))
    real = getattr(owner, step)
    others: list[Relanded] = []

    def late(*given_: Any) -> Any:
        monkeypatch.undo()
        others.append(tables.reland(GROWN))  # the other one is quicker
        return real(*given_)

    monkeypatch.setattr(owner, step, late)
    tables.reland(GROWN)
    assert [(it.landed, it.failing) for it in others] == [(1, 0)]
    assert [row["sequence"] for row in tables.landed()] == [0, 1]
    assert not tables.failing()


def test_a_stream_that_appends_meanwhile_disturbs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a"}'))
    real = relanding._append

    def while_others_write(*given_: Any) -> None:
        tables.land(message(5, b"", value={"user": "landed"}))
        tables.fail(message(6, b"{", error="new"))
        real(*given_)

    monkeypatch.setattr(relanding, "_append", while_others_write)
    tables.reland(OLD)
    assert [row["sequence"] for row in tables.landed()] == [1, 5]
    assert tables.failing() == {6: "new"}


def test_what_cannot_be_relanded_is_said_at_once(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    with pytest.raises(PipeFailed, match=r"there is no Delta table at .*nowhere"):
        reland(replace(tables.job(json_decoder(parse_fields(OLD))), quarantine=place_of(str(tmp_path / "nowhere"))))
    with pytest.raises(PipeFailed, match="raw bodies never fail"):
        reland(tables.job(RawDecoder()))


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.fail(message(1, b'{"user": "a"}'), message(2, b"{"))
    words = ["reland", "--table", tables.table, "--decoder", "json", "--schema", OLD]
    found = CliRunner().invoke(app, words)
    assert (found.exit_code, found.stdout) == (
        0,
        "1 rows landed, 1 fields missing and 0 ignored; 1 still fail, 0 broke a rule\n",
    )
    again = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(again.stdout) == {"landed": 0, "failing": 1, "by_rule": 0, "missing_fields": 0, "extra_fields": 0}
