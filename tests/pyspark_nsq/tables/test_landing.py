"""Landing in one pass without Spark: tasks read a real nsqd, and a driver commits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.table import TableAlterer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from nsqpipe.quality import Rule, Then
from nsqpipe.shape import Shape
from pyspark_nsq.bodies.ddl import parse_fields
from pyspark_nsq.bodies.decoding import COUNTS, COUNTS_TYPE, ERROR, EXTRA, MISSING, Decoded, Decoding, json_decoder
from pyspark_nsq.lanes import Range
from pyspark_nsq.options import source_options
from pyspark_nsq.source.ranges import COLUMNS, as_rows
from pyspark_nsq.tables.appending import DeltaDestination
from pyspark_nsq.tables.ends import application
from pyspark_nsq.tables.landing import Landed, LandingWriter, land, landing_of, packed
from pyspark_nsq.tables.lease import ABANDONED_AFTER, LeaseExpired
from pyspark_nsq.tables.marks import MARK, TYPE, Marking, columns_of
from pyspark_nsq.tables.schemas import widen
from pyspark_nsq.tables.shares import AnotherJob, Batch, NotJoined
from pyspark_nsq.tables.sink import Target
from pyspark_nsq.tables.table import Format, Table
from pyspark_nsq.tables.tending import tend
from pyspark_nsq.tables.unnamed import Unnamed
from pyspark_nsq.tables.upkeep import FoundFile, Policy, leftovers
from tests.support.commits import delay_a_commit, lose_an_answer
from tests.support.orders import Orders
from tests.support.spark import numbered, publish

RANGES = from_arrow_schema(COLUMNS)
QUERY = "9b0c4c1e-7d0e-4c8e-9a57-0f5f0b7a2c11"  # an id as Spark gives it
VALUE = pa.struct([("n", pa.int64())])
GROWN = pa.struct([("n", pa.int64()), ("m", pa.int64())])


@dataclass(frozen=True)
class Odd:
    """A decoder that fails for odd numbers, or for even ones."""

    value_type: pa.DataType = VALUE
    fails: int = 1  # fails for numbers with this remainder

    @property
    def identity(self) -> tuple[object, ...]:
        return "odd", self.fails

    def decode(self, bodies: pa.Array) -> Decoded:
        numbers = [int(body) for body in bodies.to_pylist()]
        good = [number % 2 != self.fails for number in numbers]
        values = [
            {it.name: number for it in self.value_type} if is_good else None
            for number, is_good in zip(numbers, good, strict=True)
        ]
        errors = [None if is_good else "odd" for is_good in good]
        return Decoded(pa.array(values, self.value_type), pa.array(errors, pa.string()), {EXTRA: len(numbers)})


class Ones:
    """A decoder that makes a one of each message, with an extra field and two missing ones."""

    value_type = VALUE
    identity = ("ones",)

    def decode(self, bodies: pa.Array) -> Decoded:
        count = len(bodies) - bodies.null_count
        return Decoded(pa.array([{"n": 1}] * len(bodies), VALUE), None, {EXTRA: count, MISSING: 2 * count})


class Job:
    """Lands a topic in the way that Spark does it: tasks, then a commit."""

    def __init__(self, orders: Orders, folder: Path, query: str = "q", *, decoder: Odd | None = None) -> None:
        self.source, self.head = orders.source, orders.head
        self.options = {
            "path": str(folder / "table"),
            "quarantine": str(folder / "bad"),
            **{f"source.{name}": text for name, text in self.source.items()},
            **({"decoder": packed(decoder)} if decoder else {}),
        }
        self.query = query
        self.batch = 0

    @property
    def writer(self) -> LandingWriter:
        return LandingWriter(landing_of(self.options, RANGES))

    def tasks(self, *borders: int, opens: bool = False) -> list[Landed]:
        landing = landing_of(self.options, RANGES)
        found = []
        for begin, end in itertools.pairwise(borders):
            part = Range(self.head.lane, self.head.address, begin, end)
            opening = frozenset([(self.head.lane, borders[0])] if opens else [])
            name = f"{self.query}-{self.batch}-{begin:05d}"
            found.append(land(landing, iter([as_rows([part], opening)]), query=self.query, name=name))
        return found

    def lose(self, place: int) -> list[Landed]:
        """Lose the lane, so that nobody knows how far it went."""
        rows = as_rows([Range(self.head.lane, "", place, None)], frozenset())
        landing = landing_of({**self.options, "source.gapRows": "true", "source.failOnDataLoss": "false"}, RANGES)
        return [land(landing, iter([rows]), query=self.query, name=f"{self.query}-{self.batch}-{place:05d}")]

    def commit(self, tasks: Sequence[Landed]) -> None:
        self.writer.commit([*tasks, None], self.batch)
        self.batch += 1

    def batch_of(self, *borders: int, opens: bool = False) -> None:
        self.commit(self.tasks(*borders, opens=opens))


def target_of(job: Job) -> Target:
    table = job.writer._landing.table
    assert isinstance(table, DeltaDestination)
    return table.target


def seen_by_sql(job: Job, *more: tuple[str, pa.DataType]) -> pa.Schema:
    columns = columns_of(source_options(job.source))
    return pa.schema([*columns, (MARK, TYPE), *more, ("date", pa.date32()), ("hour", pa.int32())])


def landed(folder: Path, name: str = "table") -> list[int]:
    return sorted(map(int, DeltaTable(folder / name).to_pyarrow_table()["body"].to_pylist()))


def files(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))


def test_ranges_become_rows_of_topic_day_and_hour_with_the_end_of_their_lane(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    job.batch_of(0, 30, 60, opens=True)
    job.batch_of(60, 100)
    assert landed(tmp_path) == list(range(100))
    table = DeltaTable(tmp_path / "table")
    assert table.transaction_version(application(str(job.head.lane))) == 100
    assert not (tmp_path / "bad").exists()
    (path,) = {Path(uri).parent.relative_to(tmp_path / "table") for uri in table.file_uris()}
    row = table.to_pyarrow_table().slice(0, 1).to_pylist()[0]
    assert str(path) == f"topic={orders.topic}/date={row['timestamp'].date()}/hour={row['timestamp'].hour}"
    assert (row["date"], row["hour"]) == (row["timestamp"].date(), row["timestamp"].hour)
    told = table.history(1)[0]
    assert {name: told[name] for name in ("nsq.query", "nsq.batch", "nsq.rows")} == {
        "nsq.query": "q", "nsq.batch": "1", "nsq.rows": "40"
    }  # fmt: skip
    table.create_checkpoint()
    table.optimize.compact()
    assert DeltaTable(tmp_path / "table").transaction_version(application(str(job.head.lane))) == 100


def test_a_checkpoint_that_is_lost_or_old_adds_what_is_not_there(orders: Orders, tmp_path: Path) -> None:
    Job(orders, tmp_path).batch_of(0, 60, opens=True)
    again = Job(orders, tmp_path, "another")
    again.batch_of(0, 20, 40, opens=True)  # the table has all of it
    again.batch_of(40, 50, 80)  # and a part of this one
    again.batch_of(80, 100)
    assert landed(tmp_path) == list(range(100))


def test_a_checkpoint_that_is_ahead_is_refused_and_leaves_nothing_behind(orders: Orders, tmp_path: Path) -> None:
    Job(orders, tmp_path).batch_of(0, 60, opens=True)
    foreign = Job(orders, tmp_path, "another", decoder=Odd())
    foreign.options.pop("decoder")
    before, tasks = files(tmp_path), foreign.tasks(70, 100)
    with pytest.raises(NotJoined, match=r"table ends at 60: messages \[60, 70\) would be missing"):
        foreign.commit(tasks)
    foreign.writer.abort([*tasks, None], 0)
    assert (landed(tmp_path), files(tmp_path)) == (list(range(60)), before)


def test_a_table_that_was_removed_does_not_begin_in_the_middle(orders: Orders, tmp_path: Path) -> None:
    with pytest.raises(NotJoined, match="the table was removed"):
        Job(orders, tmp_path).batch_of(50, 100)


def test_of_two_jobs_the_later_one_says_that_there_is_another(orders: Orders, tmp_path: Path) -> None:
    first, second = Job(orders, tmp_path), Job(orders, tmp_path, "second")
    first.batch_of(0, 10, opens=True)
    tasks = second.tasks(10, 50)
    first.batch_of(10, 50)
    with pytest.raises(AnotherJob, match="another job lands into the table at"):
        second.commit(tasks)
    second.writer.abort([*tasks, None], 0)
    assert landed(tmp_path) == list(range(50))
    second.batch_of(10, 50, 100)
    assert landed(tmp_path) == list(range(100))


def test_another_job_is_none_where_the_batch_would_add_nothing(orders: Orders, tmp_path: Path) -> None:
    first, second = Job(orders, tmp_path), Job(orders, tmp_path, "second")
    first.batch_of(0, 50, opens=True)
    tasks = second.tasks(0, 20, 40, opens=True)
    first.batch_of(50, 100)
    second.commit(tasks)
    assert landed(tmp_path) == list(range(100))


def test_two_commits_at_once_of_a_lane_collide(orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Job(orders, tmp_path), Job(orders, tmp_path, "second")
    tasks, rival = first.tasks(0, 50, opens=True), second.tasks(0, 80, opens=True)
    make = DeltaTable.create_write_transaction

    def beaten(table: DeltaTable, *arguments: object, **more: object) -> None:
        monkeypatch.undo()
        second.commit(rival)
        make(table, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create_write_transaction", beaten)
    with pytest.raises(AnotherJob):
        first.commit(tasks)
    assert landed(tmp_path) == list(range(80))


@pytest.mark.parametrize("name", ["table", "bad"])
def test_a_commit_that_arrives_after_the_abort_finds_its_files(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Spark aborts in another process, which knows nothing of the commit. The next run finds what has arrived."""
    job = Job(orders, tmp_path, decoder=Odd())
    tasks = job.tasks(0, 40, opens=True)
    arrive = delay_a_commit(monkeypatch, folder=name)
    with pytest.raises(OSError, match="timed out"):
        job.commit(tasks)
    job.writer.abort(list(tasks), 0)
    arrive()
    job.batch_of(0, 40, opens=True)
    assert (landed(tmp_path), landed(tmp_path, "bad")) == (list(range(0, 40, 2)), list(range(1, 40, 2)))


