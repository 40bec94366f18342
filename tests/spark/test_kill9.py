"""Spark is killed at the worst moments, and nothing is missing or there twice.

Spark's workers stop themselves there (`STOPS` in tests/planted/table.py), so that one `kill -9` of one JVM comes in the
middle of a publish, between two commits, and after a commit that Spark does not know of yet. The session of the tests
goes on from there. `python -m tests.spark.kill9` and `python -m tests.spark.sink_kill9` kill at random moments instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.planted.planting import with_bug
from tests.planted.table import STOPS
from tests.spark import driver, kill9
from tests.spark.kill9 import WINDOW, Application, Seen, kill_session, processes_of_session
from tests.spark.sink_kill9 import INTO, copied_bodies
from tests.support import hangs
from tests.support.pipe import nsqpipe
from tests.support.process import SteadyNsqd
from tests.support.spark import KEPT, PATIENCE, address, next_of, numbered, publish, wait_until_synced
from tests.support.spark_workers import workers_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 4_000  # messages in a topic
BAD = 10  # one of so many is no JSON
SINK = {"exactlyOnce": "true", "messagesPerPublish": "100"}
STOPPED = 4 + 2  # workers: of a copy's four tasks, and of the commits to two tables
PACE = "source_option = { maxRowsPerTrigger = 600, minRowsPerTrigger = 0 }"
JOBS = """
[defaults]
nsqd = "{nsqd}"
{pace}

[land.orders]
topic = "orders"
table = "{folder}/orders"
decoder = "json"
schema = "n int"

[land.clicks]
topic = "clicks"
table = "{folder}/clicks"

[aggregate.counts]
topic = ["orders", "clicks"]
results = "{folder}/results.json"
checkpoint = "{folder}/counts"
"""


def bodies(*numbers: int) -> Seen:
    return Seen([pa.array([b"%d" % number for number in numbers])])


def test_the_counts_of_kills_tell_what_is_missing_and_what_is_there_twice() -> None:
    result = kill9.Result(seed=1, acknowledged=4, landed=bodies(0, 2, 2, 5))
    assert (result.missing, result.duplicates) == (2, 1)


@pytest.mark.parametrize(("found", "says"), [((0, 1, 1), "seen twice"), ((0,), "seen and gone")])
def test_a_read_between_kills_fails_on_what_is_there_twice_or_has_gone(found: tuple[int, ...], says: str) -> None:
    result = kill9.Result(seed=1)
    result.add_read(bodies(0, 1))
    with pytest.raises(AssertionError, match=says):
        result.add_read(bodies(*found))


def order(number: int) -> bytes:
    return b'{"n": %d}' % number if number % BAD else b"%d is no JSON" % number


def sequences(table: Path) -> list[int]:
    found: list[int] = DeltaTable(table).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist()
    return sorted(found)


def counted(folder: Path) -> dict[str, int]:
    found = json.loads((folder / "results.json").read_text())
    return {topic: sum(it["messages"] for it in windows) for topic, windows in found["topics"].items()}


@pytest.mark.own_jvm("it is killed by kill -9")
@pytest.mark.slow
def test_nothing_is_missing_or_twice_when_spark_is_killed_in_the_middle_of_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    hangs.lift_limit()  # every wait in here has a limit of its own
    file, copying = tmp_path / "pipeline.toml", str(tmp_path / "copying")
    counts = tmp_path / "counts" / "results" / "commits"
    with SteadyNsqd(tmp_path / "data", KEPT, WINDOW) as nsqd:
        where, options = address(nsqd), json.dumps(SINK)
        publish(nsqd, "orders", map(order, range(COUNT)))
        publish(nsqd, "clicks", numbered(COUNT))
        file.write_text(JOBS.format(nsqd=where, pace=PACE, folder=tmp_path))
        command = [sys.executable, "-m", "tests.spark.driver", "run", str(file), where, copying, INTO, options]
        with workers_with(with_bug(*(stop.name for stop in STOPS))) as (python, workers):

            def is_time() -> bool:
                stopped = processes_of_session(workers, are_stopped=True)
                return len(stopped) == STOPPED and any(counts.glob("[0-9]*"))

            killed = Application(tmp_path, command, {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python})
            killed.start()
            try:
                killed.wait_until(is_time)
            finally:
                killed.kill()
                kill_session(workers)
        assert 0 < next_of(nsqd, INTO) < driver.SMALL_BATCH, "a part of a batch is copied"
        landed, quarantined = sequences(tmp_path / "orders"), sequences(tmp_path / "orders.quarantine")
        assert len(landed) + len(quarantined) > landed[-1] + 1, "the quarantine has more of the topic than its table"
        # The jobs go on with larger batches, and the copy with the same ones.
        file.write_text(JOBS.format(nsqd=where, pace="", folder=tmp_path))
        done = nsqpipe("run", file, "--until-now")
        assert done.exit_code == 0, done.output
        writer = driver.copy(spark, where, INTO, options, batch=driver.SMALL_BATCH)
        query = writer.option("checkpointLocation", copying).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        wait_until_synced(nsqd, INTO)
        copied = [body.as_py() for part in copied_bodies(where) for body in part]
    assert sequences(tmp_path / "orders") == [number for number in range(COUNT) if number % BAD]
    assert sequences(tmp_path / "orders.quarantine") == list(range(0, COUNT, BAD))
    assert sequences(tmp_path / "clicks") == list(range(COUNT))
    assert counted(tmp_path) == {"orders": COUNT, "clicks": COUNT}
    assert sorted(copied) == sorted(map(order, range(COUNT)))
