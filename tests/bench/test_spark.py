"""How the benchmark of Spark evaluates samples and a sink's log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.spark.lag import Committed, Lag, Sample, bisect, growth, lags
from bench.spark.latency import committed_files


def test_lag_is_the_age_of_the_oldest_message_that_is_not_committed() -> None:
    samples = [Sample(0, 0, 0), Sample(1, 100, 0), Sample(2, 200, 50), Sample(3, 300, 300), Sample(4, 300, 300)]
    # At 2 the oldest message is number 50, which was published at 0.5.
    assert lags(samples) == [Lag(0, 0), Lag(1, 1), Lag(2, 1.5), Lag(3, 0), Lag(4, 0)]


def test_a_pause_of_the_publisher_is_no_lag() -> None:
    samples = [Sample(0, 100, 100), Sample(9, 100, 100), Sample(10, 200, 100)]
    assert lags(samples) == [Lag(0, 0), Lag(9, 0), Lag(10, 1)]


def test_what_was_there_before_the_first_sample_is_as_old_as_that() -> None:
    assert lags([Sample(5, 100, 10), Sample(6, 100, 10)]) == [Lag(5, 0), Lag(6, 1)]


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    steady = [Lag(at, at % 2) for at in range(40)]
    rising = [Lag(at, at / 10) for at in range(40)]
    assert growth(steady, 0, 40) == 0
    assert growth(rising, 0, 40) == pytest.approx(2)
    assert growth([], 0, 40) == float("inf")


def test_bisection_comes_as_near_as_its_tries_allow() -> None:
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= 300

    found = bisect(10, 1000, 6, holds)
    assert found <= 300 < found * 100 ** (1 / 2**6)
    assert len(asked) == 6
    assert bisect(10, 1000, 3, lambda _: False) == 10


def test_only_batches_with_a_commit_are_committed(tmp_path: Path) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch in range(3):
        lanes = {"node/topic/log": 100 * batch, "other/topic/log": 1}
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps({'v': 1, 'lanes': lanes})}")
    committed = Committed(tmp_path)
    assert (committed.look().batch, committed.next) == (-1, 0)
    for batch in range(2):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert (committed.look().batch, committed.next) == (1, 101)
    (tmp_path / "commits" / "0").unlink()  # as Spark removes old ones
    assert (Committed(tmp_path).look().batch, committed.next) == (1, 101)


def test_a_file_counts_where_the_sinks_log_has_it_first(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for number in range(12):
        files = range(number + 1) if number == 9 else (number,)
        lines = [json.dumps({"path": f"file:///table/{file}", "action": "add"}) for file in files]
        path = log / (f"{number}.compact" if number == 9 else str(number))
        path.write_text("\n".join(["v1", *lines]))
        os.utime(path, ns=(0, 1_000_000 * number))
    assert list(committed_files(tmp_path)) == [(Path(f"/table/{number}"), 1000.0 * number) for number in range(12)]
