"""Object stores without Spark, with a real S3 server: tables, small files, checks, and two writers at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from nsqpipe.doctor import Finding, writable
from nsqpipe.lag import set_offsets
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.options import source_options
from pyspark_nsq.source.checkpoints import checkpointed
from pyspark_nsq.source.queries import From
from pyspark_nsq.stores.places import Place
from pyspark_nsq.stores.storage import check_checkpoint, check_place, names_in, place_of, read_text, replace_text
from pyspark_nsq.tables.files import PartitionedWriter
from pyspark_nsq.tables.iceberg_catalogs import open_catalog, with_stores
from pyspark_nsq.tables.iceberg_target import CatalogName
from pyspark_nsq.tables.landing import schemas
from pyspark_nsq.tables.shares import NotJoined
from pyspark_nsq.tables.sink import TableStreamWriter, Target, Written
from pyspark_nsq.tables.standing import check_standing, claim
from pyspark_nsq.tables.table import Format, Table
from pyspark_nsq.tables.tending import tend
from pyspark_nsq.tables.upkeep import Policy
from tests.pyspark_nsq.tables.test_landing import Job, Odd
from tests.support.orders import Orders
from tests.support.process import Nsqd
from tests.support.s3 import SECRET, S3Server
from tests.support.spark import KEPT, address, numbered, publish

SCHEMA = pa.schema([("hour", pa.int32()), ("body", pa.binary())])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def place(s3: S3Server) -> Place:
    return place_of(s3.new_uri(), s3.storage)


@pytest.fixture(autouse=True)
def _no_keys_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


def target(place: Place) -> Target:
    return Target(str(place), ("hour",), "", SCHEMA, place.access)


def written(place: Place, *numbers: int, query: str = "query") -> Written:
    """Return what a task hands to the driver."""
    filesystem, root = place.filesystem()
    writer = PartitionedWriter(filesystem, root, ("hour",), "part-00000")
    bodies = [b"%d" % number for number in numbers]
    writer.write(pa.RecordBatch.from_pydict({"hour": [number % 2 for number in numbers], "body": bodies}, SCHEMA))
    return Written(query, writer.finish())


def landed(place: Place) -> list[int]:
    return sorted(int(body) for body in DeltaTable(**place.for_delta()).to_pyarrow_table()["body"].to_pylist())


def test_a_batch_that_comes_twice_is_in_the_store_once_and_its_second_files_go(s3: S3Server, place: Place) -> None:
    writer = TableStreamWriter(target(place))
    for _ in range(2):
        writer.commit([written(place, 1, 2), None], 0)
    writer.abort([written(place, 3), None], 1)
    assert landed(place) == [1, 2]
    assert len([name for name in s3.files(str(place)) if name.endswith(".parquet")]) == 2
    assert not [name for name in s3.files(str(place)) if name.endswith("/")], "no objects that stand for folders"


def test_two_writers_at_once_lose_nothing_and_double_nothing(place: Place) -> None:
    rounds = range(5)
    target(place).table()
    failures: list[BaseException] = []

    def write(first: int) -> None:
        writer = TableStreamWriter(target(place))
        try:
            for turn in rounds:
                writer.commit([written(place, first + turn, query=f"query {first}")], turn)
        except BaseException as failure:
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 1000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert not failures
    assert landed(place) == sorted([*rounds, *(1000 + turn for turn in rounds)])


def test_of_two_commits_in_one_application_s_name_the_store_takes_one(place: Place) -> None:
    tables = [target(place).table() for _ in range(2)]
    fates = []
    for number, table in enumerate(tables):
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, dict(file.partition), file.modified, True, file.stats)
            for file in written(place, number).files
        ]
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=SCHEMA,
                partition_by=["hour"],
                commit_properties=CommitProperties(app_transactions=[Transaction("lane", 7)]),
            )
            fates.append("taken")
        except CommitFailedError:
            fates.append("refused")
    assert fates == ["taken", "refused"]
    assert landed(place) == [0]


def test_what_is_landed_in_one_pass_lies_in_the_store_and_its_quarantine_in_another(
    s3: S3Server, place: Place, tmp_path: Path
) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        publish(nsqd, "orders", numbered(100))
        job = Job(Orders(nsqd, "orders"), tmp_path, decoder=Odd())
        job.options |= {"path": str(place), **place.access.as_options()}
        job.batch_of(0, 30, 60, opens=True)
        tasks = job.tasks(70, 100)
        with pytest.raises(NotJoined, match="messages"):
            job.commit(tasks)
        job.writer.abort([*tasks], job.batch)
        assert landed(place) == list(range(0, 60, 2))
        assert landed(place_of(str(tmp_path / "bad"))) == list(range(1, 60, 2)), "on the disk"
        assert len([name for name in s3.files(str(place)) if name.endswith(".parquet")]) == 2, (
            "what was refused is gone"
        )
        stored = place.beside(".quarantine")
        there = {f"quarantine.{name}": text for name, text in stored.access.as_options().items()}
        job.options |= {"path": str(tmp_path / "table"), "quarantine": str(stored), **there}
        for name in place.access.as_options():
            del job.options[name]
        job.batch_of(0, 30, 60, opens=True)
        assert landed(place_of(str(tmp_path / "table"))) == list(range(0, 60, 2))
        assert landed(stored) == list(range(1, 60, 2))


def test_where_a_table_in_a_store_stands_is_known_without_spark(place: Place, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        publish(nsqd, "orders", numbered(100))
        job = Job(Orders(nsqd, "orders"), tmp_path)
        job.options |= {"path": str(place), **place.access.as_options()}
        job.batch_of(0, 60, opens=True)
        table = Table(str(place), Format.DELTA, str(tmp_path / "checkpoint"), place.access.as_options())
        source = From(topics=("orders",), nsqd=(address(nsqd),))
        assert json.loads(check_standing(source, table).options["startingOffsets"]) == {str(job.head.lane): 60}
        set_offsets(table.checkpoint_place, {str(job.head.lane): 80})
        with pytest.raises(PipeFailed, match=f"the table {place} ends at 60: it is another table's"):
            check_standing(source, table)


def test_an_iceberg_table_in_a_store_is_reached_with_the_keys_that_its_options_name(
    place: Place, tmp_path: Path
) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        publish(nsqd, "orders", numbered(100))
        catalog = CatalogName("", {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(place)})
        table = Table("raw.orders", Format.ICEBERG, str(tmp_path / "c"), place.access.as_options(), catalog)
        job = Job(Orders(nsqd, "orders"), tmp_path)
        rows, _ = schemas(source_options(job.source), None, drops_body=False)
        job.options |= table.sink_options(rows)
        job.batch_of(0, 60, opens=True)
        reached = open_catalog(with_stores(catalog, place.access.as_options()))
        assert len(reached.load_table("raw.orders").scan().to_arrow()) == 60
        done = tend(table, Policy(vacuum_after=3600.0), now=time.time())
        assert (done.files, done.removed, done.failed) == (1, 0, "")


def test_a_parquet_table_in_a_store_is_of_the_checkpoint_that_its_note_names(place: Place, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", KEPT) as nsqd:
        publish(nsqd, "orders", numbered(10))
        source = From(topics=("orders",), nsqd=(address(nsqd),))
        tables = [Table(str(place), Format.PARQUET, str(place.child(name)), place.access.as_options()) for name in "ab"]
        check_standing(source, tables[0])
        claim(tables[0])
        with pytest.raises(
            PipeFailed, match=f"another job, with the checkpoint {tables[0].checkpoint} on .*, has begun"
        ):
            check_standing(source, tables[1])
        check_standing(source, tables[0])


def test_small_files_are_replaced_and_checkpoints_made_in_a_store(place: Place) -> None:
    assert read_text(place) is None
    assert names_in(place) == []
    for text in ("one", "two"):
        replace_text(place.child("results.json"), text)
    assert read_text(place.child("results.json")) == "two"
    lane = f"{'1' * 32}/orders/{'2' * 32}"
    set_offsets(place.child("checkpoint"), {lane: 20})
    assert checkpointed(place.child("checkpoint")) == (0, [{lane: 20}])
    with pytest.raises(PipeFailed, match="already exists"):
        set_offsets(place.child("checkpoint"), {lane: 30})


def test_a_store_that_can_be_written_passes_and_is_left_as_it_was(s3: S3Server, place: Place) -> None:
    check_place(place, to_write=True)
    assert s3.files(str(place)) == []


@pytest.mark.parametrize(
    ("uri", "storage", "complaint"),
    [
        ("s3://lake/t", {"storage.endpoint": "HERE"}, "there are no keys: set AWS_ACCESS_KEY_ID"),
        (
            "s3://lake/t",
            {"storage.endpoint": "http://127.0.0.1:1", "KEYS": ""},
            "cannot be reached at http://127.0.0.1:1",
        ),
        ("s3://nolake/t", {"storage.endpoint": "HERE", "KEYS": ""}, "there is no such bucket"),
    ],
)
def test_what_is_wrong_with_a_store_is_one_line_soon(
    uri: str, storage: dict[str, str], complaint: str, s3: S3Server
) -> None:
    known = s3.storage
    given = {name: known[name] if text == "HERE" else text for name, text in storage.items() if name != "KEYS"}
    keys = {name: text for name, text in known.items() if "Key" in name}
    began = time.monotonic()
    with pytest.raises(PipeFailed, match=complaint) as failed:
        check_place(place_of(uri, {**given, **(keys if "KEYS" in storage else {})}), to_write=True)
    assert "\n" not in str(failed.value)
    assert SECRET not in str(failed.value)
    assert time.monotonic() - began < 30


def test_doctor_says_of_a_place_whether_it_can_be_written(place: Place, tmp_path: Path) -> None:
    assert writable(place) == Finding(True, f"{place} can be reached and written")
    (tmp_path / "file").write_text("")
    found = writable(place_of(str(tmp_path / "file")))
    assert not found.is_good
    assert "is not a folder" in found.text


def test_a_folder_that_cannot_be_one_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_place(place_of(str(tmp_path / "new" / "table")), to_write=True)
    assert not (tmp_path / "new").exists()
    with pytest.raises(PipeFailed, match="file is not a folder"):
        check_place(place_of(str(tmp_path / "file" / "table")), to_write=True)


def test_a_checkpoint_that_spark_cannot_write_is_one_line_and_a_jar_makes_it_good(tmp_path: Path) -> None:
    check_checkpoint(place_of(str(tmp_path)), {})
    place = place_of("s3://lake/orders.checkpoint")
    with pytest.raises(PipeFailed, match="it needs the jar hadoop-aws"):
        check_checkpoint(place, {})
    check_checkpoint(place, {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"})
