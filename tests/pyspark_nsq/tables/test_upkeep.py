"""Upkeep of a table: which files are joined and when, which are removed, and what readers see meanwhile."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem

from nsqpipe.metrics import Page
from nsqpipe.progress import Progress
from pyspark_nsq.listener import QueryStates
from pyspark_nsq.tables.files import PartitionedWriter
from pyspark_nsq.tables.lease import ABANDONED_AFTER, LEASE, LeaseExpired
from pyspark_nsq.tables.sink import TableStreamWriter, Target, Written
from pyspark_nsq.tables.table import Format, Table
from pyspark_nsq.tables.tending import tend, tend_safely, tended
from pyspark_nsq.tables.upkeep import (
    DAY,
    FoundFile,
    Joining,
    NamedFile,
    Policy,
    Tended,
    joinings,
    leftovers,
    seconds_of,
)
from tests.support.commits import delay_a_commit, lose_an_answer
from tests.support.quick import unless_quick

HOUR = (("topic", "orders"), ("hour", "7"))
MB = 1 << 20
OURS = f"part-00003-{'ab' * 16}.zstd.parquet"
OURS_BY_NAME = f"part-9b0c4c1e-7d0e-4c8e-9a57-0f5f0b7a2c11-12-00003-{'ab' * 16}.zstd.parquet"
JOINED = "part-00000-b07ade91-61a5-406c-993a-3a5a978ac808-c000.zstd.parquet"


def files(*rows: int, size: int = 1000, added: float = 0.0) -> list[NamedFile]:
    return [NamedFile(f"{added}-{number}", HOUR, count, size * count, added) for number, count in enumerate(rows)]


# Decisions


def test_an_hour_is_closed_when_nothing_was_added_for_a_while() -> None:
    policy = Policy(closed_after=600)
    here = [*files(5, 7), *files(9, added=100)]
    assert joinings(here, policy, 699) == []
    assert joinings(here, policy, 700) == [Joining(HOUR, tuple(here))]


@pytest.mark.parametrize(
    "sizes", [[MB], [100 * MB, 100 * MB, MB], [64 * MB, 64 * MB]], ids=["one", "one is small", "none is small"]
)
def test_a_closed_hour_that_cannot_get_fewer_files_is_left_alone(sizes: list[int]) -> None:
    here = [NamedFile(str(number), HOUR, 10, size, 0) for number, size in enumerate(sizes)]
    assert joinings(here, Policy(target_bytes=128 * MB), 10**6) == []


def test_files_are_joined_up_to_the_target_size() -> None:
    here = [NamedFile(f"{number:02}", HOUR, 10, 30 * MB, 0) for number in range(10)]
    found = joinings(here, Policy(target_bytes=128 * MB), 10**6)
    assert [len(joining.files) for joining in found] == [4, 4, 2]
    assert [file for joining in found for file in joining.files] == here


def test_an_open_hour_joins_a_tier_that_is_full_and_all_smaller_files() -> None:
    policy = Policy(fanout=4)
    assert joinings(files(*[5] * 3), policy, 0) == []
    here = files(*[5] * 4, 2, 100)
    assert joinings(here, policy, 0) == [Joining(HOUR, tuple(here[:5]))], "all but the file of 100 rows"


def test_partitions_are_judged_one_by_one() -> None:
    other = NamedFile("1", (("topic", "clicks"), ("hour", "7")), 5, 5, 0)
    found = joinings([*files(*[5] * 8), other, replace(other, path="2")], Policy(closed_after=100), 50)
    assert [joining.partition for joining in found] == [HOUR]


@pytest.mark.parametrize(("commits", "most"), [(60, 20), (600, 30), (3000, 35)])
def test_an_hour_of_many_commits_has_few_files_and_few_rewrites(commits: int, most: int) -> None:
    """Simulates 50 messages a second and a commit each second or so, with a perfect join."""
    policy, here, rewritten = Policy(), list[NamedFile](), 0
    seen = 0
    for number in range(commits):
        here += files(50, added=number)
        if number % 8 == 7:
            for joining in joinings(here, policy, number):
                rows = sum(file.rows for file in joining.files)
                here = [file for file in here if file not in joining.files] + files(rows, added=number)
                rewritten += rows
        seen = max(seen, len(here))
    assert seen <= most
    assert rewritten <= 50 * commits * 5


def test_only_files_with_our_names_are_leftovers_and_only_when_they_are_old() -> None:
    old = 10**6
    names = [OURS, OURS_BY_NAME, JOINED, "notes.parquet", "part-1.parquet", OURS.replace("zstd", "snappy")]
    found = [FoundFile(f"hour=1/{name}", 0) for name in names]
    assert leftovers(found, set(), ABANDONED_AFTER - 1) == []
    assert leftovers(found, set(), ABANDONED_AFTER) == [f"hour=1/{OURS}", f"hour=1/{OURS_BY_NAME}"]
    assert leftovers(found, set(), 7 * DAY) == [f"hour=1/{name}" for name in (OURS, OURS_BY_NAME, JOINED)]
    assert leftovers(found, {OURS, OURS_BY_NAME, JOINED}, old) == []


# Files

SCHEMA = pa.schema([("hour", pa.int32()), ("body", pa.binary())])


class Landing:
    """A table that a sink fills, batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = Table(str(folder), Format.DELTA)
        self.numbers = 0
        self._sink = TableStreamWriter(Target(str(folder), ("hour",), "", SCHEMA))

    def write(self, rows: int = 5, hour: int | None = 1) -> Written:
        """Write files as a task does, without a commit."""
        bodies = [b"%d" % (self.numbers + number) for number in range(rows)]
        writer = PartitionedWriter(LocalFileSystem(), str(self.folder), ("hour",), "part-00000")
        writer.write(pa.RecordBatch.from_pydict({"hour": [hour] * rows, "body": bodies}, SCHEMA))
        return Written("query", writer.finish())

    def commit(self, written: Written, rows: int = 5) -> None:
        self._sink.commit([written], self.numbers)
        self.numbers += rows

    def add(self, batches: int, hour: int | None = 1) -> None:
        for _ in range(batches):
            self.commit(self.write(hour=hour))

    def landed(self, version: int | None = None) -> list[int]:
        table = DeltaTable(self.folder, version=version)
        return sorted(int(body) for body in table.to_pyarrow_table()["body"].to_pylist())

    def on_disk(self) -> list[Path]:
        return sorted(self.folder.rglob("*.parquet"))


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "table")