@pytest.mark.parametrize("refused", [False, True])
def test_a_commit_whose_answer_is_lost_is_not_another_job(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    job = Job(orders, tmp_path)
    tasks = job.tasks(0, 40, opens=True)
    lose_an_answer(monkeypatch, refused=refused)
    job.commit(tasks)
    assert landed(tmp_path) == list(range(40))
    assert files(tmp_path) == 1


def test_what_does_not_decode_lies_in_the_quarantine(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 50, 100, opens=True)
    assert landed(tmp_path) == list(range(0, 100, 2))
    assert landed(tmp_path, "bad") == list(range(1, 100, 2))
    good, bad = (DeltaTable(tmp_path / name).to_pyarrow_table() for name in ("table", "bad"))
    assert sorted(value["n"] for value in good["value"].to_pylist()) == list(range(0, 100, 2))
    assert set(bad["error"].to_pylist()) == {"odd"}
    assert "value" not in bad.column_names
    assert "error" not in good.column_names
    told = DeltaTable(tmp_path / "table").history(1)[0]
    assert [told[f"nsq.{name}"] for name in ("rows", "quarantined", EXTRA)] == ["50", "50", "100"]


def take(job: Job, tasks: Sequence[Landed]) -> None:
    """Commit what is good of the tasks' messages."""
    table = job.writer._landing.table
    table.append([it.table for it in tasks], Batch(job.query, job.batch, {}), Unnamed(*table.filesystem(), []))


def overtaken(monkeypatch: pytest.MonkeyPatch, overtake: Callable[[], None]) -> None:
    """Call this just before the next commit to a `table`."""
    make = DeltaTable.create_write_transaction

    def beaten(table: DeltaTable, *arguments: object, **more: object) -> None:
        if table.table_uri.rstrip("/").endswith("/table"):
            monkeypatch.undo()
            overtake()
        make(table, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create_write_transaction", beaten)


def test_a_table_grows_while_it_is_landed_into_and_who_writes_the_old_fields_goes_on(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Job(orders, tmp_path, decoder=Odd()), Job(orders, tmp_path, "new", decoder=Odd(GROWN))
    old.batch_of(0, 20, opens=True)
    tasks = old.tasks(20, 40)
    grown = Schema.from_arrow(new.writer._landing.table.schema)
    overtaken(monkeypatch, lambda: widen(DeltaTable(tmp_path / "table"), grown))
    old.commit(tasks)
    new.batch_of(40, 60)
    old.batch_of(60, 100)
    assert landed(tmp_path) == list(range(0, 100, 2))
    assert landed(tmp_path, "bad") == list(range(1, 100, 2))
    values = DeltaTable(tmp_path / "table").to_pyarrow_table()["value"].to_pylist()
    assert sorted((it["n"], it["m"]) for it in values if it["m"] is not None) == [(n, n) for n in range(40, 60, 2)]


def test_whoever_takes_messages_while_the_table_grows_is_noticed(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, another = Job(orders, tmp_path, decoder=Odd()), Job(orders, tmp_path, "another", decoder=Odd(GROWN))
    job.batch_of(0, 20, opens=True)
    tasks, theirs = job.tasks(20, 40), another.tasks(20, 40)

    def overtake() -> None:
        grown = Schema.from_arrow(another.writer._landing.table.schema)
        widen(DeltaTable(tmp_path / "table"), grown)
        take(another, theirs)

    overtaken(monkeypatch, overtake)
    with pytest.raises(AnotherJob):
        job.commit(tasks)
    assert landed(tmp_path) == list(range(0, 40, 2))


def test_a_batch_that_is_refused_or_adds_nothing_leaves_the_schema_alone(orders: Orders, tmp_path: Path) -> None:
    Job(orders, tmp_path, decoder=Odd()).batch_of(0, 20, opens=True)
    before = DeltaTable(tmp_path / "table").version()
    ahead, again = (Job(orders, tmp_path, name, decoder=Odd(GROWN)) for name in ("ahead", "again"))
    with pytest.raises(NotJoined):
        ahead.batch_of(30, 60)
    again.batch_of(0, 20, opens=True)
    table = DeltaTable(tmp_path / "table")
    assert table.version() == before
    assert "m" not in [it.name for it in pa.schema(table.schema().to_arrow()).field("value").type]


def test_whoever_takes_messages_while_this_batch_widens_the_table_is_noticed(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, another = Job(orders, tmp_path, decoder=Odd(GROWN)), Job(orders, tmp_path, "another", decoder=Odd())
    another.batch_of(0, 20, opens=True)
    tasks, theirs = job.tasks(20, 40), another.tasks(20, 40)
    add_columns = TableAlterer.add_columns

    def beaten(alterer: TableAlterer, fields: list[Field]) -> None:
        monkeypatch.undo()
        take(another, theirs)
        add_columns(alterer, fields)

    monkeypatch.setattr(TableAlterer, "add_columns", beaten)
    with pytest.raises(AnotherJob):
        job.commit(tasks)
    assert landed(tmp_path) == list(range(0, 40, 2))


def test_what_was_landed_with_fewer_fields_is_joined_and_landing_goes_on(orders: Orders, tmp_path: Path) -> None:
    old, new = Job(orders, tmp_path, decoder=Odd()), Job(orders, tmp_path, "new", decoder=Odd(GROWN))
    old.batch_of(0, 20, opens=True)
    new.batch_of(20, 40)
    for name in ("table", "bad"):
        table = Table(str(tmp_path / name), Format.DELTA)
        done = tend(table, Policy(closed_after=0), now=time.time())
        assert (done.joined, done.made, done.failed) == (2, 1, "")
    Job(orders, tmp_path, "again", decoder=Odd()).batch_of(0, 20, 60, opens=True)
    assert landed(tmp_path) == list(range(0, 60, 2))
    assert landed(tmp_path, "bad") == list(range(1, 60, 2))
    values = {it["n"]: it["m"] for it in DeltaTable(tmp_path / "table").to_pyarrow_table()["value"].to_pylist()}
    assert values == {number: number if 20 <= number < 40 else None for number in range(0, 60, 2)}


def test_files_that_may_have_been_removed_as_leftovers_are_not_committed(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path, QUERY, decoder=Odd())
    job.batch_of(0, 20, opens=True)
    tasks = job.tasks(20, 40)
    for task in tasks:
        task.table.files = [replace(file, modified=file.modified - 13 * 3_600_000) for file in task.table.files]
    with pytest.raises(LeaseExpired):
        job.commit(tasks)
    assert landed(tmp_path) == list(range(0, 20, 2))
    job.batch_of(20, 40)
    assert (landed(tmp_path), landed(tmp_path, "bad")) == (list(range(0, 40, 2)), list(range(1, 40, 2)))


def test_what_a_killed_task_leaves_is_known_by_its_name(orders: Orders, tmp_path: Path) -> None:
    Job(orders, tmp_path, QUERY, decoder=Odd()).tasks(0, 20, opens=True)
    found = [FoundFile(it.name, 0.0) for it in tmp_path.rglob("*.parquet")]
    assert len(leftovers(found, named=(), now=ABANDONED_AFTER)) == len(found) == 2


def test_a_crash_between_the_two_commits_is_a_batch_that_is_half_done(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 10, opens=True)
    tasks = job.tasks(10, 60)
    make, made = DeltaTable.create_write_transaction, list[str]()

    def crash(table: DeltaTable, *arguments: object, **more: object) -> None:
        if made:
            raise SystemExit
        make(table, *arguments, **more)  # type: ignore[arg-type]
        made.append("one")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", crash)
    with pytest.raises(SystemExit):
        job.commit(tasks)
    monkeypatch.undo()
    assert (landed(tmp_path), landed(tmp_path, "bad")) == (list(range(0, 10, 2)), list(range(1, 60, 2)))
    job.batch_of(10, 60)
    assert (landed(tmp_path), landed(tmp_path, "bad")) == (list(range(0, 60, 2)), list(range(1, 60, 2)))


def crash_between_the_two_commits(job: Job, monkeypatch: pytest.MonkeyPatch, *borders: int) -> None:
    tasks = job.tasks(*borders, opens=True)
    delay_a_commit(monkeypatch, folder="table")  # for ever
    with pytest.raises(OSError, match="timed out"):
        job.commit(tasks)


def test_whoever_judges_otherwise_does_not_go_on_where_the_quarantine_is_ahead(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the decoder was corrected: 1, 3, ... are in the quarantine.

    0, 4, ... would be in neither table.
    """
    old, new = Job(orders, tmp_path, decoder=Odd()), Job(orders, tmp_path, decoder=Odd(fails=0))
    crash_between_the_two_commits(old, monkeypatch, 0, 20)
    for borders in ((0, 20), (0, 0), (0, 40)):
        with pytest.raises(NotJoined, match=r"before 20 of lane .* were judged by another decoder"):
            new.batch_of(*borders, opens=True)
    old.batch_of(0, 20, opens=True)
    new.batch_of(20, 40)
    assert landed(tmp_path) == [*range(0, 20, 2), *range(21, 40, 2)]
    assert landed(tmp_path, "bad") == [*range(1, 20, 2), *range(20, 40, 2)]


def test_who_judges_is_known_by_decoder_and_rules() -> None:
    def shape(fields: str, *checks: str) -> Shape:
        rules = tuple(Rule(check, check, Then.QUARANTINE) for check in checks)
        return Shape(decoder=json_decoder(parse_fields(fields)), rules=rules)

    assert shape("n int", "value.n > 0").judge == shape("n int", "value.n > 0").judge

    shapes = [shape("n int"), shape("n bigint"), shape("n int", "value.n > 0"), shape("n int", "value.n > 1")]
    assert len({it.judge for it in shapes}) == len(shapes)
    of_rows = from_arrow_schema(pa.schema([(MARK, TYPE), (ERROR, pa.string())]))
    assert len({judge_of(of_rows, judge=it.judge) for it in shapes}) == len(shapes)


def test_who_judges_is_known_after_an_upgrade() -> None:
    """Quarantines keep these numbers, so each version makes the same ones, whatever the version of Python."""
    shape = Shape(decoder=json_decoder(parse_fields("n int")), rules=(Rule("positive", "value.n > 0", Then.COUNT),))
    of_rows = from_arrow_schema(pa.schema([(MARK, TYPE), (ERROR, pa.string())]))
    assert judge_of(of_rows, judge=shape.judge) == 64219385948676151
    source = {"source.nsqd": "127.0.0.1:4151", "source.topic": "t"}
    assert judge_of(RANGES, decoder=packed(shape.decoder), **source) == 58443280353507814


def judge_of(rows: StructType, **options: str) -> int:
    quarantine = landing_of({"path": "t", "quarantine": "bad", **options}, rows).quarantine
    assert isinstance(quarantine, DeltaDestination)
    assert quarantine.beside is not None
    return quarantine.beside.judge


def test_a_new_quarantine_is_a_way_to_go_on(orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_between_the_two_commits(Job(orders, tmp_path, decoder=Odd()), monkeypatch, 0, 20)
    new = Job(orders, tmp_path, decoder=Odd(fails=0))
    new.options["quarantine"] = str(tmp_path / "worse")
    new.batch_of(0, 20, opens=True)
    assert (landed(tmp_path), landed(tmp_path, "worse")) == (list(range(1, 20, 2)), list(range(0, 20, 2)))


def test_two_tables_share_a_quarantine(orders: Orders, tmp_path: Path) -> None:
    first, second = Job(orders, tmp_path, decoder=Odd()), Job(orders, tmp_path, decoder=Odd(fails=0))
    second.options["path"] = str(tmp_path / "other")
    for job in (first, second, first, second):
        job.batch_of(job.batch * 50, job.batch * 50 + 50, opens=job.batch == 0)
    assert (landed(tmp_path), landed(tmp_path, "other")) == (list(range(0, 100, 2)), list(range(1, 100, 2)))
    assert landed(tmp_path, "bad") == list(range(100))


def test_a_batch_without_a_row_that_the_table_keeps_still_moves_its_end(orders: Orders, tmp_path: Path) -> None:
    publish(orders.nsqd, orders.topic, [b"1"] * 50)
    job = Job(orders, tmp_path, decoder=Odd())
    job.batch_of(0, 100, opens=True)
    job.batch_of(100, 150)
    assert len(landed(tmp_path)) == 50
    Job(orders, tmp_path, "again", decoder=Odd()).batch_of(0, 150, opens=True)
    assert len(landed(tmp_path, "bad")) == 100


def test_a_lane_that_begins_without_a_message_is_known_to_the_table(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    job.batch_of(100, 100, opens=True)
    publish(orders.nsqd, orders.topic, numbered(10, start=100))
    job.batch_of(100, 110)
    assert landed(tmp_path) == list(range(100, 110))


def test_a_table_whose_rows_have_no_ends_is_not_added_to(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    tasks = job.tasks(0, 10, opens=True)
    table = target_of(job).table()
    table.create_write_transaction([], "append", table.schema())
    job.commit(tasks)  # it had no row
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table()
    other = Job(orders, tmp_path / "other")
    write_deltalake(tmp_path / "other" / "table", rows, partition_by=["topic", "date", "hour"])
    with pytest.raises(NotJoined, match="does not say which messages"):
        other.batch_of(0, 100, opens=True)


def test_rows_between_marks_land_as_ranges_do(orders: Orders, tmp_path: Path) -> None:
    """As after `mapInArrow` and SQL that has left out the multiples of three and called those of five an error."""
    job = Job(orders, tmp_path)
    Job(orders, tmp_path, "before").batch_of(0, 7, opens=True)
    schema = from_arrow_schema(seen_by_sql(job, ("error", pa.string())))
    options = {name: text for name, text in job.options.items() if not name.startswith("source.")}
    landing = landing_of(options, schema)
    parts = [Range(job.head.lane, job.head.address, *span) for span in ((0, 30), (30, 31), (31, 31), (31, 100))]
    ranges = as_rows(parts, frozenset([(job.head.lane, 0)]))

    def after_sql() -> pa.RecordBatch:
        for rows in Marking(source_options(job.source))(iter([ranges])):
            bodies = rows.column("body").to_pylist()
            errors = pa.array(["five" if body and int(body) % 5 == 0 else None for body in bodies], pa.string())
            times = rows.column("timestamp")
            rows = rows.append_column("error", errors).append_column("date", times.cast(pa.date32()))
            rows = rows.append_column("hour", pa.nulls(rows.num_rows, pa.int32()))
            yield rows.filter(pa.array([body is None or int(body) % 3 != 0 for body in bodies]))

    joined = pa.Table.from_batches(after_sql()).combine_chunks().to_batches(max_chunksize=37)
    LandingWriter(landing).commit([land(landing, iter(joined), query="q", name="q-0-0")], 0)
    assert [n for n in landed(tmp_path) if n >= 7] == [n for n in range(7, 100) if n % 3 and n % 5]
    assert landed(tmp_path, "bad") == [n for n in range(7, 100) if n % 3 and n % 5 == 0]
    assert DeltaTable(tmp_path / "table").transaction_version(application(str(job.head.lane))) == 100


def test_fields_are_counted_between_marks_as_where_the_sink_decodes(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    found = [("value", VALUE), ("error", pa.string()), (COUNTS, COUNTS_TYPE)]
    options = {name: text for name, text in job.options.items() if not name.startswith("source.")}
    landing = landing_of(options, from_arrow_schema(seen_by_sql(job, *found)))
    parts = [Range(job.head.lane, job.head.address, *span) for span in ((0, 30), (30, 100))]
    marked = Marking(source_options(job.source))(iter([as_rows(parts, frozenset([(job.head.lane, 0)]))]))

    def after_sql() -> pa.RecordBatch:
        for rows in Decoding(Ones(), counts=True)(marked):
            when = [pa.nulls(rows.num_rows, kind) for kind in (pa.date32(), pa.int32())]
            yield rows.append_column("date", when[0]).append_column("hour", when[1])

    joined = pa.Table.from_batches(after_sql()).combine_chunks().to_batches(max_chunksize=37)
    LandingWriter(landing).commit([land(landing, iter(joined), query="q", name="q-0-0")], 0)
    told = DeltaTable(tmp_path / "table").history(1)[0]
    assert [told[f"nsq.{name}"] for name in ("rows", EXTRA, MISSING)] == ["100", "100", "200"]
    assert COUNTS not in DeltaTable(tmp_path / "table").to_pyarrow_table().column_names


def gaps(folder: Path) -> list[int]:
    rows = DeltaTable(folder / "table").to_pyarrow_table().to_pylist()
    return sorted(row["sequence"] for row in rows if row["gap"])


def test_a_lane_that_vanished_and_came_back_lands_whole_beside_a_row_that_says_so(
    orders: Orders, tmp_path: Path
) -> None:
    job = Job(orders, tmp_path)
    job.options["source.gapRows"] = "true"
    job.batch_of(0, 30, opens=True)
    for _ in range(2):  # the second run repeats it, with an old checkpoint
        job.commit(job.lose(30))
        assert gaps(tmp_path) == [30]
    back = Job(orders, tmp_path, "back")
    back.options["source.gapRows"] = "true"
    back.batch_of(0, 60, opens=True)
    job.commit(job.lose(60))
    assert gaps(tmp_path) == [30, 60]
    back.batch_of(60, 100)
    bodies = DeltaTable(tmp_path / "table").to_pyarrow_table()["body"].to_pylist()
    assert sorted(int(body) for body in bodies if body is not None) == list(range(100))
    with pytest.raises(NotJoined, match="messages"):
        job.commit(job.lose(110))


def test_a_lane_that_vanished_says_so_between_marks_too(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    job.options["source.gapRows"] = "true"
    source = source_options(job.source | {"gapRows": "true", "failOnDataLoss": "false"})
    schema = pa.schema([*columns_of(source), (MARK, TYPE), ("date", pa.date32()), ("hour", pa.int32())])
    landing = landing_of({"path": job.options["path"]}, from_arrow_schema(schema))
    job.batch_of(0, 30, opens=True)
    ranges = as_rows([Range(job.head.lane, "", 30, None)], frozenset())
    for number in range(2):
        rows = pa.Table.from_batches(Marking(source)(iter([ranges])))
        for name, kind in (("date", pa.date32()), ("hour", pa.int32())):
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        [joined] = rows.combine_chunks().to_batches()
        LandingWriter(landing).commit([land(landing, iter([joined]), query="sql", name="sql-0-0")], number)
        assert gaps(tmp_path) == [30]
    job.batch_of(30, 100)
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 101


def test_rows_that_lost_their_mark_are_an_error(orders: Orders, tmp_path: Path) -> None:
    job = Job(orders, tmp_path)
    schema = from_arrow_schema(seen_by_sql(job))
    landing = landing_of({"path": job.options["path"]}, schema)
    ranges = as_rows([Range(job.head.lane, job.head.address, 0, 10)], frozenset())
    _, *rows = Marking(source_options(job.source))(iter([ranges]))
    with pytest.raises(RuntimeError, match="before the mark"):
        land(landing, iter(rows), query="q", name="q-0-0")
    assert files(tmp_path) == 0