KEEPING = Policy(vacuum_after=None)


def test_files_of_a_closed_hour_become_one_and_those_of_an_open_one_stay(landing: Landing) -> None:
    landing.add(5, hour=1)
    later = time.time() + 1000
    landing.add(3, hour=None)
    done = tend(landing.table, KEEPING, now=time.time())
    assert (done.joined, done.files) == (0, 8)
    done = tend(landing.table, KEEPING, now=later)
    assert (done.joined, done.made, done.files) == (8, 2, 2), "also rows whose hour is null"
    assert landing.landed() == list(range(40))
    assert tend(landing.table, KEEPING, now=later).joined == 0
    assert landing.table.delta().transaction_version("query") == 35, "the sink still knows what it has"


def test_ten_minutes_of_fifty_messages_a_second_are_at_most_twenty_files(landing: Landing) -> None:
    """Batches come every 15 seconds and looks every 30, on the test's clock.

    `python -m tests.spark.trickle` is the real run.
    """
    most, batches = 0, unless_quick(40, quick=24)
    for number in range(batches):
        landing.commit(landing.write(rows=750), rows=750)
        if number % 2:
            most = max(most, len(landing.table.delta().file_uris()))
            tend(landing.table, KEEPING, now=time.time())
    assert most <= 20
    assert len(landing.table.delta().file_uris()) <= 13
    assert landing.landed() == list(range(batches * 750))


def test_files_in_folders_whose_names_are_quoted_are_joined(tmp_path: Path) -> None:
    schema = pa.schema([("topic", pa.string()), ("body", pa.binary())])
    sink = TableStreamWriter(Target(str(tmp_path), ("topic",), "", schema))
    for number in range(3):
        writer = PartitionedWriter(LocalFileSystem(), str(tmp_path), ("topic",), "part-00000")
        writer.write(pa.RecordBatch.from_pydict({"topic": ["a b#ephemeral"], "body": [b"%d" % number]}, schema))
        sink.commit([Written("query", writer.finish())], number)
    assert tend(Table(str(tmp_path), Format.DELTA), KEEPING, now=time.time() + 1000).files == 1
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["body"].to_pylist()) == [b"0", b"1", b"2"]
    assert DeltaTable(tmp_path).to_pyarrow_table()["topic"].unique().to_pylist() == ["a b#ephemeral"]


def test_readers_see_each_row_once_while_files_are_joined_and_added(landing: Landing) -> None:
    landing.add(1)
    stop = threading.Event()
    seen: list[list[int]] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(landing.landed())

    reader = threading.Thread(target=read)
    reader.start()
    done: list[Tended] = []
    with tended([landing.table], Policy(every=0.02, fanout=3, vacuum_after=7 * DAY), [done.append]):
        landing.add(20)
    stop.set()
    reader.join(30)
    assert not [it for it in done if it.failed]
    assert sum(it.joined for it in done) >= 10
    assert all(numbers == list(range(len(numbers))) for numbers in seen), "a row twice, or a hole"
    assert landing.landed() == list(range(105))
    assert len(landing.table.delta().file_uris()) < 12


def test_two_that_join_the_same_files_lose_nothing(landing: Landing) -> None:
    landing.add(10)
    done: list[Tended] = []

    def run() -> None:
        done.append(tend(landing.table, KEEPING, now=time.time() + 1000))

    both = [threading.Thread(target=run) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(30)
    assert len(done) == 2
    assert landing.landed() == list(range(50))
    assert len(landing.table.delta().file_uris()) == 1


def test_a_join_whose_answer_is_lost_removes_no_file_that_the_table_names(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.add(3)
    lose_an_answer(monkeypatch)
    done = tend(landing.table, KEEPING, now=time.time() + 1000)
    assert (done.joined, done.made, done.files) == (3, 1, 1)
    assert landing.landed() == list(range(15))


def test_a_join_that_arrives_after_it_was_given_up_finds_its_file(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.add(3)
    arrive = delay_a_commit(monkeypatch)
    assert "timed out" in tend_safely(landing.table, KEEPING, now=time.time() + 1000).failed
    arrive()
    assert landing.landed() == list(range(15))
    assert len(landing.table.delta().file_uris()) == 1


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_what_a_crash_left_behind_goes_and_nothing_else(landing: Landing) -> None:
    landing.add(2)
    (landing.folder / "hour=1" / "notes.parquet").write_bytes(b"mine")
    landing.write()
    landing.write(hour=2)
    others = [file for file in landing.on_disk() if file.name == "notes.parquet"]
    named = {Path(uri) for uri in landing.table.delta().file_uris()}
    for path in landing.on_disk():
        aged(path, ABANDONED_AFTER + 60)
    assert len(landing.on_disk()) == 5
    done = tend(landing.table, Policy(), now=time.time())
    assert done.removed == 2
    assert set(landing.on_disk()) == {*others, *named}
    assert landing.landed() == list(range(10))


def test_files_of_a_batch_that_is_being_written_are_never_removed(landing: Landing) -> None:
    """Upkeep runs all the time, and may remove anything, beside a batch that takes its time."""
    landing.add(3)
    slow = landing.write()
    for age in (0.0, LEASE / 2, LEASE - 60, LEASE + 60, ABANDONED_AFTER - 60):
        for file in slow.files:
            aged(landing.folder / file.path, age)
        tend(landing.table, Policy(vacuum_after=0, closed_after=0), now=time.time(), vacuum_now=True)
        assert all((landing.folder / file.path).exists() for file in slow.files)
    landing.commit(slow)
    assert landing.landed() == list(range(20))


def test_a_batch_whose_files_may_be_gone_is_not_committed(landing: Landing) -> None:
    landing.add(1)
    slow = landing.write()
    for file in slow.files:
        object.__setattr__(file, "modified", int((time.time() - LEASE - 60) * 1000))
    with pytest.raises(LeaseExpired, match="it is done again"):
        landing.commit(slow)
    assert landing.landed() == list(range(5))


def test_old_versions_can_be_read_until_their_time_has_passed(landing: Landing) -> None:
    landing.add(4)
    before = landing.table.delta().version()
    later = time.time() + 1000
    for path in landing.on_disk():
        aged(path, 30 * DAY)
    tend(landing.table, Policy(), now=later, vacuum_now=True)
    assert landing.landed(before) == list(range(20))
    done = tend(landing.table, Policy(vacuum_after=0), now=later, vacuum_now=True)
    assert done.removed == 4
    assert landing.landed() == list(range(20))
    assert len(landing.on_disk()) == 1


FORGETS = {"delta.deletedFileRetentionDuration": "interval 1 millisecond"}  # as the default does after a week


def test_versions_that_are_kept_for_long_can_be_read_after_delta_would_have_forgotten_removals(
    landing: Landing,
) -> None:
    keep = Policy(vacuum_after=30 * DAY, closed_after=0)
    landing.add(4)
    landing.table.delta().alter.set_table_properties(FORGETS)
    tend(landing.table, replace(keep, closed_after=10**9), now=time.time())
    before = landing.table.delta().version()
    assert tend(landing.table, keep, now=time.time()).joined == 4
    time.sleep(0.01)
    landing.table.delta().create_checkpoint()
    for days in (2, 29):
        assert tend(landing.table, keep, now=time.time() + days * DAY, vacuum_now=True).removed == 0
        assert landing.landed(before) == list(range(20))
    version = landing.table.delta().version()
    tend(landing.table, keep, now=time.time(), vacuum_now=True)
    assert landing.table.delta().version() == version, "it is said once"


def test_what_was_removed_before_the_table_knew_for_how_long_is_kept_for_as_long(landing: Landing) -> None:
    keep = Policy(vacuum_after=30 * DAY, closed_after=0)
    landing.add(4)
    landing.table.delta().alter.set_table_properties(FORGETS)
    before = landing.table.delta().version()
    tend(landing.table, replace(KEEPING, closed_after=0), now=time.time())
    time.sleep(0.01)
    landing.table.delta().create_checkpoint()
    for days in (0, 2, 29):
        assert tend(landing.table, keep, now=time.time() + days * DAY, vacuum_now=True).removed == 0
        assert landing.landed(before) == list(range(20))
    assert tend(landing.table, keep, now=time.time() + 31 * DAY, vacuum_now=True).removed == 4


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("interval 1 week", 7 * DAY), ("INTERVAL 36 hours", 1.5 * DAY), ("2 days", 2 * DAY), ("", None), ("long", None)],
)
def test_durations_are_read_as_delta_spells_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def test_a_vacuum_comes_now_and_then_also_when_the_job_is_started_often(landing: Landing) -> None:
    landing.add(1)
    landing.write()
    left = set(landing.on_disk()) - {Path(uri) for uri in landing.table.delta().file_uris()}
    for path in left:
        aged(path, 2 * ABANDONED_AFTER)
    now = time.time()
    assert tend(landing.table, Policy(), now=now).removed == 1
    landing.write()
    for path in landing.on_disk():
        aged(path, 2 * ABANDONED_AFTER)
    assert tend(landing.table, Policy(), now=now + 60).removed == 0
    assert tend(landing.table, Policy(), now=now + Policy().vacuum_every).removed == 1


def test_what_was_done_is_in_the_metrics_and_worth_a_line() -> None:
    metrics, lines = Page(QueryStates()), StringIO()
    progress = Progress(lines)
    for done in (
        Tended(table="t", files=9),
        Tended(table="t", files=3, joined=8, made=2, removed=1),
        Tended(table="t", failed="the store cannot be reached"),
    ):
        metrics.observe_upkeep(done)
        progress.observe_upkeep(done)
    page = metrics.page().decode()
    assert 'nsqpipe_table_files{table="t"} 3\n' in page, "the last that is known"
    assert 'nsqpipe_files_joined_total{table="t"} 8\n' in page
    assert 'nsqpipe_files_removed_total{table="t"} 1\n' in page
    assert 'nsqpipe_upkeep_failures_total{table="t"} 1\n' in page
    assert lines.getvalue().splitlines()[-2:] == [
        "upkeep of t: 8 files joined into 2, 1 removed, 3 there",
        "upkeep of t failed, and will be tried again: the store cannot be reached",
    ]


def test_a_block_that_fails_is_not_kept_waiting_and_one_that_ends_gets_a_last_look(landing: Landing) -> None:
    done: list[Tended] = []
    with pytest.raises(ValueError, match="no"), tended([landing.table], Policy(), [done.append]):
        raise ValueError("no")
    assert done == []
    with tended([landing.table], Policy(), [done.append]), tended([landing.table], None, [done.append]):
        landing.add(9)
    assert [it.joined for it in done] == [9]


def test_a_table_that_cannot_be_reached_is_said_and_no_more(tmp_path: Path) -> None:
    assert tend(Table(str(tmp_path / "none"), Format.DELTA), Policy(), now=0) == Tended(table=str(tmp_path / "none"))
    storage = {"storage.accessKey": "a", "storage.secretKey": "b", "storage.endpoint": "http://127.0.0.1:1"}
    done = tend_safely(Table("s3://lake/t", Format.DELTA, storage=storage), Policy(), now=0)
    assert done.failed
    assert "\n" not in done.failed


def test_whatever_fails_the_upkeep_goes_on(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    for failure in (LeaseExpired("too old"), pa.ArrowInvalid("no such column"), KeyError("path")):
        monkeypatch.setattr("pyspark_nsq.tables.tending.tend", Mock(side_effect=failure))
        assert tend_safely(landing.table, Policy(), now=0).failed
